# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""No inode number is used twice in the life of a store: not across clean unmounts after all files
with the highest numbers were deleted, not across kills, and not after a rebuild of the catalog."""
from kvtest import *

s = Store(size="64M", options="settle=0").mount()
seen = set()


def make(n):
    new = []
    os.makedirs(f"{s.mnt}/m", exist_ok=True)
    for i in range(n):
        s.write(f"m/f{i}", b"x")
        os.mkdir(f"{s.mnt}/m/d{i}")
        os.symlink("x", f"{s.mnt}/m/l{i}")
        new += [os.lstat(f"{s.mnt}/m/{k}{i}").st_ino for k in "fdl"]
    assert len(set(new)) == len(new) and not seen & set(new), sorted(seen & set(new))[:5]
    seen.update(new)


def remove():
    for name in os.listdir(f"{s.mnt}/m"):
        (os.rmdir if name[0] == "d" else os.unlink)(f"{s.mnt}/m/{name}")
    os.rmdir(f"{s.mnt}/m")


for turn in range(4):
    make(30)
    remove()
    s.umount()
    before = max(seen)
    s.mount()
    make(5)
    remove()
    assert min(seen - set(range(before + 1))) - before < 100, (
        "a clean unmount returns reserved numbers that were not used")
for turn in range(2):
    make(30)
    remove()
    s.committed()
    s.kill()
    run("umount", "-l", s.mnt)
    s.mount()
    make(5)
    remove()
make(3)
s.settle()
remove()
make(3)
s.settle()
s.umount()
s.fsck("-n")
print("ok")
