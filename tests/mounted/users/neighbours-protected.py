# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""Two users of one mount. A user who may create a file beside another user's file cannot drop, pin
or expire the other's chunk through it: not by a name that makes it a companion, and not in a sticky
folder that is one chunk. user.kvcachefs.parent does not reveal the contents of a folder that is
closed to the caller. Setting an attribute on a removed file fails and leaves nothing behind."""
import errno, os
from kvtest import *

A, B, GROUP = 65533, 65534, 65500
s = Store("two", options=f"allow_other,{PATIENT}").mount()
os.chmod(s.mnt, 0o755)
os.chdir(s.mnt)  # a folder above it may be closed to the users
MNT = "."


def as_user(uid, what, groups=()):
    """Calls `what` as that user. Returns the errno of its error, or 0."""
    pid = os.fork()
    if not pid:
        os.setgroups(groups)
        os.setgid(uid)
        os.setuid(uid)
        try:
            what()
        except OSError as e:
            os._exit(e.errno)
        except BaseException:
            os._exit(255)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def make(path, data=b"x" * 4096, mode=0o600):
    fd = os.open(f"{MNT}/{path}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    os.write(fd, data)
    os.close(fd)


def sets(path, name, value):
    return lambda: os.setxattr(f"{MNT}/{path}", f"user.kvcachefs.{name}", value)


def all_but_harm(path, by=B):
    """B's file belongs to a chunk of A, so settings of the chunk are refused even to B."""
    for name, value in (("demote", b"all"), ("demote", b"pool"), ("ttl", b"1"), ("pin", b"1"),
                        ("parent", b"")):
        assert as_user(by, sets(path, name, value)) == errno.EPERM, (path, name)


# ---- a companion by its name ----

os.mkdir(f"{MNT}/m")
os.setxattr(f"{MNT}/m", "user.kvcachefs.unit", b"file")
os.chmod(f"{MNT}/m", 0o1777)
assert not as_user(A, lambda: make("m/abc", b"a" * 4096))
assert not as_user(B, lambda: make("m/abc.x"))
assert not as_user(A, lambda: make("m/abc.json"))
assert as_user(B, sets("m/abc", "demote", b"all")) == errno.EACCES
assert not as_user(B, sets("m/abc.x", "demote", b"all"))  # removes only the user's own file
wait_for(lambda: not os.path.exists(f"{MNT}/m/abc.x"))
assert s.read("m/abc") == b"a" * 4096 and os.path.exists(f"{MNT}/m/abc.json")
assert not as_user(A, sets("m/abc.json", "demote", b"all"))  # a companion with the same owner
assert not os.path.exists(f"{MNT}/m/abc")
wait_for(lambda: not os.path.exists(f"{MNT}/m/abc.json"))

# a companion that gets another owner
assert not as_user(A, lambda: (make("m/def"), make("m/def.x")))
os.chown(f"{MNT}/m/def.x", B, B)
all_but_harm("m/def.x")
assert s.read("m/def")

# ---- a folder that is one chunk ----

os.mkdir(f"{MNT}/d")
os.mkdir(f"{MNT}/d/c")
os.setxattr(f"{MNT}/d/c", "user.kvcachefs.unit", b"dir")
os.chown(f"{MNT}/d/c", A, A)
os.chmod(f"{MNT}/d/c", 0o1777)
assert not as_user(A, lambda: make("d/c/0", b"a" * 4096))
assert not as_user(B, lambda: make("d/c/1"))
all_but_harm("d/c/1")
assert as_user(B, sets("d/c", "demote", b"all")) == errno.EPERM  # by the kernel: sticky folder
assert s.read("d/c/0") == b"a" * 4096
assert not as_user(A, sets("d/c/0", "ttl", b"1000")) and s.attr("d/c", "ttl") == "1000"
os.setxattr(f"{MNT}/d/c/1", "user.kvcachefs.ttl", b"0")  # root may do so

# ---- parents ----

os.mkdir(f"{MNT}/his")
os.makedirs(f"{MNT}/his/group")
s.write("his/group/p", b"p")
s.write("his/p", b"p")
os.makedirs(f"{MNT}/b/sub")
os.chmod(f"{MNT}/b", 0o777)
os.setxattr(f"{MNT}/b", "user.kvcachefs.unit", b"file")
assert not as_user(B, lambda: (make("b/q"), make("b/r")))
os.chown(f"{MNT}/his", A, GROUP)
os.chmod(f"{MNT}/his", 0o710)
os.chmod(f"{MNT}/his/p", 0o644)
for path in ("/his/p", "/his/none", "/his/group", "/his/group/p"):
    assert as_user(B, sets("b/q", "parent", path.encode())) == errno.EACCES, path
assert as_user(B, sets("b/q", "parent", b"/his/p"), [GROUP]) == 0
assert s.attr("b/q", "parent") == "/his/p"
assert as_user(B, sets("b/q", "parent", b"/his/none"), [GROUP]) == errno.ENOENT
os.chmod(f"{MNT}/his/p", 0o600)  # the user cannot open it any more
assert as_user(B, sets("b/q", "parent", b"/his/p"), [GROUP]) == errno.EACCES
assert as_user(B, sets("b/q", "parent", b"r")) == 0 and s.attr("b/q", "parent") == "/b/r"
assert as_user(B, sets("b/q", "parent", b"../his/p")) == errno.EINVAL

# ---- removed files ----

fd = os.open(f"{MNT}/b/r", os.O_RDWR)
os.unlink(f"{MNT}/b/r")
for name, value in (("a", b"1"), ("kvcachefs.pin", b"1"), ("kvcachefs.ttl", b"9")):
    with fails(errno.ENOENT):
        os.setxattr(fd, f"user.{name}", value)
os.close(fd)
for name, value in (("layers", b"4"), ("quota", b"16M"), ("codec", b"zstd"), ("ttl", b"9"),
                    ("unit", b"dir"), ("policy", b"lfu")):
    os.mkdir(f"{MNT}/gone")
    fd = os.open(f"{MNT}/gone", os.O_RDONLY)
    os.rmdir(f"{MNT}/gone")
    with fails(errno.ENOENT):
        os.setxattr(fd, f"user.kvcachefs.{name}", value)
    os.close(fd)
os.chdir("/")
s.umount()
s.fsck("-n")
print("ok")
