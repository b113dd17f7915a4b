# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A write through a mapping to pages that were read before leaves no trace on the segment. A file
that is opened and changed in this way while it is compared with its copies is compared again: its
old contents do not return after an eviction. The same holds if the daemon is killed before the
comparison, or while the file was open and the next start is refused. If the daemon has no
descriptor to check for a mapping, a copy waits until it can."""
import ctypes, glob, mmap, os, time
from kvtest import *
import faults

SLOW = f"calls=read path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do=delay:700"
NO_FD = f"calls=open path={TMP}/run/*/p-* nth={faults.FAR} count=1 do=EMFILE"
s = Store("s", cpu="32M", options="settle=0,unit=file")
path = f"{s.mnt}/m/f"
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def change(at, data):
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0) as m:
        assert m[at:at + len(data)] != data
        m[at:at + len(data)] = data
    os.close(fd)


def evicted(name):
    """Its contents after it has left the pool."""
    s.closed()
    s.settle()
    os.setxattr(f"{s.mnt}/{name}", "user.kvcachefs.demote", b"cpu")
    return s.read(name)


r = faults.Rules(SLOW, NO_FD)
assert r.mount(s)
wanted = bytearray(blob(1, 2 * MiB))
s.write("m/f", wanted)
s.settle()
for n in range(2):
    r.begin()
    fired = r.fired()[0]
    os.close(os.open(path, os.O_RDWR))  # the file may have changed, so it is compared
    wait_for(lambda: r.fired()[0] >= fired + 2)  # half of it was compared
    wanted[n] ^= 1
    change(n, wanted[n:n + 1])
    r.heal()
    assert evicted("m/f") == wanted, n

path = f"{s.mnt}/m/late"
wanted = bytearray(blob(2, 2 * MiB))
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.write(fd, wanted)
at = libc.mmap(None, len(wanted), 3, mmap.MAP_SHARED, fd, 0)  # Python's mmap keeps the file open
assert ctypes.string_at(at, len(wanted)) == wanted
r.begin(1)
os.close(fd)
if WAY == "fast":  # without passthrough a mapping keeps the file open too
    wait_for(lambda: r.fired()[1])
time.sleep(1)  # enough time for a copy
wanted[5] ^= 1
ctypes.memset(at + 5, wanted[5], 1)
libc.munmap(at, len(wanted))
assert evicted("m/late") == wanted


def killed():
    s.kill()
    run("umount", "-l", s.mnt)


path = f"{s.mnt}/m/f"
wanted = bytearray(s.read("m/f"))
if WAY == "fast":  # without passthrough a kill loses writes of a mapping
    before = time.time_ns() - 3600 * 10**9
    for n, opened in (10, False), (11, True):
        os.utime(path, ns=(before, before))
        fd = os.open(path, os.O_RDWR)
        m = mmap.mmap(fd, 0)
        assert m[:] == wanted
        s.committed(still_open=1)
        r.begin()
        wanted[n] ^= 1
        m[n] = wanted[n]
        if not opened:
            m.close()
            os.close(fd)
            s.closed()
        killed()
        if opened:
            m.close()
            os.close(fd)
            entries = len(os.listdir(glob.glob(f"{TMP}/run/*")[0])) + 2
            no = faults.Rules(f"calls=list path={TMP}/run/* nth={entries} do=EIO")
            assert not no.mount(s)
        r = faults.Rules(SLOW, NO_FD)
        assert r.mount(s)
        assert os.stat(path).st_mtime_ns == before, n
        assert evicted("m/f") == wanted, n
s.umount()
s.fsck("-n", "--data")
