# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""fsck.kvcachefs finds each kind of damage, changes nothing with -n, and repairs it with -y.
--rebuild makes a catalog from the frames alone."""
import os, shutil, sqlite3
from kvtest import *

N = 65536
FILES = [f"m/c{i}/l{j}" for i in range(6) for j in range(3)] + ["flat.bin", "deep/a/b/c/d"]
s = Store(cpu="32M", size="64M").mount()
for f in FILES:
    s.write(f, blob(f, N))
s.settle()
s.umount()
out = s.fsck("-n").stdout
assert "no errors found" in out
keep = f"{TMP}/keep"
shutil.copytree(s.path, keep)


def sql(*statements):
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    out = [db.execute(q).fetchall() for q in statements]
    db.commit()
    db.close()
    return out


def poke(at, data):
    with open(f"{s.path}/data", "r+b") as f:
        f.seek(at)
        old = f.read(len(data))
        f.seek(at)
        f.write(data)
    return old


def placement(n=0):
    return sql("SELECT ino, at, len FROM placements ORDER BY ino")[0][n]


def orphan():
    ino, at, length = placement()
    free = max(a + l for _, a, l in sql("SELECT ino, at, len FROM placements")[0])
    with open(f"{s.path}/data", "rb") as f:
        f.seek(at)
        poke(free, f.read(length))


def dangling():
    poke(placement()[1], bytes(4096))


def overlap():
    a, b = placement(0), placement(1)
    sql(f"UPDATE placements SET at = {a[1]} WHERE ino = {b[0]}")


def outside():
    sql(f"UPDATE placements SET at = {1 << 40} WHERE ino = {placement()[0]}")


def page():
    with open(f"{s.path}/catalog.sqlite", "r+b") as f:
        size = f.seek(0, 2)
        for at in range(4096, size, 4096):
            f.seek(at)
            f.write(os.urandom(4096))


CASES = {
    "orphan frame": (orphan, "has no placement", 0),
    "dangling placement": (dangling, "points to no frame", 1),
    "overlapping extents": (overlap, "no frame of the inode", 1),
    "extent outside": (outside, "points to no frame", 1),
    "root folder": (lambda: sql("DELETE FROM nodes WHERE ino = 1"), "there is no root folder", 0),
    "usage total": (lambda: sql("UPDATE meta SET value = '12345' WHERE key = 'disk_used_bytes'"),
                    "recorded usage", 0),
    "name of nothing": (lambda: sql("INSERT INTO names VALUES(1, 77, 'x', 999999, 32768)"),
                        "which is not there", 0),
    "node without name": (lambda: sql("DELETE FROM names WHERE name = 'flat.bin'"), "has no name",
                          1),
    "link count": (lambda: sql("UPDATE nodes SET nlink = 7 WHERE ino = (SELECT ino FROM names "
                               "WHERE name = 'flat.bin')"), "counts 7", 0),
    "folder's links": (lambda: sql("UPDATE nodes SET nlink = 9 WHERE ino = 1"), "counts 9 links",
                       0),
    "lower flag": (lambda: sql("UPDATE objects SET lower = 0 WHERE ino = (SELECT min(ino) FROM "
                               "objects)"), "says that a tier has it", 0),
    "damaged page": (page, "", 0),
}
for name, (damage, text, lost) in CASES.items():
    shutil.rmtree(s.path)
    shutil.copytree(keep, s.path)
    damage()
    before = hashlib.md5(open(f"{s.path}/data", "rb").read()
                         + open(f"{s.path}/catalog.sqlite", "rb").read()).hexdigest()
    p = s.fsck("-n", ok=False)
    assert p.returncode == 4 and text in p.stdout, f"{name}: {p.returncode}: {p.stdout}"
    after = hashlib.md5(open(f"{s.path}/data", "rb").read()
                        + open(f"{s.path}/catalog.sqlite", "rb").read()).hexdigest()
    assert before == after, f"{name}: -n changed the store"
    p = s.fsck("-y", ok=False)
    assert p.returncode == 1, f"{name}: {p.returncode}: {p.stdout}"
    p = s.fsck("-n")
    s.mount()
    there = 0
    for f in FILES:
        try:
            assert s.read(f) == blob(f, N), f"{name}: {f}"
            there += 1
        except FileNotFoundError:
            pass
    assert there == len(FILES) - lost, f"{name}: {there} of {len(FILES)} files are left"
    s.umount()
    s.fsck("-n")

# a new catalog from the frames alone has all names, folders, modes and times; deleted files stay
# deleted, and renamed files keep their new names
shutil.rmtree(s.path)
shutil.copytree(keep, s.path)
s.mount()
os.unlink(f"{s.mnt}/m/c0/l0")
os.rename(f"{s.mnt}/m/c0/l1", f"{s.mnt}/m/c0/renamed")
os.rename(f"{s.mnt}/m/c1", f"{s.mnt}/m/moved")
os.chmod(f"{s.mnt}/flat.bin", 0o640)
s.write("flat.bin", blob("new", 2 * N))
s.settle()
stamp = os.stat(f"{s.mnt}/flat.bin").st_mtime_ns
time.sleep(0.3)
s.umount()
for f in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
    if os.path.exists(f"{s.path}/{f}"):
        os.unlink(f"{s.path}/{f}")
assert s.fsck("-n", ok=False).returncode == 4
s.fsck("--rebuild")
s.fsck("-n")
s.mount()
want = {f: blob(f, N) for f in FILES if not f.startswith(("m/c0/", "m/c1/"))}
want |= {"m/c0/renamed": blob("m/c0/l1", N), "m/c0/l2": blob("m/c0/l2", N),
         "flat.bin": blob("new", 2 * N)}
want |= {f"m/moved/l{j}": blob(f"m/c1/l{j}", N) for j in range(3)}
got = {os.path.relpath(os.path.join(d, n), s.mnt) for d, _, ns in os.walk(s.mnt) for n in ns}
assert got == set(want), got ^ set(want)
assert all(s.read(f) == want[f] for f in want)
st = os.stat(f"{s.mnt}/flat.bin")
assert st.st_mtime_ns == stamp and st.st_mode & 0o777 == 0o640
s.umount()

# a damaged superblock
with open(f"{s.path}/superblock", "r+b") as f:
    was = f.read(21)[20]
    f.seek(20)
    f.write(bytes([was ^ 0xff]))
p = run(binary("kvcachefs"), s.path, s.mnt, ok=False)
assert "damaged" in p.stdout and p.stdout.count("\n") == 1
s.fsck("--rebuild")
s.mount()
assert all(s.read(f) == want[f] for f in want)
s.umount()
s.fsck("-n")
