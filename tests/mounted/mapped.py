# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""What a client writes through a mapping to pages that it has read leaves no trace on the segment.
A file that is opened anew, and changed so, while it is compared with its copies is compared once
more: what it held before does not come back after an eviction."""
import mmap, os
from kvtest import *
import faults

SLOW = f"calls=read path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do=delay:1500"
s = Store("s", cpu="32M", options="settle=0,unit=file")
path = f"{s.mnt}/m/f"


def change(at, data):
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0) as m:
        assert m[at:at + len(data)] != data
        m[at:at + len(data)] = data
    os.close(fd)


def evicted():
    """What it is when the pool does not have it any more."""
    s.closed()
    s.settle()
    os.setxattr(path, "user.kvcachefs.demote", b"cpu")
    return s.read("m/f")


r = faults.Rules(SLOW)
assert r.mount(s)
wanted = bytearray(blob(1, 2 * MiB))
s.write("m/f", wanted)
s.settle()
for n in range(2):
    r.begin()
    fired = r.fired()[0]
    os.close(os.open(path, os.O_RDWR))  # it may have been changed: it is compared
    wait_for(lambda: r.fired()[0] >= fired + 2)  # the first half of it was
    wanted[n] ^= 1
    change(n, wanted[n:n + 1])
    r.heal()
    assert evicted() == wanted, n
s.umount()
s.fsck("-n", "--data")
