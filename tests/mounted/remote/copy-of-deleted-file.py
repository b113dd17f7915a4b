# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A copy to a shared tier of a file that was deleted in the meantime is removed again, unless
another node has since stored the same bytes there, which may be its only copy. This also holds if
the other node's store was copied from the first and has the same inode and generation numbers,
because the copy gets an identity of its own."""
import glob, os
from kvtest import *
import faults, frames

shared = f"{TMP}/shared"
os.mkdir(shared)
options = f"settle=0,unit=file,remote=dir://{shared}"
SIZE = 100000


def there(path):
    """Whether the shared tier has it."""
    name = frames.name_of(path)
    return os.path.exists(f"{shared}/{name[:2]}/{name}")


def being_put(path):
    name = frames.name_of(path)
    return glob.glob(f"{shared}/{name[:2]}/{name}.tmp.*")


paths = ["m/alone", "m/both"]
r = faults.Rules(*(f"calls=rename path={shared}/*/{frames.name_of(path)}.tmp.* nth={faults.FAR} "
                   f"count={faults.FAR} do=hold" for path in paths))
a = Store("a", options=f"{options},deadline=600000").mount()
a.umount()
run("cp", "-a", a.path, f"{TMP}/b", ok=True)
assert r.mount(a)
assert "identity" not in a.log()
b = Store("b", options=f"{options},disk=off", make=False).mount()
assert f"{b.path} was copied" in b.log() and b.log().count("identity") == 1, b.log()
os.mkdir(f"{b.mnt}/m")
b.write("m/first", b"")  # so that inode and generation are those of a's
for n, path in enumerate(paths):
    r.begin(n)
    a.write(path, blob(path, SIZE))
wait_for(lambda: all("disk" in a.attr(path, "tiers") and being_put(path) for path in paths))
numbers = {path: os.stat(f"{a.mnt}/{path}").st_ino for path in paths}
for path in paths:
    os.unlink(f"{a.mnt}/{path}")
with open(f"{b.mnt}/m/both", "wb") as f:  # a write needs no lookup in the tier
    f.write(blob("m/both", SIZE))
    r.heal(0), r.heal(1)
    wait_for(lambda: there("m/both"), every=0.001)
wait_for(lambda: b.attr("m/both", "tiers") == "cpu,dir")
wait_for(lambda: not there(paths[0]))
ino = os.stat(f"{b.mnt}/m/both").st_ino
a.settle()
b.settle()
assert ino == numbers["m/both"], (ino, numbers)
assert a.stats()["spill_stale"] >= 2
assert there("m/both")
b.umount()
b.drop_pool()
b.mount()
assert b.read("m/both") == blob("m/both", SIZE)
for s in a, b:
    s.umount()
