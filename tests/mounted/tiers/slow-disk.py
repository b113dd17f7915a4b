# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""If a remote is faster than the disk, objects that a full pool evicts still reach the disk: the
evictor waits for that copy as long as stores may wait (pace=). After that time the object leaves
the pool with the copy that it has, and is not dropped. A node with a disk therefore loses nothing
if a remote fails later."""
import os
from kvtest import *

N = 60
os.makedirs(f"{TMP}/remote")
SLOW_PUTS = f"{TMP}/slow"


def fill(name, pace, delay):
    """Stores three times the pool's size, one chunk after the other, while the disk is slow."""
    s = Store(name, cpu="20M", options=f"settle=0,pace={pace},remote=dir://{TMP}/remote,"
              f"shim=delay-put:{delay}+delay-while:{SLOW_PUTS}+only:disk").mount()
    with open(SLOW_PUTS, "w"):
        for i in range(N):
            s.write(f"m/c{i}/l", blob(i, MiB))
            wait_for(lambda: "dir" in s.attr(f"m/c{i}", "tiers").split(","))
    os.unlink(SLOW_PUTS)
    s.settle()
    return s, [s.attr(f"m/c{i}", "tiers").split(",") for i in range(N)]


s, tiers = fill("waits", 600000, 100)
st = s.stats()
assert all("disk" in t and "dir" in t for t in tiers), tiers
assert st["evictions"] >= N - 20 and st["behind_drops"] == 0, st
os.rename(f"{TMP}/remote", f"{TMP}/away")
for i in range(N):
    assert s.read(f"m/c{i}/l") == blob(i, MiB)
os.rename(f"{TMP}/away", f"{TMP}/remote")
s.umount()

s, tiers = fill("hurries", 50, 60000)
st = s.stats()
assert all("dir" in t for t in tiers) and st["behind_drops"] == 0, (tiers, st)
assert any("disk" not in t for t in tiers), "the disk was fast enough"
s.umount()
