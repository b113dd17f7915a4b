# SPDX-License-Identifier: Apache-2.0
# ways: fast
""".kvcachefs/models shows the activity of each model and its bytes in the pool. The sums match
those of the mount, also if models were renamed, moved or removed. Other users cannot read it."""
import os
from kvtest import *

N = 300000
s = Store(options="settle=0", cpu="64M").mount()


def models():
    with open(f"{s.mnt}/.kvcachefs/models") as f:
        head, *lines = [l.split() for l in f]
    assert head[-1] == "name" and all(len(l) == len(head) for l in lines), (head, lines)
    return {l[-1]: dict(zip(head[:-1], map(int, l))) for l in lines}


def sums_hold():
    """The sums match while the mount is at rest and both files are read together."""
    stats, all_ = s.stats(), list(models().values())
    for a, b in (("hits", "pool_hits"), ("misses", "pool_misses"), ("creates", "creates"),
                 ("loads", "loads"), ("load_bytes", "load_bytes"), ("spills", "spills"),
                 ("spill_bytes", "spill_bytes"), ("found", "found"), ("absent", "absent")):
        assert sum(m[a] for m in all_) == stats[b], (a, stats[b], all_)


assert models()["//"]["creates"] == 0
for m, n in (("a", 3), ("b b%", 2)):
    for i in range(n):
        s.write(f"{m}/c/l{i}", blob(i, N))
s.write("flat", blob(9, N))
s.settle()
all_ = models()
assert set(all_) == {"a", "b%20b%25", "/", "//"}, all_
a = all_["a"]
assert a["creates"] == 3 and a["spills"] == 3 and 3 * N <= a["pool_bytes"] < 4 * N, a
assert a["spill_bytes"] >= 3 * N and a["hits"] == a["misses"] == a["loads"] == 0, a
assert all_["/"]["creates"] == 1 and all_["b%20b%25"]["creates"] == 2, all_
sums_hold()

for i in range(3):
    s.read(f"a/c/l{i}")
os.setxattr(f"{s.mnt}/a/c", "user.kvcachefs.demote", b"cpu")
assert models()["a"]["pool_bytes"] == 0
s.read("a/c/l1")
s.settle()
a = models()["a"]
assert (a["hits"], a["misses"], a["loads"], a["load_bytes"]) == (3, 1, 1, N), a
assert a["found"] == 1 and a["absent"] == 0, a  # one request for its layers
assert N <= a["pool_bytes"] < 2 * N, a
sums_hold()

# a file moves to another model; a model is renamed, and is removed
os.rename(f"{s.mnt}/flat", f"{s.mnt}/a/flat")
assert models()["/"]["pool_bytes"] == 0 and 2 * N <= models()["a"]["pool_bytes"] < 3 * N
os.rename(f"{s.mnt}/a", f"{s.mnt}/z")
assert models()["z"]["hits"] == 3 and "a" not in models()
run("rm", "-r", f"{s.mnt}/z", ok=True)
wait_for(lambda: models()["//"]["pool_bytes"] == 0 and models()["//"]["hits"] == 3)
assert set(models()) == {"b%20b%25", "/", "//"}
sums_hold()

# more models than the daemon reads in one hold of its lock
for i in range(200):
    s.write(f"many{i}/x", b"x")
s.settle()
assert len(models()) == 203
sums_hold()

os.chmod(s.mnt, 0o755)
p = run("setpriv", "--reuid", "65534", "--clear-groups", "cat", f"{s.mnt}/.kvcachefs/models")
assert p.returncode, p
s.umount()
