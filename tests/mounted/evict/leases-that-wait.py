# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A lease with the line "wait MS" waits for files that do not exist yet, or are being written, on
this mount and on another node. Each read ends after a second, and the number of such leases is
limited."""
import ctypes, errno, os, signal, subprocess, threading
from kvtest import *
from tensors import kv
import nodes

need_mount()
libc = ctypes.CDLL(None, use_errno=True)


def ask(s, text, mnt=None):
    fd = os.open(f"{mnt or s.mnt}/.kvcachefs/lease", os.O_RDWR)
    os.write(fd, text.encode())
    return fd


def lines(fd):
    text, part = b"", b"x"
    while part:
        part = os.read(fd, 1 << 20)
        text += part
    return [line.rsplit(" ", 3) for line in text.decode().splitlines()]


def read_once(fd):
    """One read(2), without a retry. Returns the bytes or the errno."""
    buf = ctypes.create_string_buffer(1 << 16)
    n = libc.read(fd, buf, len(buf))
    return buf.raw[:n] if n >= 0 else ctypes.get_errno()


class Waiting:
    """A lease that waits in a thread of its own."""

    def __init__(self, s, *paths, ms=60000):
        self.s, before = s, s.stats()["arrival_waits"]
        self.fd = ask(s, f"wait {ms}\n" + "\n".join(paths))
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        wait_for(lambda: s.stats()["arrival_waits"] > before or not self.thread.is_alive())

    def read(self):
        self.lines = lines(self.fd)

    def arrived(self, *sizes):
        self.thread.join()
        assert [int(l[2]) for l in self.lines] == list(sizes), self.lines
        assert all(l[3].startswith("resident") for l in self.lines), self.lines
        os.close(self.fd)


def local():
    s = Store("local", options="allow_other").mount()
    one = blob(1, 300 * KiB)
    s.write("m/here", one)
    # time over; a name that exists needs no wait; a folder that does not exist is not waited for
    fd = ask(s, "wait 300\nm/here\nm/none")
    got = lines(fd)
    assert [l[3].split("+")[0] for l in got] == ["resident", "ENOENT"], got
    os.close(fd)
    assert s.stats()["arrival_waits"] == 1
    fd = ask(s, "wait 60000\nm/here")
    lines(fd)
    os.close(fd)
    assert s.stats()["arrival_waits"] == 1
    # a new folder, an unfinished file, a rename, a file without a name, a link; in any order
    w = Waiting(s, "m/new/a", "m/here", "m/b", "m/c", "m/d", "m/e")
    fd = os.open(f"{s.mnt}/m/c", os.O_CREAT | os.O_WRONLY)
    s.write("m/b.tmp1", one)
    os.rename(f"{s.mnt}/m/b.tmp1", f"{s.mnt}/m/b")
    os.mkdir(f"{s.mnt}/m/new")
    s.write("m/new/a", one)
    s.write("m/d", b"x")
    os.link(f"{s.mnt}/m/here", f"{s.mnt}/m/e")
    os.write(fd, one[:1000])
    assert w.thread.is_alive()
    os.write(fd, one[1000:])
    os.close(fd)
    w.arrived(len(one), len(one), len(one), len(one), 1, len(one))
    # O_TMPFILE; an exchange of names
    w = Waiting(s, "m/f", "m/g/x")
    fd = os.open(f"{s.mnt}/m", os.O_TMPFILE | os.O_WRONLY)
    os.write(fd, one)
    assert not libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, f"{s.mnt}/m/f".encode(),
                           0x400)
    os.close(fd)
    os.mkdir(f"{s.mnt}/m/g")
    s.write("m/h/x", one)
    assert not libc.renameat2(-100, f"{s.mnt}/m/g".encode(), -100, f"{s.mnt}/m/h".encode(), 2)
    w.arrived(len(one), len(one))
    # wrong times; a path that begins like the command
    for text in ("wait 60001\nm/b", "wait 99999999999999999999\nm/b", "wait 5\n"):
        fd = ask(s, text)
        with fails(errno.EINVAL):
            os.read(fd, 100)
        os.close(fd)
    s.write("wait 5/x", b"1")
    fd = ask(s, "wait 5/x\nm/b")
    assert [l[3].split("+")[0] for l in lines(fd)] == ["resident"] * 2
    os.close(fd)
    # without permission there is nothing to wait for
    os.chmod(f"{s.mnt}/m", 0o700)

    def other():
        os.chdir(s.mnt)
        os.setuid(1234)
        fd = ask(s, "wait 60000\nm/none", ".")
        os._exit(lines(fd)[0][3] != "EACCES")
    pid = os.fork()
    if not pid:
        other()
    assert os.waitpid(pid, 0)[1] == 0
    return s


def ended(s):
    """A client that dies while it waits, and one that does not read on."""
    fd = ask(s, "wait 60000\nm/later")
    assert read_once(fd) == errno.EINTR
    pid = os.fork()
    if not pid:
        lines(fd)
        os._exit(1)
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    s.write("m/later", b"123")  # between two reads
    assert read_once(fd).startswith(b"m/later ")
    os.close(fd)
    os.close(ask(s, "wait 60000\nm/unread"))


def crowd(s):
    """More leases than may wait: the others get ENOENT at once."""
    fds = [ask(s, f"wait 60000\nm/crowd/{i % 7}") for i in range(800)]
    got = [None] * len(fds)

    def read(i):
        got[i] = read_once(fds[i])
    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(fds))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    refused = [g for g in got if g != errno.EINTR]
    assert refused and all(b" ENOENT\n" in g for g in refused), refused
    assert s.stats()["arrival_refusals"] >= len(refused), (s.stats(), len(refused))
    os.mkdir(f"{s.mnt}/m/crowd")
    for i in range(7):
        s.write(f"m/crowd/{i}", b"x")
    for fd, g in zip(fds, got):
        if g == errno.EINTR:
            assert lines(fd)[0][3].startswith("resident")
        os.close(fd)
    w = Waiting(s, "m/crowd/8")  # the places are free again
    s.write("m/crowd/8", b"x")
    w.arrived(1)


def shutdown(s):
    """A waiting read ends with the daemon."""
    fd, got = ask(s, "wait 60000\nm/never"), []
    before = s.stats()["arrival_waits"]
    t = threading.Thread(target=lambda: got.append([read_once(fd), read_once(fd)]))
    t.start()
    wait_for(lambda: s.stats()["arrival_waits"] > before)
    s.daemon.terminate()
    t.join()
    assert all(isinstance(g, int) and g for g in got[0]), got
    os.close(fd)
    s.ended()


def whole_chunks():
    """A file arrives together with the last file of its chunk."""
    s = Store("whole", options="partial=miss").mount()
    os.mkdir(f"{s.mnt}/m")
    os.setxattr(f"{s.mnt}/m", "user.kvcachefs.layers", b"3")
    w = Waiting(s, "m/c/0", "m/c/1", "m/c/2")
    for i in (2, 0):
        s.write(f"m/c/{i}", b"x" * (i + 1))
    assert w.thread.is_alive()
    s.write("m/c/1", b"xx")
    w.arrived(1, 2, 3)
    s.umount()


def other_node():
    a, b = nodes.mounted("waits", 2)
    one = blob(1, 200 * KiB)
    with fails(errno.ENOENT):
        os.stat(f"{b.mnt}/m/chunk/0")
    w = Waiting(b, *(f"m/chunk/{i}" for i in range(3)))
    for i in range(3):
        a.write(f"m/chunk/{i}", one)
    w.arrived(*[len(one)] * 3)
    # the library, its Python package, and the command
    p = subprocess.Popen([binary("kvcachectl"), "lease", "--wait", "60s", b.mnt, "m/x"],
                         stdout=subprocess.PIPE, text=True)
    wait_for(lambda: b.stats()["arrival_waits"] > 1)
    a.write("m/x", one)
    assert p.stdout.readline().startswith("m/x ")
    p.terminate()
    p.wait()
    in_python(b, a)
    for s in (a, b):
        s.umount()


def in_python(b, a):
    before, got = b.stats()["arrival_waits"], []

    def take():
        with kv.Lease(b.mnt, ["m/y"], wait=60) as lease:
            got.append(bytes(lease.map(0)))
    t = threading.Thread(target=take)
    t.start()
    wait_for(lambda: b.stats()["arrival_waits"] > before)
    a.write("m/y", b"there")
    t.join()
    assert got == [b"there"], got
    with kv.Lease(b.mnt, ["m/z"], wait=.001) as lease:
        assert lease.objects[0].errno == errno.ENOENT, lease.objects
    try:
        kv.Lease(b.mnt, ["m/z"], wait=61)
    except kv.Error as e:
        assert "60000" in str(e), e
    else:
        raise AssertionError("a wait of 61 seconds was not refused")


s = local()
ended(s)
crowd(s)
shutdown(s)
whole_chunks()
other_node()
