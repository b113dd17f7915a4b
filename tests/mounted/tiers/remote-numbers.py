# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Placements name a tier by a number that the store remembers. A mount with some of the remotes, in
any order, finds the copies of each. An omitted remote keeps its copies, and keeps its number while
it has copies. A fourth remote is then refused; it can replace a remote that has no copy left."""
import os
from kvtest import *

need_mount()


def remote(name):
    os.makedirs(f"{TMP}/{name}", exist_ok=True)
    return f"remote=dir://{TMP}/{name}"


def options(*names):
    return ",".join(["settle=0", *map(remote, names)])


def mount(*names):
    return s.mount(options=options(*names))


def only_below(path):
    """Demotes the chunk from the pool and from the disk."""
    s.settle()
    for tier in ("cpu", "disk"):
        os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", tier.encode())


def only_in(name, path, data):
    s.write(path, data)
    only_below(path)
    assert tiers(path) == ["dir"], (name, tiers(path))


def tiers(path):
    return s.attr(path, "tiers").split(",")


s = Store("s", size="64M", options=options("a"))
data = {name: blob(i, 100 * KiB) for i, name in enumerate("abcd")}
s.mount()
only_in("a", "m/a/l", data["a"])
s.umount()
for name in "bc":  # the other remotes are omitted, and still each remote gets its own number
    mount(name)
    only_in(name, f"m/{name}/l", data[name])
    assert tiers("m/a/l") == [""] and s.attr("m/a/l", "state") == "lower"
    with fails(errno.EIO, errno.ENODATA, errno.ENOENT):
        s.read("m/a/l")
    s.umount()

# in another order, and without one
mount("c", "a")
for name in "ca":
    assert s.read(f"m/{name}/l") == data[name]
s.settle()
s.write("m/both/l", data["d"])
s.settle()
assert tiers("m/both/l") == ["cpu", "disk", "dir", "dir"]
s.umount()
s.fsck()


def frames(name):
    """The frames of files. (Those of folders have the size of a page, and stay.)"""
    return [f for d, _, files in os.walk(f"{TMP}/{name}") for f in files
            if os.path.getsize(os.path.join(d, f)) > 4 * KiB]


def refused(name):
    p = run(binary("kvcachefs"), s.path, s.mnt, "-o", f"run={TMP}/run,cpu=64M,{options(name)}")
    assert p.returncode and p.stdout.count("\n") == 1 and "from one remote" in p.stdout, p.stdout
    assert not os.path.ismount(s.mnt)


# each remote has copies, so no number is free for a fourth
refused("d")
mount("a", "b", "c")
for path in ("m/a/l", "m/c/l", "m/both/l"):
    only_below(path)
    assert tiers(path) == ["dir", "dir"] and tiers("m/b/l") == ["dir"], (path, tiers(path))
s.umount()

# no copy in b is known any more, but b keeps its number while files must be deleted from it for all
# nodes
mount("b")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.shared", b"delete")
s.settle()
os.rename(f"{TMP}/b", f"{TMP}/b.away")
os.unlink(f"{s.mnt}/m/b/l")
s.committed()
s.umount()
refused("d")
os.rename(f"{TMP}/b.away", f"{TMP}/b")
mount("b")
wait_for(lambda: not frames("b"))
s.settle()
s.umount()

# now b has no copy, and d gets its number; the copies in the other remotes are still found
mount("d")
only_in("d", "m/d/l", data["d"])
with fails(errno.ENOENT):
    s.read("m/c/l")
assert s.attr("m/c/l", "state") == "lower"
s.umount()
refused("b")
mount("d", "c", "a")
for name in "acd":
    assert s.read(f"m/{name}/l") == data[name]
assert s.read("m/both/l") == data["d"]
s.umount()
s.fsck()
