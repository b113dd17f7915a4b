# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Daemonising, mount(8) and fstab, SIGTERM, a stale mount after a kill, keep_pool, a second daemon,
and the removal of the pool."""
import os, pty, re, select, signal, subprocess, time
from kvtest import *

s = Store()
o = f"cpu=32M,run={TMP}/run"
kv = binary("kvcachefs")


def ended():
    wait_for(lambda: run("sh", "-c", f"pgrep -f 'kvcachef[s] .*{s.path}'").returncode != 0, 60)


# the parent returns once the mount answers
p = run(kv, s.path, s.mnt, "-o", o, ok=True)
assert os.path.ismount(s.mnt)
# one line says what was done, and how the mount is served
config = s.config()
served = config["served_by"].split()[0].replace("plain", "plain requests")
requests = config["requests_by"].split()[0]
assert p.stdout == f"mounted {s.path} on {s.mnt} ({served}, {requests})\n", p
pid = run("pgrep", "-f", f"kvcachef[s] {s.path} ", ok=True).stdout.strip()
s.write("m/c/l", blob(1, MiB))
# a second daemon on the store is refused and changes nothing
other = f"{TMP}/other"
os.mkdir(other)
p = run(kv, s.path, other, "-o", o, ok=False)
by = f"the store {s.path} is in use by kvcachefs (pid {pid}), which has it mounted on {s.mnt}"
assert p.stdout == f"kvcachefs: {by}; unmount it first\n" and not os.path.ismount(other), p
p = s.fsck("-n", ok=False)
assert p.returncode == 8 and by in p.stdout, p
p = run(binary("mkfs.kvcachefs"), "--force", "--size", "16M", s.path, ok=False)
assert by in p.stdout, p
# from another mount namespace, and from a container that sees no other processes
p = run("unshare", "--mount", "sh", "-c", f"umount {s.mnt}; {kv} {s.path} {other} -o {o}", ok=False)
assert f"{by} in another mount namespace" in p.stdout, p
p = run("unshare", "--mount", "--pid", "--fork", "--mount-proc", kv, s.path, other,
        "-o", o, ok=False)
assert f"{s.path} is in use: it is mounted on {s.mnt}; unmount it first" in p.stdout, p
p = run("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
        f"umount {s.mnt}; {kv} {s.path} {other} -o {o}", ok=False)
assert "in use by a process that is not visible here" in p.stdout, p
assert s.read("m/c/l") == blob(1, MiB)
run("umount", s.mnt, ok=True)
ended()
assert not os.listdir(f"{TMP}/run"), "the pool is still there"
s.fsck("-n")

# mount(8)
dest = "/sbin/mount.kvcachefs"
link = not os.path.lexists(dest)
if link:
    os.symlink(binary("mount.kvcachefs"), dest)
try:
    run("mount", "-t", "kvcachefs", s.path, s.mnt, "-o", o + ",nosuid,nodev,noatime", ok=True)
finally:
    if link:
        os.unlink(dest)
assert s.read("m/c/l") == blob(1, MiB)
run("umount", s.mnt, ok=True)
ended()

# SIGTERM finishes queued work
s.mount("settle=5000,cpu=32M")
for i in range(8):
    s.write(f"m/t{i}/l", blob(i, MiB))
time.sleep(0.1)
s.term()
assert not os.path.ismount(s.mnt)
s.fsck("-n")
s.mount()
assert all(s.read(f"m/t{i}/l") == blob(i, MiB) for i in range(8))

# killed: the stale mount is detached by the next one
s.write("m/k/l", blob(77, MiB))
s.committed()
s.kill()
with fails(errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED):
    os.statvfs(s.mnt)
run(kv, s.path, s.mnt, "-o", o, ok=True)
assert s.read("m/k/l") == blob(77, MiB)
run("umount", s.mnt, ok=True)
ended()

# keep_pool: warm after an unmount, with another size too
s.mount("keep_pool")
s.write("m/warm/l", blob(5, MiB))
s.settle()
s.umount()
assert os.listdir(f"{TMP}/run")
s.mount("keep_pool", cpu="48M")
assert s.stats()["recovered"] >= 1 and s.attr("m/warm/l", "state") == "resident+lower" \
    and s.config()["pool_warm"] == "yes"
before = s.stats()["loads"]
assert s.read("m/warm/l") == blob(5, MiB) and s.stats()["loads"] == before
s.umount()
s.mount()
s.umount()
assert not os.listdir(f"{TMP}/run")

# a cpu= below the pool's contents, after an unmount and a kill: nothing enters the pool until the
# excess is evicted, and then the tmpfs has the new limit
sizes = "high=100,low=90,settle=0,keep_pool"
for end in (s.umount, s.kill):
    s.mount(sizes)
    for i in range(50):
        s.write(f"m/less{i}/l", blob(i, MiB))
    s.settle()
    s.committed()
    there = s.stats()["pool_used_bytes"]
    assert there > 40 * MiB
    end()
    s.mount(sizes, cpu="24M")
    c, v = s.config(), os.statvfs(s.config()["pool"])
    assert v.f_blocks * v.f_frsize <= there + 2 * MiB and c["pool_noswap"] == "yes", (v, c)
    wait_for(lambda: os.statvfs(c["pool"]).f_blocks * v.f_frsize == 24 * MiB)
    assert s.stats()["pool_used_bytes"] <= 24 * MiB
    for i in range(50):
        assert s.read(f"m/less{i}/l") == blob(i, MiB)
        os.unlink(f"{s.mnt}/m/less{i}/l")
    s.umount()
s.mount()
s.umount()

# a mount directly after an umount waits while the ending daemon copies files to the disk, and
# nothing is written to the folder below the mount
slow = o + ",settle=0,shim=delay-put:30"
run(kv, s.path, s.mnt, "-o", slow, ok=True)
for turn in range(12):
    for i in range(6):
        s.write(f"m/again{i}/l", blob(turn * 10 + i, MiB))
    wait_for(lambda: s.stats()["files_open"] == 0)
    p = run("sh", "-c", f"umount {s.mnt} && {kv} {s.path} {s.mnt} -o {slow}", ok=True)
    assert os.path.ismount(s.mnt) and all(s.read(f"m/again{i}/l") == blob(turn * 10 + i, MiB)
                                          for i in range(6)), (turn, p.stdout)
    wait_for(lambda: s.stats()["files_open"] == 0)
# if two mounts wait, one succeeds; SIGTERM while mounted, and another mount point
for turn in range(4):
    for i in range(6):
        s.write(f"m/two{i}/l", blob(turn * 10 + i, MiB))
    wait_for(lambda: s.stats()["files_open"] == 0)
    if turn % 2:
        run("sh", "-c", f"pkill -TERM -f 'kvcachef[s] {s.path} '", ok=True)
        wait_for(lambda: not os.path.ismount(s.mnt))
    else:
        run("umount", s.mnt, ok=True)
    pair = [subprocess.Popen([kv, s.path, m, "-o", slow], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True) for m in (s.mnt, other)]
    said = [p.communicate()[0] for p in pair]
    codes = [p.returncode for p in pair]
    assert sorted(codes) == [0, 1], (codes, said)
    there = (s.mnt, other)[codes.index(0)]
    assert re.search(r"in use by kvcachefs \(pid \d+\), which has it mounted on "
                     + re.escape(there), said[codes.index(1)]), said
    for i in range(6):
        with open(f"{there}/m/two{i}/l", "rb") as f:
            assert f.read() == blob(turn * 10 + i, MiB)
    time.sleep(0.1)
    if there == other:
        run("sh", "-c", f"umount {other} && {kv} {s.path} {s.mnt} -o {slow}", ok=True)
# fsck waits too; and a daemon that is killed while it ends delays no other
for i in range(6):
    s.write(f"m/two{i}/l", blob(i, MiB))
wait_for(lambda: s.stats()["files_open"] == 0)
run("umount", s.mnt, ok=True)
s.fsck("-n")
run(kv, s.path, s.mnt, "-o", slow.replace(":30", ":3000"), ok=True)
for i in range(6):
    s.write(f"m/two{i}/l", blob(100 + i, MiB))
wait_for(lambda: s.stats()["files_open"] == 0)
run("umount", s.mnt, ok=True)
waiting = subprocess.Popen([kv, s.path, s.mnt, "-o", o], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
wait_for(lambda: select.select([waiting.stdout], [], [], 1)[0])
assert "waiting for another process that uses the store" in waiting.stdout.readline()
run("sh", "-c", f"pgrep -f 'kvcachef[s] {s.path} {s.mnt} .*3000' | xargs kill -KILL", ok=True)
assert waiting.wait(HANG) == 0 and os.path.ismount(s.mnt)
assert all(s.read(f"m/two{i}/l") == blob(100 + i, MiB) for i in range(6))
run("umount", s.mnt, ok=True)
ended()
assert not os.listdir(s.mnt) and not os.listdir(other)

# uid=, gid= and mode= let an unprivileged user store, and persist
def as_nobody(what):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.chdir(s.mnt)  # only root can enter the folders above
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            code = what()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def store_and_load():
    try:
        os.makedirs("mine/c")
        with open("mine/c/l", "wb") as f:
            f.write(blob(3, 300000))
        os.rename("mine/c/l", "mine/c/renamed")
        with open("mine/c/renamed", "rb") as f:
            return 0 if f.read() == blob(3, 300000) else 2
    except PermissionError:
        return 13


s.mount("allow_other")
before = os.stat(s.mnt)
assert as_nobody(store_and_load) == 13 and (before.st_uid, before.st_gid,
                                            before.st_mode & 0o7777) == (0, 0, 0o755)
s.umount()
s.mount("allow_other,uid=65534,gid=1234,mode=2750")
st = os.stat(s.mnt)
assert (st.st_uid, st.st_gid, st.st_mode & 0o7777) == (65534, 1234, 0o2750) \
    and s.config()["mode"] == "2750" and s.config()["uid"] == "65534"
assert as_nobody(store_and_load) == 0
assert os.stat(f"{s.mnt}/mine").st_uid == 65534 and os.stat(f"{s.mnt}/mine").st_gid == 1234
s.umount()
s.mount("allow_other,uid=0,mode=1777")
st = os.stat(s.mnt)
assert (st.st_uid, st.st_gid, st.st_mode & 0o7777) == (0, 1234, 0o1777)
assert as_nobody(lambda: os.mkdir("another") or 0) == 0
s.committed()
s.kill()
s.mount("allow_other")
st2 = os.stat(s.mnt)
assert (st2.st_uid, st2.st_gid, st2.st_mode) == (st.st_uid, st.st_gid, st.st_mode)
assert s.config()["mode"] == "", (s.config(), s.log()[-2000:])
s.umount()
s.fsck("-n")

# ro
s.mount("ro")
with fails(errno.EROFS):
    s.write("m/no", b"")
assert s.read("m/warm/l") == blob(5, MiB)
s.umount()

# a forced unmount with open files and loads in progress: the daemon ends, the store is sound
s.mount("settle=0,shim=delay-get:200")
for i in range(40):
    s.write(f"m/f{i}/l", blob(i, MiB))
s.settle()
s.umount()
s.mount("shim=delay-get:200")
kids = []
for i in range(8):
    pid = os.fork()
    if not pid:
        try:
            s.read(f"m/f{i}/l")
        except OSError:
            pass
        os._exit(0)
    kids.append(pid)
time.sleep(0.1)
run("umount", "-f", s.mnt)
run("umount", "-l", s.mnt)
[os.waitpid(p, 0) for p in kids]
s.ended()
s.fsck("-n")

# in the foreground of a terminal: it ends with the terminal
pid, terminal = pty.fork()
if not pid:
    os.execv(binary("kvcachefs"),
             ["kvcachefs", s.path, s.mnt, "-f", "-o", f"cpu=32M,run={TMP}/run"])
wait_for(lambda: os.path.ismount(s.mnt))
with open(f"{s.mnt}/terminal", "wb") as f:
    f.write(b"x" * 5000)
os.close(terminal)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and not os.path.ismount(s.mnt)
s.fsck("-n")

# as nohup(1) starts it: SIGTERM ends it all the same
was = signal.signal(signal.SIGHUP, signal.SIG_IGN)
s.mount()
s.write("m/hup", b"x" * 5000)
s.term()
signal.signal(signal.SIGHUP, was)
s.mount()
assert s.read("m/hup") == b"x" * 5000
s.umount()
