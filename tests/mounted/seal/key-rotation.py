# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The manual's steps to rotate keys, on one node and on three mounted nodes that share a remote:
add a key, run rekey, remove the old line, mount again, and load everything. The frames that another
node has encrypted again are not damaged ones: verify counts and keeps them. rekey refuses a file
that it cannot use and keeps its keys. A node learns a new key when it reads a frame with that key,
and counts frames whose keys its file lacks."""
import errno, json, os, shutil
from kvtest import *
from prometheus import check

need_mount()
CTL = binary("kvcachectl")
DATA = {f"m{i % 2}/c{i}/l": blob(i, 9000 + i) for i in range(6)}


def newkey(*files):
    """Adds a key to the first file and copies it to the others."""
    run(CTL, "newkey", files[0], ok=True)
    for f in files[1:]:
        shutil.copy(files[0], f)


def keep(path, lines):
    with open(path, "w") as f:
        f.write("".join(lines))


def lines(path):
    with open(path) as f:
        return f.readlines()


def rekey(s):
    p = run(CTL, "rekey", s.mnt)
    assert p.returncode == 0, p.stdout + s.log()[-2000:]


def refused(s, *words):
    p = run(CTL, "rekey", s.mnt)
    assert p.returncode == 1 and len(p.stdout.strip().splitlines()) == 1, p.stdout
    assert all(w in p.stdout for w in words), p.stdout


def sealed_with(s):
    """The keys of all placements that are committed."""
    return set(run("sqlite3", f"{s.path}/catalog.sqlite", "select distinct key from placements",
                   ok=True).stdout.split())


# one node
keys = f"{TMP}/keys"
newkey(keys)
s = Store(options=f"settle=20,keyfile={keys}").mount()
for path, d in DATA.items():
    s.write(path, d)
s.settle()
newkey(keys)
rekey(s)
assert s.stats()["rekeyed"] == len(DATA), s.stats()
s.write("m0/new/l", b"n" * 5000)
s.settle()
one, two = lines(keys)
keep(keys, [two])
rekey(s)  # key 1 is not used
s.umount()
assert sealed_with(s) == {"2"}
s.mount()
for path, d in DATA.items():
    assert s.read(path) == d
assert s.read("m0/new/l") == b"n" * 5000

# reload only adds keys: a key whose line is gone stays in use
newkey(keys)
three = lines(keys)[1]
keep(keys, [three])
assert run(CTL, "reload", s.mnt, ok=True).stdout == ""
assert s.read("m0/new/l") == b"n" * 5000 and s.stats()["rekeyed"] == 0
s.write("m0/third/l", b"t" * 5000)
s.settle()
s.committed()
assert sealed_with(s) == {"2", "3"}
keep(keys, ["9 zz\n"])
p = run(CTL, "reload", s.mnt, ok=False)
assert p.stdout.startswith("kvcachectl: ") and "HEX" in p.stdout and p.stdout.count("\n") == 1, p
assert s.read("m0/third/l") == b"t" * 5000
os.unlink(f"{s.mnt}/m0/third/l")
s.settle()
keep(keys, [two])
rekey(s)

# files that rekey refuses, and the keys stay
wrong = one.replace(one[2:10], "00000000").replace("1 ", "2 ", 1)
for text, words in (([], ("no keys",)), ([one], ("no longer has key 2", "restore its line")),
                    (["9 zz\n"], ("HEX",)), ([wrong], ("another key",))):
    keep(keys, text)
    refused(s, *words)
os.unlink(keys)
refused(s, "cannot be opened")
s.write("m0/kept/l", b"k" * 5000)
s.settle()
s.umount()
assert sealed_with(s) == {"2"}
keep(keys, [two])
os.chmod(keys, 0o600)
s.mount()
assert s.read("m0/kept/l") == b"k" * 5000
s.umount()
s.fsck()

# three nodes
os.makedirs(f"{TMP}/shared")
files = [f"{TMP}/keys{i}" for i in range(3)]
newkey(*files)
nodes = [Store(f"n{i}", options=f"settle=20,remote=dir://{TMP}/shared,keyfile={f}").mount()
         for i, f in enumerate(files)]
a, b, c = nodes


def load_all(s):
    for path, d in DATA.items():
        assert s.read(path) == d, path


for i, (path, d) in enumerate(DATA.items()):
    nodes[i % 3].write(path, d)
for s in nodes:
    s.settle()
for s in nodes:
    load_all(s)
newkey(*files[:2])  # the third node's file lacks the key
rekey(a)
a.write("m0/later/l", b"l" * 7000)
a.settle()
assert b.read("m0/later/l") == b"l" * 7000, "the key is learned from the file"
with fails(errno.ENOENT):
    c.read("m0/later/l")
assert c.stats()["unknown_keys"] >= 1 and b.stats()["unknown_keys"] == 0
with open(f"{c.mnt}/.kvcachefs/metrics", encoding="utf-8") as f:
    m = check(f.read())
assert any(n == "kvcachefs_unknown_keys_total" and float(v) >= 1 for n, _, v in m.samples)
shutil.copy(files[0], files[2])
for s in (b, c):
    rekey(s)
wait_for(lambda: os.path.exists(f"{c.mnt}/m0/later/l"), every=0.1)
assert c.read("m0/later/l") == b"l" * 7000
# a and b have recorded frames in the shared folder that other nodes have replaced since
for s in nodes:
    s.settle()
frames = sorted((f.path, f.stat().st_mtime_ns) for d in os.scandir(f"{TMP}/shared") if d.is_dir()
                for f in os.scandir(d.path))
p = run(CTL, "verify", "--json", a.mnt, ok=True)
j = json.loads(p.stdout)
assert j["damaged"] == j["unreadable"] == j["lost"] == 0 and j["replaced"] >= 2, j
assert j["good"] + j["replaced"] == j["seen"] and j["good"] >= 2, j
text = run(CTL, "verify", a.mnt, ok=True).stdout
assert text.endswith(f" good, {j['replaced']} replaced by other nodes\n"), text
a.settle()
assert frames == sorted((f.path, f.stat().st_mtime_ns) for d in os.scandir(f"{TMP}/shared")
                        if d.is_dir() for f in os.scandir(d.path)), "verify has written"
for path in DATA:
    folder = f"{a.mnt}/{os.path.dirname(path)}"
    for tier in (b"disk", b"cpu"):
        os.setxattr(folder, "user.kvcachefs.demote", tier)
load_all(a)
assert a.stats()["corrupt"] == 0 and a.stats()["replaced"] >= 2, a.stats()
for i, s in enumerate(nodes):
    s.settle()
    s.umount()
    assert sealed_with(s) == {"2"}, (i, sealed_with(s))
    keep(files[i], lines(files[i])[-1:])
for s in nodes:
    s.drop_pool()
    s.mount()
    load_all(s)
for s in nodes:
    s.umount()

# a key that was added on each node: the log of the reader says that the keys differ. A further key,
# which all files have, mends it.
files = [f"{TMP}/keys-of-{i}" for i in range(2)]
newkey(*files)
os.makedirs(f"{TMP}/shared2")
nodes = [Store(f"own{i}", options=f"settle=20,remote=dir://{TMP}/shared2,keyfile={f}").mount()
         for i, f in enumerate(files)]
for s, f in zip(nodes, files):
    out = run(CTL, "newkey", f, ok=True).stdout
    assert "copy this file to all nodes" in out, out
    rekey(s)
a, b = nodes
a.write("m0/differs/l", b"d" * 7000)
a.settle()
assert "differs from key 2" not in b.log()
with fails(errno.ENOENT):
    b.read("m0/differs/l")
assert b.log().count("encrypted with a key 2 that differs from key 2 of the key file") == 1
assert b.stats()["unknown_keys"] == b.stats()["corrupt"] == 0, b.stats()
assert b.stats()["unsealable"] >= 1, b.stats()
found = run(CTL, "doctor", "--for", "1s", b.mnt, ok=True).stdout
assert "all nodes of the shared tier have the same key file" in " ".join(found.split()), found
newkey(files[0])
keep(files[1], lines(files[1]) + lines(files[0])[-1:])
for s in nodes:
    rekey(s)
    s.settle()
wait_for(lambda: os.path.exists(f"{b.mnt}/m0/differs/l"), every=0.1)
assert b.read("m0/differs/l") == b"d" * 7000
for s in nodes:
    s.umount()
    assert sealed_with(s) == {"3"}, sealed_with(s)
