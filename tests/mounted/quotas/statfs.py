# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""statvfs reports how much can be stored before anything is dropped. Engines that evict by it (a
minimum of free space, or a maximum percentage) keep the cache from ever dropping, and delete no
more than they must."""
import os, time
from kvtest import *


def space(s):
    v = os.statvfs(s.mnt)
    assert v.f_bavail == v.f_bfree
    return v.f_blocks * v.f_frsize, v.f_bavail * v.f_frsize


def put(s, name, size=MiB):
    s.write(f"m/{name}", blob(7, size))


# With a disk, a file takes its pages from its close on, and one page more after its copy, for the
# frame. A deletion frees the space at once. The pool is large enough that no copy is made early.
s = Store("disk", size="128M", cpu="64M", options="settle=60000").mount()
os.mkdir(f"{s.mnt}/m")
total, free = space(s)
assert total == 128 * MiB // 100 * 90 // 4096 * 4096 and free == total
s.committed()
v = os.statvfs(s.mnt)
for i in range(8):
    put(s, i)
s.committed()
w = os.statvfs(s.mnt)  # inodes are counted, too; their number is bounded by catalog=
assert v.f_files - v.f_ffree <= 2 and w.f_files - w.f_ffree == v.f_files - v.f_ffree + 8, (v, w)
assert w.f_ffree == w.f_favail and w.f_files <= s.stats()["catalog_limit"] // 1024, (w, s.stats())
assert space(s) == (total, total - 8 * MiB)
for i in range(8):
    with open(f"{s.mnt}/m/{i}", "rb") as f:
        os.fsync(f.fileno())
s.settle()
assert space(s) == (total, total - 8 * (MiB + 4096))
assert int(run("df", "-B1", "--output=used", s.mnt, ok=True).stdout.split()[1]) == 8 * (MiB + 4096)
os.unlink(f"{s.mnt}/m/0")
assert space(s)[1] == total - 7 * (MiB + 4096)
s.umount()
s.options = "settle=300,pace=600000"  # nothing is dropped because a disk is slow
s.mount()
put(s, 1)  # overwritten: the old copy is deleted
s.settle()
wait_for(lambda: space(s)[1] == total - 7 * (MiB + 4096))
with open(f"{s.mnt}/m/2", "rb"):  # deleted while open: in the pool until it is closed
    os.unlink(f"{s.mnt}/m/2")
    assert space(s)[1] == total - 6 * (MiB + 4096) - MiB
wait_for(lambda: space(s)[1] == total - 6 * (MiB + 4096))
# as much as the reported free space can be stored without a drop; more causes drops
n = space(s)[1] // (MiB + 4096)
for i in range(n):
    put(s, f"fill{i}")
s.settle()
time.sleep(0.5)
assert s.stats()["drops"] == 0 and 0 <= space(s)[1] < MiB + 4096, (s.stats()["drops"], space(s))
for i in range(12):
    put(s, f"more{i}")
wait_for(lambda: s.stats()["drops"] > 0)
s.settle()
wait_for(lambda: space(s)[1] > 0)
time.sleep(0.5)
# drops end at low=
assert space(s)[1] <= total - 128 * MiB // 100 * 80 + 16 * (MiB + 4096)
s.umount()
s.mount()
assert space(s)[0] == total and space(s)[1] < total // 2
for name in os.listdir(f"{s.mnt}/m"):
    os.unlink(f"{s.mnt}/m/{name}")
assert space(s) == (total, total)


def evictor(s, enough, target, count=200):
    """Stores count files like an engine: before each store, if `enough` is false for the space, it
    deletes its oldest files until `target` is true, and yields the used bytes."""
    mine = []
    for i in range(count):
        if not enough(*space(s)):
            while mine and not target(*space(s)):
                os.unlink(f"{s.mnt}/m/{mine.pop(0)}")
            total, free = space(s)
            yield total - free
        put(s, f"e{i}")
        mine.append(f"e{i}")
    assert all(s.read(f"m/{name}") == blob(7, MiB) for name in mine)
    assert s.stats()["drops"] == 0 and s.stats()["evictions"] > 0


# SGLang keeps a minimum of free space; NIXL and llm-d delete at 80 % down to 70 %
for enough, target, low in ((lambda t, f: f >= 16 * MiB, lambda t, f: f >= 16 * MiB, total
                             - 16 * MiB),
                            (lambda t, f: t - f < 0.8 * t, lambda t, f: t - f <= 0.7 * t,
                             0.7 * total)):
    # objects that are being copied (eight at most) count twice
    for left in evictor(s, enough, target):
        assert abs(low - left) <= 10 * (MiB + 4096), (left, low)
    for name in os.listdir(f"{s.mnt}/m"):
        os.unlink(f"{s.mnt}/m/{name}")
    s.settle()
s.umount()
s.fsck("-n")

# without a disk: the pool; with a remote, objects that it has can leave the pool and do not count
s = Store("pool", cpu="64M", options="disk=off").mount()
os.mkdir(f"{s.mnt}/m")
total, free = space(s)
assert total == free and 40 * MiB < total < 64 * MiB
for i in range(10):
    put(s, i)
s.settle()
assert space(s) == (total, total - 10 * MiB)
os.unlink(f"{s.mnt}/m/0")
assert space(s)[1] == total - 9 * MiB
for i in range((total - 9 * MiB) // MiB):
    put(s, f"fill{i}")
s.settle()
time.sleep(0.5)
assert s.stats()["drops"] == 0 and space(s)[1] < MiB
s.umount()
os.mkdir(f"{TMP}/shared")
s = Store("remote", cpu="64M",
          options=f"disk=off,settle=0,pace=600000,remote=dir://{TMP}/shared").mount()
os.mkdir(f"{s.mnt}/m")
for i in range(100):
    put(s, i)
s.settle()
assert s.stats()["drops"] == 0 and space(s) == (total, total)
s.umount()
