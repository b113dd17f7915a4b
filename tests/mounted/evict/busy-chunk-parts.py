# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""The pool is full of chunks that each have one file open, leased or mapped. Their other files,
which have copies, are evicted before a store is refused. Files in use and pinned files stay."""
import mmap, os
from kvtest import *

PIN = "user.kvcachefs.pin"
s = Store(cpu="32M", size="256M", options="settle=0").mount()
# (a folder of more than a quarter of the pool is not a chunk)
CHUNKS = ("open", "leased", "mapped", "pinned")
data = {f"m/{c}/l{i}": blob(f"{c}{i}", MiB) for c in CHUNKS for i in range(6)}
for path, d in data.items():
    s.write(path, d)
os.setxattr(f"{s.mnt}/m/pinned", PIN, b"1")
s.settle()
s.committed()


def there(chunk):
    """The numbers of its files in the pool."""
    return [i for i in range(6) if "cpu" in s.attr(f"m/{chunk}/l{i}", "tiers").split(",")]


assert all(there(c) == list(range(6)) for c in CHUNKS)
fd = os.open(f"{s.mnt}/m/open/l3", os.O_RDONLY)
lease = os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR)
os.write(lease, b"m/leased/l5\n")
assert b"resident" in os.pread(lease, 4096, 0)
with open(f"{s.mnt}/m/mapped/l1", "rb") as f:
    view = mmap.mmap(f.fileno(), MiB, prot=mmap.PROT_READ)
new = [f"n/c{i}/l" for i in range(15)]
held = []
for path in new:
    os.makedirs(os.path.dirname(f"{s.mnt}/{path}"))
for path in new:  # each stays open, so only the other chunks can be evicted
    f = os.open(f"{s.mnt}/{path}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    held.append(f)
    assert os.write(f, blob(path, MiB)) == MiB
assert 3 in there("open") and 5 in there("leased") and 1 in there("mapped")
assert sum(len(there(c)) for c in CHUNKS) < 18
assert os.pread(fd, MiB, 0) == data["m/open/l3"]

# nothing else can be evicted
with fails(errno.ENOSPC):
    for i in range(20):
        f = os.open(f"{s.mnt}/n/more{i}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        held.append(f)
        os.write(f, blob(i, MiB))
assert [there(c) for c in CHUNKS] == [[3], [5], [1], list(range(6))], [there(c) for c in CHUNKS]
assert view[:] == data["m/mapped/l1"]
view.close()
for f in (fd, lease, *held):
    os.close(f)
for path, d in data.items():
    assert s.read(path) == d, path
for path in new:
    assert s.read(path) == blob(path, MiB), path
s.settle()
s.umount()
s.fsck()
