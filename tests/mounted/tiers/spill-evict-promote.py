# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Spill, evict and promote in both write modes. Open files stay, many openers share one load, a
slow or dead tier causes a miss and not a hang, and the breaker works. Renames, unlinks and
overwrites happen while tiers work."""
import errno, os, threading, time
from kvtest import *

N = 2 * MiB


def evict(s, still_open=0):
    """Fills the pool until nothing else is in it."""
    for i in range(100):
        s.write(f"fill/{i}/x", bytes(MiB))
    s.settle(still_open)


def state(s, path):
    return s.attr(path, "state")


s = Store(cpu="64M", size="512M").mount()
for i in range(4):
    s.write(f"m/c{i}/l", blob(i, N))
s.settle()
assert all(state(s, f"m/c{i}/l") == "resident+lower" and s.attr(f"m/c{i}/l", "tiers") == "cpu,disk"
           for i in range(4))
fd = os.open(f"{s.mnt}/m/c3/l", os.O_RDONLY)
evict(s, 1)
assert [state(s, f"m/c{i}/l")
        for i in range(4)] == ["lower"] * 3 + ["resident+lower"], [state(s, f"m/c{i}/l")
                                                                   for i in range(4)]
assert s.attr("m/c0/l", "tiers") == "disk" and s.attr("m/c0", "tiers") == "disk"
assert os.stat(f"{s.mnt}/m/c0/l").st_size == N and os.stat(f"{s.mnt}/m/c0/l").st_blocks == N // 512
os.close(fd)

# one load for many openers
before = s.stats()
bad = []
def reader():
    if s.read("m/c0/l") != blob(0, N):
        bad.append(1)
t = [threading.Thread(target=reader) for _ in range(16)]
[x.start() for x in t]
[x.join() for x in t]
after = s.stats()
assert not bad and after["loads"] - before["loads"] == 1
assert state(s, "m/c0/l") == "resident+lower"

# operations on an object in a lower tier: rename, truncate, overwrite in place, O_TRUNC, unlink
os.rename(f"{s.mnt}/m/c1/l", f"{s.mnt}/m/c1/renamed")
assert s.read("m/c1/renamed") == blob(1, N)
evict(s)
assert state(s, "m/c1/renamed") == "lower"
os.truncate(f"{s.mnt}/m/c1/renamed", 1000)
assert s.read("m/c1/renamed") == blob(1, N)[:1000]
evict(s)
with open(f"{s.mnt}/m/c2/l", "r+b") as f:
    f.seek(5000)
    f.write(b"changed")
want = bytearray(blob(2, N))
want[5000:5007] = b"changed"
s.settle()
assert s.read("m/c2/l") == bytes(want)
evict(s)
assert state(s, "m/c2/l") == "lower" and s.read("m/c2/l") == bytes(want)
evict(s)
s.write("m/c0/l", b"anew")
assert s.read("m/c0/l") == b"anew"
evict(s)
used = s.stats()["tier_disk_used_bytes"]
os.unlink(f"{s.mnt}/m/c2/l")
wait_for(lambda: s.stats()["tier_disk_used_bytes"] == used - N - 4096)

# a file that was opened for writing, but not written, gets no new copy
before = s.stats()["spill_bytes"]
os.close(os.open(f"{s.mnt}/m/c3/l", os.O_RDWR))
s.settle()
assert s.stats()["spill_bytes"] == before and state(s, "m/c3/l") == "resident+lower"
# a change through a mapping only is noticed
import mmap
fd = os.open(f"{s.mnt}/m/c3/l", os.O_RDWR)
mm = mmap.mmap(fd, N)
assert mm[0:1] == blob(3, N)[0:1]
mm[0:4] = b"MMAP"
mm.close()
os.close(fd)
s.settle()
evict(s)
assert state(s, "m/c3/l") == "lower" and s.read("m/c3/l") == b"MMAP" + blob(3, N)[4:]

# a mapping keeps the segment after the file is closed
fd = os.open(f"{s.mnt}/m/c3/l", os.O_RDONLY)
mm = mmap.mmap(fd, N, prot=mmap.PROT_READ)
os.close(fd)
evict(s, 1)
assert mm[4:N] == blob(3, N)[4:]
mm.close()
s.umount()
# files that were overwritten or truncated without a load are evicted like others
s.mount()
s.write("m/c0/l", b"again")
os.truncate(f"{s.mnt}/m/c1/renamed", 0)
evict(s)
assert [state(s, f"m/{f}") for f in ("c0/l", "c1/renamed")] == ["lower"] * 2
assert s.read("m/c0/l") == b"again" and s.read("m/c1/renamed") == b""
s.umount()
s.fsck("-n", "--data")

# write=back: nothing is copied before eviction while few objects lack a copy
s = Store("back", cpu="64M", size="512M", options="write=back").mount()
s.write("m/c/l", blob(9, N))
time.sleep(0.5)
s.settle()
assert state(s, "m/c/l") == "resident" and s.stats()["spills"] == 0
# if more than a quarter of the pool has no copy, the oldest chunks are copied before anything has
# to be evicted, and the newest are not
for i in range(24):
    s.write(f"m/d{i}/l", blob(i, 1 << 20))
wait_for(lambda: state(s, "m/d0/l") == "resident+lower")
assert state(s, "m/d23/l") == "resident" and s.stats()["evictions"] == 0
evict(s)
assert state(s, "m/c/l") == "lower" and s.read("m/c/l") == blob(9, N)
s.umount()
s.mount()
assert s.read("m/c/l") == blob(9, N)
s.umount()

# write=through: copies wait for settle=, or until a quarter of the pool has no copy
s = Store("settle", cpu="64M", size="512M", options="settle=3600000").mount()
for i in range(8):
    s.write(f"m/{i}/l", blob(i, MiB))
s.closed()
time.sleep(0.1)
assert s.stats()["spills"] == 0 and state(s, "m/0/l") == "resident"
for i in range(8, 24):
    s.write(f"m/{i}/l", blob(i, MiB))
wait_for(lambda: state(s, "m/0/l") == "resident+lower")
assert state(s, "m/23/l") == "resident"
s.umount()

# a slow tier: the deadline is kept, and other calls are served in the meantime
flag = f"{TMP}/slow.flag"
s = Store("slow", cpu="64M", size="512M").mount()
s.write("m/c/l", blob(9, N))
s.umount()
s.mount(options=f"deadline=500,shim=delay-get:60000+delay-while:{flag}")
open(flag, "w").close()
with fails(errno.ENOENT):  # a miss, because the load takes longer than the deadline
    s.read("m/c/l")
assert state(s, "m/c/l") == "loading"
s.write("m/e/l", b"meanwhile")
assert s.read("m/e/l") == b"meanwhile"
os.unlink(flag)
wait_for(lambda: state(s, "m/c/l") == "resident+lower")
assert s.read("m/c/l") == blob(9, N) and s.stats()["load_timeouts"] == 1
s.umount()

# a dead tier: errors, the breaker opens, stores continue, and the tier recovers
flag = f"{TMP}/dead.flag"
s = Store("dead", cpu="64M", size="512M", options=f"settle=0,shim=fail-while:{flag}").mount()
s.write("m/c/l", blob(9, N))
s.settle()
evict(s)
open(flag, "w").close()
for i in range(8):
    s.write(f"m/n{i}/l", blob(i, MiB))
    with fails(errno.ENOENT):
        s.read("m/c/l")
wait_for(lambda: s.stats()["breaker_opened"] >= 1)
assert all(s.read(f"m/n{i}/l") == blob(i, MiB) for i in range(8)) and s.stats()["tier_disk_up"] == 0
os.unlink(flag)
wait_for(lambda: s.stats()["breaker_closed"] >= 1, 60)
s.settle()
assert s.read("m/c/l") == blob(9, N)
wait_for(lambda: all(state(s, f"m/n{i}/l") == "resident+lower" for i in range(8)))
s.umount()
s.fsck("-n")
