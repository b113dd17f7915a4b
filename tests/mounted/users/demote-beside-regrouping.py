# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A user demotes "all" of a file of the user's own while its folder becomes one chunk of another
user, or no longer is one. The files of the other user are never dropped."""
import os, random, time, traceback
from kvtest import *

A, B, FILES = 65533, 65534, 5
s = Store(options=f"settle=0,allow_other,{PATIENT}").mount()
os.chmod(s.mnt, 0o755)
os.chdir(s.mnt)  # a folder above it may be closed to the users
top = "m/d"
os.makedirs(top)
os.chmod(top, 0o777)
os.chown(top, A, A)
for i in range(FILES):
    s.write(f"m/d/{i}", blob(i, 8 * KiB))
    os.chown(f"{top}/{i}", A, A)
s.settle()
end = time.monotonic() + (20 if LONG else 6)


def demote_own():
    """B's process: exits with 0 if some of its demotions began, so that the chunk was B's file."""
    os.setgroups([])
    os.setgid(B)
    os.setuid(B)
    done = 0
    while time.monotonic() < end:
        with open(f"{top}/b", "wb") as f:
            f.write(b"b" * 4096)
        try:
            os.setxattr(f"{top}/b", "user.kvcachefs.demote", b"all")
            done += 1
        except OSError as e:
            # the chunk is A's folder, or became it during the call; or it is in use
            assert e.errno in (errno.EPERM, errno.EBUSY), e
            done += e.errno == errno.EBUSY
    os._exit(done < 3)


sys.stdout.flush()
pid = os.fork()
if not pid:
    try:
        demote_own()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
for n in range(10**9):
    if time.monotonic() > end:
        break
    os.setxattr(top, "user.kvcachefs.unit", (b"dir", b"file")[n % 2])
    # a chunk that was just used is dropped 0.3 seconds later
    time.sleep(random.random() * 0.2 if n % 2 else 0.5)
    left = [i for i in range(FILES) if os.path.exists(f"{top}/{i}")]
    assert len(left) == FILES, f"turn {n}: A's files {left} are left, of {FILES}"
assert os.waitpid(pid, 0)[1] == 0, "an error, or all of B's demotions were refused"
os.chdir("/")
s.umount()
s.fsck("-n")
