# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""fallocate on a file that was preallocated at its creation: sizes, zeros, existing bytes, and
pages for the whole range, within the preallocation, beyond it, and after a hole or a truncate
removed a part of it. A file that turns out small keeps only the pages that it needs. The size that
is prepared is the largest of the last 57 to 64 files of the model."""
import ctypes, os
from kvtest import *

KEEP, PUNCH, ZERO = 1, 2, 16
libc = ctypes.CDLL(None, use_errno=True)
USUAL = 8 * MiB
SIZES = (0, 1, 4096, 4097, 2 * MiB - 1, 2 * MiB, 2 * MiB + 1, 4 * MiB + 5, USUAL - 1, USUAL,
         USUAL + 1)


def fallocate(fd, mode, off, n):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(n)):
        raise OSError(ctypes.get_errno(), "fallocate")


def pages(fd):
    return os.fstat(fd).st_blocks * 512


def expect(fd, want):
    """Size and bytes; want is the contents without the trailing zeros."""
    size = os.fstat(fd).st_size
    assert os.pread(fd, size, 0) == want + bytes(size - len(want))


s = Store(options="settle=0").mount()
for i in range(3):  # from then on new files of the model are preallocated with this size
    s.write(f"m/c{i}/l", blob(i, USUAL))
s.settle()
body = blob("body", MiB)
for first in (0, KEEP):
    fd = os.open(f"{s.mnt}/m/new{first}", os.O_RDWR | os.O_CREAT, 0o600)
    fallocate(fd, first, 0, 3 * MiB)
    assert os.fstat(fd).st_size == (0 if first else 3 * MiB) and pages(fd) >= 3 * MiB
    expect(fd, b"")
    os.pwrite(fd, body, MiB)
    had = bytes(MiB) + body
    fallocate(fd, KEEP, MiB + 5, 4 * MiB)
    assert os.fstat(fd).st_size == (2 if first else 3) * MiB
    expect(fd, had)
    fallocate(fd, 0, 5000, 5 * MiB)  # written data stays
    assert os.fstat(fd).st_size == 5 * MiB + 5000
    expect(fd, had)
    fallocate(fd, 0, 7 * MiB, 4 * MiB)  # across the end of the preallocation
    assert os.fstat(fd).st_size == 11 * MiB and pages(fd) >= 8 * MiB
    expect(fd, had)
    fallocate(fd, PUNCH | KEEP, 2 * MiB, 5 * MiB)
    fallocate(fd, 0, 0, 11 * MiB)
    assert pages(fd) >= 11 * MiB, pages(fd)
    expect(fd, had)
    fallocate(fd, ZERO, MiB, MiB)
    expect(fd, b"")
    os.pwrite(fd, body, 6 * MiB)
    os.ftruncate(fd, 6 * MiB + 100)
    fallocate(fd, 0, 0, 9 * MiB)  # truncated data does not return
    assert os.fstat(fd).st_size == 9 * MiB and pages(fd) >= 9 * MiB
    expect(fd, bytes(6 * MiB) + body[:100])
    os.close(fd)
    assert s.read(f"m/new{first}") == bytes(6 * MiB) + body[:100] + bytes(3 * MiB - 100)

# small files among large ones: no unused preallocation remains, whatever the size
for n in SIZES:
    s.write(f"m/small/{n}", blob(n, n))
s.settle()
for n in SIZES:
    assert s.read(f"m/small/{n}") == blob(n, n)
    # a huge page at its end may stay whole
    assert stored(f"{s.mnt}/m/small/{n}") <= (n + 2 * MiB if n > MiB else 65536), n

# one large file among many small ones is not forgotten: the next file has its size prepared
s.write("n/large", blob("large", 3 * MiB))
for i in range(20):
    s.write(f"n/small{i}", blob(i, 4096))
used = s.stats()["pool_used_bytes"]
fd = os.open(f"{s.mnt}/n/next", os.O_WRONLY | os.O_CREAT, 0o600)
if WAY != "plain":
    assert s.stats()["pool_used_bytes"] >= used + 3 * MiB, "nothing was prepared"
os.close(fd)
s.umount()
s.fsck("-n")
