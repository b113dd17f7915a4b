# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A daemon in its own PID namespace serves callers outside of it. It cannot see their supplementary
groups, so it refuses a path that needs such a group, and the log says so once. The user and the
main group give access as usual. A daemon in the caller's namespace sees all groups."""
import errno, os, subprocess
from kvtest import *

PARENT = "user.kvcachefs.parent"
s = Store(options="allow_other")
for folder in (TMP, os.path.dirname(TMP)):
    os.chmod(folder, 0o711)


def mount(*before):
    with open(LOG, "ab") as log:
        s.daemon = subprocess.Popen(
            [*before, binary("kvcachefs"), s.path, s.mnt, "-f", "-o",
             f"cpu=64M,allow_other,run={TMP}/run"], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True)
    wait_for(lambda: os.path.ismount(s.mnt))


def set_parent(gid, groups, path="/m/a"):
    """Sets the parent as a user with these groups. Returns the errno, or 0."""
    pid = os.fork()
    if not pid:
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(4444)
        try:
            os.setxattr(f"{s.mnt}/m/b", PARENT, path.encode())
            os._exit(0)
        except OSError as e:
            os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


for n, before in enumerate(((), ("unshare", "--pid", "--fork", "--kill-child"))):
    mount(*before)
    if not n:
        os.chmod(s.mnt, 0o755)
        for c in ("m/a", "m/b"):
            s.write(f"{c}/l", b"x")
        for name in ("m", "m/a", "m/b"):
            os.chown(f"{s.mnt}/{name}", 4444 if name == "m/b" else 0, 5555)
            os.chmod(f"{s.mnt}/{name}", 0o2770)
    said = lambda: s.log().count("another PID namespace")
    assert set_parent(4444, [5555]) == (errno.EACCES if before else 0), (before, s.log())
    assert set_parent(5555, []) == 0, before  # the main group
    assert set_parent(4444, [6666]) == errno.EACCES, before
    assert set_parent(4444, [5555], "/m/none") in (errno.EACCES, errno.ENOENT, errno.EINVAL)
    assert said() == (1 if before else 0), s.log()
    run("umount", s.mnt, ok=True)
    s.daemon.wait()
