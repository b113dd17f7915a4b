# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Programs of an ext tier that break the contract in every way: the tier fails, and the daemon goes
on, returns no wrong byte and makes no call wait beyond its deadline. When the program works again,
so does the tier. make check runs half of the programs, chosen by SEED."""
import contextlib, errno, os, random, signal, time
from kvtest import (KiB, LONG, MiB, SLOW, Store, TMP, beside, binary, blob, fails, need_mount, run,
                    wait_for)
import servers

need_mount()
START = """
import errno, os, struct, sys, threading, time
import folder, kvctier
HERE = os.path.dirname(os.path.abspath(__file__))


class Odd(kvctier._Server):
    def answer(self, message):
        op, _, tag, key, offset, length, place, *_ = kvctier.REQUEST.unpack(message)
        if os.path.exists(HERE + "/bad") and op != kvctier.USED:
            self.odd(message, op, tag, length, place)
        else:
            super().answer(message)

    def send(self, tag, result=0, length=0, cursor=0):
        self.sock.send(kvctier.ANSWER.pack(tag, result, length, cursor))

    def odd(self, message, op, tag, length, place):
"""
END = """

kvctier._Server = Odd
kvctier.serve(folder.Folder)
"""
# Name: the body of odd(), and what the log must say.
ODD = {
    "wrong-tag": ("self.send(tag + 1000)", "a request that was not made"),
    "tag-zero": ("self.send(0)", "a request that was not made"),
    "twice": ("super().answer(message); super().answer(message)", "a request that was not made"),
    "short": ("self.sock.send(kvctier.ANSWER.pack(tag, 0, 0, 0)[:31])", "the size of an answer"),
    "long": ("self.sock.send(kvctier.ANSWER.pack(tag, 0, 0, 0) + b'x')", "the size of an answer"),
    "huge": ("self.sock.send(bytes(100000))", "the size of an answer"),
    "empty": ("self.sock.send(b'')", "starts it again"),
    "too-much": ("self.send(tag, 0, length + 1)", "more bytes than were asked for"),
    "endless": ("self.send(tag, 0, 2**64 - 1)", "more bytes than were asked for"),
    "positive": ("self.send(tag, 5, 0)", "positive result"),
    "exits": ("os._exit(3)", "exited with status 3"),
    "killed": ("os.kill(os.getpid(), 11)", "killed by signal 11"),
    "closes": ("os.close(3); time.sleep(100)", "starts it again"),
    "silent": ("pass", ""),
    "stopped": ("os.kill(os.getpid(), 19)", ""),
    "late": ("time.sleep(1.3); super().answer(message)", ""),
    "short-value": ("super().answer(message) if op != 1 else self.send(tag, 0, length // 2)", ""),
    "wrong-data": ("self.arena[place:place + length] = os.urandom(length); "
                   "self.send(tag, 0, length if op == 1 else 0)", ""),
    "errors": ("self.send(tag, -(self.sent % 140 + 1)); self.sent += 1", ""),
    "odd-errors": ("self.send(tag, (-2**63, -4096, -10**6)[self.sent % 3]); self.sent += 1", ""),
    # the answer is right, and the data changes then
    "changes": ("""super().answer(message)
        for _ in range(200):
            self.arena[place:place + length] = os.urandom(length)""", ""),
    # another process keeps the socket and the arena
    "leaves-child": ("""if not os.fork():
            os.setsid()
            time.sleep(20)
            os._exit(0)
        os._exit(4)""", "exited with status 4"),
    # the signal for its process group does not reach it
    "leaves-group": ("""os.setpgid(0, os.getpgid(os.getppid()))
        self.send(tag + 1000)
        time.sleep(10000)""", "a request that was not made"),
    "floods": ("""super().answer(message)
        while os.path.exists(HERE + "/bad"):
            os.write(2, b"noise\\n" * 10000)""", "more lines"),
    "shrinks": ("""for fd in os.listdir("/proc/self/fd"):
            if "memfd" in os.readlink("/proc/self/fd/" + fd):
                try:
                    os.ftruncate(int(fd), 0)
                except PermissionError:
                    print("the arena cannot shrink", flush=True)
        self.arena[:] = bytes(len(self.arena))
        super().answer(message)""", ""),
}
DEADLINE = 1000 * SLOW
# ESTALE: the name was dropped between the lookup and the open, twice
MISSED = (errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE)
data = {p: blob(n, size) for n, (p, size) in enumerate(
    {"m/a/0": 20 * KiB, "m/b/0": 300 * KiB, "m/b/1": 100, "m/b/2": 5 * MiB}.items())}


def hostile(name, body, says):
    program = servers.Program(f"{START}        {body}\n    sent = 0\n{END}", name)
    bad = f"{program.dir}/bad"
    options = f"settle=0,disk=off,deadline={DEADLINE},remote={program.url()}&arena=16M"
    a, b = Store(f"{name}.a", options=options), Store(f"{name}.b", options=options)
    a.mount()
    b.mount()

    def there(path):
        return "ext" in a.attr(path, "tiers").split(",")

    def reads():
        for path, d in data.items():
            began = time.monotonic()
            try:
                assert b.read(path) == d, f"{name}: wrong bytes in {path}"
            except OSError as e:
                assert e.errno in MISSED, (name, path, e)
            # an open asks for a head, and the load for several pieces, each within the deadline
            assert time.monotonic() - began < 100 * SLOW, (name, path)

    a.write("m/a/0", data["m/a/0"])
    wait_for(lambda: there("m/a/0"))
    open(bad, "w").close()
    for path in list(data)[1:]:
        a.write(path, data[path])
    reads()
    if says:
        wait_for(lambda: says in a.log() + b.log())
    wait_for(lambda: there("m/b/2") or a.stats()["tier_errors"] + a.stats()["tier_refusals"])
    for path, d in data.items():
        assert a.read(path) == d  # from the pool
    os.unlink(bad)
    # Copies that the program has spoiled are gone, and new ones are whole. The program "changes"
    # may still write over the arena, and spoil the first of them.
    news = []

    def whole():
        news.append(f"m/c{len(news)}")
        a.write(news[-1], data["m/b/2"])
        wait_for(lambda: there(news[-1]))
        with contextlib.suppress(OSError):
            return b.read(news[-1]) == data["m/b/2"]

    wait_for(lambda: there("m/b/2"))
    wait_for(whole, every=0.2)
    reads()
    assert run(binary("kvcachectl"), "status", a.mnt).returncode == 0
    a.umount()
    b.umount()
    a.fsck()


def listings():
    """Listings that lie, or do not end, end an import without a wrong name."""
    program = servers.Program(f"""{START}        n = length // 16
        if op == 4:
            self.arena[place:place + 16 * n] = os.urandom(16) * n
            self.sent += 1
            self.send(tag, 0, 16 * n, self.sent % 5 + 1)
        else:
            super().answer(message)
    sent = 0
{END}""", "listing")
    s = Store("listing", options=f"settle=0,disk=off,deadline=20000,remote={program.url()}")
    s.mount()
    s.write("m/a/0", data["m/a/0"])
    wait_for(lambda: "ext" in s.attr("m/a/0", "tiers").split(","))
    open(f"{program.dir}/bad", "w").close()
    p = run(binary("kvcachectl"), "import", s.mnt)
    assert p.returncode and "does not end" in s.log(), p.stdout
    os.unlink(f"{program.dir}/bad")
    wait_for(lambda: run(binary("kvcachectl"), "import", s.mnt).returncode == 0, every=0.5)
    assert os.listdir(f"{s.mnt}") == ["m"], os.listdir(s.mnt)
    s.umount()


def starts():
    """Wrong first messages: a program that refuses fails the mount, others fail the tier."""
    for n, (body, says, mounts) in enumerate((
            ("os._exit(5)", "exited with status 5", True),
            ("sock.close(); import time; time.sleep(100)", "did not end by itself, and was killed",
             True),
            ("sock.send(b'hello')", "kvctier_ready", True),
            ("sock.send(bytes(256))", "kvctier_ready", True),
            ("sock.send(b'x' * 70000)", "kvctier_ready", True),
            ("sock.send(READY.pack(kvctier.MAGIC, 2, 0, 0, 0, b'', b''))",
             "speaks version 2", False),
            ("sock.send(READY.pack(kvctier.MAGIC, 1, 0, -5, 0, b'n', b'bad \\x01 news'))",
             "cannot serve: bad ? news", False),
            ("sock.send(READY.pack(kvctier.MAGIC, 1, 0, -5, 0, b'n' * 40, b't' * 192))",
             "cannot serve: ttt", False),
            ("import time; time.sleep(100)", "not ready", True))):
        program = servers.Program(f"""
import os, socket, kvctier
from kvctier import READY
sock = socket.socket(fileno=3)
sock.recv(9999)
{body}
sock.recv(1)
""", f"start{n}")
        s = Store(f"start{n}", options=f"settle=0,deadline={DEADLINE},remote={program.url()}")
        if mounts:
            s.mount()
            wait_for(lambda: says in s.log())
            s.write("m/a", b"x")
            assert s.read("m/a") == b"x"
            with fails(errno.ENOENT):
                os.stat(f"{s.mnt}/m/b")
            s.umount()
        else:
            p = run(binary("kvcachefs"), s.path, s.mnt, "-o", s.options)
            assert p.returncode and says in p.stdout, (body, p.stdout)


def trust():
    """Programs that other users could change do not start."""
    program = servers.Program(name="trust")
    s = Store("trust")

    def refused(says, url=None):
        p = run(binary("kvcachefs"), s.path, s.mnt, "-o",
                f"{s.options},remote={url or program.url()}")
        assert p.returncode and says in p.stdout and p.stdout.count("\n") == 1, p.stdout

    for what, mode in ((program.path, 0o775), (program.path, 0o757), (program.dir, 0o775),
                       (program.dir, 0o757), (program.dir, 0o1777)):
        before = os.stat(what).st_mode & 0o7777
        os.chmod(what, mode)
        refused("can be changed by other users")
        os.chmod(what, before)
    for what in (program.path, program.dir):
        os.chown(what, 12345, -1)
        refused("can be changed by other users")
        os.chown(what, 0, -1)
    os.chmod(program.path, 0o644)
    refused("is not an executable file")
    os.chmod(program.path, 0o755)
    os.symlink(program.path, f"{program.dir}/link")
    refused("is not the real path of", f"ext://{program.dir}/link?folder={program.dir}")
    refused("is not the real path of", f"ext://{program.dir}/../program-trust/program?folder=/tmp")
    refused("give ?folder=PATH", f"ext://{program.path}")
    refused("cannot be opened", f"ext://{program.path}?folder=/nonexistent")
    # the check is repeated before each start
    s.mount(options=f"{s.options},settle=0,remote={program.url()}")
    os.chmod(program.path, 0o777)
    [pid] = run("pgrep", "-fx", program.path, ok=True).stdout.split()
    os.kill(int(pid), signal.SIGKILL)
    s.write("m/a", b"x")
    wait_for(lambda: "may be changed by other users" in s.log())
    assert not run("pgrep", "-fx", program.path).stdout
    os.chmod(program.path, 0o755)
    wait_for(lambda: "ext" in s.attr("m/a", "tiers").split(","))
    s.umount()


SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}")
only = os.environ.get("ODD", "").split()
if not only and not LONG:
    only = ["listings", "starts", "trust",
            *random.Random(SEED).sample(sorted(ODD), len(ODD) // 2)]
beside([(hostile, n, *what) for n, what in ODD.items() if not only or n in only]
       + [(f,) for f in (listings, starts, trust) if not only or f.__name__ in only])
