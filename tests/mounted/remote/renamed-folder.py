# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A folder is renamed while its frame is written to a shared tier under the old name. It gets a
frame under the new name as well, through which another node finds its contents."""
import os, time
from kvtest import *
import frames

shared = f"{TMP}/shared"
os.mkdir(shared)
options = f"settle=0,unit=file,remote=dir://{shared}"


def there(path):
    name = frames.name_of(path)
    return os.path.exists(f"{shared}/{name[:2]}/{name}")


slow = f"{TMP}/slow"
a = Store("a", options=f"{options},shim=delay-put:60000+delay-while:{slow}+only:dir").mount()
data = blob(1, 100000)
for model, deep in ("m", ""), ("n", "/tmp"):
    os.makedirs(f"{a.mnt}/{model}/tmp{deep}")
    with open(slow, "w"):
        a.write(f"{model}/tmp{deep}/f", data)
        wait_for(lambda: "disk" in a.attr(f"{model}/tmp{deep}/f", "tiers"))
        time.sleep(0.5)  # until the folder is being put
        os.rename(f"{a.mnt}/{model}/tmp", f"{a.mnt}/{model}/final")
    os.unlink(slow)
    wait_for(lambda: "dir" in a.attr(f"{model}/final{deep}/f", "tiers"))
    a.settle()
    assert there(f"{model}/final{deep}/f")
    assert there(f"{model}/tmp{deep}"), "the folder was renamed before its frame was begun"
b = Store("b", options=options).mount()
for path in "m/final/f", "n/final/tmp/f":
    assert b.read(path) == data, path
for s in a, b:
    s.umount()
    s.fsck("-n", "--data")
