# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Fifos, sockets and device nodes are ordinary inodes: they are created, linked, renamed, chowned,
counted, and there after a remount and a kill. A folder that contains one is not a chunk. Device
nodes cannot be opened unless the mount has dev. The case also covers checks that the kernel leaves
to a filesystem: names that are too long, hard links in the root, set-id bits at chown."""
import errno, os, socket, stat, subprocess
from kvtest import *

s = Store(cpu="32M", size="128M", options="settle=0").mount()
m = s.mnt
P = lambda *a: os.path.join(m, *a)
NUMBER = {"b": os.makedev(3, 4), "c": os.makedev(1, 5), "f": 0, "s": 0}
KIND = {"b": stat.S_ISBLK, "c": stat.S_ISCHR, "f": stat.S_ISFIFO, "s": stat.S_ISSOCK}


def look(where):
    for name, number in NUMBER.items():
        st = os.lstat(P(where, name))
        assert KIND[name](st.st_mode) and stat.S_IMODE(st.st_mode) == 0o640, (name, st)
        assert st.st_rdev == number and st.st_size == 0 and st.st_blocks == 0, (name, st)
    kinds = {e.name: e for e in os.scandir(P(where))}
    assert not any(e.is_file() or e.is_dir() for e in kinds.values()) and len(kinds) == 4, kinds


os.umask(0)
os.makedirs(P("m/c"))
os.mknod(P("m/c/b"), stat.S_IFBLK | 0o640, NUMBER["b"])
os.mknod(P("m/c/c"), stat.S_IFCHR | 0o640, NUMBER["c"])
os.mkfifo(P("m/c/f"), 0o640)
sock = socket.socket(socket.AF_UNIX)
os.chdir(P("m/c"))
sock.bind("s")
os.chmod("s", 0o640)
look("m/c")
with fails(errno.EEXIST):
    os.mkfifo(P("m/c/b"))

# they work: data through the fifo, a connection through the socket
sock.listen()
with socket.socket(socket.AF_UNIX) as c:
    c.connect("s")
    sock.accept()[0].sendall(b"through")
    assert c.recv(10) == b"through"
os.chdir("/")
r = os.open(P("m/c/f"), os.O_RDONLY | os.O_NONBLOCK)
w = os.open(P("m/c/f"), os.O_WRONLY)
os.write(w, b"through")
assert os.read(r, 10) == b"through"
os.unlink(P("m/c/f"))
assert os.fstat(r).st_nlink == 0
os.close(r), os.close(w)
os.mkfifo(P("m/c/f"), 0o640)
with fails(errno.EACCES):
    os.open(P("m/c/c"), os.O_RDONLY)  # nodev
sock.close()

# names, links, owners
os.link(P("m/c/b"), P("m/b2"))
os.rename(P("m/c/c"), P("m/c3"))
os.rename(P("m/c3"), P("m/c/c"))
assert os.lstat(P("m/b2")).st_ino == os.lstat(P("m/c/b")).st_ino
assert os.lstat(P("m/b2")).st_nlink == 2
os.unlink(P("m/b2"))
for name in NUMBER:
    os.chmod(P("m/c", name), 0o6755)
    os.chown(P("m/c", name), 12, 34)
    st = os.lstat(P("m/c", name))
    assert stat.S_IMODE(st.st_mode) == 0o755 and (st.st_uid, st.st_gid) == (12, 34), (name, st)
    os.chmod(P("m/c", name), 0o640)
    with fails(errno.EPERM):
        os.setxattr(P("m/c", name), "user.x", b"1")
look("m/c")

# set-id bits: a write clears them at once, also while the file is open; a later chmod sets them
def bits(p):
    return run("stat", "-c", "%a", p, ok=True).stdout.strip()


for turn in range(3):
    p = P(f"m/set{turn}")
    fd = os.open(p, os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, b"x" * 100)
    os.fchmod(fd, 0o6755)
    os.utime(fd, (7, 7))
    os.close(fd)  # as install(1) does
    assert bits(p) == "6755"
    if turn:
        s.settle()
    assert bits(p) == "6755"
    fd = os.open(p, os.O_RDWR | (os.O_TRUNC if turn == 2 else 0))
    os.write(fd, b"y")
    assert bits(p) == "755", bits(p)
    os.fchmod(fd, 0o4755)
    assert bits(p) == "4755"
    os.pwrite(fd, b"z", 10)
    os.close(fd)
    assert bits(p) == "755"
    os.chmod(p, 0o6755)
    run("fallocate", "-l", "100000", p, ok=True)
    assert bits(p) == "755"
    os.unlink(p)
os.close(os.open(P("m/made"), os.O_CREAT | os.O_RDWR, 0o4755))
assert bits(P("m/made")) == "4755"

# the folder is a container: files in it may be dropped, the folder and the special files stay
s.write("m/c/file", b"x" * 1000)
s.settle()
assert s.attr("m/c", "unit_now") == "file"
for i in range(60):
    s.write(f"fill/{i}/x", bytes(4 * MiB))
    s.settle()
assert not os.path.exists(P("m/c/file")), "the store is full three times over"
look("m/c")

# they survive a kill and a remount
s.committed()
s.kill()
s.mount()
look("m/c")
s.umount()
s.fsck("-n")
s.mount(options="dev")
look("m/c")
with open(P("m/c/c"), "rb", buffering=0) as f:
    assert f.read(5) == bytes(5)  # /dev/zero
assert "dev" in s.config()["generic"].split(",")
for name in NUMBER:
    os.unlink(P("m/c", name))
os.rmdir(P("m/c"))

# every call accepts a name of 255 bytes and refuses a name of 256
long, fits = "n" * 256, "n" * 255
s.write(fits, b"1")
calls = [os.stat, os.unlink, os.rmdir, os.mkdir, os.mkfifo, os.readlink, os.listdir,
         lambda p: os.open(p, os.O_RDONLY), lambda p: os.open(p, os.O_CREAT | os.O_WRONLY),
         lambda p: os.symlink("x", p), lambda p: os.link(P(fits), p), lambda p: os.chmod(p, 0o600),
         lambda p: os.rename(P(fits), p), lambda p: os.rename(p, P("x")),
         lambda p: os.truncate(p, 0),
         lambda p: os.utime(p), lambda p: os.chown(p, 1, 1), lambda p: os.statvfs(p)]
for call in calls:
    for at in (P(long), P("m", long), P(long, "x"), P(".kvcachefs", long)):
        with fails(errno.ENAMETOOLONG):
            call(at)
fd = os.open(P(".kvcachefs/lease"), os.O_RDWR)
os.write(fd, f"{long}\nm/{long}/x\n".encode())
lines = os.pread(fd, 9999, 0).decode().splitlines()
assert [l.rsplit(" ", 1)[1] for l in lines] == ["ENAMETOOLONG"] * 2, lines
os.close(fd)
os.unlink(P(fits))

# hard links in the root itself
for turn in range(20):
    open(P("l.1"), "w").close()
    for i in range(2, 20):
        os.link(P("l.1"), P(f"l.{i}"))
        assert os.stat(P("l.1")).st_nlink == i
    os.symlink("to", P("sym"))
    os.link(P("sym"), P("sym2"), follow_symlinks=False)
    for i in range(19, 0, -1):
        assert os.stat(P("l.1")).st_nlink == i
        os.unlink(P(f"l.{i}"))
    os.unlink(P("sym"))
    assert os.readlink(P("sym2")) == "to" and os.lstat(P("sym2")).st_nlink == 1
    os.unlink(P("sym2"))
s.umount()
s.fsck("-n")
