# SPDX-License-Identifier: Apache-2.0
"""A library for programs that implement a tier of kvcachefs (remote=ext:///PATH/OF/PROGRAM).

A driver is a class with the methods get and put and, if its store has these abilities, delete,
list and used. serve(CLASS) makes an object of it and answers the daemon's requests:

    class Memory:
        def __init__(self, options):        # a dict: the options in the URL
            self.values = {}
        def get(self, key, offset, room):   # copy the value from offset; return the count
            part = self.values[key][offset:offset + len(room)]
            room[:len(part)] = part
            return len(part)
        def put(self, key, data, expiry_ms):
            self.values[key] = bytes(data)

    kvctier.serve(Memory)

A key is 16 bytes. `room` and `data` are memoryviews that are valid until the method returns. A
missing value is a KeyError, or an OSError with ENOENT; any OSError reports its errno. Several
threads call the methods, but never two for the same key, except for gets. kvcachefs-ext(7)
describes the contract.

If the client library of a store can hang, use serve(CLASS, deadlines=True): each request is then
answered before its deadline, with ETIMEDOUT if the method has not returned. `options.sealed` says
whether the mount encrypts all values (keyfile=)."""
import array, contextlib, errno, itertools, mmap, os, queue, select, socket, stat, struct, sys
import threading, time, traceback
from collections.abc import Callable, Iterator
from typing import Any

MAGIC = b"KVCTIER\0"
VERSION = 1
VALUE_MAX = 4 << 20
HELLO = struct.Struct("8sIIQQQII16x")
READY = struct.Struct("8sIIiI40s192s")
REQUEST = struct.Struct("IIQ16sQQQQQQ48x")
ANSWER = struct.Struct("QqQQ")
GET, PUT, DELETE, LIST, USED = range(1, 6)
CAN_DELETE, CAN_LIST, CAN_EXPIRE, CAN_USED = 1, 2, 4, 8
SEALED = 1  # a flag of the hello
LISTINGS_MAX = 16  # listings at the same time; the oldest one is forgotten


class Refused(Exception):
    """Raised by a driver's __init__: the program cannot serve, for the reason in its text."""


class Options(dict[str, str]):
    """The options in the URL. `sealed`: the mount has keyfile=, so that all values are encrypted
    and authenticated. `deadline`: seconds that a request may usually take."""
    sealed = False
    deadline = 10.0


class _Listings:
    """Iterators over keys. The cursor of a step names the iterator."""

    def __init__(self, driver: Any):
        self.driver, self.lock, self.numbers = driver, threading.Lock(), itertools.count(1)
        self.open: dict[int, Iterator[bytes]] = {}

    def step(self, cursor: int, most: int) -> tuple[list[bytes], int]:
        with self.lock:
            keys = self.open.pop(cursor, None) if cursor else iter(self.driver.list())
        if keys is None:
            raise OSError(errno.EINVAL, "an unknown cursor")
        got = list(itertools.islice(keys, most))
        if len(got) < most:
            return got, 0
        with self.lock:
            number = next(self.numbers)
            self.open[number] = keys
            while len(self.open) > LISTINGS_MAX:
                del self.open[next(iter(self.open))]
        return got, number


class _Server:
    """Threads that receive a request, call the driver and send the answer."""

    def __init__(self, sock: socket.socket, arena: Any, driver: Any):
        self.sock, self.arena, self.driver = sock, memoryview(arena), driver
        self.listings = _Listings(driver)

    def call(self, op: int, key: bytes, offset: int, room: memoryview,
             expiry_ms: int) -> tuple[int, int]:
        """Returns the length and the next cursor of the answer."""
        d = self.driver
        if op == GET:
            return d.get(key, offset, room), 0
        if op == PUT:
            with room.toreadonly() as data:
                d.put(key, data, expiry_ms)
            return 0, 0
        if op == DELETE:
            d.delete(key)
            return 0, 0
        if op == LIST:
            keys, cursor = self.listings.step(offset, len(room) // 16)
            room[:16 * len(keys)] = b"".join(keys)
            return 16 * len(keys), cursor
        if op == USED:
            used, size = d.used()
            return used, size
        raise OSError(errno.ENOSYS, "an unknown request")

    def outcome(self, op: int, key: bytes, offset: int, room: memoryview,
                expiry_ms: int) -> tuple[int, int, int]:
        """Calls the driver. Returns the result, the length and the next cursor of the answer."""
        try:
            return (0, *self.call(op, key, offset, room, expiry_ms))
        except KeyError:
            return -errno.ENOENT, 0, 0
        except OSError as e:
            return -(e.errno or errno.EIO), 0, 0
        except Exception:  # an error of the driver is an answer, and its trace is in the log
            traceback.print_exc()
            return -errno.EIO, 0, 0

    def answer(self, message: bytes) -> None:
        op, _, tag, key, offset, length, place, _, expiry_ms, _ = REQUEST.unpack(message)
        with self.arena[place:place + length] as room:
            got = self.outcome(op, key, offset, room, expiry_ms)
        self.sock.send(ANSWER.pack(tag, *got))

    def run(self) -> None:
        try:
            while message := self.sock.recv(REQUEST.size):
                self.answer(message)
        except OSError:  # the daemon has closed the socket
            pass

    def serve(self, threads: int) -> None:
        for _ in range(threads - 1):
            threading.Thread(target=self.run, daemon=True).start()
        self.run()


class _Job:
    """A request with a buffer of its own, so that a late method does not use the arena. `done`: it
    is answered, or a thread is about to answer it."""

    def __init__(self, message: bytes, arena: memoryview):
        (self.op, _, self.tag, self.key, self.offset, length, self.place, _, self.expiry_ms,
         deadline_ms) = REQUEST.unpack(message)
        self.until = time.monotonic() + deadline_ms / 1000
        self.changes = self.op in (PUT, DELETE)
        self.done = self.runs = False
        self.data = (bytearray(arena[self.place:self.place + length]) if self.op == PUT
                     else bytearray(length if self.op in (GET, LIST) else 0))


class _PunctualServer(_Server):
    """Answers each request before its deadline. One thread receives the requests and answers those
    whose time is over; the others call the driver. A change that a thread still makes after its
    answer blocks its key: other requests for the key are answered with ETIMEDOUT, as the daemon
    does it, so that a late change never follows a later one."""

    def __init__(self, sock: socket.socket, arena: Any, driver: Any):
        super().__init__(sock, arena, driver)
        self.work: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.lock = threading.Lock()  # for the state of jobs, and:
        self.open: dict[int, _Job] = {}  # jobs without an answer, by tag
        self.late: set[bytes] = set()  # keys of late changes

    def claim(self, job: _Job) -> bool:
        """Returns whether the caller has to answer the job. The caller holds the lock."""
        claimed, job.done = not job.done, True
        self.open.pop(job.tag, None)
        return claimed

    def handle(self, job: _Job) -> None:
        with self.lock:
            if job.done:
                return
            job.runs = True
        result, length, cursor = self.outcome(job.op, job.key, job.offset, memoryview(job.data),
                                              job.expiry_ms)
        with self.lock:
            if not self.claim(job):
                if job.changes:
                    self.late.discard(job.key)
                return
        if job.op in (GET, LIST) and not result:
            self.arena[job.place:job.place + length] = memoryview(job.data)[:length]
        self.sock.send(ANSWER.pack(job.tag, result, length, cursor))

    def work_on(self) -> None:
        try:
            while True:
                self.handle(self.work.get())
        except OSError:  # the daemon has closed the socket
            pass

    def accept(self, message: bytes) -> None:
        job = _Job(message, self.arena)
        with self.lock:
            blocked = job.op in (GET, PUT, DELETE) and job.key in self.late
            if not blocked:
                self.open[job.tag] = job
        if blocked:
            self.sock.send(ANSWER.pack(job.tag, -errno.ETIMEDOUT, 0, 0))
        else:
            self.work.put(job)

    def expire(self) -> float | None:
        """Answers the jobs whose time is over. Returns the seconds until the next one, or None."""
        now, over = time.monotonic(), []
        with self.lock:
            for job in [j for j in self.open.values() if j.until <= now]:
                if self.claim(job):
                    over.append(job)
                    if not job.runs:
                        job.data = bytearray()  # it stays in the queue
                    elif job.changes:
                        self.late.add(job.key)
            rest = min((j.until for j in self.open.values()), default=None)
        for job in over:
            self.sock.send(ANSWER.pack(job.tag, -errno.ETIMEDOUT, 0, 0))
        return None if rest is None else max(rest - now, 0)

    def run(self) -> None:
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        try:
            while True:
                rest = self.expire()
                if poller.poll(None if rest is None else rest * 1000 + 1):
                    message = self.sock.recv(REQUEST.size)
                    if not message:
                        return
                    self.accept(message)
        except OSError:  # the daemon has closed the socket
            pass

    def serve(self, threads: int) -> None:
        for _ in range(threads):
            threading.Thread(target=self.work_on, daemon=True).start()
        self.run()
        os._exit(0)  # threads may hang in the client library


def check_trusted(path: str, option: str) -> None:
    """Refuses a file or folder that other users can change or replace, as the daemon does it with
    the program. In a sticky folder others can add files, but cannot replace ours."""
    path, direct = os.path.realpath(path), True
    while True:
        st = os.stat(path)
        loose = st.st_mode & 0o022 and (direct or not st.st_mode & stat.S_ISVTX)
        if st.st_uid not in (0, os.geteuid()) or loose:
            raise Refused(f"{option}=: {path} can be changed by other users; give it to root, and "
                          "chmod go-w")
        if path == "/":
            return
        path, direct = os.path.dirname(path), False


def _enter_venv(folder: str) -> None:
    """Runs the program again with the Python of the virtual environment in the folder. The hello
    has not been received yet."""
    if os.path.realpath(sys.prefix) == os.path.realpath(folder):
        return
    python = f"{folder}/bin/python3"
    if not os.path.isabs(folder) or not os.access(python, os.X_OK):
        raise Refused(f"venv={folder} is not the absolute path of a virtual environment")
    for path in (folder, python, f"{folder}/bin", f"{folder}/lib"):
        check_trusted(path, "venv")
    os.execv(python, [python, os.path.abspath(sys.argv[0])])


def _options(hello: bytes) -> Options:
    _, _, _, _, _, deadline_ms, _, flags = HELLO.unpack(hello[:HELLO.size])
    texts = hello[HELLO.size:].decode().split("\0")
    options = Options(o.split("=", 1) for o in texts if o)
    options.sealed, options.deadline = bool(flags & SEALED), deadline_ms / 1000
    return options


def serve(make: Callable[[Options], Any], threads: int = 4, name: str | None = None,
          deadlines: bool = False) -> None:
    """Serves the driver make(options) until the daemon closes the socket. The driver's attribute
    `expires` says whether its put honours expiry_ms. deadlines: for drivers whose methods may hang
    in a client library; requests are answered in time nevertheless. The option venv=FOLDER, which
    make does not get, names a virtual environment whose Python is to run the program."""
    try:
        sock = socket.socket(fileno=3)
        hello = sock.recv(HELLO.size + 4096, socket.MSG_PEEK)
        magic, version, _, arena_bytes, *_ = HELLO.unpack(hello[:HELLO.size])
    except (OSError, struct.error):
        magic = b""
    if magic != MAGIC:
        sys.exit("this program implements a tier and is not run by hand: mount with "
                 "remote=ext:///PATH/OF/PROGRAM or, with options of the program, "
                 "remote=ext:///PATH/OF/PROGRAM?NAME=VALUE. To test it, run kvcachectl tier-test")

    def ready(abilities: int, result: int, text: str) -> None:
        if result:  # a socket that is closed with an unread hello resets the connection
            with contextlib.suppress(BlockingIOError):
                sock.recv(1, socket.MSG_DONTWAIT)
        sock.send(READY.pack(MAGIC, VERSION, abilities, result, 0,
                             (name or str(getattr(make, "__name__", ""))).encode()[:39],
                             text.encode()[:191]))

    if version != VERSION:
        ready(0, -errno.EPROTO, "kvctier.py is of another version")
        sys.exit(1)
    options = _options(hello)
    try:
        if venv := options.pop("venv", ""):
            _enter_venv(venv)
        _, parts, _, _ = sock.recvmsg(HELLO.size + 4096, socket.CMSG_SPACE(4))
        fd = array.array("i", parts[0][2])[0]
        arena = mmap.mmap(fd, arena_bytes)
        os.close(fd)
        driver = make(options)
    except (Refused, OSError, KeyError) as e:
        text = f"give {e.args[0]}=" if isinstance(e, KeyError) else str(e)
        ready(0, -errno.EINVAL, text)
        sys.exit(1)
    can = ((hasattr(driver, "delete") and CAN_DELETE) | (hasattr(driver, "list") and CAN_LIST)
           | (getattr(driver, "expires", False) and CAN_EXPIRE)
           | (hasattr(driver, "used") and CAN_USED))
    ready(int(can), 0, "")
    (_PunctualServer if deadlines else _Server)(sock, arena, driver).serve(threads)
