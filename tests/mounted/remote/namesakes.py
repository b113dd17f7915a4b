# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""In a shared tier the name is the place, and two files can have the same name one after the other.
Neither takes the other's only copy. The case covers a file that was renamed, or lost one of its
names, while only the tier had it, and then another file of the old name; a file that returns to a
name that another file had in between; a slow copy to a name that another file gets before it ends;
and the removal of a deleted file."""
import mmap, os, time
from kvtest import *
import faults, frames

LEN = 100000


def copied(path):
    wait_for(lambda: "dir" in s.attr(path, "tiers").split(","))


def put(path, seed):
    s.write(path, blob(seed, LEN))
    copied(path)


def cold(*paths):
    """Evicts these files from the pool, so that only the shared tier has them."""
    s.settle()
    cold.n += 1
    for n in range(30):
        s.write(f"fill/{cold.n}/{n}", bytes(MiB))
    s.settle()
    wait_for(lambda: all(s.attr(p, "state") == "lower" for p in paths))


def right(files):
    cold(*files)
    for path, seed in files.items():
        assert s.read(path) == blob(seed, LEN), path


def at(path):
    return f"{s.mnt}/{path}"


def there(path):
    name = frames.name_of(path)
    return os.path.exists(f"{TMP}/shared-{os.path.basename(s.path)}/{name[:2]}/{name}")


cold.n = 0


def story(model, attr):
    global s
    shared = f"{TMP}/shared-{model}"
    os.mkdir(shared)
    rules = faults.Rules(f"calls=rename path={shared}/* nth={faults.FAR} count=1 do=delay:1500",
                         f"calls=unlink path={shared}/* nth={faults.FAR} count=1 do=delay:1500")
    s = Store(model, cpu="16M", options=f"disk=off,settle=0,policy=lru,remote=dir://{shared}")
    rules.mount(s)
    os.mkdir(at(model))
    if attr:
        os.setxattr(at(model), "user.kvcachefs.shared", attr)

    # renamed while it is only there
    put(f"{model}/a/x", "a")
    cold(f"{model}/a/x")
    os.rename(at(f"{model}/a/x"), at(f"{model}/a/y"))
    put(f"{model}/a/x", "a2")
    right({f"{model}/a/y": "a", f"{model}/a/x": "a2"})

    # the name under which the tier has the file is removed, by unlink or rename (the case cannot
    # know which of the two names it is)
    for n, take in enumerate(("unlink", "rename")):
        for name in ("x", "y"):
            d = f"{model}/b{n}{name}"
            put(f"{d}/x", d)
            os.link(at(f"{d}/x"), at(f"{d}/y"))
            cold(f"{d}/x")
            other = "y" if name == "x" else "x"
            if take == "unlink":
                os.unlink(at(f"{d}/{name}"))
            else:
                s.write(f"{d}/new", blob("0", LEN))
                os.rename(at(f"{d}/new"), at(f"{d}/{name}"))
            put(f"{d}/{name}", f"{d}2")
            right({f"{d}/{other}": d, f"{d}/{name}": f"{d}2"})

    # a file returns to a name that another file has had; a mapping prevents a copy until then
    d = f"{model}/c"
    put(f"{d}/x", d)
    fd = os.open(at(f"{d}/x"), os.O_RDWR)
    m = mmap.mmap(fd, LEN)
    os.close(fd)
    os.rename(at(f"{d}/x"), at(f"{d}/y"))
    put(f"{d}/x", f"{d}2")
    os.rename(at(f"{d}/x"), at(f"{d}/z"))
    os.rename(at(f"{d}/y"), at(f"{d}/x"))
    m.close()
    right({f"{d}/x": d, f"{d}/z": f"{d}2"})

    # a slow copy, and another file's copy to the same name before the first has ended
    d = f"{model}/d"
    os.mkdir(at(d))
    put(f"{d}/0", "0")
    fired = rules.fired()[0]
    rules.begin(0)
    s.write(f"{d}/x", blob(d, LEN))
    wait_for(lambda: rules.fired()[0] > fired)
    s.write(f"{d}/y", blob(f"{d}2", LEN))
    os.rename(at(f"{d}/y"), at(f"{d}/x"))
    copied(f"{d}/x")
    time.sleep(2)
    right({f"{d}/x": f"{d}2"})

    # a late removal does not hit the next file of the name
    d = f"{model}/e"
    put(f"{d}/x", d)
    fired = rules.fired()[1]
    rules.begin(1)
    os.unlink(at(f"{d}/x"))
    if model == "gone":
        wait_for(lambda: rules.fired()[1] > fired)
    put(f"{d}/x", f"{d}2")
    time.sleep(2)
    assert there(f"{d}/x")
    right({f"{d}/x": f"{d}2"})
    assert s.stats()["corrupt"] == 0
    s.umount()
    s.fsck("-n")


beside([(story, "keep", None), (story, "gone", b"delete")])
