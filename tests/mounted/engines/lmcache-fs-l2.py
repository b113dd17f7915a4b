# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""LMCache's fs L2 adapters: exists, write, replace; and the native adapter with
O_EXCL, an appended trailer, fsync, link to publish, fsync of the folder, and scandir at the start.
"""
import os
from engines import *

s = store()
base = f"{s.mnt}/l2"
os.makedirs(base)
name = lambda i: f"Qwen-SEP-Qwen3-8B@0x01000100@0@{i:064x}.data"
for i in range(6):
    assert not os.path.exists(f"{base}/{name(i)}")
    with open(f"{base}/{name(i)}.tmp", "wb") as f:
        f.write(blob(i, MiB))
    os.replace(f"{base}/{name(i)}.tmp", f"{base}/{name(i)}")
for i in range(6, 10):
    for attempt in range(2):  # the second finds that it lost the race
        tmp = f"{base}/{name(i)}.tmp.{os.getpid()}.{attempt}"
        fd = os.open(tmp, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o644)
        assert os.write(fd, aligned(blob(i, MiB))) == MiB
        os.close(fd)
        fd = os.open(tmp, os.O_WRONLY | os.O_APPEND)
        assert os.write(fd, b"T" * 16) == 16
        os.fsync(fd)
        os.close(fd)
        try:
            os.link(tmp, f"{base}/{name(i)}")
            assert attempt == 0
        except FileExistsError:
            assert attempt == 1
        os.unlink(tmp)
    d = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(d)
    os.close(d)


def check():
    with os.scandir(base) as it:
        sizes = {e.name: e.stat(follow_symlinks=False).st_size for e in it}
    assert sizes == {name(i): MiB + (16 if i >= 6 else 0) for i in range(10)}, sizes
    for i in range(10):
        data = bytearray()
        fd = os.open(f"{base}/{name(i)}", os.O_RDONLY)
        while piece := os.read(fd, 300000):
            data += piece
        os.close(fd)
        assert data == blob(i, MiB) + (b"T" * 16 if i >= 6 else b"")
        assert os.stat(f"{base}/{name(i)}").st_nlink == 1


through_the_tiers(s, check)
