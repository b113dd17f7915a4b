# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A flipped bit anywhere in a frame is detected, counted and served as a miss, never as data."""
import errno, os, random, sqlite3
from kvtest import *

N = 65536
COUNT = 48
s = Store(cpu="32M", size="128M").mount()
for i in range(COUNT):
    s.write(f"m/c{i}/l", blob(i, N))
s.settle()
s.umount()
db = sqlite3.connect(f"{s.path}/catalog.sqlite")
where = dict(db.execute("SELECT n.name || m.name, p.at FROM placements p JOIN names m ON m.ino = "
                        "p.ino JOIN names n ON n.ino = m.parent"))
db.close()
rng = random.Random(5)
flipped = set()
with open(f"{s.path}/data", "r+b") as f:
    for i in range(COUNT // 2):
        # the first and last bytes of the identity part and of the payload, and others in them; the
        # name part is read only by a rebuild
        off = rng.choice([0, 511, rng.randrange(512), 4096, 4096 + N - 1, 4096 + rng.randrange(N),
                          4096 + rng.randrange(N)])
        at = where[f"c{i}l"] + off
        f.seek(at)
        b = f.read(1)[0]
        f.seek(at)
        f.write(bytes([b ^ 1 << rng.randrange(8)]))
        flipped.add(i)
out = s.fsck("-n", "--data", ok=False).stdout
assert out.count("points to no frame") == len(flipped), out
s.mount()
for i in range(COUNT):
    if i in flipped:
        with fails(errno.ENOENT):
            s.read(f"m/c{i}/l")
        with fails(errno.ENOENT):
            os.stat(f"{s.mnt}/m/c{i}/l")
        s.write(f"m/c{i}/l", blob(i, N))  # the engine computes it again
    assert s.read(f"m/c{i}/l") == blob(i, N)
st = s.stats()
assert st["corrupt"] == len(flipped) and st["drops"] == len(flipped), st
s.umount()
s.fsck("-n", "--data")

# if another tier has a copy, that copy is read; the bad copy is counted and made again
os.makedirs(f"{TMP}/shared")
s = Store("two", cpu="32M", size="128M", options=f"settle=0,remote=dir://{TMP}/shared").mount()
for i in range(6):
    s.write(f"m/c{i}/l", blob(i, N))
s.settle()
wait_for(lambda: all(s.attr(f"m/c{i}/l", "tiers") == "cpu,disk,dir" for i in range(6)))
s.umount()
db = sqlite3.connect(f"{s.path}/catalog.sqlite")
with open(f"{s.path}/data", "r+b") as f:
    for (at,) in db.execute("SELECT at FROM placements WHERE tier = 0"):
        f.seek(at + 4096 + 100)
        f.write(b"?")
db.close()
s.mount()
for i in range(6):
    assert s.read(f"m/c{i}/l") == blob(i, N)
assert s.stats()["corrupt"] == 6 and s.stats()["drops"] == 0, s.stats()
s.settle()
wait_for(lambda: all("disk" in s.attr(f"m/c{i}/l", "tiers") for i in range(6)))
s.umount()
s.fsck("-n", "--data")

# the same by the shim: every third read has a bit flipped on its way
s = Store("shim", cpu="32M", size="128M", options="shim=flip-get:3").mount()
for i in range(30):
    s.write(f"m/c{i}/l", blob(i, N))
s.settle()
s.umount()
s.mount()
missing = 0
for i in range(30):
    try:
        assert s.read(f"m/c{i}/l") == blob(i, N)
    except FileNotFoundError:
        missing += 1
assert missing == 10 and s.stats()["corrupt"] == 10, missing
s.umount()
s.fsck("-n")
