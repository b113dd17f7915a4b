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
describes the contract."""
import array, errno, itertools, mmap, os, socket, struct, sys, threading, traceback

MAGIC = b"KVCTIER\0"
VERSION = 1
VALUE_MAX = 4 << 20
HELLO = struct.Struct("8sIIQQQI20x")
READY = struct.Struct("8sIIiI40s192s")
REQUEST = struct.Struct("IIQ16sQQQQQQ48x")
ANSWER = struct.Struct("QqQQ")
GET, PUT, DELETE, LIST, USED = range(1, 6)
CAN_DELETE, CAN_LIST, CAN_EXPIRE, CAN_USED = 1, 2, 4, 8
LISTINGS_MAX = 16  # listings at the same time; the oldest one is forgotten


class Refused(Exception):
    """Raised by a driver's __init__: the program cannot serve, for the reason in its text."""


class _Listings:
    """Iterators over keys. The cursor of a step names the iterator."""

    def __init__(self, driver):
        self.driver, self.lock = driver, threading.Lock()
        self.numbers, self.open = itertools.count(1), {}

    def step(self, cursor, most):
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
    def __init__(self, sock, arena, driver):
        self.sock, self.arena, self.driver = sock, memoryview(arena), driver
        self.listings = _Listings(driver)

    def call(self, op, key, offset, length, place, expiry_ms):
        """Returns the length and the next cursor of the answer."""
        d = self.driver
        with self.arena[place:place + length] as room:
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
                keys, cursor = self.listings.step(offset, length // 16)
                room[:16 * len(keys)] = b"".join(keys)
                return 16 * len(keys), cursor
        if op == USED:
            return d.used()
        raise OSError(errno.ENOSYS, "an unknown request")

    def answer(self, message):
        op, _, tag, key, offset, length, place, _, expiry_ms, _ = REQUEST.unpack(message)
        result = used = cursor = 0
        try:
            used, cursor = self.call(op, key, offset, length, place, expiry_ms)
        except KeyError:
            result = -errno.ENOENT
        except OSError as e:
            result = -(e.errno or errno.EIO)
        except Exception:  # an error of the driver is an answer, and its trace is in the log
            traceback.print_exc()
            result = -errno.EIO
        self.sock.send(ANSWER.pack(tag, result, used, cursor))

    def run(self):
        try:
            while message := self.sock.recv(REQUEST.size):
                self.answer(message)
        except OSError:  # the daemon has closed the socket
            pass


def serve(make, threads=4, name=None):
    """Serves the driver make(options) until the daemon closes the socket. The driver's attribute
    `expires` says whether its put honours expiry_ms."""
    try:
        sock = socket.socket(fileno=3)
        hello, parts, _, _ = sock.recvmsg(HELLO.size + 4096, socket.CMSG_SPACE(4))
        magic, version, _, arena_bytes, *_ = HELLO.unpack(hello[:HELLO.size])
    except (OSError, struct.error):
        magic = b""
    if magic != MAGIC:
        sys.exit("this program implements a tier and is not run by hand: mount with "
                 "remote=ext:///PATH/OF/PROGRAM or, with options of the program, "
                 "remote=ext:///PATH/OF/PROGRAM?NAME=VALUE. To test it, run kvcachectl tier-test")

    def ready(abilities, result, text):
        sock.send(READY.pack(MAGIC, VERSION, abilities, result, 0,
                             (name or make.__name__).encode()[:39], text.encode()[:191]))

    if version != VERSION:
        ready(0, -errno.EPROTO, "kvctier.py is of another version")
        sys.exit(1)
    fd = array.array("i", parts[0][2])[0]
    arena = mmap.mmap(fd, arena_bytes)
    os.close(fd)
    options = dict(o.split("=", 1) for o in hello[HELLO.size:].decode().split("\0") if o)
    try:
        driver = make(options)
    except (Refused, OSError, KeyError) as e:
        text = f"give {e.args[0]}=" if isinstance(e, KeyError) else str(e)
        ready(0, -errno.EINVAL, text)
        sys.exit(1)
    can = ((hasattr(driver, "delete") and CAN_DELETE) | (hasattr(driver, "list") and CAN_LIST)
           | (getattr(driver, "expires", False) and CAN_EXPIRE)
           | (hasattr(driver, "used") and CAN_USED))
    ready(int(can), 0, "")
    server = _Server(sock, arena, driver)
    for _ in range(threads - 1):
        threading.Thread(target=server.run, daemon=True).start()
    server.run()
