# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl verify reads every copy. It reports damaged copies, which are made again if another
copy exists; otherwise the file is dropped. It does not count as an access, loads nothing, and obeys
its rate limit."""
import json, os, sqlite3
from kvtest import *

CTL = binary("kvcachectl")
N = 100000
BAD = f"{TMP}/bad"


def verify(*words, ok=True):
    p = run(CTL, "verify", "--json", *words, ok=ok)
    return json.loads(p.stdout.splitlines()[0]), p.stdout


def spoil(*names):
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    where = dict(db.execute("SELECT n.name || m.name, p.at FROM placements p JOIN names m ON m.ino "
                            "= p.ino JOIN names n ON n.ino = m.parent WHERE p.tier = 0"))
    db.close()
    with open(f"{s.path}/data", "r+b") as f:
        for name in names:
            f.seek(where[name] + 4096 + 1000)
            f.write(b"????")


os.mkdir(f"{TMP}/r")
s = Store(cpu="64M", options=f"settle=0,compress=zstd,remote=dir://{TMP}/r,"
          f"shim=fail-while:{BAD}+only:disk").mount()
os.mkdir(f"{s.mnt}/n")
os.setxattr(f"{s.mnt}/n", "user.kvcachefs.codec", b"none")
for i in range(10):
    s.write(f"n/c{i}/l", blob(i, N))
    s.write(f"m/z{i}/l", bytes(N))
with open(f"{s.mnt}/n/sparse", "wb") as f:
    f.truncate(50 * MiB)
    f.write(b"x" * 5000)
s.write("n/empty", b"")
s.settle()
for d in ("n", "m"):
    for c in os.listdir(f"{s.mnt}/{d}"):
        os.setxattr(f"{s.mnt}/{d}/{c}", "user.kvcachefs.demote", b"cpu")
before = s.stats()
j, _ = verify(s.mnt)
assert (j["seen"], j["good"], j["damaged"], j["unreadable"]) == (44, 44, 0, 0), j
j, _ = verify("--tier", "disk", s.mnt)
assert j["seen"] == 22 and j["bytes"] >= 10 * N, j
after = s.stats()
for n in ("loads", "opens", "pool_hits", "pool_misses", "pool_used_bytes", "objects_resident",
          "evicted_chunks", "corrupt"):
    assert before[n] == after[n], (n, before[n], after[n])
assert s.attr("n/c0/l", "hits") == "0" and s.attr("n/c0/l", "tiers") == "disk,dir"

# damaged copies of files that another tier, the pool, or no other place has
assert s.read("n/c1/l") == blob(1, N)
s.settle()
spoil("c0l", "c1l")
j, text = verify("--tier=disk", s.mnt, ok=False)
assert (j["good"], j["damaged"], j["lost"], j["failed_in"]) == (20, 2, 0, {"disk": 2}), j
assert "by tier: disk 2; for 0 files" in text and text.count("\n") == 2, text
assert s.stats()["corrupt"] == 2 and s.log().count("verify: the copy of inode") == 2
s.settle()
assert s.attr("n/c1/l", "tiers") == "cpu,disk,dir" and s.attr("n/c0/l", "tiers") == "dir"
assert s.read("n/c0/l") == blob(0, N) and s.read("n/c1/l") == blob(1, N)
s.settle()
j, _ = verify(s.mnt)
assert j["good"] == 44, j

# cannot be read now: nothing is discarded
open(BAD, "w").close()
j, text = verify("--tier", "disk", s.mnt, ok=False)
assert (j["good"], j["damaged"], j["unreadable"]) == (0, 0, 22), j
os.remove(BAD)
wait_for(lambda: run(CTL, "verify", s.mnt).returncode == 0)  # the disk's breaker closes

# --rate and --stop
p = subprocess.Popen([CTL, "verify", "--rate", "1K", s.mnt], stdout=subprocess.PIPE, text=True)
wait_for(lambda: "verify running" in open(f"{s.mnt}/.kvcachefs/control").read())
run(CTL, "verify", "--stop", s.mnt, ok=True)
out = p.communicate()[0]
assert p.returncode == 1 and "Operation canceled" in out, out
for words, said, code in ((("--rate", "0"), "bytes a second", 2),
                          (("--rate=x",), "is not a size", 2),
                          (("--tier", "tape", s.mnt), "this mount has no tier tape", 1),
                          (("--stop", "--json"), "cannot be combined", 2)):
    q = run(CTL, "verify", *words)
    assert q.returncode == code and said in q.stdout and q.stdout.count("\n") == 1, q
s.umount()

# the last copy
s = Store("alone", cpu="32M", options="settle=0").mount()
for i in range(2):
    s.write(f"m/c{i}/l", blob(i, N))
s.settle()
for i in range(2):
    os.setxattr(f"{s.mnt}/m/c{i}", "user.kvcachefs.demote", b"cpu")
spoil("c0l")
j, text = verify(s.mnt, ok=False)
assert (j["good"], j["damaged"], j["lost"]) == (1, 1, 1) and "for 1 files" in text, text
wait_for(lambda: not os.path.exists(f"{s.mnt}/m/c0/l"))
assert s.read("m/c1/l") == blob(1, N)
s.umount()
s.fsck("-n", "--data")
