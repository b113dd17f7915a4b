# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""One test suite for every policy: the victim is the expected one, and a restart after a clean
unmount or a kill does not change it."""
import os, time
from kvtest import *

N = MiB
# 10 chunks made in order; then some are used: 0 three times, 1 twice, then 5 and last 2, once each
USE = [0, 0, 0, 1, 1, 5, 2]
ORDER = {  # from first evicted to last, of chunks 0 to 9
    "lru": [3, 4, 6, 7, 8, 9, 0, 1, 5, 2],
    "fifo": list(range(10)),
    "lfu": [3, 4, 6, 7, 8, 9, 5, 2, 1, 0],
    "mru": [2, 5, 1, 0, 9, 8, 7, 6, 4, 3],
}
CASES = [(p, f"policy={p}", ("none", "umount", "kill")) for p in ORDER]
# the pool and the disk have separate orders; only the pool knows chunks that are not on the disk
CASES += [("lfu", "policy=lfu,disk_policy=fifo", ("umount", "kill")),
          ("lfu", "policy=lfu,write=back", ("kill",))]


def goes(policy, options, end):
    order = ORDER[policy]
    s = Store(f"{options.replace('=', '-')}-{end}", cpu="16M", size="128M",
              options=f"{options},keep_pool,settle=0,high=100,low=99").mount()
    for c in range(10):
        s.write(f"m/c{c}/l", blob(c, N))
        time.sleep(0.006)  # lfu distinguishes times in steps of 2 ms
    s.settle()
    for c in USE:
        s.read(f"m/c{c}/l")
        time.sleep(0.006)
    s.settle()
    if end == "kill":
        time.sleep(1.2 if SLOW == 1 else 3)  # the request is over
    s.again(end)
    lower = lambda: {c for c in range(10) if s.attr(f"m/c{c}/l", "state") == "lower"}
    assert not lower()
    # Space is needed for one chunk at a time: of two victims, the second could be copied and
    # evicted first. The new files stay open, so that they are not candidates.
    held, gone = [], []
    for i in range(16):
        f = open(f"{s.mnt}/x{i}", "wb")
        f.write(bytes(MiB))
        f.flush()
        held.append(f)
        wait_for(lambda: s.stats()["room_waiters"] == 0)
        gone.append(steady(lower))
        if len(gone[-1]) >= 8:
            break
    for g in gone:
        assert g == set(order[:len(g)]), \
            f"{options} after {end}: evicted {sorted(g)}, expected {order[:len(g)]}"
    assert len(gone[-1]) >= 5, gone
    [f.close() for f in held]
    s.settle()
    pool = s.config()["pool"]
    s.umount()
    run("umount", "-l", pool)


beside([(goes, policy, options, end) for policy, options, ends in CASES for end in ends], most=6)
print("ok")
