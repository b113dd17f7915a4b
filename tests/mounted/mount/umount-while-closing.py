# SPDX-License-Identifier: Apache-2.0
# ways: plain fast
"""An unmount while the kernel still sends closes of many files, one of which is interrupted, ends
normally: the daemon exits with 0 and its store is clean."""
import ctypes, errno, os, resource
from kvtest import *

FILES, TIMES = 2000, 12
umount = ctypes.CDLL(None, use_errno=True).umount



def unmounts():
    """Tries to unmount. This fails while the kvcachectl of another case looks at all mounts."""
    if umount(s.mnt.encode()):
        assert ctypes.get_errno() == errno.EBUSY, os.strerror(ctypes.get_errno())
        return False
    return True


s = Store("s", cpu="32M", size="32M").mount()
s.write("m/l", blob(1, 100 * KiB))
s.umount()
resource.setrlimit(resource.RLIMIT_NOFILE, (FILES + 200, max(
    FILES + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
for _ in range(TIMES):
    s.mount()
    fds = [os.open(f"{s.mnt}/.kvcachefs/config", os.O_RDONLY) for _ in range(FILES)]
    os.closerange(fds[0], fds[-1] + 1)
    wait_for(unmounts)
    s.ended()
s.mount()
assert s.read("m/l") == blob(1, 100 * KiB)
s.umount()
s.fsck("-n")
