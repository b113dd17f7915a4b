# SPDX-License-Identifier: Apache-2.0
"""apart.py CASE: prepares a new mount and network namespace for a case, then runs the case in this
interpreter, because starting another interpreter takes as long as a short case.

Unmounts the FUSE filesystems and kvcachefs pools of other processes from the namespace, because a
daemon ends only when its filesystem is mounted in no namespace any more. Sets the loopback device
up."""
import fcntl, os, runpy, socket, struct, subprocess, sys

with open("/proc/mounts") as f:
    mounts = [line.split()[:3] for line in f]
for source, where, kind in reversed(mounts):
    if kind.startswith("fuse.") or kind == "fuse" or "/kvt-" in where:
        subprocess.run(["umount", "-l", where], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
with socket.socket() as s:
    lo = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16s16x", b"lo"))
    name, flags = struct.unpack("16sH", lo[:18])
    fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | IFF_UP))
sys.argv.pop(0)
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
