# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
# level: check
"""A sync of the disk tier's data fails once, as Linux reports it: later syncs succeed, and bytes of
the failed one may be lost. The fsync fails. The next fsync of the file makes a new copy, whether
the file is open for writing or not, and a flush and an unmount do so, too. A flush fails if a sync
fails beside it. An fsync of a file that was synced before makes no copy."""
import os, subprocess
from kvtest import *
import faults

need_mount()
CTL = binary("kvcachectl")
N = 300000
s = Store("s", size="64M", cpu="32M", options="settle=0,unit=file")
DATA = f"{s.path}/data"
assert os.path.exists(DATA), os.listdir(s.path)
SYNC, WRITE, HELD = 0, 1, 2
rules = faults.Rules(f"calls=sync path={DATA} nth={faults.FAR} count=1 do=EIO",
                     f"calls=write path={DATA} nth={faults.FAR} len=67108864 do=EIO",
                     f"calls=write path={DATA} nth={faults.FAR} count={faults.FAR} do=hold")
assert rules.mount(s)


def writes():
    return rules.met()[WRITE]


def fails_once():
    """The next sync of the data fails, and none after it. Returns the number of failures so far."""
    rules.begin(SYNC)
    return rules.fired()[SYNC]


def fsync(name, flags=os.O_RDONLY):
    fd = os.open(f"{s.mnt}/{name}", flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# (a) a closed file: another descriptor, and one that only reads
s.write("m/synced", blob("synced", N))
fsync("m/synced")
s.write("m/closed", blob("closed", N))
s.settle()
before = fails_once()
with fails(errno.EIO):
    fsync("m/closed")
assert rules.fired()[SYNC] == before + 1
n = writes()
fsync("m/synced")
assert writes() == n, "a file that was synced before the failure was copied again"
fsync("m/closed")
copied = writes() - n
assert copied, "the fsync was acknowledged without a new copy"
n = writes()
fsync("m/closed")
assert writes() == n, "the new copy is synced, and was made once more"

# (b) a file that stays open for writing
fd = os.open(f"{s.mnt}/m/open", os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, blob("open", N))
fails_once()
with fails(errno.EIO):
    os.fsync(fd)
n = writes()
os.fsync(fd)
assert writes() > n, "the fsync was acknowledged without a new copy"
n = writes()
os.fsync(fd)
assert writes() == n
os.close(fd)

# (c) a sync of another caller fails while a flush waits for a copy: the flush's own sync succeeds,
# but not with that copy
s.write("m/early", blob("early", N))  # so that the device has something to sync
s.settle()
rules.begin(HELD)
s.write("m/held", blob("held", N))
wait_for(lambda: rules.fired()[HELD])
p = subprocess.Popen([CTL, "flush", s.mnt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                     text=True)
wait_for(lambda: "running" in open(f"{s.mnt}/.kvcachefs/control").read())
fails_once()
with fails(errno.EIO):
    fsync("m/synced")
rules.heal(HELD)
out = p.communicate()[0]
assert p.returncode == 1 and "a sync of the device" in out, (p.returncode, out)
n = writes()
run(CTL, "flush", s.mnt, ok=True)
assert writes() > n, "the flush made no new copy"

# (d) a flush, and (e) an unmount
for how in ("flush", "umount"):
    s.write(f"m/{how}", blob(how, N))
    s.settle()
    fails_once()
    with fails(errno.EIO):
        fsync("m/synced")  # it syncs all files
    n = writes()
    if how == "flush":
        run(CTL, "flush", s.mnt, ok=True)
    else:
        s.umount()
    assert writes() > n, f"{how} made no new copy"

s.drop_pool()
s.mount()
for name in ("synced", "closed", "open", "early", "held", "flush", "umount"):
    assert s.read(f"m/{name}") == blob(name, N), name
s.umount()
s.fsck("-n", "--data")
