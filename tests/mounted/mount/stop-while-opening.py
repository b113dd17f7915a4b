# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""A daemon is stopped while threads continue to open files for writing. There are more threads than
entries in a CPU's ring. The close that the daemon waits for still arrives, and the file is there at
the next mount. Refused opens get an error."""
import errno, os, threading, time
from kvtest import *

THREADS = 150  # a ring has 64 entries at most
s = Store(options=f"settle=0,{PATIENT}").mount()
os.makedirs(f"{s.mnt}/m/c")
for i in range(THREADS):  # creates in one folder are serialized
    s.write(f"m/c/{i}", b"b" * 4096)
last = os.open(f"{s.mnt}/m/c/last", os.O_CREAT | os.O_WRONLY)
os.write(last, b"l" * 4096)
got, cpus = [], os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(cpus)})  # one CPU, so one ring takes all


def opens(i):
    try:
        fd = os.open(f"{s.mnt}/m/c/{i}", os.O_WRONLY)
        os.close(fd)
        got.append(0)
    except OSError as e:
        got.append(e.errno)


s.daemon.terminate()
wait_for(s.ending)
threads = [threading.Thread(target=opens, args=(i,)) for i in range(THREADS)]
[t.start() for t in threads]
time.sleep(1)
os.close(last)
s.ended()
[t.join() for t in threads]
os.sched_setaffinity(0, cpus)
assert len(got) == THREADS and set(got) <= {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}, got
s.mount()
assert s.read("m/c/last") == b"l" * 4096, "its close had returned"
assert len(os.listdir(f"{s.mnt}/m/c")) == THREADS + 1 and s.read("m/c/7") == b"b" * 4096
s.umount()
s.fsck("-n")
print("ok")
