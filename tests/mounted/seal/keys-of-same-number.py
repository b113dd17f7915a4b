# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Two nodes of a shared folder each add a key with newkey, so they have different keys with the
same number. A copy that one node has sealed again with its key is not damaged for the other: reads
and verify count it as unsealable and keep it, and its owner can read it. When both nodes have the
same newest key, both read it."""
import errno, os, shutil
from kvtest import *

need_mount()
CTL = binary("kvcachectl")
FILES = [f"{TMP}/keys{i}" for i in range(2)]
DATA = blob("shared", 300000)
PATH = "m/c/l"
run(CTL, "newkey", FILES[0], ok=True)
shutil.copy(FILES[0], FILES[1])
os.makedirs(f"{TMP}/shared")
a, b = nodes = [Store(f"n{i}", options=f"settle=0,disk=off,remote=dir://{TMP}/shared,keyfile={f}"
                      ).mount() for i, f in enumerate(FILES)]


def again(s):
    s.umount()
    s.drop_pool()
    s.mount()


def last_line(path):
    with open(path) as f:
        return f.read().splitlines()[-1]


a.write(PATH, DATA)
a.settle()
assert b.read(PATH) == DATA
b.settle()
for s, f in zip(nodes, FILES):
    run(CTL, "newkey", f, ok=True)
    run(CTL, "reload", s.mnt, ok=True)
assert last_line(FILES[0])[:2] == last_line(FILES[1])[:2] == "2 "
assert last_line(FILES[0]) != last_line(FILES[1])
run(CTL, "rekey", a.mnt, ok=True)
a.settle()
for s in nodes:
    again(s)
for i in range(2):
    with fails(errno.ENOKEY):
        b.read(PATH)
p = run(CTL, "verify", b.mnt)
assert p.returncode == 1, p
assert "sealed with a key that this mount does not have" in b.log(), b.log()
stats = b.stats()
assert stats["corrupt"] == 0 and stats["unsealable"] >= 3, stats
again(b)
assert os.listdir(f"{b.mnt}/m/c") == ["l"]
with fails(errno.ENOKEY):
    b.read(PATH)
assert a.read(PATH) == DATA
run(CTL, "verify", a.mnt, ok=True)
# a key that both have
run(CTL, "newkey", FILES[0], ok=True)
with open(FILES[1], "a") as f:
    f.write(last_line(FILES[0]) + "\n")
run(CTL, "reload", b.mnt, ok=True)
run(CTL, "rekey", a.mnt, ok=True)
a.settle()


def readable():
    try:
        return b.read(PATH) == DATA
    except OSError:
        return False


wait_for(readable, every=0.2)
for s in nodes:
    s.umount()
