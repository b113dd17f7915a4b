# SPDX-License-Identifier: Apache-2.0
# ways: none
"""fsck.kvcachefs -y and --rebuild, and the mending of a superblock, are killed before each call
that changes anything, and in the middle of each write: what is there then is the old or the new. It
is found to be whole, with all files, and the next run does what is left."""
import glob, os, shutil, sqlite3
from kvtest import *
import faults

N = 20000
FILES = sorted([f"m/c{i}/l{j}" for i in range(3) for j in range(3)] + ["flat.bin"])
need_mount()
TOP = faults.in_memory("memory")
s = faults.store_in_memory(TOP, cpu="32M", size="16M").mount()
for f in FILES + ["gone"]:
    s.write(f, blob(f, N))
s.settle()
os.unlink(f"{s.mnt}/gone")
for f in FILES[:2]:  # an older frame of each has to be cleared by a rebuild that knows no better
    s.write(f, blob(f, N))
s.settle()
s.committed()
s.kill()  # so that there is a log
run("umount", "-l", s.mnt)
s.drop_pool()
FSCK, KEEP = binary("fsck.kvcachefs"), f"{TOP}/keep"
assert os.path.getsize(f"{s.path}/catalog.sqlite-wal") > 4096
shutil.copytree(s.path, KEEP)


def fresh():
    shutil.rmtree(s.path, ignore_errors=True)
    run("cp", "-a", KEEP, s.path, ok=True)


def paths():
    """All files, by the catalog that a mount would use."""
    t = f"{TOP}/look"
    shutil.rmtree(t, ignore_errors=True)
    os.mkdir(t)
    base = f"{s.path}/catalog.sqlite"
    base += ".next" if os.path.exists(base + ".next") else ""
    for tail in ("", "-wal"):
        if os.path.exists(base + tail):
            shutil.copy(base + tail, f"{t}/c{tail}")
    db = sqlite3.connect(f"{t}/c")
    names = {i: (p, n) for p, n, i in db.execute("SELECT parent, name, ino FROM names")}
    placed = [i for i, in db.execute("SELECT ino FROM placements")]
    db.close()

    def path(i):
        p, n = names[i]
        return n if p == 1 else f"{path(p)}/{n}"
    return sorted(path(i) for i in placed)


def olds():
    """What is kept of catalogs that were replaced."""
    out = set()
    for f in glob.glob(f"{s.path}/catalog.sqlite.old*"):
        if not f.endswith(("-wal", "-shm")):
            with open(f, "rb") as o:
                out.add(hashlib.md5(o.read()).hexdigest())
    return out


def mounted():
    s.mount()
    got = sorted(os.path.relpath(os.path.join(d, n), s.mnt) for d, _, ns in os.walk(s.mnt)
                 for n in ns)
    assert got == FILES, got
    assert all(s.read(f) == blob(f, N) for f in FILES)
    s.umount()


fresh()
assert paths() == FILES, paths()

# --rebuild of a store that is whole, and of one whose catalog is not
for damage in (False, True):
    def prepare():
        fresh()
        if damage:
            with open(f"{s.path}/catalog.sqlite", "r+b") as f:
                f.seek(4096)
                f.write(os.urandom(os.path.getsize(f.name) - 4096))
            os.unlink(f"{s.path}/catalog.sqlite-wal")
    for do in ("kill", "torn"):
        runs = 0
        command = [FSCK, "-y" if damage else "--rebuild", s.path]
        for n, r in faults.sweep(prepare, command, f"calls=change path={s.path}/*", do,
                                 step=7 if do == "kill" else 40):
            what = (damage, do, n, r)
            assert r.rc == -9, what
            p = s.fsck("-n", ok=None)
            if damage:  # the old one is as damaged as it was, or the new one is there
                assert p.returncode in (0, 4), (what, p.stdout)
            else:
                assert p.returncode == 0, (what, p.stdout)
            if p.returncode == 0:
                assert paths() == FILES, (what, paths())
            before = olds()
            if damage:
                p = s.fsck("-y", ok=None)
                assert p.returncode in (0, 1), (what, p.stdout)
            else:
                p = s.fsck("--rebuild", ok=True)
            assert before <= olds(), what  # what is kept stays
            s.fsck("-n", ok=True)
            assert paths() == FILES, (what, paths())
            runs += 1
            if runs == 5:
                mounted()
        assert runs, runs
        print(f"{command[1]}: {do} at {runs} calls")

# each rebuild keeps the catalog before it
fresh()
for i in range(4):
    s.fsck("--rebuild", ok=True)
    assert len(glob.glob(f"{s.path}/catalog.sqlite.old*")) >= i + 1
mounted()


# -y over several kinds of damage at once
def several():
    fresh()
    for f in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
        if os.path.exists(f"{s.path}/{f}"):
            os.unlink(f"{s.path}/{f}")
    shutil.copy(f"{TOP}/mended.sqlite", f"{s.path}/catalog.sqlite")
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    for q in ("UPDATE nodes SET nlink = 9", "INSERT INTO names VALUES(1, 77, 'x', 999999, 32768)",
              "INSERT INTO xattrs VALUES(99999, 'user.a', 'b')",
              "UPDATE objects SET lower = 0", "DELETE FROM chunks",
              "INSERT INTO names VALUES(777777, 78, 'y', 888888, 16384)"):
        db.execute(q)
    db.commit()
    db.close()


fresh()
s.fsck("-y", ok=None)
shutil.copy(f"{s.path}/catalog.sqlite", f"{TOP}/mended.sqlite")
for do, step in (("kill", 7), ("torn", 30)):
    runs = 0
    for n, r in faults.sweep(several, [FSCK, "-y", s.path], f"calls=change path={s.path}/*", do,
                             step):
        assert r.rc == -9, (do, n, r)
        p = s.fsck("-y", ok=None)
        assert p.returncode in (0, 1), (do, n, r, p.stdout)
        s.fsck("-n", ok=True)
        assert paths() == FILES, (do, n, r)
        runs += 1
    assert runs
    print(f"-y: {do} at {runs} calls")

# the superblock is mended, and gets a copy where it has none
fresh()
GOOD = open(f"{s.path}/superblock", "rb").read()
for lost in (("superblock",), ("superblock.copy",)):
    def without():
        fresh()
        for f in lost:
            if os.path.exists(f"{s.path}/{f}"):
                os.truncate(f"{s.path}/{f}", 100)
    runs = 0
    for n, r in faults.sweep(without, [FSCK, "-y", s.path], f"calls=change path={s.path}/superb*",
                             "torn", 1):
        p = s.fsck("-y", ok=None)
        assert p.returncode in (0, 1), (lost, n, r, p.stdout)
        s.fsck("-n", ok=True)
        assert open(f"{s.path}/superblock", "rb").read()[:48] == GOOD[:48]
        assert open(f"{s.path}/superblock.copy", "rb").read()[:48] == GOOD[:48]
        assert paths() == FILES, (lost, n, r)
        runs += 1
    assert runs >= 2, (lost, runs)
