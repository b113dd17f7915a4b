# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A folder is renamed while its frame is written to a shared tier under the old name. It gets a
frame under the new name as well, through which another node finds its contents."""
import glob, os
from kvtest import *
import faults, frames

shared = f"{TMP}/shared"
os.mkdir(shared)
options = f"settle=0,unit=file,remote=dir://{shared}"


def there(path):
    name = frames.name_of(path)
    return os.path.exists(f"{shared}/{name[:2]}/{name}")


def being_put(path):
    name = frames.name_of(path)
    return glob.glob(f"{shared}/{name[:2]}/{name}.tmp.*")


FOLDERS = ("m/tmp", "n/tmp/tmp")
r = faults.Rules(*(f"calls=rename path={shared}/*/{frames.name_of(path)}.tmp.* nth={faults.FAR} "
                   f"count={faults.FAR} do=hold" for path in FOLDERS))
a = Store("a", options=f"{options},deadline=600000")
assert r.mount(a)
data = blob(1, 100000)
for n, (model, deep) in enumerate((("m", ""), ("n", "/tmp"))):
    os.makedirs(f"{a.mnt}/{model}/tmp{deep}")
    r.begin(n)
    a.write(f"{model}/tmp{deep}/f", data)
    wait_for(lambda: "disk" in a.attr(f"{model}/tmp{deep}/f", "tiers"))
    wait_for(lambda: being_put(FOLDERS[n]))
    os.rename(f"{a.mnt}/{model}/tmp", f"{a.mnt}/{model}/final")
    r.heal(n)
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
