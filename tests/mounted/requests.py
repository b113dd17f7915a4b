# SPDX-License-Identifier: Apache-2.0
# ways: fast passthrough
"""Counts what each call sends to the daemon: an open answered from the pool is one request that the caller waits for; stat,
access and exists of known names, and of names known to be missing, none."""
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


buf = bytearray(MiB)


def load():
    fd = os.open(path, os.O_RDONLY)
    assert os.readv(fd, [buf]) == MiB
    os.close(fd)


def overwrite():
    fd = os.open(path, os.O_WRONLY)
    assert os.write(fd, buf) == MiB
    os.close(fd)


assert 0.9 <= cost(load) <= 1.1, cost(load)
assert cost(overwrite) <= 1.2, cost(overwrite)
os.stat(path)
quiet = s.config()["names_kept_seconds"] != "1"
if quiet:
    assert cost(lambda: os.stat(path)) < 0.1
    assert cost(lambda: os.access(path, os.R_OK)) < 0.1
    assert cost(lambda: os.path.exists(missing)) < 0.1
n = [0]


def create():
    n[0] += 1
    fd = os.open(f"{s.mnt}/m/c/new{n[0]}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, buf[:4096])
    os.close(fd)


# LOOKUP, CREATE, once security.capability, and the folder's attributes, which the kernel forgets after each create
assert cost(create, 20) <= 4.2, cost(create, 20)
s.umount()
