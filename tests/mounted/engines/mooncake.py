# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Mooncake's offload: buckets written directly to their names with pwritev and
fdatasync, then metadata; usage by st_blocks; recovery by birth time; one file with fallocate and
records; a file that is unlinked while open."""
import os
from engines import *

s = store()
base = f"{s.mnt}/mooncake"
os.makedirs(base)
for b in range(3):
    fd = os.open(f"{base}/{b}.bucket", os.O_CLOEXEC | os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    parts = [blob((b, k).__repr__(), 256 * KiB) for k in range(8)]
    assert os.pwritev(fd, parts, 0) == 2 * MiB
    os.fdatasync(fd)
    os.close(fd)
    with open(f"{base}/{b}.meta", "wb") as f:
        f.write(b"meta%d" % b)
used = sum(os.stat(f"{base}/{n}").st_blocks * 512 for n in os.listdir(base))
assert 6 * MiB <= used < 7 * MiB, used
for i in range(4):
    d = f"{base}/file_per_key_dir/{'abcd'[i]}/p"
    os.makedirs(d)
    with open(f"{d}/key{i}", "wb") as f:
        f.write(blob(i, 65536))
birth = [run("stat", "-c", "%W", f"{base}/file_per_key_dir/{'abcd'[i]}/p/key{i}", ok=True).stdout
         for i in range(4)]
assert birth == sorted(birth)

fd = os.open(f"{base}/arena", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.posix_fallocate(fd, 0, 8 * MiB)
for k in range(16):
    assert os.pwrite(fd, blob(("r", k).__repr__(), 4096), k * 128 * KiB) == 4096
os.close(fd)
with open(f"{base}/arena.meta.tmp", "wb") as f:
    f.write(b"index")
    f.flush()
    os.fsync(f.fileno())
os.rename(f"{base}/arena.meta.tmp", f"{base}/arena.meta")
d = os.open(base, os.O_RDONLY)
os.fsync(d)
os.close(d)
fd = os.open(f"{base}/registration", os.O_RDWR | os.O_CREAT)
os.unlink(f"{base}/registration")
assert os.pwrite(fd, b"x" * 4096, 0) == 4096 and os.pread(fd, 4096, 0) == b"x" * 4096
os.close(fd)


def check():
    names = [os.path.join(f, n) for f, _, ns in os.walk(base) for n in ns]
    assert len(names) == 12, names
    for b in range(3):
        fd = os.open(f"{base}/{b}.bucket", os.O_RDONLY)
        for k in (3, 0, 7):
            assert os.pread(fd, 256 * KiB, k * 256 * KiB) == blob((b, k).__repr__(), 256 * KiB)
        os.close(fd)
        assert s.read(f"mooncake/{b}.meta") == b"meta%d" % b
    fd = os.open(f"{base}/arena", os.O_RDONLY)
    assert os.fstat(fd).st_size == 8 * MiB
    for k in range(16):
        assert os.pread(fd, 4096, k * 128 * KiB) == blob(("r", k).__repr__(), 4096)
    os.close(fd)
    assert s.read("mooncake/arena.meta") == b"index"


through_the_tiers(s, check)
