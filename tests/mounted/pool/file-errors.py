# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Calls on the pool's own files fail. A file that is closed meanwhile is kept, is published when
the pool works again, and is copied to the tiers. A failed call has no effect and leaves nothing
open. All files are there after a remount."""
import os, time
from kvtest import *
import faults

N = 200000
s = Store("s", size="64M", cpu="32M", options="settle=0,unit=file")


def mount(calls, do):
    r = faults.Rules(f"calls={calls} path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do={do}")
    assert r.mount(s)
    return r


files = {}


def all_there(when):
    for path, data in files.items():
        assert s.read(path) == data, (when, path)


s.mount()
for i in range(4):
    files[f"m/{i}"] = blob(i, N)
    s.write(f"m/{i}", files[f"m/{i}"])
s.settle()
s.umount()
# publishing fails at the rename
r = mount("rename", "ENOMEM")
all_there("loaded")
fds = {path: os.open(f"{s.mnt}/{path}", os.O_RDWR | os.O_CREAT) for path in ("m/0", "m/new")}
files["m/new"] = b""
for path, fd in fds.items():
    os.pwrite(fd, path.encode(), 0)
    files[path] = path.encode() + files[path][len(path):]
r.begin()
for path, fd in fds.items():
    os.close(fd)
all_there("closed")
wait_for(lambda: r.fired()[0] > 4)  # it is tried again
assert s.attr("m/new", "state") == "open" and s.stats()["files_open"] == 0
with fails(errno.ENOMEM):
    open(f"{s.mnt}/m/1", "r+b")
with fails(errno.ENOMEM):
    os.truncate(f"{s.mnt}/m/2", 10)
r.heal()
for path in files:
    wait_for(lambda: s.attr(path, "state") == "resident+lower")
assert s.log().count("cannot be published") == 2, s.log()
all_there("published")
s.umount()

# truncate fails
r = mount("truncate", "EIO")
all_there("mounted again")
s.settle()
r.begin()
for path in ("m/1", "m/2"):
    with fails(errno.EIO):
        os.truncate(f"{s.mnt}/{path}", 10)
with fails(errno.EIO):
    open(f"{s.mnt}/m/3", "wb")
r.heal()
all_there("after refused sizes")
for path in files:
    assert s.attr(path, "state") == "resident+lower", (path, s.attr(path, "state"))
s.umount()
s.fsck("-n", "--data")
s.mount()
all_there("at the end")
s.umount()
