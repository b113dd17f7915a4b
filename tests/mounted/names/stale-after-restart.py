# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A daemon is killed and started again on the same folder. A process that uses a full path finds
its file at once. Descriptors and working directories of the dead mount stay dead and return errors
until they are opened again. The new mount hides nothing below it, and no manual clean-up is needed.
"""
import os, subprocess, sys
from kvtest import *

CLIENT = r"""
import errno, os, sys
top = sys.argv[1] + "/m/c"
def renew():
    global fd
    os.chdir(top)
    fd = os.open("l", os.O_RDWR)
def read(path):
    with open(path, "rb") as f:
        assert len(f.read()) == 300000
def of(f, *a):
    while True:
        try:
            f(*a)
            return "works"
        except OSError as e:
            if e.errno != errno.ECANCELED:  # in progress at the kill; the next call fails
                return errno.errorcode[e.errno]
renew()
for line in sys.stdin:
    if "renew" in line:
        os.close(fd)
        renew()
    print(of(read, "l"), of(os.statvfs, "."), of(os.stat, "nothing"), of(os.ftruncate, fd, 300000),
          of(read, top + "/l"), of(lambda: os.mkdir(top + "/new") or os.rmdir(top + "/new")),
          flush=True)
"""
s = Store("s", size="64M", cpu="32M", options="unit=file").mount()
data = blob(1, 300000)
s.write("m/c/l", data)
s.settle()
client = subprocess.Popen([sys.executable, "-c", CLIENT, s.mnt], stdin=subprocess.PIPE, text=True,
                          stdout=subprocess.PIPE)


def client_says(word="look"):
    client.stdin.write(word + "\n")
    client.stdin.flush()
    return client.stdout.readline().split()


LIVES, DEAD = ["works", "works", "ENOENT", "works"], ["ENOTCONN"] * 4
for turn in range(3):
    got = client_says("renew")
    assert got == LIVES + ["works"] * 2, got
    s.committed(still_open=1)
    s.kill()
    wait_for(lambda: client_says() == DEAD + ["ENOTCONN"] * 2)
    s.mount()
    with open("/proc/self/mounts") as f:
        assert sum(l.split()[1] == s.mnt for l in f) == 1
    got = client_says()
    assert got == DEAD + ["works"] * 2, got
    assert s.read("m/c/l") == data
assert client_says("renew") == LIVES + ["works"] * 2
client.stdin.close()
assert client.wait(HANG) == 0
# a kill while the mount is not in use, and a mount as for fstab, which does not wait
s.kill()
run(binary("mount.kvcachefs"), s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run", ok=True)
assert s.read("m/c/l") == data
run("umount", s.mnt, ok=True)
