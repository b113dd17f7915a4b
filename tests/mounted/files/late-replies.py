# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Opens from many processes are answered late for SECONDS_LATE (15) seconds, and some processes are
killed while they wait. No process hangs."""
import os
from kvtest import *

seconds = int(os.environ.get("SECONDS_LATE", 15))
s = Store(cpu="24M", size="512M", options="shim=delay-get:2").mount()
for i in range(200):
    s.write(f"flat0/f{i:03}", blob(i, 256 * KiB))
s.settle()
while True:  # until enough replies were late
    p = subprocess.Popen([binary("test-late"), f"{s.mnt}/flat0", str(seconds), "24"],
                         stdout=subprocess.PIPE, text=True)
    out = p.communicate(timeout=seconds + HANG)[0]
    print(out)
    assert p.returncode == 0, out
    assert int(out.split(",")[1].split()[0]) == 0, out
    st = s.stats()
    if st["late_replies"] > 1000 // SLOW and st["loads"] > 500 // SLOW:
        break
if s.config()["requests_by"] != "io_uring":
    skip("the kernel has no FUSE over io_uring: the run was without it")
s.settle()
s.umount()
s.fsck("-n")
