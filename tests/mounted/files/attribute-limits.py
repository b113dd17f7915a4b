# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Extended attributes have a limit for each inode, and exceeding it fails with ENOSPC. Every
attribute that was set is listed, values may be 64 KiB, a change updates ctime, and a remount keeps
all."""
import errno, os, time
from kvtest import *

s = Store(size="16M", cpu="16M").mount()
P = lambda *a: os.path.join(s.mnt, *a)
os.makedirs(P("m/c"))
s.write("m/c/f", b"x")


def own(p):
    return {n for n in os.listxattr(p) if not n.startswith("user.kvcachefs.")}


# one attribute of the largest size; two and a small one are too much
f = P("m/c/f")
big = blob(1, 65536)
os.setxattr(f, "user.big", big)
with fails(errno.E2BIG):
    os.setxattr(f, "user.more", bytes(65537))
os.setxattr(f, "user.big2", big[:60000])
with fails(errno.ENOSPC):
    os.setxattr(f, "user.big3", big[:60000])
assert own(f) == {"user.big", "user.big2"} and os.getxattr(f, "user.big") == big
os.setxattr(f, "user.big", big[::-1])  # a replacement needs no more space
os.removexattr(f, "user.big2")
os.setxattr(f, "user.big3", big[:60000])
assert own(f) == {"user.big", "user.big3"} and os.getxattr(f, "user.big") == big[::-1]

# every listed attribute can be set to its value, so that programs that copy attributes report no
# error; read-only attributes are not listed, can be read, and fail like attributes that a
# filesystem does not support
for p in (f, P("m/c"), P("m"), s.mnt):
    for name in set(os.listxattr(p)) - own(p):
        os.setxattr(p, name, os.getxattr(p, name))
assert s.attr("m/c/f", "state") and "user.kvcachefs.state" not in os.listxattr(f)
with fails(errno.EOPNOTSUPP):
    os.setxattr(f, "user.kvcachefs.state", b"open")
with fails(errno.EOPNOTSUPP):
    os.removexattr(f, "user.kvcachefs.state")
s.write("m/c2/f", b"x")
os.setxattr(P("m/c2/f"), "user.a", b"b")
os.mkdir(P("copies"))
for command in (["cp", "-a", "--preserve=all", P("m/c2"), P("copies/c3")],
                ["cp", "-a", "--preserve=all", P("m/c2"), f"{TMP}/out"],
                ["mv", f"{TMP}/out", P("copies/c4")],
                ["tar", "--xattrs", "--xattrs-include=*", "-C", P("m"), "-cf", f"{TMP}/t", "c2"],
                ["tar", "--xattrs", "--xattrs-include=*", "-C", P("copies"), "-xf", f"{TMP}/t"]):
    assert run(*command, ok=True).stdout == "", command
for c in ("c2", "c3", "c4"):
    assert os.getxattr(P("copies", c, "f"), "user.a") == b"b" and s.read(f"copies/{c}/f") == b"x"

# many small attributes, up to each kind of limit: all accepted ones are listed
for what, name, value in (("c", "user.{:0250d}", b""), ("m/short", "user.{}", b"1"),
                          ("m/values", "user.v{}", bytes(1000))):
    p = P("m", what) if what == "c" else P(what)
    if what != "c":
        s.write(what, b"x")
    names, err = set(), 0
    for i in range(20000):
        try:
            os.setxattr(p, name.format(i), value)
        except OSError as e:
            err = e.errno
            break
        names.add(name.format(i))
    assert err == errno.ENOSPC, (what, len(names), err)
    assert own(p) == names and len(names) > 100, (what, len(names))
    time.sleep(0.1)  # committed and uncommitted attributes count alike
    with fails(errno.ENOSPC):
        os.setxattr(p, name.format(99999), value)
    assert own(p) == names
total = sum(os.path.getsize(f"{s.path}/{n}") for n in os.listdir(s.path) if "catalog" in n)
assert total < 16 * MiB, f"a catalog of {total} bytes"

# 2,500 attributes of 61 KiB on a store of 16 MiB
s.write("m/many", b"x")
taken = 0
for i in range(2500):
    try:
        os.setxattr(P("m/many"), f"user.n{i}", bytes(61 << 10))
        taken += 1
    except OSError as e:
        assert e.errno == errno.ENOSPC
assert 1 <= taken <= 2 and len(own(P("m/many"))) == taken

# each change of an attribute updates ctime
for change in (lambda: os.setxattr(f, "user.t", b"1"), lambda: os.setxattr(f, "user.t", b"2"),
               lambda: os.removexattr(f, "user.t")):
    before = os.stat(f)
    time.sleep(0.01)
    change()
    assert os.stat(f).st_ctime_ns > before.st_ctime_ns
    assert os.stat(f).st_mtime_ns == before.st_mtime_ns
with fails(errno.ENODATA):
    os.removexattr(f, "user.t")
want = own(P("m/c"))
s.umount()
s.mount()
assert own(P("m/c")) == want and own(f) == {"user.big", "user.big3"}
with fails(errno.ENOSPC):
    os.setxattr(P("m/c"), "user." + "+" * 250, b"")
s.umount()
s.fsck("-n")
