# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A copy to a shared tier of a file that was deleted in the meantime is removed again, unless
another node has since stored the same bytes there, which may be its only copy. This also holds if
the other node's store is a copy of the first with the same numbers: it gets its own identity."""
import os, time
from kvtest import *
import frames

shared = f"{TMP}/shared"
os.mkdir(shared)
options = f"settle=0,unit=file,remote=dir://{shared}"
SIZE = 100000


def there(path):
    """Whether the shared tier has it."""
    name = frames.name_of(path)
    return os.path.exists(f"{shared}/{name[:2]}/{name}")


slow = f"{TMP}/slow"
a = Store("a", options=f"{options},shim=delay-put:60000+delay-while:{slow}+only:dir").mount()
a.umount()
run("cp", "-a", a.path, f"{TMP}/b", ok=True)
a.mount()
assert "identity" not in a.log()
b = Store("b", options=f"{options},disk=off", make=False).mount()
assert f"{b.path} was copied" in b.log() and b.log().count("identity") == 1, b.log()
os.mkdir(f"{b.mnt}/m")
b.write("m/first", b"")  # so that inode and generation are those of a's
paths = ["m/alone", "m/both"]
with open(slow, "w"):
    for path in paths:
        a.write(path, blob(path, SIZE))
    wait_for(lambda: all("disk" in a.attr(path, "tiers") for path in paths))
    time.sleep(0.5)  # until they are being put
    numbers = {path: os.stat(f"{a.mnt}/{path}").st_ino for path in paths}
    for path in paths:
        os.unlink(f"{a.mnt}/{path}")
with open(f"{b.mnt}/m/both", "wb") as f:  # before it can be looked for
    f.write(blob("m/both", SIZE))
    os.unlink(slow)
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
