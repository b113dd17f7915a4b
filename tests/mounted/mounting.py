# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Daemonising, mount(8) and fstab's way, SIGTERM, a stale mount after a kill, keep_pool, a second daemon, the pool's end."""
import os, signal, time
from kvtest import *

s = Store()
o = f"cpu=32M,run={TMP}/run"
kv = binary("kvcachefs")


def ended():
    wait_for(lambda: run("sh", "-c", f"pgrep -f 'kvcachef[s] .*{s.path}'").returncode != 0, 60)


# the parent returns once the mount answers
run(kv, s.path, s.mnt, "-o", o, ok=True)
assert os.path.ismount(s.mnt)
s.write("m/c/l", blob(1, MiB))
# a second daemon on the store is refused and changes nothing
other = f"{TMP}/other"
os.mkdir(other)
p = run(kv, s.path, other, "-o", o, ok=False)
assert "in use" in p.stdout and p.stdout.count("\n") == 1 and not os.path.ismount(other)
p = s.fsck("-n", ok=False)
assert p.returncode == 8 and "in use" in p.stdout
p = run(binary("mkfs.kvcachefs"), "--force", "--size", "16M", s.path, ok=False)
assert "mounted" in p.stdout
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

# SIGTERM finishes what is queued
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
time.sleep(0.2)
s.kill()
with fails(errno.ENOTCONN, errno.ECONNABORTED):
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
assert s.stats()["recovered"] >= 1 and s.attr("m/warm/l", "state") == "resident+lower" and s.config()["pool_warm"] == "yes"
before = s.stats()["loads"]
assert s.read("m/warm/l") == blob(5, MiB) and s.stats()["loads"] == before
s.umount()
s.mount()
s.umount()
assert not os.listdir(f"{TMP}/run")

# ro
s.mount("ro")
with fails(errno.EROFS):
    s.write("m/no", b"")
assert s.read("m/warm/l") == blob(5, MiB)
s.umount()

# forced off with files open and loads under way: the daemon ends, the store is sound
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
