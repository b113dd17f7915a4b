# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The disk has free space, but no free extent that is large enough. An object that is larger than
the holes still gets its copy, because the coldest chunks are evicted until an extent fits. If none
may be evicted, the object stays in the pool, nothing waits for it, an fsync fails, and the copy is
made when something leaves. If a frame lacks space only until deletions are synced, no chunk is
evicted for it."""
import errno, os
from kvtest import *
import faults

SMALL, LARGE = 64 * KiB - 4 * KiB, 3 * MiB


def holes(s):
    """Fills the disk, and frees every other frame."""
    for i in range(210):
        s.write(f"m/small{i}", blob(i, SMALL))
        if i % 20 == 19:
            s.settle()
    s.settle()
    for i in range(0, 210, 2):
        os.unlink(f"{s.mnt}/m/small{i}")
    wait_for(lambda: s.stats()["tier_disk_used_bytes"] < 8 * MiB and s.stats()["jobs"] == 0)
    return {f"m/small{i}": blob(i, SMALL) for i in range(1, 210, 2)}


def right(s, paths):
    """Checks the contents of the files that exist. Returns their number."""
    n = 0
    for path, data in paths.items():
        with contextlib.suppress(FileNotFoundError):
            assert s.read(path) == data, path
            n += 1
    return n


s = Store("a", size="16M", cpu="32M", options="settle=0,unit=file,deadline=3000").mount()
left = holes(s)
assert right(s, left) == len(left)
s.write("m/large", blob(1000, LARGE))
wait_for(lambda: s.attr("m/large", "tiers") == "cpu,disk")
assert s.stats()["trimmed_chunks"] > 0, "a free extent was large enough"
assert right(s, left) == len(left), "a file that is still in the pool was lost"
s.umount()
s.fsck("-n", "--data")
s.mount()
assert s.read("m/large") == blob(1000, LARGE) and right(s, left) > 0
s.umount()

# pinned files: none may be evicted
s = Store("b", size="16M", cpu="32M", options="settle=0,unit=file,deadline=3000").mount()
left = holes(s)
for path in left:
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.pin", b"1")
s.write("m/large", blob(1000, LARGE))
fd = os.open(f"{s.mnt}/m/large", os.O_RDONLY)
with fails(errno.ENOSPC, errno.ETIMEDOUT):
    os.fsync(fd)
os.close(fd)
assert s.attr("m/large", "tiers") == "cpu" and s.read("m/large") == blob(1000, LARGE)
assert right(s, left) == len(left) and s.stats()["drops"] == 0
s.write("m/little", blob(1001, SMALL))  # it fits into a hole
wait_for(lambda: s.attr("m/little", "tiers") == "cpu,disk")
for path in list(left)[:60]:
    os.unlink(f"{s.mnt}/{path}")
wait_for(lambda: s.attr("m/large", "tiers") == "cpu,disk")
assert right(s, dict(list(left.items())[60:])) == 45
s.umount()
s.fsck("-n", "--data")

# the disk is completely full, one frame is deleted, and a new frame is refused until the sync that
# frees the space has ended; the retry of the copy comes a moment after the trimmer's check
s = Store("c", size="32M", cpu="64M",
          options="settle=0,unit=file,high=100,low=99,shim=delay-put:50")
rules = faults.Rules(f"calls=sync path={s.path}/* nth={faults.FAR} count={faults.FAR} "
                     "do=hold")
assert rules.mount(s)
for i in range(31):
    s.write(f"m/{i}", blob(i, MiB))
s.settle()
rules.begin()
os.unlink(f"{s.mnt}/m/0")
s.write("m/new", blob(31, MiB))
wait_for(lambda: rules.fired()[0] and s.stats()["spill_failures"])
rules.heal()
wait_for(lambda: s.attr("m/new", "tiers") == "cpu,disk")
st = s.stats()
assert rules.fired()[0] and st["spill_failures"] > 0, st
assert st["trimmed_chunks"] == st["drops"] == 0, st
s.umount()
