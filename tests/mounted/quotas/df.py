# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""df on a model's folder, and on paths in it, shows the quota and the free part of it, never more
than the filesystem has. Without a quota, and elsewhere, df is unchanged. A remount keeps this."""
import os
from kvtest import *


def space(path=""):
    v = os.statvfs(os.path.join(s.mnt, path))
    assert v.f_bavail == v.f_bfree
    return v.f_blocks * v.f_frsize, v.f_bavail * v.f_frsize


def used(path):
    return int(s.attr(path, "used"))


s = Store(size="128M", cpu="64M", options="settle=0").mount()
s.write("m/c/f", blob(1, MiB))
s.write("other/c/f", blob(2, MiB))
s.settle()
whole = space()
assert all(space(p) == whole for p in ("m", "m/c", "m/c/f", "other", ".kvcachefs"))

os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"16M")
wait_for(lambda: used("m") == MiB)
for p in ("m", "m/c", "m/c/f"):
    assert space(p) == (16 * MiB, 15 * MiB), (p, space(p))
assert all(space(p) == whole for p in ("", "other", "other/c/f", ".kvcachefs"))
out = run("df", "-B1", "--output=size,avail", f"{s.mnt}/m/c", ok=True).stdout.split()[-2:]
assert out == [str(16 * MiB), str(15 * MiB)], out

# the values change with each store, deletion and new quota
for i in range(5):
    s.write(f"m/d/{i}", blob(i, MiB))
s.settle()
assert used("m") == 6 * MiB and space("m/d") == (16 * MiB, 10 * MiB), space("m/d")
os.unlink(f"{s.mnt}/m/d/0")
assert space("m") == (16 * MiB, 11 * MiB)
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"8M")
assert space("m") == (8 * MiB, 3 * MiB)
s.umount()
s.mount()
assert space("m/d/1") == (8 * MiB, 3 * MiB)

# with a quota larger than the filesystem, the free space is that of the filesystem
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"10G")
assert space("m")[0] == 10 << 30 and space("m")[1] == space()[1] < whole[0]
os.removexattr(f"{s.mnt}/m", "user.kvcachefs.quota")
assert space("m") == space("m/d/1") == space()
s.umount()
s.fsck("-n")
