# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A file that changes while its copy is being written to a slow disk is copied again, also if the
mount ends meanwhile: the disk then has the new content, and the pool is not kept in memory."""
import os, time
from kvtest import *

SLOW_PUTS = f"{TMP}/slow"
s = Store(options=f"settle=0,shim=delay-put:3000+delay-while:{SLOW_PUTS}+only:disk").mount()
with open(SLOW_PUTS, "w"):
    for i in range(4):
        s.write(f"m/c{i}/l", blob(i, MiB))
    time.sleep(0.5)  # no number tells that a copy has begun
    for i in range(4):
        s.write(f"m/c{i}/l", blob(100 + i, MiB))
    s.closed()
    pool = s.config()["pool"]
    s.umount()
assert not os.path.exists(pool), s.log()
s.fsck("-n")
s.drop_pool()
s.mount()
for i in range(4):
    assert s.read(f"m/c{i}/l") == blob(100 + i, MiB)
s.umount()
