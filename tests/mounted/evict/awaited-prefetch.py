# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""An open, or a lease, of a file whose prefetch waits for its turn is served before the rest of the
prefetch."""
import json, os, threading
from kvtest import *

COUNT = 200  # files, of which the remote loads eight at a time, in 0.3 s
SHARED, FLAG = f"{TMP}/shared", f"{TMP}/slow"
os.mkdir(SHARED)
s = Store(options=f"settle=0,disk=off,deadline=600000,remote=dir://{SHARED},"
                  f"shim=delay-get:300+delay-while:{FLAG}").mount()
os.mkdir(f"{s.mnt}/m")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.unit", b"file")
files = [f"m/{i}" for i in range(COUNT)]
for f in files:
    s.write(f, blob(f, 20 * KiB))
s.settle()
for f in files:
    os.setxattr(f"{s.mnt}/{f}", "user.kvcachefs.demote", b"cpu")
open(FLAG, "w").close()
events = os.open(f"{s.mnt}/.kvcachefs/events", os.O_RDONLY)


def lease(text):
    fd = os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR)
    os.write(fd, text.encode())
    return fd


os.close(lease("prefetch\n" + "\n".join(files)))
wait_for(lambda: s.stats()["leases"] == 1)
opened, leased = files[-1], files[-2]
got = []
one = threading.Thread(target=lambda: got.append(s.read(opened)))
one.start()
wait_for(lambda: s.stats()["pool_misses"] == 1)
fd = lease(leased)
two = threading.Thread(target=lambda: got.append(os.read(fd, 1000)))
two.start()
wait_for(lambda: s.stats()["leases"] == 2)
one.join()
two.join()
text = b""


def order():
    global text
    text += os.read(events, 1 << 20)
    found = [e["path"] for e in map(json.loads, text.splitlines()) if e["event"] == "loaded"]
    return {opened, leased} <= set(found) and found
found = wait_for(order)
os.unlink(FLAG)
print("the opened file was loaded as number", found.index(opened), "the leased one as number",
      found.index(leased))
assert blob(opened, 20 * KiB) in got
assert max(found.index(opened), found.index(leased)) < COUNT // 2, found
os.close(fd)
os.close(events)
s.umount()
