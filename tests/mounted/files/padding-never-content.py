# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A frame's checksum covers the bytes of the file, and not the rest of the last page in the tier.
Those padding bytes never become file contents: not for a mapping of the page, and not when the file
grows."""
import ctypes, mmap, os, sqlite3
from kvtest import *

SIZE, PAGE = 300005, mmap.PAGESIZE
END = (SIZE + PAGE - 1) // PAGE * PAGE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(fd):
    """All of its pages; Python maps no more than the size."""
    at = libc.mmap(None, END, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    got = ctypes.string_at(at, END)
    libc.munmap(at, END)
    return got


s = Store(cpu="32M", options="settle=0,unit=file").mount()
wanted = {f"m/{i}": blob(i, SIZE) for i in range(3)}
for path, data in wanted.items():
    s.write(path, data)
s.settle()
s.umount()
s.drop_pool()
db = sqlite3.connect(f"{s.path}/catalog.sqlite")
with open(f"{s.path}/data", "r+b") as f:
    for (at,) in db.execute("SELECT at FROM placements"):
        f.seek(at + 4096 + SIZE)
        assert not any(f.read(END - SIZE))
        f.seek(at + 4096 + SIZE)
        f.write(b"?" * (END - SIZE))
db.close()
s.mount()
for path, data in wanted.items():
    fd = os.open(f"{s.mnt}/{path}", os.O_RDWR)
    seen = mapped(fd)
    assert seen == data + bytes(END - SIZE), (path, seen[SIZE:SIZE + 16])
    os.ftruncate(fd, END)
    assert os.pread(fd, END, 0) == data + bytes(END - SIZE), path
    os.close(fd)
assert s.stats()["corrupt"] == 0
s.umount()
s.fsck("-n", "--data")
