# SPDX-License-Identifier: Apache-2.0
# ways: none
"""kvctier.py with deadlines: a request whose method hangs is answered with ETIMEDOUT, the method's
late result changes neither the arena nor a later value, and requests that waited behind it are not
made late. The program runs in the virtual environment that venv= names, and is told whether the
mount has keys. The case speaks the contract of kvcachefs-ext(7) itself."""
import array, contextlib, errno, mmap, os, socket, struct, subprocess, sys
from kvtest import TMP, run, wait_for
import servers

DRIVER = """
import os, sys, time
import kvctier
HERE = os.path.dirname(os.path.abspath(__file__))


class Slow:
    def __init__(self, options):
        if "refuse" in options:
            raise kvctier.Refused(f"{options.sealed} {options.deadline} {sys.prefix} {options}")
        self.values = {}

    def pause(self, what):
        with open(f"{HERE}/made", "a") as f:
            f.write(what + " ")
        while os.path.exists(f"{HERE}/hang-{what}"):
            time.sleep(0.01)
        with open(f"{HERE}/ended", "a") as f:
            f.write(what + " ")

    def get(self, key, offset, room):
        value = self.values[key][offset:offset + len(room)]
        self.pause("get" + value[:1].decode())
        room[:len(value)] = value
        return len(value)

    def put(self, key, data, expiry_ms):
        value = bytes(data)
        self.pause("put" + value[:1].decode())
        self.values[key] = value

    def delete(self, key):
        del self.values[key]


kvctier.serve(Slow, threads=2, deadlines=True)
"""
GET, PUT, DELETE = 1, 2, 3
SLOT = 4 << 20
program = servers.Program(DRIVER, "slow")


class Session:
    """A daemon's side of the socket."""

    def __init__(self, options="", flags=0):
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = os.memfd_create("arena")
        os.ftruncate(fd, 8 * SLOT)
        self.arena = mmap.mmap(fd, 8 * SLOT)
        low = os.dup(theirs.fileno())
        os.set_inheritable(low, True)
        self.process = subprocess.Popen(["sh", "-c", f'exec {program.path} 3<&{low}'],
                                        pass_fds=[low])
        os.close(low)
        texts = "".join(f"{o}\0" for o in options.split()).encode()
        hello = struct.pack("8sIIQQQII16x", b"KVCTIER", 1, len(texts), 8 * SLOT, SLOT, 7000, 8,
                            flags)
        self.sock.sendmsg([hello + texts], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                             array.array("i", [fd]))])
        os.close(fd)
        theirs.close()
        *_, self.abilities, self.result, _, text = struct.unpack("8sIIi44s192s",
                                                                 self.sock.recv(256))
        self.text = text.rstrip(b"\0").decode()
        self.tag = 0

    def send(self, op, key, data=b"", length=0, deadline_ms=3600000, slot=0):
        self.tag += 1
        self.arena[slot * SLOT:slot * SLOT + len(data)] = data
        self.sock.send(struct.pack("IIQ16sQQQQQQ48x", op, 0, self.tag, key, 0, len(data) or length,
                                   slot * SLOT, SLOT, 0, deadline_ms))
        return self.tag

    def answers(self, *tags):
        got = {}
        while set(got) != set(tags):
            tag, result, length, _ = struct.unpack("QqQQ", self.sock.recv(32))
            assert tag in tags and tag not in got, (tag, tags, got)
            got[tag] = result or length
        return [got[t] for t in tags]

    def ask(self, *args, **more):
        return self.answers(self.send(*args, **more))[0]

    def end(self):
        self.sock.close()
        assert self.process.wait() == 0


def said(what):
    with contextlib.suppress(FileNotFoundError), open(f"{program.dir}/{what}") as f:
        return f.read().split()
    return []


def hang(what):
    open(f"{program.dir}/hang-{what}", "w").close()


def go(what):
    os.unlink(f"{program.dir}/hang-{what}")


A, B, C, D = (bytes([n]) * 16 for n in range(4))
s = Session()
assert s.result == 0 and s.abilities == 1
assert s.ask(PUT, A, b"1" * SLOT) == 0 and s.ask(GET, A, length=SLOT, slot=1) == SLOT
assert s.arena[SLOT:2 * SLOT] == b"1" * SLOT
assert s.ask(GET, B, length=10) == -errno.ENOENT == s.ask(DELETE, B)

# a get that hangs: it is answered, and its late result does not reach the arena
hang("get1")
assert s.ask(GET, A, length=SLOT, deadline_ms=50, slot=2) == -errno.ETIMEDOUT
s.arena[2 * SLOT:3 * SLOT] = bytes(SLOT)
go("get1")
wait_for(lambda: said("ended").count("get1") == 2)
assert s.ask(GET, A, length=8, slot=3) == 8  # the other thread, or the same one
assert s.arena[2 * SLOT:3 * SLOT] == bytes(SLOT)

# a put that hangs: until it ends, no other request for its key is made
hang("put2")
assert s.ask(PUT, A, b"2" * 100, deadline_ms=50) == -errno.ETIMEDOUT
for request in ((PUT, A, b"3" * 100), (DELETE, A), (GET, A)):
    assert s.ask(*request) == -errno.ETIMEDOUT, request
assert "put3" not in said("made") and s.ask(PUT, B, b"4" * 100) == 0
go("put2")
wait_for(lambda: s.ask(PUT, A, b"3" * 100) == 0)
assert s.ask(GET, A, length=100) == 100 and s.arena[:100] == b"3" * 100

# all threads hang: requests behind them end in time, too, and are not made afterwards
hang("put5")
late = [s.send(PUT, key, b"5" * 100, deadline_ms=50, slot=n) for n, key in enumerate((A, B))]
wait_for(lambda: said("made").count("put5") == 2)
late.append(s.send(PUT, C, b"6" * 100, deadline_ms=50, slot=2))
assert s.answers(*late) == [-errno.ETIMEDOUT] * 3
waits = s.send(PUT, D, b"7" * 100, slot=3)
go("put5")
assert s.answers(waits) == [0] and "put6" not in said("made")
assert s.ask(GET, C, length=10) == -errno.ENOENT
s.end()

# the socket is closed while a method hangs: the program ends
hang("put8")
s = Session()
s.send(PUT, A, b"8")
wait_for(lambda: "put8" in said("made"))
s.end()
go("put8")

# the virtual environment, and the flag of a mount with keys
run(sys.executable, "-m", "venv", "--without-pip", f"{TMP}/venv", ok=True)
for flags, sealed in ((0, False), (1, True), (2, False)):
    s = Session(f"refuse=1 venv={TMP}/venv", flags)
    assert s.result == -errno.EINVAL and s.text == f"{sealed} 7.0 {TMP}/venv {{'refuse': '1'}}", \
        s.text
for venv, word in ((f"{TMP}/none", "is not the absolute path of a virtual"), ("venv", "absolute")):
    s = Session(f"venv={venv}")
    assert s.result == -errno.EINVAL and word in s.text, s.text
os.chmod(f"{TMP}/venv/lib", 0o777)
s = Session(f"venv={TMP}/venv")
assert s.result == -errno.EINVAL and "can be changed by other users" in s.text, s.text
