# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""Events during the copy that an fsync waits for: an unlink, a rename over the file, its last
writer's close, a write after an abandoned fsync. Each fsync ends, and a successful fsync copied all
data that was written before its call. If the disk is suspended, an fsync waits for a remote tier.
"""
import os, threading
from kvtest import *
import faults

SIZE = 3 * MiB  # read in 48 steps
READS = f"calls=read path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do=delay:25"
DISK = f"calls=write path={TMP}/s/data* nth={faults.FAR} count={faults.FAR} do=EIO"
REMOTE = f"{TMP}/remote"
OPTIONS = "settle=3600000,unit=file"

s = Store(size="64M", cpu="48M", options=OPTIONS)
P = lambda name: f"{s.mnt}/m/{name}"


def mount(*rules, options=OPTIONS):
    r = faults.Rules(*rules)
    assert r.mount(s, options=options)
    os.makedirs(f"{s.mnt}/m", exist_ok=True)
    return r


def dirty(name, seed):
    fd = os.open(P(name), os.O_RDWR | os.O_CREAT)
    assert os.pwrite(fd, blob(seed, SIZE), 0) == SIZE
    return fd


class Sync(threading.Thread):
    """An fsync whose copy has begun when the constructor returns."""

    def __init__(self, fd, rules):
        super().__init__()
        self.fd, self.wrong = fd, "did not end"
        met = rules.fired()[0]
        self.start()
        wait_for(lambda: rules.fired()[0] > met)

    def run(self):
        try:
            os.fsync(self.fd)
            self.wrong = None
        except OSError as e:
            self.wrong = e

    def ended(self):
        self.join()
        assert not self.wrong, self.wrong


def without_memory():
    s.kill()
    run("umount", "-l", s.mnt)
    s.drop_pool()
    s.mount(options=OPTIONS)


r = mount(READS)
s.write("waits", blob("waits", 4096))  # its copy waits for settle=, first in the queue
r.begin()

fd = dirty("unlinked", 1)
sync = Sync(fd, r)
os.unlink(P("unlinked"))
sync.ended()
assert os.pread(fd, 4096, 0) == blob(1, SIZE)[:4096]
os.close(fd)

fd = dirty("replaced", 2)
s.write("m/new", b"new")
sync = Sync(fd, r)
os.rename(P("new"), P("replaced"))
sync.ended()
os.close(fd)
assert s.read("m/replaced") == b"new"

fd, reader = dirty("closed", 3), os.open(P("closed"), os.O_RDONLY)
sync = Sync(reader, r)
os.close(fd)
sync.ended()
os.close(reader)
r.heal()
s.committed()
without_memory()
assert s.read("m/closed") == blob(3, SIZE)
s.umount()

# the first fsync is abandoned before its copy is made, and that copy lacks the data that is written
# after the fsync
r = mount(READS, options=f"{OPTIONS},deadline=600")
fd = dirty("late", 4)
r.begin()
with fails(errno.ETIMEDOUT):
    os.fsync(fd)
assert os.pwrite(fd, b"since", 0) == 5
for _ in range(400):
    try:
        os.fsync(fd)
        break
    except TimeoutError:
        pass
else:
    raise AssertionError("no fsync ends")
without_memory()
assert s.read("m/late") == b"since" + blob(4, SIZE)[5:]
with fails(errno.ENOTCONN):
    os.close(fd)
s.umount()

os.mkdir(REMOTE)
r = mount(DISK, options=f"{OPTIONS},remote=dir://{REMOTE}")
r.begin()
for i in range(40):
    fd = os.open(P(f"remote{i}"), os.O_RDWR | os.O_CREAT)
    os.write(fd, blob(i, 5000))
    try:
        os.fsync(fd)
        break  # the disk is suspended; it may receive a probe, which fails
    except OSError as e:
        assert e.errno == errno.EIO, e
    finally:
        os.close(fd)
assert s.stats()["breaker_opened"]
r.heal()
s.umount()
s.fsck("-n", "--data")
