# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""Files that libkvcachefs prepares before a store needs them are invisible, and nothing of them is
left, however the process ends. The mount can copy data that was stored through a registration at
once, and the data is registered for its next load."""
import ctypes, os, subprocess, threading, time
from kvtest import *

s = Store(size="1G", cpu="256M", options="settle=20,policy=prefix").mount()
p = run(binary("test-stores"), "all", s.mnt)
assert p.returncode == 0 and p.stdout == "fine\n", p.stdout
# a file that was prepared before it had a name belongs to its folder's chunk
s.settle()
for c in range(4):
    assert os.getxattr(f"{s.mnt}/m/c{c}", "user.kvcachefs.unit_now") == b"dir", c
assert not [f for _, _, files in os.walk(s.mnt) for f in files if ".tmp." in f or "warm" in f], \
    "a temporary file is left"
for end in ("kill", "exit"):
    s.settle()
    p = subprocess.Popen([binary("test-stores"), "keep", s.mnt], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    assert sorted(os.listdir(f"{s.mnt}/kept")) == ["c0"]
    wait_for(lambda: s.stats()["files_open"] == 4)
    used = s.stats()["pool_used_bytes"]
    if end == "kill":
        p.kill()
    else:
        p.communicate("\n")
    p.wait()
    wait_for(lambda: s.stats()["files_open"] == 0 and
             s.stats()["pool_used_bytes"] <= used - 4 * MiB)
# the parent of that chunk is the previous chunk of the thread that names the file, not of the one
# that prepared it
fds, libc = [], ctypes.CDLL(None)


def ahead():
    fds.extend(os.open(f"{s.mnt}/m", os.O_TMPFILE | os.O_RDWR) for _ in range(3))


t = threading.Thread(target=ahead)
t.start()
t.join()
for c, fd in enumerate(fds):
    os.write(fd, b"x" * 4096)
    os.mkdir(f"{s.mnt}/m/d{c}")
for c, fd in enumerate(fds):
    assert not libc.linkat(fd, b"", -100, f"{s.mnt}/m/d{c}/f".encode(), 0x1000)
for c, fd in enumerate(fds):
    os.close(fd)
s.settle()
time.sleep(1.2)  # the request is over
for c in range(3):  # the mount recognizes the prompt when it is opened
    assert s.read(f"m/d{c}/f") == b"x" * 4096
assert s.attr("m/d1", "parent") == "/m/d0" and s.attr("m/d2", "parent") == "/m/d1"
if WAY == "fast":
    # on a simulated device: published files do not stay mapped for writing. In the second run, the
    # mount knows the file sizes of the folders, so files are prepared sooner.
    for _ in range(2):
        p = run(binary("test-gpu-fake"), "stores", s.mnt)
        assert p.returncode == 0 and p.stdout == "ok\n", p.stdout
s.settle()
s.umount()
s.fsck()
