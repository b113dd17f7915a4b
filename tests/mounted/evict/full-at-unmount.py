# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""At an unmount, the last copies may not fit on a full disk, so other chunks leave the disk. Those
that are also in the pool are dropped as well: the pool of a full cache does not stay in memory.
The same holds if all chunks were stored a moment before."""
import os, time
from kvtest import *

N, NEW = 60, 30  # chunks of 1 MiB that are on disk, and that are copied by the unmount only
SLOW_PUTS = f"{TMP}/slow"


def unmount(idle):
    """Unmounts a store whose last chunks have no copies, idle seconds after the others were
    stored."""
    s = Store(f"idle{idle}", size="80M", cpu="128M",
              options=f"settle=0,pace=0,shim=delay-put:1000+delay-while:{SLOW_PUTS}+only:disk")
    s.mount()
    for i in range(N):
        s.write(f"m/c{i}/l", blob(i, MiB))
    s.settle()
    st = s.stats()
    assert st["spills"] == N and st["dropped_chunks"] == st["trimmed_chunks"] == 0, st
    time.sleep(idle)
    with open(SLOW_PUTS, "w"):
        for i in range(N, N + NEW):
            s.write(f"m/c{i}/l", blob(i, MiB))
        s.closed()
        assert s.stats()["trimmed_chunks"] == 0
    pool = s.config()["pool"]
    os.unlink(SLOW_PUTS)
    s.umount()
    assert not os.path.exists(pool), s.log()
    s.fsck("-n")
    s.mount()
    kept = [i for i in range(N + NEW) if os.path.exists(f"{s.mnt}/m/c{i}/l")]
    assert N // 2 < len(kept) < N + NEW, kept
    for i in kept:
        assert s.read(f"m/c{i}/l") == blob(i, MiB), i
    s.umount()


unmount(0)
unmount(1)
