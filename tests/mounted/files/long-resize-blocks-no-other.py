# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""A call that adds many bytes to a file, or removes many, does not block other callers. fallocate,
a hole, truncate and an open with O_TRUNC are delayed in the pool's tmpfs while others look up,
open, read, write and list. The results are the same as without the delay, also if the file is
unlinked in between. Space of the pool and of a quota that these calls were granted is given to no
other caller, and all of it is returned."""
import ctypes, os, threading
from kvtest import *
import faults

HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


class libc:
    @staticmethod
    def fallocate(fd, mode, off, size):
        c = ctypes.CDLL(None, use_errno=True)
        if c.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(size)):
            raise OSError(ctypes.get_errno(), "fallocate")


N = 150 * MiB
s = Store("s", size="512M", cpu="1G", options="settle=60000,unit=file,deadline=1500")
s.mount()
for i in range(64):
    s.write(f"m/{i}", blob(i, 5000))
s.write("m/big", b"x")
ino = os.stat(f"{s.mnt}/m/big").st_ino
s.umount()
r = faults.Rules(*[f"calls={calls} path={TMP}/run/*/?-{ino:x}-* nth={faults.FAR} "
                   f"count={faults.FAR} do=hold" for calls in ("alloc", "truncate")])
assert r.mount(s)
made = 0


class Held(threading.Thread):
    """Starts the call, and returns when it is held in the tmpfs."""

    def __init__(self, rule, what, *args):
        super().__init__()
        self.what, self.args, self.err, self.rule = what, args, None, rule
        before = r.fired()[rule]
        r.begin(rule)
        self.start()
        # releases a call that is blocked after all; end() reports it
        self.late = threading.Timer(HANG, r.heal, (rule,))
        self.late.start()
        wait_for(lambda: r.fired()[rule] > before)

    def run(self):
        try:
            self.what(*self.args)
        except OSError as e:
            self.err = e.errno

    def end(self, err=None):
        self.late.cancel()
        assert self.is_alive(), "it was not held any more"
        r.heal(self.rule)
        self.join()
        assert self.err == err, (self.what, self.err)


def others():
    """Calls that the daemon answers, one of each."""
    global made
    made += 1
    assert s.read(f"m/{made}") == blob(made, 5000)
    assert not os.path.exists(f"{s.mnt}/m/none{made}")
    os.truncate(f"{s.mnt}/m/{made}", 100)
    s.write(f"m/new{made}", b"x" * 5000)
    assert f"new{made}" in os.listdir(f"{s.mnt}/m")
    os.getxattr(f"{s.mnt}/m/{made}", "user.kvcachefs.state")
    os.unlink(f"{s.mnt}/m/new{made}")


def taken():
    s.closed(still_open=1)
    return s.stats()["pool_used_bytes"]


others()
fd = os.open(f"{s.mnt}/m/big", os.O_RDWR)
before = taken()
# an allocation, in steps
h = Held(0, os.posix_fallocate, fd, 0, N)
assert os.fstat(fd).st_size == 1
assert s.stats()["pool_used_bytes"] >= before + N - 1 * MiB, "it is not accounted for yet"
others()
h.end()
assert os.fstat(fd).st_size == N, os.fstat(fd)
assert before + N - MiB < taken() < before + N + MiB
assert os.pread(fd, 10, 0) == b"x" + bytes(9)
# a hole
os.pwrite(fd, b"end", N - 3)
h = Held(0, libc.fallocate, fd, HOLE, 0, N - MiB)
others()
h.end()
assert os.pread(fd, 10, 0) == bytes(10) and os.pread(fd, 3, N - 3) == b"end"
assert taken() < before + 12 * MiB
# a truncate, with the file open and closed
os.posix_fallocate(fd, 0, N)
for how in "open", "closed":
    if how == "closed":
        os.close(fd)
        s.closed()
    h = Held(1, os.truncate, f"{s.mnt}/m/big", 4096)
    others()
    h.end()
    assert os.stat(f"{s.mnt}/m/big").st_size == 4096
    s.closed(still_open=how == "open")
    fd = os.open(f"{s.mnt}/m/big", os.O_RDWR) if how == "closed" else fd
    assert os.pread(fd, 10, 0) == bytes(10) and taken() < before + 12 * MiB
    os.posix_fallocate(fd, 0, N)
os.close(fd)
# an overwrite
h = Held(1, lambda: os.close(os.open(f"{s.mnt}/m/big", os.O_WRONLY | os.O_TRUNC)))
others()
h.end()
assert os.stat(f"{s.mnt}/m/big").st_size == 0
s.closed()
assert s.stats()["pool_used_bytes"] < before + 8 * MiB
for i in range(made + 1, 64):
    assert s.read(f"m/{i}") == blob(i, 5000)
# space that a quota granted is given to no other caller, during the allocation and afterwards
fd = os.open(f"{s.mnt}/m/big", os.O_RDWR)
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"200M")
h = Held(0, os.posix_fallocate, fd, 0, N)
with fails(errno.EDQUOT):
    s.write("m/other", bytes(60 * MiB))
s.write("m/less", bytes(20 * MiB))
h.end()
with fails(errno.EDQUOT):
    s.write("m/other", bytes(60 * MiB))
assert s.attr("m", "quota") == str(200 * MiB)
os.removexattr(f"{s.mnt}/m", "user.kvcachefs.quota")
os.truncate(fd, 0)
# unlinked during the call, and not open: the call ends, and no space stays in use
os.close(fd)
s.write("m/big", bytes(16 * MiB))
h = Held(1, os.truncate, f"{s.mnt}/m/big", 0)
gone = threading.Thread(target=os.unlink, args=(f"{s.mnt}/m/big",))
gone.start()  # the kernel may make it wait for the other call
time.sleep(0.2)
h.late.cancel()
r.heal(1)
h.join()
gone.join()
assert h.err in (None, errno.ESTALE, errno.ENOENT), h.err
for name in "other", "less":
    if os.path.exists(f"{s.mnt}/m/{name}"):
        os.unlink(f"{s.mnt}/m/{name}")
wait_for(lambda: taken() <= before)
s.umount()
s.fsck("-n")
