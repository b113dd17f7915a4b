# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""The kernel refuses an id-mapped mount with EINVAL, because the daemon does not support it: it
could not identify the caller, as shares and leases require. A caller in a user namespace is known
by its id in the daemon's namespace."""
import ctypes, errno, os, struct
from kvtest import *

AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE, MOUNT_SETATTR = -100, 0x1000, 428, 442
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOUNT_ATTR_IDMAP = 1, 0o2000000, 0x100000
libc = ctypes.CDLL(None, use_errno=True)


def in_user_namespace(work=None):
    """Runs work() as root of a user namespace whose user 0 is 1000 and group 0 is 2000. If `work`
    is None, returns a descriptor of the namespace."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            assert not libc.unshare(0x10000000), ctypes.get_errno()
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            if work:
                os.setgid(0)
                os.setuid(0)
                work()
            os._exit(0)
        except OSError as e:
            print(e, flush=True)
            os._exit(e.errno)
        finally:
            os._exit(255)
    os.read(ready[0], 1)
    for name, first in (("uid", 1000), ("gid", 2000)):
        with open(f"/proc/{pid}/{name}_map", "w") as f:
            f.write(f"0 {first} 1\n")
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    os.write(go[1], b"x")
    assert not (rc := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), rc
    return fd


def id_mapped(path, userns):
    """Tries to map the ids of a detached copy of this mount. Returns the errno, or 0."""
    tree = libc.syscall(OPEN_TREE, AT_FDCWD, path.encode(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)
    assert tree >= 0, os.strerror(ctypes.get_errno())
    attr = struct.pack("=QQQQ", MOUNT_ATTR_IDMAP, 0, 0, userns)
    rc = libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attr, ctypes.c_size_t(len(attr)))
    err = ctypes.get_errno() if rc else 0
    os.close(tree)
    return err


s = Store(options="allow_other,mode=1777").mount()
for folder in (TMP, os.path.dirname(TMP)):
    os.chmod(folder, 0o711)
try:
    userns = in_user_namespace()
except AssertionError as e:
    skip(f"no user namespaces here: {e}")
if (err := id_mapped("/dev/shm", userns)):
    skip(f"the kernel cannot map the ids of a tmpfs either: {os.strerror(err)}")
assert id_mapped(s.mnt, userns) == errno.EINVAL


def store():
    os.mkdir(f"{s.mnt}/m")
    with open(f"{s.mnt}/m/a", "xb") as f:
        f.write(b"x")
    assert os.stat(f"{s.mnt}/m/a").st_uid == 0
    os.chmod(f"{s.mnt}/m", 0o700)


in_user_namespace(store)
st = os.stat(f"{s.mnt}/m/a")
assert (st.st_uid, st.st_gid) == (1000, 2000), st
# user 1001 has no access, and user 1000 has access from any namespace
for uid, want in ((1000, 0), (1001, errno.EACCES)):
    pid = os.fork()
    if not pid:
        try:
            os.setgid(uid + 1000)
            os.setuid(uid)
            os.close(os.open(f"{s.mnt}/m/a", os.O_RDONLY))
            os._exit(0)
        except OSError as e:
            os._exit(e.errno)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == want, uid
s.umount()
s.fsck("-n")
