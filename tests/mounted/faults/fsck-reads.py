# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""An error is not an absence: if reads, writes and opens of fsck.kvcachefs fail, temporarily or
permanently, no file is forgotten and no catalog is set aside. Unreadable data is reported, has its
own exit status (8), and has no other effect. Space that was never written is not read."""
import glob, os, shutil, sqlite3
from kvtest import *
import faults

N = 20000
FILES = [f"m/c{i}/l{j}" for i in range(3) for j in range(3)] + ["flat.bin"]
need_mount()
TOP = faults.in_memory("memory")
s = faults.store_in_memory(TOP, cpu="32M", size="16M").mount()
for f in FILES:
    s.write(f, blob(f, N))
s.settle()
s.umount()
KEEP = f"{TOP}/keep"
shutil.copytree(s.path, KEEP)
FSCK = binary("fsck.kvcachefs")
CATALOG, DATA = f"path={s.path}/catalog.sqlite*", f"path={s.path}/data"


def fresh():
    shutil.rmtree(s.path, ignore_errors=True)
    run("cp", "-a", KEEP, s.path, ok=True)


def sql(query):
    db = sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True)
    out = db.execute(query).fetchall()
    db.close()
    return out


ROWS = ["SELECT * FROM names ORDER BY 1, 2, 3", "SELECT ino, at, len FROM placements ORDER BY 1",
        "SELECT ino, gen, lower FROM objects ORDER BY 1"]
fresh()
RIGHT = [sql(q) for q in ROWS]


def unharmed(what):
    """Checks that nothing has changed, and that fsck finds no problem."""
    assert [sql(q) for q in ROWS] == RIGHT, what
    assert not glob.glob(f"{s.path}/catalog.sqlite.*"), (what, os.listdir(s.path))
    p = s.fsck("-n", ok=None)
    assert p.returncode == 0, (what, p.stdout)


# each read fails once: -y finds nothing, or reports that it could not check
often = 3 if LONG else 4
for words, do, step in ((DATA, "EIO", often), (CATALOG, "EIO", often), (CATALOG, "ENOMEM", 12),
                        (DATA, "ETIMEDOUT", 9), (f"path={s.path}/superblock*", "EIO", 1),
                        (DATA, "EINTR", 9), (DATA, "short", 9)):
    runs = 0
    for n, r in faults.sweep(fresh, [FSCK, "-y", s.path], f"calls=read {words}", do, step):
        assert r.rc in (0, 8), (words, do, n, r)
        unharmed((words, do, n, r))
        runs += 1
    assert runs, (words, do)
    print(f"{do} at {runs} reads of {words}")
# all reads fail, beginning with the Nth
for words in (DATA, CATALOG):
    for first in (1, 2, 3, 5, 8, 13):
        fresh()
        r = faults.Run([FSCK, "-y", s.path], f"calls=read {words} nth={first} count=0 do=EIO")
        assert not r.fired[0] or r.rc == 8 or "bytes of free space" in r.out, (words, first, r)
        unharmed((words, first, r))
# opens that fail because of too many files, a lack of memory, or a missing disk
for do in ("EMFILE", "ENOMEM", "EIO", "EACCES"):
    runs = 0
    for n, r in faults.sweep(fresh, [FSCK, "-y", s.path], f"calls=open path={s.path}/*", do, 5):
        assert r.rc in (0, 8), (do, n, r)
        unharmed((do, n, r))
        runs += 1
    assert runs, do
# each write and sync of a repair fails: the next run completes the work and loses nothing
for do in ("EIO", "ENOSPC"):
    def damaged():
        fresh()
        db = sqlite3.connect(f"{s.path}/catalog.sqlite")
        db.execute("UPDATE nodes SET nlink = 9 WHERE mode & 61440 = 32768")  # breaks one rule
        db.execute("DELETE FROM meta WHERE key = 'clean'")
        db.commit()
        db.close()
    runs = 0
    for n, r in faults.sweep(damaged, [FSCK, "-y", s.path], f"calls=change path={s.path}/*", do,
                             8 if do == "EIO" else 1 if LONG else 4):
        assert r.rc in (1, 8, 9), (do, n, r)
        p = s.fsck("-y", ok=None)
        assert p.returncode in (0, 1), (do, n, r, p.stdout)
        assert not sql("SELECT 1 FROM meta WHERE key = 'usage'"), (do, n, r)
        unharmed((do, n, r))
        runs += 1
    assert runs
    print(f"{do} at {runs} changes of -y")

# a sector that stays unreadable, in a header and in a payload: only its file is lost
ino, at = sql("SELECT ino, at FROM placements ORDER BY at LIMIT 1 OFFSET 4")[0]
for off, options in ((0, ()), (4096, ()), (8192, ("--data",))):
    fresh()
    rule = f"calls=read {DATA} at={at + off} len=512 nth=1 count=0 do=EIO"
    for how in ("-n", "-y"):
        r = faults.Run([FSCK, how, *options, s.path], rule)
        assert r.rc == 8 and f"inode {ino} " in r.out and "Input/output error" in r.out, (off, r)
        assert "(repaired)" not in r.out and r.out.count("Input/output") == 1, (off, r)
        assert any(f"({f})" in r.out for f in FILES), r
        unharmed((off, how, r))
    r = faults.Run([FSCK, "--rebuild", s.path], rule)
    assert r.rc == 8 and "Input/output error" in r.out and f" at {at + off}" in r.out, r
    left = {i for i, in sql("SELECT ino FROM placements")}
    assert len(left) == len(FILES) - (off == 0) and (ino in left) == (off != 0), (off, left)
    assert os.path.exists(f"{s.path}/catalog.sqlite.old")
# an unreadable sector in free space has no effect
fresh()
free = max(a + l for _, a, l in sql("SELECT ino, at, len FROM placements")) + (1 << 20)
r = faults.Run([FSCK, "-n", s.path], f"calls=read {DATA} at={free} len=512 nth=1 count=0 do=EIO")
assert r.rc == 0 and "note: 4096 bytes of free space" in r.out, r

# two sectors in two files: a mount has all other files, intact
fresh()
bad = sql("SELECT ino, at FROM placements ORDER BY at LIMIT 2 OFFSET 6")
r = faults.Run([FSCK, "--rebuild", s.path],
               *(f"calls=read {DATA} at={a} len=512 nth=1 count=0 do=EIO" for _, a in bad))
assert r.rc == 8 and all(f" at {a}" in r.out for _, a in bad), r
s.mount()
there = sum(os.path.exists(f"{s.mnt}/{f}") and s.read(f) == blob(f, N) for f in FILES)
assert there == len(FILES) - 2, there
s.umount()

# the disk tier of a new store is preallocated, and nothing of it is read
empty = Store("empty", size="1G")
r = faults.Run([FSCK, "-n", empty.path], f"calls=read path={empty.path}/data nth=0 do=EIO")
assert r.rc == 0 and r.met[0] < 16, r
