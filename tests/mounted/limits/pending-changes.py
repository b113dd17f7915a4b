# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""While the catalog cannot be written, changes wait in memory up to a limit. Beyond the limit,
calls that need a new change are refused, while lookups, reads and removals work. One line in the
log reports the start and one the end. Afterwards all acknowledged changes are there, and no others.
"""
import errno, os
from kvtest import *
import faults

MOST = 64 * MiB  # KVC_PENDING_MAX; KVC_PENDING_REMOVALS more for removals
VALUE = bytes(60000)
s = Store(size="64M", cpu="32M", options="catalog=2G,settle=0")
r = faults.Rules(f"calls=write path={s.path}/catalog.sqlite* nth={faults.FAR} count={faults.FAR} "
                 "do=EIO")
assert r.mount(s)
s.write("m/f", blob(1, 100000))
s.settle()
s.committed()
r.begin()
n = 0
with fails(errno.EIO):
    while n < 4 * MOST // len(VALUE):
        os.mkdir(f"{s.mnt}/m/{n}")
        os.setxattr(f"{s.mnt}/m/{n}", "user.x", VALUE)
        n += 1
st = s.stats()
assert n * len(VALUE) > MOST // 2 and st["catalog_pending_bytes"] <= MOST + MiB, (n, st)
assert st["catalog_ok"] == 0 and st["refused_changes"] > 0, st
with open(f"{s.mnt}/.kvcachefs/metrics") as f:
    assert "\nkvcachefs_catalog_ok 0\n" in f.read()
for what in (lambda: os.mkdir(f"{s.mnt}/m/new"), lambda: s.write("m/new", b"x"),
             lambda: os.rename(f"{s.mnt}/m/f", f"{s.mnt}/m/g"),
             lambda: os.chmod(f"{s.mnt}/m/f", 0o600)):
    with fails(errno.EIO):
        what()
assert s.read("m/f") == blob(1, 100000) and not os.path.exists(f"{s.mnt}/m/new")
os.rmdir(f"{s.mnt}/m/0")
r.heal()
wait_for(lambda: s.stats()["catalog_ok"] == 1)
s.committed()
# not the lines about a checkpoint or the mark file, which may also have failed in the meantime
said = [l for l in s.log().splitlines() if "cannot write changes" in l or "changes are acc" in l]
assert len(said) == 2 and "wait in memory" in said[0] and "accepted" in said[1], said


def right():
    there = set(os.listdir(f"{s.mnt}/m")) - {str(n)}  # the last may have been made, or not
    assert there == {"f"} | {str(i) for i in range(1, n)}, len(there)
    assert s.read("m/f") == blob(1, 100000)
    assert all(os.getxattr(f"{s.mnt}/m/{i}", "user.x") == VALUE for i in range(1, n))


right()
s.umount()
s.mount()
right()
s.umount()
s.fsck("-n")
