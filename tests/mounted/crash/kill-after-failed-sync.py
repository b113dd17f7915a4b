# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A sync of the disk tier fails, its bytes are lost, and the daemon is killed. The pool survives.
The next daemon does not trust the copy: an fsync, a flush or an unmount makes it again. In a store
with two devices this is so from the moment when one sync has failed. A pool without lost copies
does not stay after an unmount, whether the daemon was killed before or not."""
import os, threading
from faults import FAR, Rules
from kvtest import *

need_mount()
DATA, ALWAYS = blob("lost", 50000), f"nth={FAR} count={FAR}"


def end(s, how):
    """Ends the daemon in a way that must put the file on stable storage."""
    if how == "fsync":
        fd = os.open(f"{s.mnt}/file", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    elif how == "flush":
        run(binary("kvcachectl"), "flush", s.mnt, ok=True)
    if how == "umount":
        pool = s.config()["pool"]
        assert os.path.exists(f"{pool}/.unsynced")
        s.umount()
        assert not os.path.exists(pool), s.log()
    else:
        s.committed()
        end_killed(s)


def end_killed(s):
    s.kill()
    run("umount", "-l", s.mnt)


def lose(part):
    """The kernel lost all bytes of the file that the failed sync had to write."""
    lost = 0
    with open(part, "r+b") as f:
        content = f.read()
        at = content.find(DATA[:4096])
        while at >= 0:
            f.seek(at)
            f.write(bytes(len(DATA)))
            lost += 1
            at = content.find(DATA[:4096], at + 1)
    return lost


def check(s, how):
    """The next daemon has the pool. After its end, the file must be in the disk tier."""
    s.mount()
    end(s, how)
    s.drop_pool()
    s.mount()
    assert s.read("file") == DATA, how
    s.umount()
    s.fsck("-n", "--data")


def one_device(how, kills):
    s = Store(f"{how}{kills}", options="settle=0,unit=file")
    rules = Rules(f"calls=sync path={s.path}/data {ALWAYS} do=EIO")
    rules.mount(s)
    s.write("file", DATA)
    s.settle()
    rules.begin()
    fd = os.open(f"{s.mnt}/file", os.O_RDONLY)
    with fails(errno.EIO):
        os.fsync(fd)
    s.committed(still_open=1)
    end_killed(s)
    os.close(fd)
    assert lose(f"{s.path}/data")
    for _ in range(kills - 1):  # a daemon without a failed sync of its own
        s.mount()
        end_killed(s)
    check(s, how)


def two_devices():
    """The sync of the second device has not ended when the daemon is killed."""
    parts = [f"{TMP}/part{i}" for i in range(2)]
    s = Store("two", make=False, options="settle=0,unit=file")
    run(binary("mkfs.kvcachefs"), "--size", "48M", *(w for p in parts for w in ("--file", p)),
        s.path, ok=True)
    rules = Rules(f"calls=sync path={parts[0]} {ALWAYS} do=EIO",
                  f"calls=sync path={parts[1]} {ALWAYS} do=hold")
    rules.mount(s)
    s.write("file", DATA)
    for i in range(8):  # so that both devices have something to sync
        s.write(f"other{i}", blob(i, 50000))
    s.settle()
    rules.begin(0)
    rules.begin(1)
    fds = [os.open(f"{s.mnt}/{f}", os.O_RDONLY) for f in ["file"] + [f"other{i}" for i in range(8)]]
    failed = []

    def fsync(fd):
        try:
            os.fsync(fd)
        except OSError as e:
            failed.append(e.errno)

    callers = [threading.Thread(target=fsync, args=(fd,)) for fd in fds]
    for t in callers:
        t.start()
    wait_for(lambda: all(rules.fired()[:2]) and errno.EIO in failed)
    end_killed(s)
    for t in callers:
        t.join()
    for fd in fds:
        os.close(fd)
    ended = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED}  # the last one: with io_uring
    assert len(failed) == len(fds) and ended & set(failed) and set(failed) <= ended | {errno.EIO}, \
        failed
    for p in parts:
        lose(p)
    check(s, "umount")


def nothing_lost():
    s = Store("whole", options="settle=0,unit=file").mount()
    s.write("file", DATA)
    s.settle()
    s.committed()
    end_killed(s)
    s.mount()
    assert s.stats()["recovered"] == 1
    s.settle()
    pool = s.config()["pool"]
    assert os.path.exists(pool) and not os.path.exists(f"{pool}/.unsynced")
    s.umount()
    assert not os.path.exists(pool), s.log()


for how in ("fsync", "flush", "umount"):
    one_device(how, 1)
one_device("umount", 2)
two_devices()
nothing_lost()
