# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""After umount -f -l, clients may still have files open, although nothing is mounted any more. A
file that was being written then is not shown as a complete one by the next mount. A file that was
closed before is there."""
import os
from kvtest import *

s = Store(options="unit=file").mount()
s.write("m/closed", blob("closed", 50 * KiB))
s.write("m/old", blob("old", 50 * KiB))
s.settle()
s.committed()
fds = [os.open(f"{s.mnt}/m/new", os.O_WRONLY | os.O_CREAT), os.open(f"{s.mnt}/m/old", os.O_WRONLY)]
for fd in fds:
    os.write(fd, b"half")
run("umount", "-f", "-l", s.mnt, ok=True)
s.daemon.wait(timeout=HANG)
s.mount()
assert sorted(os.listdir(f"{s.mnt}/m")) == ["closed", "old"], os.listdir(f"{s.mnt}/m")
assert s.read("m/closed") == blob("closed", 50 * KiB)
assert s.read("m/old") == blob("old", 50 * KiB)
for fd in fds:
    try:
        os.close(fd)
    except OSError:  # the connection has ended
        pass
s.umount()
s.fsck("-n", "--data")
