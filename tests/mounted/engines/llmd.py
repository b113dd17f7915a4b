# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""llm-d: atime updated by utimensat with UTIME_OMIT, buffered writes to a temporary
name and a rename, reads of the tail, and the evictor that selects by atime and uses rm -f and rmdir
of empty folders."""
import os, time
from engines import *

s = store()
root = f"{s.mnt}/llmd_r0"
path = lambda i: f"{root}/{i % 4:03x}/{i % 2:02x}_g0/{i:064x}.bin"
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2


class T(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("n", ctypes.c_long)]


def touch(p):
    assert libc.utimensat(-100, p.encode(), (T * 2)(T(0, NOW), T(0, OMIT)), 0) == 0


for i in range(10):
    assert not os.path.exists(path(i))
    os.makedirs(os.path.dirname(path(i)), exist_ok=True)
    tmp = f"{path(i)}_{i}.tmp"
    with open(tmp, "wb", buffering=MiB) as f:
        for k in range(8):
            f.write(blob((i, k).__repr__(), 256 * KiB))
    os.rename(tmp, path(i))
for i in range(5):
    before = os.stat(path(i))
    time.sleep(0.01)
    touch(path(i))
    after = os.stat(path(i))
    assert after.st_atime_ns > before.st_atime_ns and after.st_mtime_ns == before.st_mtime_ns


def check():
    for i in range(10):
        with open(path(i), "rb") as f:
            f.seek(0, 2)
            assert f.tell() == 2 * MiB
            f.seek(2 * MiB - 256 * KiB)
            assert f.read() == blob((i, 7).__repr__(), 256 * KiB)
            f.seek(0)
            assert f.read(256 * KiB) == blob((i, 0).__repr__(), 256 * KiB)


through_the_tiers(s, check)
s.mount()
for i in range(10):
    os.utime(path(i), (i < 5 and time.time() - 7200 or time.time(), os.stat(path(i)).st_mtime))
old = [e for e in (path(i) for i in range(10)) if os.stat(e).st_atime < time.time() - 3600]
assert len(old) == 5
run("rm", "-f", *old, ok=True)
for folder, dirs, files in os.walk(root, topdown=False):
    if not os.listdir(folder):
        os.rmdir(folder)
assert sum(len(f) for _, _, f in os.walk(root)) == 5
s.umount()
s.fsck("-n")
