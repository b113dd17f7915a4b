# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Files that grow beyond their preallocation fill the pool without being counted. Calls that need
space (creates, overwrites, plain writes, loads, allocations) then wait, as with any full pool, and
none fails while a victim exists."""
import errno, os
from kvtest import *

need_mount()
FILE = 64 << 10


def full(s):
    """An open file that takes all remaining space of the pool, which the daemon has not
    noticed yet."""
    fd = os.open(f"{s.mnt}/m/grown", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    asked = s.stats()["plain_writes"]
    try:
        while True:
            os.write(fd, bytes(256 << 10))
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
    assert s.stats()["plain_writes"] == asked
    return fd


def begin(name, options=""):
    s = Store(name, size="512M", cpu="32M", options=f"settle=0,high=98,low=90{options}").mount()
    for i in range(320):  # the usual size is known, and the pool is full of copied objects
        s.write(f"m/{i}", blob(i, FILE))
    s.settle()
    return s


def right(s, name, data):
    assert s.read(name) == data, name


def create(s):
    for i in range(8):
        s.write(f"m/new{i}", blob(i, FILE))
    for i in range(8):
        right(s, f"m/new{i}", blob(i, FILE))


def anew(s):
    for i in range(300, 308):
        fd = os.open(f"{s.mnt}/m/{i}", os.O_WRONLY | os.O_TRUNC)
        os.write(fd, blob(-i, FILE))
        os.close(fd)
    for i in range(300, 308):
        right(s, f"m/{i}", blob(-i, FILE))


def plain(s):
    """A store into a model whose usual size is not known, by plain requests."""
    for i in range(8):
        s.write(f"other/{i}", blob(i, FILE))
    for i in range(8):
        right(s, f"other/{i}", blob(i, FILE))


def load(s):
    for i in range(8):
        right(s, f"m/{i}", blob(i, FILE))


def allocate(s):
    fd = os.open(f"{s.mnt}/other/arena", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 8 * FILE)
    os.close(fd)
    assert stored(f"{s.mnt}/other/arena") >= 8 * FILE


for what in (create, anew, plain, load, allocate):
    s = begin(what.__name__)
    os.mkdir(f"{s.mnt}/other")
    if what is load:  # the requested object has left the pool
        s.umount()
        s.mount()
        s.write("m/usual", blob(0, FILE))
        wait_for(lambda: s.stats()["files_open"] == 0)
        for i in range(8, 320):
            right(s, f"m/{i}", blob(i, FILE))
    fd = full(s)
    what(s)
    os.close(fd)
    st = s.stats()
    print(what.__name__, {k: st[k] for k in ("passthrough_opens", "room_waits", "room_refusals",
                                             "load_failures", "evictions")}, flush=True)
    assert st["load_failures"] == 0, st
    s.umount()
    s.fsck("-n")
