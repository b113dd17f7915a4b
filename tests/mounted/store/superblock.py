# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""A superblock that is flipped, truncated, zeroed or lost is repaired from its copy, from the
catalog, or from the frames. A store on a read-only filesystem can be checked."""
import os, shutil, signal, sqlite3
import frames
from kvtest import *

need_mount()
N = 50000
FILES = [f"m/c{i}/l{j}" for i in range(4) for j in range(3)]
# messages contain the store's path, and so the word mkfs, which is not the advice to run mkfs
s = Store("mkfs", cpu="32M", size="16M").mount()
for f in FILES:
    s.write(f, blob(f, N))
s.settle()
s.umount()
KEEP = f"{TMP}/keep"
shutil.copytree(s.path, KEEP)
UUID = open(f"{s.path}/superblock", "rb").read()[16:32]


def fresh():
    shutil.rmtree(s.path, ignore_errors=True)
    run("cp", "-a", KEEP, s.path, ok=True)


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        c = f.read(1)[0]
        f.seek(at)
        f.write(bytes([c ^ 0x41]))


DAMAGE = {
    "flipped in the magic": lambda p: flip(p, 3),
    "flipped in the uuid": lambda p: flip(p, 20),
    "flipped at the end": lambda p: flip(p, 4090),
    "cut to nothing": lambda p: os.truncate(p, 0),
    "cut in half": lambda p: os.truncate(p, 2048),
    "zeroed": lambda p: open(p, "r+b").write(bytes(4096)),
    "lost": os.unlink,
}


def whole(what, want=FILES):
    s.mount()
    there = [f for f in FILES if os.path.exists(f"{s.mnt}/{f}") and s.read(f) == blob(f, N)]
    assert there == want, (what, there)
    s.umount()


# from the copy, from the catalog alone, or from the frames alone
for source in ("copy", "catalog", "frames"):
    for name, damage in DAMAGE.items():
        fresh()
        damage(f"{s.path}/superblock")
        if source != "copy":
            os.unlink(f"{s.path}/superblock.copy")
        if source == "frames":
            db = sqlite3.connect(f"{s.path}/catalog.sqlite")
            db.execute("DELETE FROM meta WHERE key = 'store'")
            db.commit()
            db.close()
        what = (source, name)
        p = run(binary("kvcachefs"), s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run")
        assert p.returncode and p.stdout.count("\n") == 1, (what, p)
        assert "mkfs.kvcachefs" not in p.stdout, (what, p)
        before = sorted(os.listdir(s.path))
        p = s.fsck("-n", ok=None)
        assert p.returncode == 4 and "superblock" in p.stdout, (what, p.stdout)
        assert sorted(os.listdir(s.path)) == before, what
        p = s.fsck("-y", ok=None)
        assert p.returncode == 1, (what, p.stdout)
        s.fsck("-n", ok=True)
        for f in ("superblock", "superblock.copy"):
            b = open(f"{s.path}/{f}", "rb").read()
            assert len(b) == 4096 and b[16:32] == UUID, (what, f)
        if name.startswith(("cut in", "lost")):
            whole(what)
# --rebuild repairs it too, also if both copies are empty
fresh()
for f in ("superblock", "superblock.copy"):
    os.truncate(f"{s.path}/{f}", 0)
s.fsck("--rebuild", ok=True)
whole("both")

# a store of an older version has no copy of its superblock: the mount creates it
fresh()
os.unlink(f"{s.path}/superblock.copy")
os.chmod(f"{s.path}/catalog.sqlite", 0o644)
os.chmod(s.path, 0o755)
s.fsck("-n", ok=True)
whole("without a copy")
assert os.path.getsize(f"{s.path}/superblock.copy") == 4096
assert os.stat(f"{s.path}/catalog.sqlite").st_mode & 0o777 == 0o600
assert os.stat(s.path).st_mode & 0o777 == 0o755
fresh()
os.unlink(f"{s.path}/superblock.copy")
s.fsck("-y", ok=True)
assert os.path.getsize(f"{s.path}/superblock.copy") == 4096

# the data file is cut short; the next command is a mount, or fsck
fresh()
db = sqlite3.connect(f"{s.path}/catalog.sqlite")
rows = db.execute("SELECT at, at + len, p.name || '/' || c.name || '/' || n.name FROM placements "
                  "JOIN names n USING(ino) JOIN names c ON c.ino = n.parent JOIN names p ON "
                  "p.ino = c.parent ORDER BY at").fetchall()
db.close()
assert len(rows) == len(FILES)
cut = rows[7][0] + 5000
left = [f for f in FILES if [r for r in rows if r[2] == f and r[1] <= cut]]
assert len(left) == 7
for how in ("mount", "-y"):
    fresh()
    os.truncate(f"{s.path}/data", cut)
    p = s.fsck("-n", ok=None)
    assert p.returncode == 4 and "shorter than at its creation" in p.stdout, p.stdout
    if how == "-y":
        assert s.fsck("-y", ok=None).returncode == 1
        assert os.path.getsize(f"{s.path}/data") == 16 << 20
        s.fsck("-n", ok=True)
    whole(how, left)
    s.mount()
    s.write("m/new/x", blob("x", N))  # the store has space again
    s.settle()
    s.umount()
    assert s.fsck("-y", ok=None).returncode in (0, 1)
    s.fsck("-n", ok=True)
    s.mount()
    assert s.read("m/new/x") == blob("x", N)
    s.umount()
fresh()
os.unlink(f"{s.path}/data")  # the whole data file is lost
assert s.fsck("-n", ok=None).returncode & 4
assert s.fsck("-y", ok=None).returncode == 1
s.fsck("-n", ok=True)
whole("no data", [])

# on a read-only filesystem after a kill: the changes in the log are seen, and nothing is written
fresh()
s.mount()
s.write("m/late", blob("late", N))
s.settle()
s.committed()
s.kill()
run("umount", "-l", s.mnt)
s.drop_pool()
assert os.path.getsize(f"{s.path}/catalog.sqlite-wal") > 4096


def state():
    return {n: (hashlib.md5(open(f"{s.path}/{n}", "rb").read()).hexdigest(),
                os.stat(f"{s.path}/{n}").st_mtime_ns) for n in os.listdir(s.path)}


for log in (True, False):
    if not log:
        s.fsck("-y", ok=True)
        assert not os.path.exists(f"{s.path}/catalog.sqlite-wal")
    before = state()
    s.fsck("-n", ok=True)
    assert state() == before, "-n changes something"
    run("mount", "--bind", s.path, s.path, ok=True)
    run("mount", "-o", "remount,ro,bind", s.path, ok=True)
    try:
        assert "no errors found" in s.fsck("-n", ok=True).stdout
        p = s.fsck("-y", ok=None)
        assert p.returncode == 8 and "Read-only" in p.stdout, p.stdout
    finally:
        run("umount", s.path, ok=True)
    assert state() == before
s.mount()
assert s.read("m/late") == blob("late", N)
s.umount()
# a mounted store cannot be checked
s.mount()
p = s.fsck("-n", ok=None)
assert p.returncode == 8 and "in use" in p.stdout, p.stdout
s.umount()

# A flipped version number is damage, which is repaired from the copy, and not a newer format.
fresh()
flip(f"{s.path}/superblock", 9)
p = run(binary("kvcachefs"), s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run")
assert p.returncode and "damaged; fsck.kvcachefs -y" in p.stdout, p.stdout
assert s.fsck("-y", ok=None).returncode == 1
whole("a flipped version number")

# A superblock without a secret (version 1). The next mount makes a secret, in both copies. A check
# before that finds nothing wrong.
o = Store("secretless", cpu="16M", size="16M")
page = bytearray(open(f"{o.path}/superblock", "rb").read())
assert page[8] == 2 and any(page[1072:1104])
page[8], page[1072:1104] = 1, bytes(32)
page[4080:4096] = frames.sum128(page[:4080])
for name in ("superblock", "superblock.copy"):
    with open(f"{o.path}/{name}", "r+b") as f:
        f.write(page)
o.fsck("-n")
o.mount()
o.write("m/c/l", blob(1, N))
o.settle()
o.umount()
page = open(f"{o.path}/superblock", "rb").read()
assert page[8] == 2 and any(page[1072:1104])
assert open(f"{o.path}/superblock.copy", "rb").read() == page
o.fsck("-n", "--data")
o.fsck("--rebuild")  # accepts the frames that were proven with the new secret
o.mount()
assert o.read("m/c/l") == blob(1, N)
o.umount()
