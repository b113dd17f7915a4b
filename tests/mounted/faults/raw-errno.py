# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""An errno of the filesystem below the data file is never taken for an answer about the requested
object. For every errno of a read or a write, the copy is kept or is made later, the file stays, and
everything works when the error is gone."""
import errno, os
from faults import FAR, Rules
from kvtest import KiB, Store, blob, fails, wait_for

# each of these errors describes an object, or a copy of it, if a tier returns it
ANSWERS = ("ESTALE", "ENOENT", "EPROTO", "ENOKEY", "EBADMSG", "ENOSPC", "ENAMETOOLONG", "E2BIG",
           "ECANCELED", "EALREADY")

s = Store("s", size="32M", options="settle=0")
data = {f"m/c{i}/{e}": blob(i, 100 * KiB) for i, e in enumerate(ANSWERS)}


def mounted(calls, name):
    rules = Rules(f"calls={calls} path={s.path}/data nth={FAR} count={FAR} do={name}")
    assert rules.mount(s)
    return rules


s.mount()
for path, d in data.items():
    s.write(path, d)
s.settle()
s.umount()
for path, d in data.items():
    name = os.path.basename(path)
    rules = mounted("read", name)
    rules.begin()
    with fails(errno.ENOENT):
        s.read(path)
    os.stat(f"{s.mnt}/{path}")
    rules.heal()
    assert rules.fired()[0] and s.stats()["corrupt"] == 0, name
    wait_for(lambda: s.stats()["tier_disk_up"] == 1)
    for p in data:
        assert s.read(p) == data[p], (name, p)
    s.umount()
    rules = mounted("write", name)
    rules.begin()
    s.write(f"new/{name}", d)
    wait_for(lambda: rules.fired()[0])
    wait_for(lambda: s.stats()["spill_failures"])
    assert s.stats()["spills_given_up"] == 0, name
    rules.heal()
    wait_for(lambda: s.attr(f"new/{name}", "state") == "resident+lower")
    s.umount()
s.mount()
for p, d in data.items():
    assert s.read(p) == d and s.read(f"new/{os.path.basename(p)}") == d, p
s.umount()
s.fsck("-n")
print(len(ANSWERS), "errnos of the data file")
