# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
# level: check
"""Leases (kvcachefs-files(5)): the client writes a list and reads a line per object once all are
resident. They are held until the descriptor is closed or the process dies. The case covers
prefetch, pins and ttl, and errors in a list."""
import errno, os, signal, time
from kvtest import *

N = MiB
# Uses lru, because the filler files here are written repeatedly in one order, which prefix takes
# for a prompt in progress.
s = Store(cpu="48M", size="512M", options="allow_other,policy=lru").mount()


def fill(still_open=0):
    for i in range(60):  # more than the pool holds
        s.write(f"fill/{i}/x", bytes(N))
    s.settle(still_open)


def goes_down(path):
    """No lease keeps it any more, once the daemon has processed the close."""
    def down():
        fill()
        return s.attr(path, "state") == "lower"
    wait_for(down)


def lease(text, *more):
    fd = os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR)
    os.write(fd, text.encode())
    return fd


def answer(fd):
    out, at = b"", 0
    while piece := os.pread(fd, 65536, at):
        out, at = out + piece, at + len(piece)
    return [l.rsplit(" ", 3) for l in out.decode().splitlines()]


for c in range(4):
    for l in range(4):
        s.write(f"m/c{c}/l{l}", blob((c, l).__repr__(), N))
s.settle()
fill()
assert s.attr("m/c0", "state") == "lower"
fd = lease("m/c0\nm/c1/l2\nm/none\n")
rows = {r[0]: r[1:] for r in answer(fd)}
assert len(rows) == 6 and all(rows[f"m/c0/l{l}"][1:] == [str(N), "resident+lower"]
                              for l in range(4)), rows
assert rows["m/c0/l1"][0] == str(os.stat(f"{s.mnt}/m/c0/l1").st_ino)
assert rows["m/none"][2] == "ENOENT"
with fails(errno.EBUSY):
    os.write(fd, b"more\n")
fill()
assert s.attr("m/c0", "state") == "resident+lower" and s.attr("m/c1/l2",
                                                              "state") == "resident+lower"
os.close(fd)
goes_down("m/c0")

# a client that dies holds nothing
r, w = os.pipe()
pid = os.fork()
if not pid:
    answer(lease("m/c0\n"))
    os.write(w, b"x")
    signal.pause()
os.read(r, 1)
fill(0)
assert s.attr("m/c0", "state") == "resident+lower"
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
goes_down("m/c0")

# prefetch: no waiting, no holding
fd = lease("prefetch\nm/c2\n")
os.close(fd)
wait_for(lambda: s.attr("m/c2", "state") == "resident+lower")
for i in range(6):  # other chunks are evicted before the requested ones
    s.write(f"m/more{i}/l", bytes(2 * MiB))
    s.settle()
assert s.attr("m/c2", "state") == "resident+lower"
fill()
assert s.attr("m/c2", "state") == "lower"
fd = os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR)
with fails(errno.EINVAL):
    os.read(fd, 100)
os.close(fd)

# more than the pool holds: an error for objects that do not fit, and the mount stays healthy
s.write("big/a/x", bytes(20 * MiB))
s.write("big/b/x", bytes(20 * MiB))
s.write("big/c/x", bytes(20 * MiB))
s.settle()
fill()
fd = lease("big/a\nbig/b\nbig/c\n")
rows = answer(fd)
assert sorted(r[3] for r in rows) == ["ENOSPC", "resident+lower", "resident+lower"] or \
    [r[3] for r in rows].count("resident+lower") == 2, rows
os.close(fd)
assert s.read("m/c3/l1") == blob((3, 1).__repr__(), N)

# another user learns nothing about unreadable files
os.chmod(TMP, 0o755)
os.chmod(os.path.dirname(TMP), 0o755)
s.write("m/open/l", b"1")
s.write("m/shut/l", b"1")
s.write("m/open/own", b"1")
os.chmod(f"{s.mnt}/m/shut", 0o700)
os.chmod(f"{s.mnt}/m/open/own", 0o600)
r, w = os.pipe()
pid = os.fork()
if not pid:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.write(w,
             repr({x[0]: x[1:]
                   for x in answer(lease("m/open\nm/shut\nm/shut/l\nm/open/own\n"))}).encode())
    os._exit(0)
os.waitpid(pid, 0)
rows = eval(os.read(r, 10000))
assert rows["m/open/l"][1] == "1" and all(rows[p] == ["0", "0", "EACCES"]
                                          for p in ("m/shut", "m/shut/l", "m/open/own")), rows

# but a supplementary group grants access
os.chown(f"{s.mnt}/m/shut", 0, 4242)
os.chmod(f"{s.mnt}/m/shut", 0o750)
os.chown(f"{s.mnt}/m/open/own", 0, 4243)
os.chmod(f"{s.mnt}/m/open/own", 0o640)
for groups, found in (([4242], 1), ([1, 4242], 1), (list(range(4000, 4300)), 2), ([4244], 0)):
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        os.setgroups(groups)
        os.setgid(65534)
        os.setuid(65534)
        rows = answer(lease("m/shut/l\nm/open/own\n"))
        os.write(w, repr([x[2] for x in rows]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    sizes = eval(os.read(r, 10000))
    os.close(r), os.close(w)
    assert sizes == ["1" if found > 0 else "0", "1" if found > 1 else "0"], (groups, sizes)

# a descriptor has one position: a client that writes and then reads gets the answer from its start
s.settle()  # no later copy changes the states in the answer
text = "m/open/l\nm/none\n"
with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
    f.write(text.encode())
    got = b""
    while piece := f.read(7):
        got += piece
    assert [l.rsplit(" ", 1)[0] for l in got.decode().splitlines()][1] == "m/none 0 0", got
    assert got.startswith(b"m/open/l "), got
    f.seek(0)
    assert f.read(9999) == got, "read once more from the start"
with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
    f.write(text.encode())
    f.seek(0)
    assert f.read(9999) == got
    assert os.pread(f.fileno(), 5, 3) == got[3:8]
shell = run("sh", "-c", 'exec 3<>"$1"; printf "$2" >&3; cat <&3', "sh",
            f"{s.mnt}/.kvcachefs/lease", text, ok=True).stdout
assert shell.encode() == got, shell

# pin and ttl
os.setxattr(f"{s.mnt}/m/c3", "user.kvcachefs.pin", b"1")
assert s.read("m/c3/l0") == blob((3, 0).__repr__(), N) and s.attr("m/c3", "pin") == "1"
for l in range(4):
    s.read(f"m/c3/l{l}")
fill()
assert s.attr("m/c3", "state") == "resident+lower"
os.setxattr(f"{s.mnt}/m/c3", "user.kvcachefs.pin", b"0")
fill()
assert s.attr("m/c3", "state") == "lower"
os.setxattr(f"{s.mnt}/m/c1", "user.kvcachefs.ttl", b"1000")
assert s.attr("m/c1", "ttl") == "1000"
os.setxattr(f"{s.mnt}/m/c1", "user.kvcachefs.ttl", b"1")
# no lookup of its folder, which would keep the chunk
wait_for(lambda: s.stats()["expired_chunks"] == 1)
wait_for(lambda: not os.path.exists(f"{s.mnt}/m/c1"))


# the lists of one user take a limited part of the daemon's memory, and do not affect other users
def greedy(uid, n, size=32 * MiB):
    """User uid takes n leases with lists of this size, and keeps them until all were tried. Returns
    how many were granted."""
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            fds, took = [], 0
            for _ in range(n):
                fds.append(os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR))
                line = b"x" * 255 + b"\n"
                try:
                    for _ in range(size // MiB):
                        os.write(fds[-1], line * (MiB // 256))
                    os.pread(fds[-1], 100, 0)
                    took += 1
                except OSError as e:
                    assert e.errno == errno.EDQUOT, e
            os.write(w, bytes([took]))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return os.read(r, 1)[0]


os.chmod(s.mnt, 0o755)
took = greedy(65534, 24)
assert 1 <= took < 8, took
assert greedy(65533, 1) == 1
wait_for(lambda: greedy(65534, 1) == 1)  # the memory of ended leases is returned after their closes
s.umount()
s.fsck("-n")
