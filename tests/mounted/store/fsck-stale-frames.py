# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""After a power loss, old frames may be left in free space, also in front of newer frames that have
overwritten their ends, inside of other old frames, and inside of files whose last writes were lost.
fsck -y clears those in free space, so that a rebuild brings none of them back and does not miss the
newer frames. It cannot clear those inside of files, whose bytes they may be. When such a file is
deleted, they are no error of the store. A rebuild without an earlier fsck -y also takes the intact
frames of those that overlap, or have the same inode or path."""
import os, shutil, sqlite3
import frames
from kvtest import *

FILES = {f"m/{i}": blob(i, 8 * 4096) for i in range(6)} | {"m/small": blob("small", 4096)}
s = Store(cpu="32M", size="24M").mount()
for f, data in FILES.items():
    s.write(f, data)
s.settle()
ino = {f: os.stat(f"{s.mnt}/{f}").st_ino for f in FILES}
s.umount()


def sql(query, *values):
    with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as db:
        out = db.execute(query, values).fetchall()
        db.commit()
    return out


def place(f):
    return sql("SELECT at, len FROM placements WHERE ino = ?", ino[f])[0]


def peek(at, size):
    with open(f"{s.path}/data", "rb") as f:
        f.seek(at)
        return f.read(size)


def poke(at, data):
    with open(f"{s.path}/data", "r+b") as f:
        f.seek(at)
        f.write(data)


def headers():
    """The offsets of all frame headers."""
    data = peek(0, os.path.getsize(f"{s.path}/data"))
    return {at for at in range(0, len(data), 4096) if data[at:at + 8] == b"KVCFRAME"}


def mend():
    """Repairs the store, of which a daemon was killed before the last clean unmount."""
    sql("INSERT OR REPLACE INTO meta VALUES('killed', '1')")
    s.fsck("-y", ok=True)
    assert s.fsck("-n").returncode == 0


def restore():
    shutil.rmtree(s.path)
    shutil.copytree(keep, s.path)


def rebuild(files):
    """Rebuilds the catalog; the store then has these files and no others."""
    s.fsck("--rebuild", ok=True)
    assert s.fsck("-n").returncode == 0
    s.mount()
    assert sorted(os.listdir(f"{s.mnt}/m")) == sorted(os.path.basename(f) for f in files)
    for f, data in files.items():
        assert s.read(f) == data, f
    s.umount()


whole = peek(place("m/5")[0], place("m/5")[1])
header, small = whole[:4096], peek(place("m/small")[0], 4096)
free = max(sum(place(f)) for f in FILES) + 4096
keep = f"{TMP}/keep"
shutil.copytree(s.path, keep)

# in front of a newer frame, which has overwritten its end
at = place("m/3")[0]
s.mount()
os.unlink(f"{s.mnt}/m/3")
s.umount()
rest = {f: data for f, data in FILES.items() if f != "m/3"}
right = headers()
deleted = f"{TMP}/deleted"
shutil.copytree(s.path, deleted)
poke(at + 4096, header)
mend()
assert headers() == right, headers() ^ right
rebuild(rest)
shutil.rmtree(s.path)
shutil.copytree(deleted, s.path)
poke(at + 4096, header)
rebuild(rest)
assert headers() == right, headers() ^ right
restore()

# a newer frame of the same inode, or of the same path, whose bytes were lost in part, or not
for how in ("inode", "path"):
    s.mount()
    if how == "path":
        os.unlink(f"{s.mnt}/m/1")
    s.write("m/1", blob("new", 8 * 4096))
    s.settle()
    new = os.stat(f"{s.mnt}/m/1").st_ino
    s.umount()
    at, length = sql("SELECT at, len FROM placements WHERE ino = ?", new)[0]
    newer = peek(at, length)
    for torn in (False, True):
        restore()
        poke(free, newer[:-4096] + bytes(4096) if torn else newer)
        rebuild(FILES | ({} if torn else {"m/1": blob("new", 8 * 4096)}))
    restore()

# inside of another old frame
right = headers()
poke(free, whole)
poke(free + 4 * 4096, header)
mend()
assert headers() == right, headers() ^ right

# inside of a file
for how in ("deleted", "found damaged"):
    at = place("m/0")[0] + 2 * 4096
    poke(at, small)
    right = headers()
    mend()
    assert headers() == right, headers() ^ right
    s.mount()
    if how == "deleted":
        os.unlink(f"{s.mnt}/m/0")
    else:
        with fails(errno.ENOENT):
            s.read("m/0")
    s.umount()
    p = s.fsck("-n")
    assert "1 frames of a killed daemon are in free space" in p.stdout, p.stdout
    s.fsck("-y", ok=True)
    assert at not in headers()
    assert "killed" not in s.fsck("-n").stdout
    s.mount()
    for f in set(FILES) - {"m/0"}:
        assert s.read(f) == FILES[f], f
    s.umount()
    restore()
