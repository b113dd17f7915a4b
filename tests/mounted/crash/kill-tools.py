# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""fsck.kvcachefs -y and --rebuild, the repair of a superblock, and the commands of kvcachectl that
write a file (key file, chart, bundle, recording) are killed before each call that changes anything,
and in the middle of each write; the kvcachectl commands also at random moments. Afterwards either
the old or the new state is there. The store is consistent and has all files, and the next run
completes the work."""
import glob, json, os, shutil, sqlite3, tarfile, threading
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
for f in FILES[:2]:  # the older frame of each stays, and a rebuild has to clear it
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
    """The paths of all files in the catalog that a mount would use."""
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
    """The kept copies of replaced catalogs."""
    out = set()
    for f in glob.glob(f"{s.path}/catalog.sqlite.old*"):
        if not f.endswith(("-wal", "-shm")):
            with open(f, "rb") as o:
                out.add(hashlib.md5(o.read()).hexdigest())
    return out


def mounted(unnamed=0):
    """All files are there. Up to `unnamed` of them have lost their names, and not their bytes."""
    s.mount()
    got = sorted(os.path.relpath(os.path.join(d, n), s.mnt) for d, _, ns in os.walk(s.mnt)
                 for n in ns)
    gone = [f for f in FILES if f not in got]
    found = [f for f in got if f not in FILES]
    assert len(gone) == len(found) <= unnamed, got
    assert all(f.startswith("lost+found/") for f in found), got
    assert all(s.read(f) == blob(f, N) for f in FILES if f in got)
    assert sorted(map(s.read, found)) == sorted(blob(f, N) for f in gone), (gone, found)
    s.umount()


fresh()
assert paths() == FILES, paths()

# --rebuild of an intact store, and -y of a store with a damaged catalog
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
            if damage:  # either the damaged catalog is still there, or the new one
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
            assert before <= olds(), what  # kept catalogs stay
            s.fsck("-n", ok=True)
            assert paths() == FILES, (what, paths())
            runs += 1
            if runs == 5:
                mounted()
        assert runs, runs
        print(f"{command[1]}: {do} at {runs} calls")

# each rebuild keeps the previous catalog
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

# the superblock is repaired from its copy, and the copy from the superblock
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


# The secret of the proofs is lost, too. The superblock is repaired only after all frames have new
# proofs: with a good superblock, a mount after the kill would make a secret that proves no frame.
def without_secret():
    fresh()
    s.drop_pool()
    for f in ("superblock", "superblock.copy"):
        os.truncate(f"{s.path}/{f}", 100)
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    db.execute("DELETE FROM meta WHERE key = 'store'")
    db.commit()
    db.close()


all_refused = 0
for do, step in (("kill", 5), ("torn", 20)):
    runs = refused = 0
    for n, r in faults.sweep(without_secret, [FSCK, "-y", s.path], f"calls=change path={s.path}/*",
                             do, step):
        what = (do, n, r)
        assert r.rc == -9, what
        p = run(binary("kvcachefs"), s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run")
        if p.returncode:
            assert "fsck.kvcachefs -y" in p.stdout, (what, p.stdout)
            refused += 1
        else:
            run("umount", s.mnt, ok=True)
            s.drop_pool()
        p = s.fsck("-y", ok=None)
        assert p.returncode in (0, 1), (what, p.stdout)
        s.fsck("-n", "--data", ok=True)
        # the torn write may be that of a frame's header, which has the only copy of the name
        mounted(unnamed=do == "torn")
        s.drop_pool()
        runs += 1
    assert runs and (refused or not LONG), (do, runs, refused)
    all_refused += refused
    print(f"the secret is lost: {do} at {runs} calls, {refused} mounts are refused")
assert all_refused  # one call in eight leaves such a state

# files that kvcachectl writes
CTL, OWN = binary("kvcachectl"), f"{TOP}/own"
TRACE, KEY, OLD = f"{TOP}/trace", "7 " + "ab" * 32 + "\n", "the old one\n"
with open(TRACE, "w") as f:
    f.write("".join(f'{{"hash_ids": [{i % 7}, {i % 5 + 10}]}}\n' for i in range(400)))


def key_added(path):
    with open(path) as f:
        lines = f.read().splitlines()
    return lines[0] + "\n" == KEY and len(lines) == 2 and len(lines[1].split()[1]) == 64


def is_chart(path):
    with open(path) as f:
        return f.read() == CHART


def is_bundle(path):
    with tarfile.open(path) as t:
        texts = [t.extractfile(m).read() for m in t]
    return len(texts) == 7 and all(texts) and os.path.getsize(path) % 512 == 0


def is_recording(path):
    with open(path) as f:
        return all(json.loads(l)["hash_ids"] for l in f)


# name; command words; the file before, or None; a test for the new file
MADE = {
    "keys": (["newkey", f"{OWN}/keys"], KEY, key_added),
    "chart": (["replay", "--capacity", "5", "--svg", f"{OWN}/chart", TRACE], OLD, is_chart),
    "dump": (["dump", "-o", f"{OWN}/dump", s.mnt], None, is_bundle),
    "new": (["trace", "-o", f"{OWN}/new", "--seconds", "1", s.mnt], OLD, is_recording),
}


def as_before(name):
    shutil.rmtree(OWN, ignore_errors=True)
    os.mkdir(OWN)
    if (old := MADE[name][1]) is not None:
        with open(f"{OWN}/{name}", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(old)


def is_old(name):
    path, old = f"{OWN}/{name}", MADE[name][1]
    if old is None or not os.path.exists(path):
        return old is None and not os.path.exists(path)
    with open(path) as f:
        return f.read() == old


def one_of_both(name, what):
    """Checks that the file is the old or the new one, and that the next run writes the new one.
    Returns whether the new one was already there."""
    words, _, is_new = MADE[name]
    new = not is_old(name)
    assert not new or is_new(f"{OWN}/{name}"), what
    if not new and name != "new":  # a recording takes seconds
        run(CTL, *words, ok=True)
        assert is_new(f"{OWN}/{name}"), what
    return new


def killed_after(seconds, *words):
    p = subprocess.Popen([CTL, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    p.kill()
    p.wait()


def use():
    """Makes the accesses to record."""
    while not stop.wait(0.02):
        for f in FILES:
            s.read(f)


fresh()
s.mount()
as_before("chart")
run(CTL, *MADE["chart"][0], ok=True)
CHART = open(f"{OWN}/chart").read()
stop = threading.Event()
user = threading.Thread(target=use)
user.start()
try:
    for name, (words, _, _) in MADE.items():
        for do in ("kill", "torn"):
            runs = 0
            for n, r in faults.sweep(lambda: as_before(name), [CTL, *words],
                                     f"calls=change path={OWN}/*", do, 3 if name == "new" else 1):
                assert r.rc == -9, (name, do, n, r)
                one_of_both(name, (name, do, n))
                runs += 1
                if name == "new" and runs == 3 and not faults.ALL:  # each run takes seconds
                    break
            print(f"{words[0]}: {do} at {runs} calls")
            assert runs >= (1 if name == "new" else 4), (name, do, runs)
        as_before(name)
        began = time.monotonic()
        run(CTL, *words, ok=True)
        assert MADE[name][2](f"{OWN}/{name}"), name
        takes, new = time.monotonic() - began, 0
        for _ in range(1 if name == "new" else 8):
            as_before(name)
            killed_after(faults.chance.uniform(0, takes), *words)
            new += one_of_both(name, (name, "at random"))
        print(f"{words[0]}: killed at random moments, {new} times the new file was there")
finally:
    stop.set()
    user.join()
s.umount()
