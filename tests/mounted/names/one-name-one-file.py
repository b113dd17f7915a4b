# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""One name is one file. If a folder was dropped and created again, and a process still has the old
folder open, the kernel sees two folders. Creates through both at the same time, while the pool is
slow, are serialized: only one create with O_EXCL succeeds, and no file loses its name."""
import errno, os, threading, time
from kvtest import *
import faults

DELAY = 300
s = Store(options=f"settle=0,{PATIENT}")
r = faults.Rules(f"calls=open path=*/w-* nth={faults.FAR} count={faults.FAR} do=delay:{DELAY}")
r.mount(s)
for round, flags in enumerate((os.O_EXCL, 0, os.O_EXCL, 0)):
    folder = f"{s.mnt}/m/c{round}"
    os.makedirs(folder)
    os.setxattr(folder, "user.kvcachefs.unit", b"dir")
    s.write(f"m/c{round}/0", b"x")
    s.settle()
    old = os.open(folder, os.O_DIRECTORY)
    os.setxattr(folder, "user.kvcachefs.demote", b"all")
    wait_for(lambda: not os.path.exists(folder))
    os.mkdir(folder)
    new = os.open(folder, os.O_DIRECTORY)
    got, before = {}, r.fired()[0]
    if round == 0:
        r.begin()

    def create(who, at):
        try:
            got[who] = os.open("x", os.O_CREAT | os.O_RDWR | flags, 0o600, dir_fd=at)
        except OSError as e:
            got[who] = -e.errno

    threads = [threading.Thread(target=create, args=a) for a in (("old", old), ("new", new))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert r.fired()[0] > before
    fds = {who: fd for who, fd in got.items() if fd >= 0}
    assert len(fds) == (1 if flags else 2), got
    assert not flags or min(got.values()) == -errno.EEXIST, got
    assert len({os.fstat(fd).st_ino for fd in fds.values()}) == 1, "two files of one name"
    for who, fd in fds.items():
        os.write(fd, who.encode())
        os.close(fd)
    assert s.read(f"m/c{round}/x") in (b"old", b"new")
    os.close(old)
    os.close(new)
r.heal()
s.umount()
s.fsck("-n")
print("ok")
