# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""A file that was written and closed survives an immediate unmount. The kernel answers close()
before the daemon knows of it, and an unmount discards requests that are still queued."""
import ctypes, os, signal, threading
from kvtest import *

libc = ctypes.CDLL(None, use_errno=True)
s = Store().mount()
s.write("m/first", b"the kernel learns that there is no flush")
files = {f"m/f{i}": blob(i, size) for i, size in enumerate((100, 50 * KiB, 3 * MiB))}
fds = []
for path, data in files.items():
    fds.append(os.open(f"{s.mnt}/{path}", os.O_WRONLY | os.O_CREAT))
    os.write(fds[-1], data)
freeze(s.daemon.pid)  # the daemon is as slow as can be
for fd in fds:
    os.close(fd)


def unmount():
    answer.append(libc.umount2(s.mnt.encode(), 0) and os.strerror(ctypes.get_errno()))


def mounted():
    with open("/proc/self/mounts") as f:
        return s.mnt in f.read()


# the end of the call may wait for the daemon to return requests
answer, unmounts = [], threading.Thread(target=unmount)
unmounts.start()
wait_for(lambda: answer or not mounted())
s.daemon.send_signal(signal.SIGCONT)
unmounts.join()
assert answer == [0], answer
s.ended()
s.mount()
for path, data in files.items():
    assert s.read(path) == data, path
s.umount()
s.fsck("-n", "--data")
