# SPDX-License-Identifier: Apache-2.0
# ways: fast plain passthrough
"""LMCache's GdsBackend, POSIX path: header, ftruncate, a shared writable mapping,
rename, a metadata file, loads by a populated private mapping, scandir of two levels, O_NOATIME."""
import os, struct
from engines import *

s = store()
base = f"{s.mnt}/gds"
SIZE = 2 * MiB
path = lambda i: f"{base}/{i % 3:02x}/{i % 5:02x}/" \
    f"Qwen%2FQwen3-8B%401%400%40{i:x}.kvcache.safetensors"
for i in range(8):
    os.makedirs(os.path.dirname(path(i)), exist_ok=True)
    tmp = path(i) + f".tmp{i:08x}"
    with open(tmp, "wb") as f:
        f.write(struct.pack("<Q", 4088) + b"{}".ljust(4088))
    fd = os.open(tmp, os.O_RDWR)
    os.ftruncate(fd, 4096 + SIZE)
    m = mmap.mmap(fd, 4096 + SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    m[4096:] = blob(i, SIZE)
    m.close()
    os.close(fd)
    os.rename(tmp, path(i))
    with open(path(i) + ".metadata.tmp", "wb") as f:
        f.write(b"m" * 4096)
    os.rename(path(i) + ".metadata.tmp", path(i) + ".metadata")


def check():
    found = 0
    for a in os.scandir(base):
        for b in os.scandir(a.path):
            for e in os.scandir(b.path):
                if e.name.endswith(".metadata"):
                    fd = os.open(e.path, os.O_RDONLY | os.O_NOATIME)
                    assert os.read(fd, 8192) == b"m" * 4096
                    os.close(fd)
                    found += 1
    assert found == 8
    for i in range(8):
        assert os.path.exists(path(i) + ".metadata")
        fd = os.open(path(i), os.O_RDONLY)
        n = os.fstat(fd).st_size
        m = mmap.mmap(fd, n, mmap.MAP_PRIVATE | mmap.MAP_POPULATE, mmap.PROT_READ)
        os.close(fd)
        assert n == 4096 + SIZE and m[:8] == struct.pack("<Q", 4088) and m[4096:] == blob(i, SIZE)
        m.close()


assert any(l.split()[1] == s.mnt and l.split()[2] == "fuse.kvcachefs" for l in open("/proc/mounts"))
through_the_tiers(s, check)
