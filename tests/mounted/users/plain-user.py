# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""An ordinary user without capabilities runs mkfs, mounts with fusermount3 with the pool in a tmpfs
folder, stores, loads, uses kvcachectl, mounts again after a kill, sends SIGTERM, unmounts and runs
fsck. Operations that this user may not do are refused with one line that says how to fix it.
.kvcachefs/config shows the serving mode."""
import os, shutil, sys
from kvtest import *

need_mount()
if not os.path.exists("/usr/bin/fusermount3"):
    skip("needs fusermount3")
apart()

# a folder that an ordinary user can reach
TOP = "/mnt"
run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", TOP, ok=True)
os.makedirs(f"{TMP}/his/mnt")
for folder, source in (("his", f"{TMP}/his"), ("bin", f"{BUILD}/bin")):
    os.mkdir(f"{TOP}/{folder}")
    run("mount", "--bind", source, f"{TOP}/{folder}", ok=True)
run("chown", "-R", "65534:65534", f"{TMP}/his", ok=True)
os.mkdir(f"{TOP}/shm")
run("mount", "-t", "tmpfs", "-o", "mode=1777,size=96M", "tmpfs", f"{TOP}/shm", ok=True)
os.mknod(f"{TMP}/fuse", 0o20600, os.makedev(10, 229))
run("mount", "--bind", f"{TMP}/fuse", "/dev/fuse", ok=True)
store, mnt, shm = f"{TOP}/his/store", f"{TOP}/his/mnt", f"{TOP}/shm/pools"
plain = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]
kv = f"{TOP}/bin/kvcachefs"
options = f"cpu=32M,{PATIENT},run={shm}"


def as_user(*command, by=plain, **more):
    return run(*by, *command, **more)


def refused(says, more="", at=mnt, by=plain, o=options, **env):
    p = as_user(kv, store, at, "-o", o + more, by=by, env=dict(os.environ, **env))
    lines = [l for l in p.stdout.splitlines() if says in l]
    assert p.returncode == 1 and lines and p.stdout.count("\n") == 1, (says, p.stdout)
    assert not is_mounted(at) and not pools(), p.stdout


def is_mounted(at):  # without allow_other root has no access to the mount
    with open("/proc/self/mounts") as f:
        return any(l.split()[1] == at for l in f)


def pools():
    return os.listdir(shm) if os.path.exists(shm) else []


def daemons():
    return run("pgrep", "-xf", f"{kv} {store} .*").stdout.split()


def mounted(more="", at=mnt):
    p = as_user(kv, store, at, "-o", options + more, ok=True)
    assert is_mounted(at), p.stdout
    return dict(l.split("=", 1)
                for l in as_user("cat", f"{at}/.kvcachefs/config", ok=True).stdout.splitlines())


as_user(f"{TOP}/bin/mkfs.kvcachefs", "--size", "64M", store, ok=True)
# refusals, before anything is touched
refused("chmod 666 /dev/fuse")
os.chmod(f"{TMP}/fuse", 0o666)
refused("give run= a folder of your own on a tmpfs", o=f"cpu=32M,run={TOP}/no")
refused("give run= a folder of your own on a tmpfs", o=f"cpu=32M,run={TOP}/his/run")
assert not os.path.exists(f"{TOP}/his/run")
refused("more than the tmpfs at", ",cpu=128M")
refused("a folder that you own", at="/usr")
refused("no_new_privs is set", by=plain + ["--no-new-privs"])
refused("the process lacks CAP_SYS_ADMIN", by=plain + ["--bounding-set=-sys_admin"])
refused("the process lacks CAP_SYS_ADMIN", by=["setpriv", "--bounding-set=-sys_admin"])
conf = f"{TMP}/fuse.conf"
open("/etc/fuse.conf", "a").close()
for text in ("# user_allow_other\n", "user_allow_others\n", ""):
    with open(conf, "w") as f:
        f.write(text)
    run("mount", "--bind", conf, "/etc/fuse.conf", ok=True)
    refused("the line user_allow_other", ",allow_other")
    run("umount", "/etc/fuse.conf", ok=True)
run("mount", "--bind", "/dev/null", "/usr/bin/fusermount3", ok=True)
refused("apt-get install fuse3", PATH="/nonexistent:/usr/bin:")
run("umount", "/usr/bin/fusermount3", ok=True)

# the mount works, by plain requests, and config says so and why
config = mounted()
assert config["served_by"] == "plain requests" and config["pool_is"] == "a folder", config
assert config["passthrough_is_off"] == "it requires root (CAP_SYS_ADMIN)", config
assert ("io_uring_is_off" in config) == (config["requests_by"] != "io_uring"), config
assert len(pools()) == 1 and os.stat(f"{shm}/{pools()[0]}").st_mode & 0o7777 == 0o700
as_user("sh", "-c", f"mkdir -p {mnt}/m/c && seq 200000 >{mnt}/m/c/l", ok=True)
same = ("sh", "-c", f"seq 200000 | cmp - {mnt}/m/c/l")
as_user(*same, ok=True)
as_user("cat", f"/proc/{daemons()[0]}/maps", ok=True)
ctl = f"{TOP}/bin/kvcachectl"
assert "plain requests" in as_user(ctl, "status", mnt, ok=True).stdout
for command in (("flush", mnt), ("pin", "--for", "60", f"{mnt}/m/c"), ("unpin", f"{mnt}/m/c"),
                ("quota", "--yes", "32M", f"{mnt}/m"), ("stat", f"{mnt}/m/c/l"), ("pools",)):
    as_user(ctl, *command, ok=True)
p = as_user(f"{TOP}/bin/fsck.kvcachefs", "-n", store)
assert p.returncode == 8 and "in use" in p.stdout, p.stdout
# a kill leaves a dead mount, which the next mount detaches by means of fusermount3
run("kill", "-KILL", *daemons(), ok=True)
wait_for(lambda: not daemons())
mounted()
as_user(*same, ok=True)
# SIGTERM unmounts
as_user("kill", "-TERM", *daemons(), ok=True)
wait_for(lambda: not daemons())
assert not is_mounted(mnt) and not pools()
as_user(f"{TOP}/bin/fsck.kvcachefs", "-n", store, ok=True)
# a refused mount leaves the pool as it was, with the only copies in it
plainly, store = store, f"{TOP}/his/sealed"
sealed = f",write=back,settle=60000,keyfile={TOP}/his/key"
as_user(f"{TOP}/bin/mkfs.kvcachefs", "--size", "64M", store, ok=True)
as_user(ctl, "newkey", f"{TOP}/his/key", ok=True)
mounted(sealed)
as_user("sh", "-c", f"mkdir -p {mnt}/m/c && seq 200000 >{mnt}/m/c/l && sync {mnt}/m/c", ok=True)
run("kill", "-KILL", *daemons(), ok=True)
wait_for(lambda: not daemons())
left = sorted(os.listdir(f"{shm}/{pools()[0]}"))
p = as_user(kv, store, mnt, "-o", options)
assert p.returncode == 1 and "the store is encrypted" in p.stdout, p.stdout
assert sorted(os.listdir(f"{shm}/{pools()[0]}")) == left and len(left) > 1, left
mounted(sealed)
as_user(*same, ok=True)
# the user cannot inspect their own daemon if it has keys, but can if it has none
p = as_user("cat", f"/proc/{daemons()[0]}/maps")
assert p.returncode == 1 and "Permission denied" in p.stdout, p.stdout[-200:]
as_user("kill", "-TERM", *daemons(), ok=True)
wait_for(lambda: not daemons())
store = plainly
# with allow_other, if the machine allows it
with open(conf, "w") as f:
    f.write("# said\n  user_allow_other \n")
run("mount", "--bind", conf, "/etc/fuse.conf", ok=True)
mounted(",allow_other,passthrough=on")
run(*same, ok=True)
as_user("fusermount3", "-u", mnt, ok=True)
wait_for(lambda: not daemons())
assert not pools()

# root of a user namespace mounts without fusermount3, but passthrough requires root of the machine
inner = ["unshare", "--user", "--map-root-user", "--mount"]
if run(*inner, "true").returncode == 0:
    run("chown", "-R", "0:0", f"{TMP}/his", ok=True)
    script = f"{kv} {store} {mnt} -o {options}2 && cat {mnt}/.kvcachefs/config; umount {mnt}"
    out = run(*inner, "sh", "-c", script, ok=True).stdout
    assert ("served_by=plain requests\n"
            "passthrough_is_off=it requires root of the machine") in out, out
    wait_for(lambda: not daemons())
