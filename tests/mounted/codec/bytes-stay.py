# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""With a lossy codec, the pool has the written bytes until a file has left it and returned. Then it
has the decoded bytes, and these stay: after more evictions, a new mount, a kill, and a kill before
the commit that follows the load. A file without a layout loses nothing."""
import contextlib, errno, os, sqlite3
from kvdata import *
from kvtest import *

N = 2 * MiB


def evict(*paths):
    """Stores other files until these have left the pool."""
    for i in range(400):
        if all(s.attr(p, "state") == "lower" for p in paths):
            break
        s.write(f"fill/{i % 100}/x", bytes(MiB))
    wait_for(lambda: all(s.attr(p, "state") == "lower" for p in paths))


def rows(sql, *values):
    with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c, c:
        return c.execute(sql, values).fetchall()


def killed():
    s.kill()
    run("umount", "-l", s.mnt)


s = Store(cpu="64M", size="512M", options="compress=kvq-mid").mount()
os.mkdir(f"{s.mnt}/m")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.layout", LAYOUT.encode())
names = [f"m/c{i}/l" for i in range(4)]
written = {p: kv(i, N) for i, p in enumerate(names)}
for p in names:
    s.write(p, written[p])
s.write("other/c/l", kv(9, N))
s.settle()
assert all(s.read(p) == written[p] for p in names)
sums = {p: s.attr(p, "checksum") for p in names}
t = s.stats()
assert t["lossy_copies"] == 4 and t["lossy_no_layout"] == 1 and not t["lossy_refused_blocks"], t
first = [float(x) for x in s.attr(names[0], "error").split()]
assert 0.01 < first[0] <= first[1] < 0.1, first
assert s.attr(names[0], "codec") == "disk=kvq-mid" != s.attr("other/c/l", "codec")
with fails(errno.ENODATA):
    s.attr("other/c/l", "error")
assert "model other: copies are coded without loss" in s.log(), s.log()

# the files leave and return
evict(*names, "other/c/l")
decoded = {p: s.read(p) for p in names}
for p in names:
    e = error(written[p], decoded[p])
    assert decoded[p] != written[p] and len(decoded[p]) == N and 0.001 < e < 0.1, (p, e)
    assert s.attr(p, "checksum") != sums[p]
assert s.read("other/c/l") == kv(9, N)
t = s.stats()
assert t["loads_decoded"] == 4 and not t["corrupt"], t
after = {p: s.attr(p, "checksum") for p in names}
assert [float(x) for x in s.attr(names[0], "error").split()] == first

# they leave and return again, in this mount and in another one with an empty pool
evict(*names)
assert all(s.read(p) == decoded[p] for p in names)
assert s.stats()["loads_decoded"] == 4
s.umount()
s.drop_pool()
s.mount()
assert all(s.read(p) == decoded[p] for p in names)

# a kill: the pool has the decoded bytes, and the row says so
s.committed()
killed()
assert rows("SELECT count(*) FROM objects WHERE decoded")[0][0] == 4
s.mount()
assert all(s.attr(p, "state") == "resident+lower" for p in names)
assert all(s.read(p) == decoded[p] and s.attr(p, "checksum") == after[p] for p in names)

# a kill before that commit: the pool has the decoded bytes, and the next mount detects this
s.committed()
killed()
for p in names:
    rows("UPDATE objects SET decoded = 0, sum = ? WHERE sum = ?", bytes.fromhex(sums[p]),
         bytes.fromhex(after[p]))
assert rows("SELECT count(*) FROM objects WHERE decoded")[0][0] == 0
s.mount()
assert all(s.attr(p, "state") == "resident+lower" for p in names)
assert all(s.read(p) == decoded[p] and s.attr(p, "checksum") == after[p] for p in names)
s.committed()
assert rows("SELECT count(*) FROM objects WHERE decoded")[0][0] == 4
evict(*names)
assert all(s.read(p) == decoded[p] for p in names)

# a rebuilt catalog describes the copies, while the pool has written bytes: the copies are used
s.write("m/late/l", kv(11, N))
s.settle()
s.committed()
killed()
ino = rows("SELECT ino FROM names WHERE parent = (SELECT ino FROM names WHERE name = 'late')")[0][0]
raw, = rows("SELECT raw FROM placements WHERE ino = ?", ino)[0]
rows("UPDATE objects SET decoded = 1, sum = ? WHERE ino = ?", raw, ino)
s.mount()
assert s.attr("m/late/l", "state") == "lower"
late = s.read("m/late/l")
assert late != kv(11, N) and error(kv(11, N), late) < 0.1

# a file that is changed in part loses nothing more, and nor does it after a kill, when the pool has
# the change
new = written["m/c0/l"][:PAGE] + decoded["m/c0/l"][PAGE:]
with open(f"{s.mnt}/m/c0/l", "r+b") as f:
    f.write(new[:PAGE])
    f.flush()
    os.fsync(f.fileno())
    new = new[:2 * PAGE] + written["m/c0/l"][2 * PAGE:3 * PAGE] + new[3 * PAGE:]
    f.seek(2 * PAGE)
    f.write(new[2 * PAGE:3 * PAGE])
# opened for writing and synced, but not changed
with open(f"{s.mnt}/m/c1/l", "r+b") as f:
    os.fsync(f.fileno())
assert s.read("m/c0/l") == new and s.read("m/c1/l") == decoded["m/c1/l"]
s.committed()
killed()
s.mount()
assert s.read("m/c0/l") == new and s.read("m/c1/l") == decoded["m/c1/l"]
s.settle()
assert s.stats()["lossy_copies"] == 0, s.stats()
evict("m/c0/l", "m/c1/l")
assert s.read("m/c0/l") == new and s.read("m/c1/l") == decoded["m/c1/l"]

# a new file in its place is coded with loss again
os.unlink(f"{s.mnt}/m/c0/l")
with open(f"{s.mnt}/m/c0/l", "wb") as f:
    f.write(written["m/c0/l"])
s.settle()
assert s.read("m/c0/l") == written["m/c0/l"] and s.stats()["lossy_copies"] == 1
evict("m/c0/l")
assert s.read("m/c0/l") == decoded["m/c0/l"]
assert not s.stats()["corrupt"]
s.umount()
s.fsck()
