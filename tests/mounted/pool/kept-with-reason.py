# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The pool stays in memory after the end of a daemon only for a reason, which the log names with a
remedy: keep_pool, or files that could not be copied because the disk is full. A deleted file that a
client still has open is no reason."""
import os, signal
from kvtest import *

need_mount()


def ended(name, work, options, size="256M"):
    """Returns whether the pool of a mount stays after SIGTERM, and what was logged."""
    s = Store(name, options=options, size=size).mount()
    os.mkdir(f"{s.mnt}/m")
    held, pool, before = work(s), s.config()["pool"], len(s.log())
    s.committed(still_open=len(held))
    s.daemon.send_signal(signal.SIGTERM)
    s.ended()
    for fd in held:
        os.close(fd)
    stays = os.path.exists(pool)
    s.drop_pool(pool)
    return stays, s.log()[before:], pool


def deleted(s):
    s.write("m/file", b"x" * 5000)
    fd = os.open(f"{s.mnt}/m/file", os.O_RDONLY)
    assert os.read(fd, 10)
    os.unlink(f"{s.mnt}/m/file")
    return [fd]


def one(s):
    s.write("m/file", b"x" * 5000)
    return []


def many(s):
    """More files than the disk holds. A file that a client has open is not dropped for another."""
    for i in range(30):
        s.write(f"m/{i}", blob(i, 1000000))
    return [os.open(f"{s.mnt}/m/{i}", os.O_RDONLY) for i in range(30)]


LATE = "unit=file,settle=3600000"
stays, log, pool = ended("deleted", deleted, LATE)
assert not stays and "could not be copied" not in log, log
stays, log, pool = ended("copied", one, LATE)
assert not stays and pool not in log, log
stays, log, pool = ended("option", one, f"{LATE},keep_pool")
assert stays and f"the pool {pool} stays in memory for the next mount (keep_pool)" in log, log
stays, log, pool = ended("full", many, LATE, size="20M")
# the trimmer may free space at the end, and then the log does not say that the disk is full
assert stays and f"copied to a tier: the pool {pool} stays in memory" in log, log
