# SPDX-License-Identifier: Apache-2.0
# ways: fast passthrough
"""Counts the requests of each call. An open that the pool answers is one request that the caller
waits for. stat, access and exists of known names, and of names that are known to be missing, send
none."""
import os, time
from kvtest import *

s = Store().mount()
s.write("m/c/first", blob(0, MiB))
s.settle()
s.write("m/c/l", blob(1, MiB))
s.settle()
if s.config()["served_by"] != "passthrough":
    skip(s.config()["passthrough_is_off"])
path, missing = f"{s.mnt}/m/c/l", f"{s.mnt}/m/c/none"


def cost(what, times=50):
    for _ in range(2):
        what()  # names are known now
    before = s.stats()["requests"]
    for _ in range(times):
        what()
    time.sleep(0.05)
    after = s.stats()["requests"]
    base = s.stats()["requests"]
    return (after - before - (base - after)) / times


def at_most(most, what, times=50):
    """One of several trials costs no more than that. The others may cost more, because the kernel
    asks for the attributes of folders once a second, and a trial is long on a slow machine."""
    costs = []
    while len(costs) < 20:
        costs.append(cost(what, times))
        if costs[-1] <= most:
            return costs[-1]
    raise AssertionError((most, costs))


buf = bytearray(MiB)


def load():
    fd = os.open(path, os.O_RDONLY)
    assert os.readv(fd, [buf]) == MiB
    os.close(fd)


def overwrite():
    fd = os.open(path, os.O_WRONLY)
    assert os.write(fd, buf) == MiB
    os.close(fd)


assert at_most(1.1, load) >= 0.9
at_most(1.2, overwrite)
os.stat(path)
quiet = s.config()["names_kept_seconds"] != "1"
assert s.config()["names_kept_seconds"] == "86400" or s.config()["names_told"] == "not", s.config()
if quiet:
    at_most(0.1, lambda: os.stat(path))
    at_most(0.1, lambda: os.access(path, os.R_OK))
    at_most(0.1, lambda: os.path.exists(missing))
# Batches of 16 lookups, as engines make them. Names that the kernel knows cost no request, even if
# other processes store and delete in the folder at the same time (the folder's own attributes are
# requested once a second). A file that was written or read since costs one request per stat,
# because the kernel forgets its size or access time, and none per access. An unknown name costs one
# request.
flat = [f"{s.mnt}/flat/{i}" for i in range(16)]
absent = [f"{s.mnt}/flat/no{i}" for i in range(16)]
for f in flat:
    s.write(os.path.relpath(f, s.mnt), blob(1, 4096))
s.settle()


def batch(call, names):
    return lambda: [call(name) for name in names]


def once(what):
    """The cost of the first call; cost() is that of later calls. Each second, three requests for
    the attributes of folders are not counted."""
    before, began = s.stats()["requests"], time.monotonic()
    what()
    after, seconds = s.stats()["requests"], int(time.monotonic() - began)
    return after - before - (s.stats()["requests"] - after) - 3 * seconds


def others():
    n[0] += 1
    s.write(f"flat/other{n[0]}", b"x")
    os.unlink(f"{s.mnt}/flat/other{n[0]}")


n = [0]
stats, accesses, misses = batch(os.stat, flat), batch(lambda f: os.access(f, os.F_OK),
                                                      flat), batch(os.path.exists, absent)
if quiet:
    accesses()
    assert once(accesses) <= 1, "after a store"
    first = once(stats)
    assert first <= 17, first
    for what in (stats, accesses, misses):
        at_most(0.3, what)
    alone = min(cost(others, 20) for _ in range(3))
    for what in (stats, accesses, misses):
        at_most(alone + 1.5, lambda: (others(), what()), 20)  # the folder's attributes
    s.settle()
    stats()
    for f in flat:
        s.read(os.path.relpath(f, s.mnt))
    s.settle()
    assert once(accesses) <= 1, "after a load"
    after = once(stats)
    assert after <= 17 and once(stats) <= 1, after
    s.umount()
    s.mount()
    cold = (once(stats), once(misses))
    assert max(cold) <= 20, cold  # 16, and one for each folder on the way
    print(f"a batch of 16: after a store {first}, after a load {after}, after a mount {cold[0]}, "
          f"missing ones {cold[1]}, otherwise 0")
    load()
    os.stat(path)


def create():
    n[0] += 1
    fd = os.open(f"{s.mnt}/m/c/new{n[0]}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, buf[:4096])
    os.close(fd)


# LOOKUP, CREATE, once security.capability, and the folder's attributes, which the kernel forgets
# after each create
at_most(4.2, create, 20)
s.umount()
