# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""SGLang: HiCacheFile with its temporary names and its evictor by mtime; fast_file
with readv and writev; NIXL's O_DIRECT writes in place without a rename, and its cleaner."""
import os, threading, uuid
from engines import *

s = store()
base = f"{s.mnt}/hicache"
os.makedirs(base)
key = lambda i: f"{i:064x}_Qwen-Qwen3-8B_0_1"
for i in range(8):
    assert not os.path.exists(f"{base}/{key(i)}.bin")
    tmp = f"{base}/{key(i)}.bin.tmp.{os.getpid()}.{threading.get_native_id()}.{uuid.uuid4()}"
    with open(tmp, "wb") as f:
        f.write(blob(i, 256 * KiB))
    os.replace(tmp, f"{base}/{key(i)}.bin")
    os.utime(f"{base}/{key(i)}.bin", ns=(i * 10**9, i * 10**9))
with os.scandir(base) as it:
    assert sorted(e.name for e in it if e.is_file()) == sorted(f"{key(i)}.bin" for i in range(8))
oldest = sorted(os.listdir(base), key=lambda n: os.stat(f"{base}/{n}").st_mtime)[:2]
assert oldest == [f"{key(0)}.bin", f"{key(1)}.bin"] and os.statvfs(base).f_bavail > 0
for n in oldest:
    os.remove(f"{base}/{n}")

fast = f"{s.mnt}/namespace-{'0a' * 12}"
os.makedirs(fast)
tmp = f"{fast}/page.tmp"
fd = os.open(tmp, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
assert os.writev(fd, [blob(100, 65536), blob(101, 65536)]) == 131072
assert os.fstat(fd).st_size == 131072
os.close(fd)
os.replace(tmp, f"{fast}/page")

nixl = f"{s.mnt}/nixl/3f"
os.makedirs(nixl)
for turn in (1, 2):  # the second overwrites in place
    fd = os.open(f"{nixl}/page_k", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    for at in (8192, 0, 4096):
        assert os.pwrite(fd, aligned(blob((turn, at).__repr__(), 4096)), at) == 4096
    os.close(fd)


def check():
    for i in range(2, 8):
        b = bytearray(256 * KiB)
        with open(f"{base}/{key(i)}.bin", "rb", buffering=0) as f:
            assert f.readinto(b) == len(b)
        assert b == blob(i, 256 * KiB) and os.stat(f"{base}/{key(i)}.bin").st_mtime_ns == i * 10**9
    fd = os.open(f"{fast}/page", os.O_RDONLY)
    a, b = bytearray(65536), bytearray(65536)
    assert os.path.getsize(f"{fast}/page") == 131072 and os.readv(fd, [a, b]) == 131072
    assert a == blob(100, 65536) and b == blob(101, 65536)
    os.close(fd)
    want = b"".join(blob((2, at).__repr__(), 4096) for at in (0, 4096, 8192))
    assert s.read("nixl/3f/page_k") == want


through_the_tiers(s, check)
s.mount()
for n in os.listdir(base):  # clear()
    os.remove(f"{base}/{n}")
assert os.listdir(base) == []
s.umount()
