# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""Another process can replace or remove a file between its lookup and its open. The open then gets
the file that the lookup found, as on any filesystem, and not ESTALE: the kernel retries once after
ESTALE, and a second replacement would make the error visible. A file that is never opened uses
space for at most two commits; a file that was never looked up is freed at once."""
import errno, os
from kvtest import *

N = 300000
s = Store(options="settle=0").mount()
path = f"{s.mnt}/m/c/l"


def found(content):
    """A name that was looked up, and not yet opened."""
    s.write("m/c/l", content)
    return os.open(path, os.O_PATH)


def opened(fd):
    with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as f:
        return f.readall()


def replace(content):
    s.write("m/c/tmp", content)
    os.replace(f"{s.mnt}/m/c/tmp", path)


def comes_late(gone):
    """Opens the file after it has lost its name. Returns false if this process was delayed so
    long that two commits have passed."""
    fd = found(blob(1, N))
    s.committed()
    gone(blob(2, N))
    try:
        got = opened(fd)
    except OSError as e:
        assert e.errno == errno.ESTALE, e
        return False
    else:
        assert got == blob(1, N) and os.fstat(fd).st_nlink == 0
        with fails(errno.ESTALE):  # the close has freed it
            opened(fd)
        return True
    finally:
        os.close(fd)


wait_for(lambda: comes_late(replace))
wait_for(lambda: comes_late(lambda _: os.unlink(path)))

# the file is never opened; its space counts as free at once
fd = found(blob(3, N))
s.settle()
used, free = s.stats()["pool_used_bytes"], os.statvfs(s.mnt).f_bavail
os.unlink(path)
assert os.statvfs(s.mnt).f_bavail >= free + N // os.statvfs(s.mnt).f_frsize
wait_for(lambda: s.stats()["pool_used_bytes"] < used - N // 2)
with fails(errno.ESTALE):
    opened(fd)
os.close(fd)

# an unmount before the open
fd = found(blob(4, N))
os.unlink(path)
os.close(fd)
s.umount()
assert "only in the pool" not in s.log() and "could not be copied" not in s.log(), s.log()
s.mount()
assert os.listdir(f"{s.mnt}/m/c") == [], os.listdir(f"{s.mnt}/m/c")
s.umount()
s.fsck("-n", "--data")
