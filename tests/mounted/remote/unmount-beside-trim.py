# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""An unmount does not wait for removals from a slow tier that a trim or a user caused: it ends
while most of them are pending, as counters show. No removed file reappears, and files that must be
removed from a shared tier for all nodes are removed by the next start."""
import os
from kvtest import *
import faults

FILES, SIZE = 400, 64 * KiB
SLOW_CALL = "do=delay:4000"  # all of them would take minutes
REMOTE = f"{TMP}/remote"
os.mkdir(REMOTE)
kept = {f"keep/{i}": blob(i, 5000) for i in range(5)}


def stored(s, **files):
    for path, data in {**kept, **files}.items():
        s.write(path, data)
    s.settle()
    s.committed()


def there(s):
    """Returns the files that are left, each of which must be complete."""
    for path, data in kept.items():
        assert s.read(path) == data, path
    return len(os.listdir(f"{s.mnt}/m"))


# a disk that is trimmed to a tenth of its contents
s = Store("disk", size="64M", cpu="64M", options="settle=0,deadline=1000,unit=file")
r = faults.Rules(f"calls=write path={s.path}/data nth={faults.FAR} count={faults.FAR} {SLOW_CALL}")
s.mount()
stored(s, **{f"m/{i}": blob(i, SIZE) for i in range(FILES)})
for path in kept:
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.pin", b"1")
s.umount()
assert r.mount(s)  # the pool is empty, so nothing is copied again
r.begin()
run(binary("kvcachectl"), "reload", "-o", "high=20,low=4", s.mnt, ok=True)
wait_for(lambda: s.stats()["trimmed_chunks"] > FILES // 2)
s.umount()
cleared = r.fired()[0]
print(f"disk: {cleared} of more than {FILES // 2} headers cleared at the end")
assert cleared < FILES // 4, cleared
assert s.fsck("-n", "--data").stdout.count("of a killed daemon") == 1
s.mount()
assert there(s) < FILES // 2
s.write("m/new", blob("new", SIZE))
s.settle()
assert s.read("m/new") == blob("new", SIZE)
s.umount()
s.fsck("-y", "--data", ok=None)
s.fsck("-n", "--data")

# a shared folder: a user deletes files for all nodes
s = Store("dir", cpu="64M", options=f"settle=0,deadline=1000,disk=off,remote=dir://{REMOTE}")
r = faults.Rules(f"calls=unlink path={REMOTE}/* nth={faults.FAR} count={faults.FAR} {SLOW_CALL}")
assert r.mount(s)
os.mkdir(f"{s.mnt}/m")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.shared", b"delete")
stored(s, **{f"m/{i}": blob(i, 100) for i in range(FILES)})


def copies():
    """Returns how many copies of deleted files are left. The folder also has copies of other files
    and of folders."""
    return sum(len(names) for _, _, names in os.walk(REMOTE)) - others


others = 0
others = steady(copies) - FILES
assert others >= len(kept), others
r.begin()
for i in range(FILES):
    os.unlink(f"{s.mnt}/m/{i}")
s.committed()
s.umount()
left = copies()
print(f"dir: {left} of {FILES} copies are left at the end")
assert left > FILES // 2, left
s.mount()
assert not there(s)
wait_for(lambda: copies() <= 0)  # copies of folders may be removed, too
s.umount()
s.fsck("-n")
