# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A file or its folder is demoted from the pool while the folder becomes one chunk or several,
again and again. When the call succeeds, the file is not in the pool, and neither are the others in
the folder if the call named the folder."""
import os, time
from kvtest import *

FILES = 6
s = Store(options="settle=0").mount()
for i in range(FILES):
    s.write(f"m/d/{i}", blob(i, 64 * KiB))
s.settle()
top = f"{s.mnt}/m/d"


def state(i):
    return os.getxattr(f"{top}/{i}", "user.kvcachefs.state").decode()


done = {"file": 0, "folder": 0}
end = time.monotonic() + 5
for n in range(10**9):
    kind, i = ("file", "folder")[n % 3 == 0], n % FILES
    for j in range(FILES):
        s.read(f"m/d/{j}")
    os.setxattr(top, "user.kvcachefs.unit", (b"dir", b"file")[n % 2])
    try:
        os.setxattr(f"{top}/{i}" if kind == "file" else top, "user.kvcachefs.demote", b"cpu")
    except OSError as e:
        # in use, or the folder is not a chunk
        assert e.errno == errno.EBUSY or kind == "folder" and e.errno == errno.EINVAL, e
    else:
        done[kind] += 1
        left = [j for j in range(FILES) if (kind == "folder" or j == i) and state(j) != "lower"]
        assert not left, f"{kind} {i}, call {n}: {left} are in the pool"
    if time.monotonic() > end and min(done.values()) >= 20:
        break
print(done)
s.umount()
s.fsck("-n")
