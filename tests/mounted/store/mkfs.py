# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""mkfs.kvcachefs touches only files that it created. If two run at once, one succeeds. After a kill
at any point the next run succeeds; with --force, either the old or the new store exists. Other
users cannot read its files."""
import os, shutil, sqlite3, subprocess
from kvtest import *
import faults

need_mount()
MKFS, FSCK = binary("mkfs.kvcachefs"), binary("fsck.kvcachefs")
TOP = faults.in_memory("memory")


def tree(path):
    out = {}
    for d, _, names in os.walk(path):
        for n in names:
            with open(f"{d}/{n}", "rb") as f:
                out[f"{d}/{n}"] = hashlib.md5(f.read()).hexdigest()
    return out


# a folder with a foreign file under one of the names that mkfs would create
for name in ("data", "catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "reserve",
             "superblock", "superblock.copy"):
    for force in ((), ("--force",)):
        for dangling in (False, True):
            p = f"{TOP}/theirs"
            os.mkdir(p)
            for n in (name, "else"):
                with open(f"{p}/{n}", "w") as f:
                    f.write("precious\n")
            if dangling:
                os.unlink(f"{p}/{name}")
                os.symlink("/nonexistent", f"{p}/{name}")
            before = tree(p) if not dangling else os.listdir(p)
            r = run(MKFS, "--size", "16M", *force, p)
            assert r.returncode == 1 and r.stdout.count("\n") == 1, (name, r.stdout)
            assert "was not made by" in r.stdout, r.stdout
            after = tree(p) if not dangling else os.listdir(p)
            assert before == after, (name, before, after)
            shutil.rmtree(p)

# other users cannot read the store, also in an existing folder, under every umask
for there in (False, True):
    p = f"{TOP}/mode"
    if there:
        os.mkdir(p, 0o755)
    run("sh", "-c", f"umask 0; {MKFS} --size 16M {p}", ok=True)
    assert os.stat(p).st_mode & 0o777 == 0o700
    assert set(os.listdir(p)) == {"superblock", "superblock.copy", "catalog.sqlite", "reserve",
                                  "data"}, os.listdir(p)
    for n in os.listdir(p):
        assert os.stat(f"{p}/{n}").st_mode & 0o777 == 0o600, n
    shutil.rmtree(p)

# a store that has lost its superblock is not overwritten on mkfs's own advice
p = f"{TOP}/lost"
run(MKFS, "--size", "16M", p, ok=True)
os.unlink(f"{p}/superblock")
before = tree(p)
m = f"{TMP}/mnt"
os.mkdir(m)
r = run(binary("kvcachefs"), p, m, "-o", f"cpu=32M,run={TMP}/run")
assert r.returncode and "mkfs" not in r.stdout and "fsck" in r.stdout, r.stdout
for force in ((), ("--force",)):
    r = run(MKFS, "--size", "16M", *force, p)
    assert r.returncode and "fsck.kvcachefs -y" in r.stdout, r.stdout
# the same if the files by which mkfs recognizes a store cannot be opened or read at that moment
os.rename(f"{p}/superblock.copy", f"{TOP}/copy")
before = tree(p)
for name in ("catalog.sqlite", "superblock.copy"):
    for calls, do in (("open", "EIO"), ("open", "EMFILE"), ("open", "EACCES"), ("read", "EIO")):
        if name == "superblock.copy" and calls == "read":
            continue  # it was moved away
        rule = f"calls={calls} path={p}/{name} nth=1 count=0 do={do}"
        r = faults.Run([MKFS, "--size", "16M", p], rule)
        assert r.fired[0] and r.rc == 1 and "fsck.kvcachefs -y" in r.out, (rule, r)
        r = faults.Run([binary("kvcachefs"), p, m, "-o", f"cpu=32M,run={TMP}/run"], rule)
        assert r.rc and "mkfs" not in r.out and "fsck" in r.out, (rule, r)
        assert tree(p) == before, rule
os.rename(f"{TOP}/copy", f"{p}/superblock.copy")
assert run(FSCK, "-y", p).returncode == 1
run(FSCK, "-n", p, ok=True)
shutil.rmtree(p)

# four at once
for n in range(6):
    p = f"{TOP}/race"
    if n % 2:
        os.mkdir(p)
    all_of = [subprocess.Popen([MKFS, "--size", "16M", p], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True) for _ in range(4)]
    said = [(q.communicate()[0], q.returncode) for q in all_of]
    assert sum(rc == 0 for _, rc in said) == 1, said
    assert all(rc == 0 or t.count("\n") == 1 for t, rc in said), said
    run(FSCK, "-n", p, ok=True)
    shutil.rmtree(p)

# killed at any call
p = f"{TOP}/killed"
for do in ("kill", "torn"):
    runs = 0
    for n, r in faults.sweep(lambda: shutil.rmtree(p, ignore_errors=True),
                             [MKFS, "--size", "16M", p], f"calls=change path={p}*", do,
                             4 if do == "kill" else 8):
        assert r.rc == -9, r
        q = run(MKFS, "--size", "16M", p)
        assert q.returncode == 0 or "is already a store" in q.stdout, (n, q.stdout)
        run(FSCK, "-n", p, ok=True)
        runs += 1
    assert runs > 5
    print(f"{do} at {runs} calls")
# any call fails: the next run succeeds, or reports that the store exists
for do in ("EIO", "ENOSPC"):
    for n, r in faults.sweep(lambda: shutil.rmtree(p, ignore_errors=True),
                             [MKFS, "--size", "16M", p], f"calls=change path={p}*", do, 15):
        if r.rc:
            assert not os.path.exists(f"{p}/superblock") or r.fired[0], (do, n, r)
        q = run(MKFS, "--size", "16M", p)
        assert q.returncode == 0 or "is already a store" in q.stdout, (do, n, r, q.stdout)
        run(FSCK, "-n", p, ok=True)

# --force with another size: the store is the old one or the new one
s = faults.store_in_memory(TOP, cpu="32M", size="24M").mount()
for i in range(4):
    s.write(f"m/{i}", blob(i, 20000))
s.settle()
time.sleep(0.3)
s.umount()
KEEP = f"{TOP}/keep"
shutil.copytree(s.path, KEEP)


def fresh():
    shutil.rmtree(s.path, ignore_errors=True)
    run("cp", "-a", KEEP, s.path, ok=True)


def files():
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    n = db.execute("SELECT count(*) FROM objects").fetchone()[0]
    db.close()
    return n


for size in ("16M", "32M"):
    for do in ("kill", "torn"):
        seen = set()
        for n, r in faults.sweep(fresh, [MKFS, "--force", "--size", size, s.path],
                                 f"calls=change path={s.path}*", do, 7 if do == "kill" else 40):
            assert r.rc == -9, r
            q = s.fsck("-n", ok=None)
            torn = do == "torn" and "known from its copy" in q.stdout
            assert q.returncode == (4 if torn else 0), (size, n, r, q.stdout)
            q = s.fsck("-y", ok=None)  # also completes what mkfs left unfinished
            assert q.returncode == (1 if torn else 0), (size, n, r, q.stdout)
            s.fsck("-n", ok=True)
            seen.add(files())
            assert files() in (0, 4)
            assert os.path.getsize(f"{s.path}/data") == \
                (24 << 20 if files() else int(size[:-1]) << 20) or files() == 4
            assert not [f for f in os.listdir(s.path) if "mkfs" in f or "next" in f], n
            run(MKFS, "--force", "--size", size, s.path, ok=True)
            assert files() == 0 and s.fsck("-n", ok=None).returncode == 0
        assert seen == {0, 4} or do == "torn", seen
        print(f"--force --size {size}: {do} at {n} calls")
# files that a killed rebuild or mkfs left are removed: a journal would belong to another catalog
halfway = [f"catalog.sqlite.new{beside}" for beside in ("", "-journal", "-wal", "-shm", "-mark")]
for name in halfway:
    open(f"{s.path}/{name}", "w").close()
s.mount()
assert not set(halfway) & set(os.listdir(s.path))
assert os.listdir(s.mnt) == []
s.write("m/new", b"x" * 100)
s.settle()
s.umount()
s.fsck("-n", ok=True)
