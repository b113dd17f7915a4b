# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A model's quota also limits a writer that starts while a reader has the file open by passthrough.
The writer writes, extends the file and writes through a mapping, and punches a hole and writes to
it through a mapping. Reader and writer see the same bytes."""
import errno, mmap, os
from kvtest import *

s = Store(cpu="64M", size="256M").mount()
P = lambda *a: os.path.join(s.mnt, *a)
LIMIT = 8 * MiB
os.mkdir(P("m"))
os.setxattr(P("m"), "user.kvcachefs.quota", b"8M")


def used():
    return int(s.attr("m", "used"))


def pool():
    total = 0
    for folder, _, names in os.walk(f"{TMP}/run"):
        total += sum(os.stat(f"{folder}/{n}").st_blocks * 512 for n in names
                     if not n.startswith("."))  # that file names the pool's store
    return total


def more(what):
    """A write that the quota does not allow."""
    with fails(errno.EDQUOT):
        what()
    assert used() <= LIMIT and pool() <= LIMIT, (used(), pool())


s.write("m/f", blob(1, MiB))
s.settle()
reader = os.open(P("m/f"), os.O_RDONLY)
opens = s.stats()["passthrough_opens"]
writer = os.open(P("m/f"), os.O_RDWR)
with mmap.mmap(reader, MiB, prot=mmap.PROT_READ) as seen:
    os.pwrite(writer, b"in place", 500)
    assert seen[500:508] == b"in place" and os.pread(reader, 8, 500) == b"in place"
    assert os.pread(writer, 8, 500) == b"in place"
os.pwrite(writer, blob(2, 2 * MiB), MiB)
assert os.pread(reader, 4 * MiB, MiB) == blob(2, 2 * MiB)


def grow():
    for i in range(32):
        os.pwrite(writer, bytes(MiB), (3 + i) * MiB)


more(grow)
os.ftruncate(writer, 3 * MiB)
if s.config()["served_by"] == "passthrough":
    # the whole growth is reserved at once, because a write through a mapping sends no request
    more(lambda: os.ftruncate(writer, 64 * MiB))
    os.ftruncate(writer, 5 * MiB)
    assert os.fstat(writer).st_blocks * 512 >= 5 * MiB
    with mmap.mmap(writer, 5 * MiB) as whole:
        whole[4 * MiB:] = blob(3, MiB)
        assert os.pread(reader, MiB, 4 * MiB) == blob(3, MiB)
    run("fallocate", "-p", "-o", str(MiB), "-l", str(MiB), P("m/f"), ok=True)
    assert os.pread(reader, MiB, MiB) == bytes(MiB)
    assert os.fstat(writer).st_blocks * 512 >= 5 * MiB
    with mmap.mmap(writer, 5 * MiB) as whole:
        whole[MiB:2 * MiB] = blob(4, MiB)
    assert used() <= LIMIT and pool() <= LIMIT
os.close(writer)
os.close(reader)
s.settle()

# in a model with a quota a reader of a sparse file does not get passthrough
with open(P("m/sparse"), "wb") as f:
    f.truncate(4 * MiB)
    f.write(b"x")
s.settle()
with open(P("m/sparse"), "rb") as f, open(P("m/sparse"), "r+b") as g:
    assert f.read(1) == b"x"
    g.seek(3 * MiB)
    g.write(b"y")
    g.flush()
    f.seek(3 * MiB)
    assert f.read(1) == b"y"
assert used() <= LIMIT and pool() <= LIMIT
s.umount()
s.fsck("-n")
