# SPDX-License-Identifier: Apache-2.0
# ways: plain
# level: check
"""A copy finds no space on the disk tier, where nothing can be evicted, and is retried at growing
intervals. It is made as soon as space is freed, even if other copies found space in between."""
import os, time
from kvtest import *

s = Store(size="32M", cpu="64M", options="settle=0,share=100").mount()
held = []
for i in range(14):  # files that stay open are not evicted
    s.write(f"m/{i}", blob(i, 2 * MiB))
    held.append(open(f"{s.mnt}/m/{i}", "rb"))
wait_for(lambda: s.stats()["spills"] >= 14)
s.write("m/late", blob(99, 6 * MiB))
tried, last, gap = 0, time.monotonic(), 0
while gap < 14:  # after such a gap the next retry is half a minute away
    now, before = time.monotonic(), tried
    tried = s.stats()["spill_failures"]
    if tried != before:
        last, gap = now, now - last
    assert now < last + HANG, s.stats()
    time.sleep(0.05)
s.write("m/small", blob(98, 4096))
wait_for(lambda: s.attr("m/small", "state") == "resident+lower")
for i in range(4):
    os.unlink(f"{s.mnt}/m/{i}")
    held[i].close()
wait_for(lambda: s.attr("m/late", "state") == "resident+lower", 25 / SLOW)
[f.close() for f in held]
s.umount()
s.fsck("-n")
