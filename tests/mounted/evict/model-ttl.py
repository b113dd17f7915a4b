# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A model's ttl is the initial ttl of chunks that are created after it is set, also through a
remount, and however their files arrive. A chunk's own ttl takes precedence, and accesses and stores
do not extend it."""
import errno, os, sqlite3, time
from kvtest import *

s = Store(size="64M", cpu="32M", options="settle=0").mount()
P = lambda p: f"{s.mnt}/{p}"
TTL = "user.kvcachefs.ttl"


def put(path, value):
    os.setxattr(P(path), TTL, value.encode())


def expires(path):
    """As the catalog has it."""
    def look():
        db = sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True)
        got = db.execute("SELECT expires_ns FROM chunks WHERE id=?",
                         (os.stat(P(path)).st_ino,)).fetchone()
        db.close()
        return got and got[0]
    return wait_for(look)


# set, shown, listed, removed in both ways; invalid values are refused
s.write("m/old/l", b"x")
with fails(errno.ENODATA):
    s.attr("m", "ttl")
for bad in ("", "-1", "x", "1s", "7000000001"):
    with fails(errno.EINVAL):
        put("m", bad)
    for name in ("pin", "ttl"):
        with fails(errno.EINVAL):
            os.setxattr(P("m/old/l"), f"user.kvcachefs.{name}", bad.encode())
os.setxattr(P("m/old/l"), "user.kvcachefs.pin", b"7000000000")
assert int(s.attr("m/old/l", "pin")) > 6999999000, s.attr("m/old/l", "pin")
os.setxattr(P("m/old/l"), "user.kvcachefs.pin", b"0")
put("m", "100000")
assert s.attr("m", "ttl") == "100000" and TTL in os.listxattr(P("m"))
for away in (lambda: os.removexattr(P("m"), TTL), lambda: put("m", "0")):
    put("m", "5")
    away()
    assert TTL not in os.listxattr(P("m"))
    with fails(errno.ENODATA):
        os.removexattr(P("m"), TTL)
put("m", "100000")

# for chunks made from now on: folders and files, made there, moved there or linked
s.write("m/new/l", b"x")
s.write("m/new/l2", b"x")
os.mkdir(P("m/flat"))
os.setxattr(P("m/flat"), "user.kvcachefs.unit", b"file")
s.write("m/flat/f", b"x")
s.write("stage/t", b"x")
os.mkdir(P("m/moved"))
os.rename(P("stage/t"), P("m/moved/l"))
s.write("m/top", b"x")
for path in ("m/new", "m/new/l2", "m/flat/f", "m/moved", "m/top"):
    assert s.attr(path, "ttl") == "100000", path
s.write("other/c/l", b"x")
for path in ("m/old", "m/old/l", "other/c"):
    assert s.attr(path, "ttl") == "0", path
with fails(errno.EPERM):  # the ttl of a chunk cannot be removed, only set to 0
    os.removexattr(P("m/new"), TTL)

# neither uses nor stores extend it, like a ttl that was set on the chunk
s.settle()
before = expires("m/new")
assert before > time.time_ns()
s.read("m/new/l")
s.write("m/new/l", b"yy")
s.write("m/new/l3", b"z")
s.settle()
s.committed(uses=True)
assert expires("m/new") == before

# a folder turns out to be a container: its files keep their expiry times
os.mkdir(P("m/new/below"))
wait_for(lambda: s.attr("m/new/l", "state") and expires("m/new/l") == before)

# after a remount the model's ttl still applies
s.umount()
s.mount()
assert s.attr("m", "ttl") == "100000" and s.attr("m/moved", "ttl") == "100000"
s.write("m/again/l", b"x")
assert s.attr("m/again", "ttl") == "100000"

# a chunk's own ttl, and a changed ttl of the model, which applies to new chunks
put("m/again", "0")
put("m", "1")
paused = 0


def own(name, value):
    """Creates a chunk with its own ttl. If the machine pauses for as long as the model's ttl, the
    chunk expires before its own ttl is set, and another chunk is created."""
    global paused
    while True:
        path, began = f"m/{name}{paused}", time.monotonic()
        s.write(f"{path}/l", b"x")
        try:
            put(path, value)
            return path
        except FileNotFoundError:
            assert time.monotonic() - began > 0.9, "it expired before its second had passed"
            paused += 1


never, long = own("never", "0"), own("own", "200000")
s.write("m/short/l", b"x")
# no lookups here: a lookup keeps the chunk
wait_for(lambda: s.stats()["expired_chunks"] == 1 + paused)
assert not os.path.exists(P("m/short"))
for path, ttl in (("m/again", "0"), (long, "200000"), (never, "0"), ("m/moved", "100000"),
                  ("m/old", "0")):
    assert s.attr(path, "ttl") == ttl, path

# a chunk that is created again starts with a new ttl
put("m", "1000")
s.write("m/short/l", b"x")
assert s.attr("m/short", "ttl") == "1000" and expires("m/short") > time.time_ns() + 10**11
put("m", "0")
s.write("m/last/l", b"x")
assert s.attr("m/last", "ttl") == "0"

# a folder in the root that is a chunk itself has a ttl as a chunk, and none as a model
for name in ("one", "two"):
    s.write(f"{name}/l", b"x")
    put(name, "300000")
    assert s.attr(f"{name}/l", "ttl") == "300000" and s.attr(name, "unit_now") == "dir"
os.setxattr(P("two"), "user.kvcachefs.unit", b"file")
wait_for(lambda: s.attr("two", "unit_now") == "file")
with fails(errno.ENODATA):
    s.attr("two", "ttl")
put("two", "400000")
assert s.attr("two/l", "ttl") == "300000"  # it existed before
s.write("two/l2", b"x")
assert s.attr("two/l2", "ttl") == "400000"
# an empty folder in the root is a model
os.mkdir(P("three"))
put("three", "500")
s.write("three/l", b"x")
assert s.attr("three", "unit_now") == "file" and s.attr("three/l", "ttl") == "500"
s.umount()
s.fsck("-n")
