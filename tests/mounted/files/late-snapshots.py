# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""The snapshot that a failed fsync left is copied although the file is being written again, and the
copy does not delay the writers. If a file grows while its holes are searched, the earlier state is
copied."""
import mmap, os, signal, threading
from kvtest import *
import faults

BAD = f"{TMP}/bad"
SIZE = 8 * MiB
s = Store("s", size="128M", options=f"settle=0,unit=file,shim=fail-while:{BAD}+only:disk")
r = faults.Rules(f"calls=seek path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do=delay:500")
assert r.mount(s)


def left_over(name, data):
    """Writes a file whose fsync fails. Its copy is made when the tier accepts copies again."""
    os.makedirs(f"{s.mnt}/m", exist_ok=True)
    fd = os.open(f"{s.mnt}/{name}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, len(data))
    os.pwrite(fd, data.rstrip(b"\0"), 0)
    os.fsync(fd)
    os.pwrite(fd, data[:100], 0)
    with open(BAD, "w"), fails(errno.EIO):
        os.fsync(fd)
    return fd


def after_power():
    s.committed(still_open=1)
    s.kill()
    s.drop_pool()
    run("umount", "-l", s.mnt)
    s.mount()


# it grows behind a hole
sparse = blob(1, 300000) + bytes(SIZE - 300000)
fd = left_over("m/sparse", sparse)
before = s.stats()["spills"]
r.begin()
os.unlink(BAD)
wait_for(lambda: r.fired()[0])
os.pwrite(fd, b"x" * 4096, SIZE)
wait_for(lambda: s.stats()["spills"] > before)
after_power()
os.close(fd)
assert s.read("m/sparse") == sparse
