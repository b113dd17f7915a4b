# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A folder is dropped while the kernel keeps its name because a process uses the folder. Until the
kernel is told about the drop (a step that takes a second here), a process that finds the folder by
name also finds its files."""
import errno, os, time
from kvtest import *

s = Store(size="64M", cpu="32M")
os.environ.update(LD_PRELOAD=f"{BUILD}/lib/late.so", LATE_MS="1000")
s.mount()
del os.environ["LD_PRELOAD"], os.environ["LATE_MS"]


def chunk(name):
    os.mkdir(f"{s.mnt}/{name}")
    for l in range(4):
        while True:  # the bytes of dropped chunks are free only after the late step
            try:
                s.write(f"{name}/layer{l}", bytes(128 * KiB))
                break
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                time.sleep(0.1)
    return os.open(f"{s.mnt}/{name}", os.O_PATH)


def look(c):
    """Whether the folder and its file are found. If the kernel is told between the two lookups, the
    folder is gone, too."""
    folder, file = (os.path.exists(f"{s.mnt}/{p}") for p in (c, f"{c}/layer0"))
    return c, folder and (file or os.path.exists(f"{s.mnt}/{c}")), file


held, asked = [chunk("0")], []
while len(asked) < 3:
    dropped = s.stats()["dropped_chunks"]
    while s.stats()["dropped_chunks"] == dropped:
        held.append(chunk(len(held)))
        time.sleep(0.02 * SLOW)
    # dropped chunks among those that were not looked up for at least a tenth of a second
    asked.append([look(c) for c in range(len(held) - 20)])
for found in asked:
    assert all(folder == file for _, folder, file in found), found
    assert not all(folder for _, folder, _ in found), "no dropped chunk was looked up"
for fd in held:
    os.close(fd)
s.umount()
s.fsck("-n")
print("ok")
