# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The syncs of all devices of a store fail. No fsync of a file and no flush succeeds, also when the
devices are suspended and no sync is tried; an fsync of a folder does not need them. An unmount
names the devices in the log, and keeps the pool: the next mount has all files, and puts them on
stable storage."""
import os
from faults import FAR, Rules
from kvtest import *

CTL = binary("kvcachectl")
PARTS = [f"{TMP}/part{i}" for i in range(2)]
FILES = [f"m/c{i}/l" for i in range(6)]
s = Store("s", make=False, options="settle=0")
run(binary("mkfs.kvcachefs"), "--size", "48M", *(w for f in PARTS for w in ("--file", f)), s.path,
    ok=True)
rules = Rules(f"calls=sync path={TMP}/part* nth={FAR} count={FAR} do=EIO")
rules.mount(s)
for f in FILES:
    s.write(f, blob(f, 300000))
s.settle()
rules.begin()


def fsync(path):
    fd = os.open(f"{s.mnt}/{path}", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


for i in range(3):
    for path in FILES:
        with fails(errno.EIO):
            fsync(path)
    fsync("m")
p = run(CTL, "flush", s.mnt)
assert p.returncode == 1, p
pool = s.config()["pool"]
s.umount()
for part in PARTS:
    assert f"the device {part} could not be synced" in s.log(), s.log()
assert f"the pool {pool} stays in memory" in s.log() and os.path.exists(pool), s.log()
s.mount()
for f in FILES:
    assert s.read(f) == blob(f, 300000)
run(CTL, "flush", s.mnt, ok=True)
s.umount()
assert not os.path.exists(pool), s.log()
s.mount()
for f in FILES:
    assert s.read(f) == blob(f, 300000)
s.umount()
s.fsck("-n", "--data")
