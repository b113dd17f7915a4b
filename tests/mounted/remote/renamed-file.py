# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""In a shared tier the name of a file is its place. A renamed file keeps its copy under the old
name until a copy exists under the new name, however long that takes and whatever happens in
between: a kill, also with the pool lost, a full pool, a second rename, the rename back. The case
also covers shared=delete."""
import os, time
from kvtest import *
import frames

flag, shared = f"{TMP}/refuse", f"{TMP}/shared"
os.mkdir(shared)
options = f"disk=off,settle=0,remote=dir://{shared}"


def refuse(yes):
    """Prevents all copies from now on (yes), or allows them again."""
    if yes:
        open(flag, "w").close()
    else:
        os.unlink(flag)


def there(path):
    """Whether the shared tier has it."""
    name = frames.name_of(path)
    return os.path.exists(f"{shared}/{name[:2]}/{name}")


def put(path, seed):
    s.write(path, blob(seed, 100000))
    fd = os.open(f"{s.mnt}/{path}", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    wait_for(lambda: s.attr(path, "tiers") == "cpu,dir")


def copied(path):
    wait_for(lambda: "dir" in s.attr(path, "tiers").split(","))


def killed(pool_too):
    s.committed()
    s.kill()
    run("umount", "-l", s.mnt)
    if pool_too:
        s.drop_pool()
    s.fsck("-n")
    if os.path.exists(flag):
        refuse(False)
    s.mount()


s = Store("s", cpu="16M", options=f"{options},shim=fail-while:{flag}+only:dir").mount()
for model, attr in (("keep", None), ("gone", b"delete")):
    os.mkdir(f"{s.mnt}/{model}")
    if attr:
        os.setxattr(f"{s.mnt}/{model}", "user.kvcachefs.shared", attr)
    for n in range(6):
        os.mkdir(f"{s.mnt}/{model}/c{n}")
        put(f"{model}/c{n}/tmp", n)
    for pool_too in (True, False):
        at = 0 if pool_too else 3
        for n in range(at, at + 3):  # the first round has lost the pool
            s.read(f"{model}/c{n}/tmp")
        refuse(True)
        # once; to and fro; with its folder
        os.rename(f"{s.mnt}/{model}/c{at}/tmp", f"{s.mnt}/{model}/c{at}/l")
        for a, b in (("tmp", "one"), ("one", "two"), ("two", "tmp")):
            os.rename(f"{s.mnt}/{model}/c{at + 1}/{a}", f"{s.mnt}/{model}/c{at + 1}/{b}")
        os.rename(f"{s.mnt}/{model}/c{at + 2}", f"{s.mnt}/{model}/d{at + 2}")
        paths = {f"{model}/c{at}/l": at, f"{model}/c{at + 1}/tmp": at + 1,
                 f"{model}/d{at + 2}/tmp": at + 2}
        for path, seed in paths.items():
            assert s.read(path) == blob(seed, 100000), path
        killed(pool_too)
        for path, seed in paths.items():
            assert s.read(path) == blob(seed, 100000), (model, pool_too, path)
        if not pool_too:
            [copied(path) for path in paths]
            s.settle()

# other nodes find the new copies
o = Store("o", cpu="16M", options=options).mount()
for model in ("keep", "gone"):
    for path, seed in ((f"{model}/c3/l", 3), (f"{model}/c4/tmp", 4), (f"{model}/d5/tmp", 5)):
        assert o.read(path) == blob(seed, 100000), path
o.umount()

# no file is evicted because of a copy that another file may overwrite
for model in ("keep", "gone"):
    put(f"{model}/e/tmp", 10)
    refuse(True)
    os.rename(f"{s.mnt}/{model}/e/tmp", f"{s.mnt}/{model}/e/l")
    s.write(f"{model}/e/tmp", blob(11, 100000))
    assert s.attr(f"{model}/e/l", "state") == "resident"
    refuse(False)
    copied(f"{model}/e/l")
    copied(f"{model}/e/tmp")
    s.settle()
    for n in range(30):
        s.write(f"fill/{n}/x", bytes(MiB))
    s.settle()
    wait_for(lambda: s.attr(f"{model}/e/l", "state") == "lower")
    assert s.read(f"{model}/e/l") == blob(10, 100000)
    assert s.read(f"{model}/e/tmp") == blob(11, 100000)
    # renamed while it is open for writing, without a write
    put(f"{model}/f/tmp", 12)
    fd = os.open(f"{s.mnt}/{model}/f/tmp", os.O_RDWR)
    os.rename(f"{s.mnt}/{model}/f/tmp", f"{s.mnt}/{model}/f/l")
    time.sleep(1.5)  # enough time for a wrong removal
    os.close(fd)
    s.settle()
    copied(f"{model}/f/l")
    wait_for(lambda: there(f"{model}/f/tmp") == (model == "keep"))
    assert there(f"{model}/f/l")
    for n in range(30):
        s.write(f"fill/{n}/y", bytes(MiB))
    s.settle()
    wait_for(lambda: s.attr(f"{model}/f/l", "state") == "lower")
    assert s.read(f"{model}/f/l") == blob(12, 100000), model
assert s.stats()["corrupt"] == 0
s.umount()
s.fsck("-n")
