# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A file without a name stays counted in its model when its folder moves to another model. When a
rescan corrects the file's model, its bytes move with it, so no model has a byte once it is gone."""
from kvtest import *

s = Store(options="settle=0", cpu="64M", size="256M").mount()


def bytes_of(model):
    return int(os.getxattr(f"{s.mnt}/{model}", "user.kvcachefs.bytes"))


os.makedirs(f"{s.mnt}/a/sub")
os.mkdir(f"{s.mnt}/b")
fd = os.open(f"{s.mnt}/a/sub", os.O_TMPFILE | os.O_RDWR)
os.write(fd, blob(4, 300000))
os.fsync(fd)
assert bytes_of("a") >= 300000 and bytes_of("b") == 0, (bytes_of("a"), bytes_of("b"))
os.rename(f"{s.mnt}/a/sub", f"{s.mnt}/b/sub")
os.setxattr(f"{s.mnt}/b", "user.kvcachefs.quota", b"100M")
# the attribute survey has no value once the rescan is complete
wait_for(lambda: run("getfattr", "-n", "user.kvcachefs.survey", f"{s.mnt}/b",
                     ok=None).returncode != 0)
assert bytes_of("a") == 0 and bytes_of("b") >= 300000, (bytes_of("a"), bytes_of("b"))
os.close(fd)
wait_for(lambda: bytes_of("b") == 0)
assert bytes_of("a") == 0, bytes_of("a")
s.umount()
