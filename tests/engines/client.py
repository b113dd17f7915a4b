# SPDX-License-Identifier: Apache-2.0
"""The engine's side of `make engines`. Each drive_*.py describes how one engine stores and loads,
with subclasses of Client that call the engine's classes, and ends with serve(). It runs under the
engines' Python: it imports the engine once, listens on a socket, and forks a process for each
connection, which executes commands, one JSON line each. A step of a scenario can therefore be a
separate process without the cost of the import.

content(number, size) returns the same bytes in every process. All bytes of every load are
compared, except while the speed is measured."""

import hashlib, json, os, signal, socket, sys, time, traceback

import numpy

KiB, MiB = 1 << 10, 1 << 20
_pattern = numpy.random.Generator(numpy.random.PCG64(11)).integers(
    0, 256, 8 * MiB, dtype=numpy.uint8
)


def content(number, size):
    """The bytes of an object, which differ for each number. They are generated faster than a disk
    can write them."""
    at = (number * 7919 * 64) % (len(_pattern) - size - 64) if size < len(_pattern) - 64 else 0
    data = _pattern[at : at + size].copy()
    data[:16] = numpy.frombuffer(hashlib.md5(b"%d/%d" % (number, size)).digest(), numpy.uint8)
    return data


def digest(number):
    return hashlib.sha256(b"chunk %d" % number).digest()


class Client:
    """One of the ways in which an engine keeps chunks in a folder. A subclass defines:
    name       its name in the rows of the table
    size       bytes of a chunk
    batch      chunks that are handed over in one call
    own        subfolders that it makes once and relies on ("" is the client's folder itself)
    remembers  its index lives in its memory, so only the process that stored can load
    database   a database, not a cache of files: none of its files may be evicted, so no test stores
               more than the disk holds
    partial    it reports a hit for a chunk that it has not written completely
    depths     the depths below the root, in folders, at which it is tested
    connector  it is our own connector, which works only on our mounts
    A subclass may also define prepare(numbers), which makes the data of the next store() in memory,
    so that the measured time does not include it.
    """

    name, size, batch, own, depths = "", MiB, 8, ("",), (0, 1, 2, 3)
    remembers = database = partial = connector = False

    def __init__(self, folder):
        self.folder = folder

    def store(self, numbers):
        """A list of bool: whether the engine believes that it stored each chunk."""
        raise NotImplementedError

    def load(self, numbers):
        """A list: the bytes as an array of uint8, or None if the engine reports a miss."""
        raise NotImplementedError

    def close(self):
        pass

    def folders(self):
        """The full paths of the folders that it made once and relies on."""
        return [os.path.join(self.folder, f) if f else self.folder for f in self.own]


class Session:
    """The commands that a forked process accepts."""

    def __init__(self, kinds):
        self.kinds, self.client = kinds, None

    def open(self, kind, folder, size=None):
        cls = self.kinds[kind]
        self.client = (
            cls(folder) if not size else type(cls.__name__, (cls,), {"size": size})(folder)
        )

    def _batches(self, first, count):
        for n in range(first, first + count, self.client.batch):
            yield list(range(n, min(n + self.client.batch, first + count)))

    def store(self, first, count):
        failed, seconds = [], 0.0
        for numbers in self._batches(first, count):
            self.client.prepare(numbers) if hasattr(self.client, "prepare") else None
            start = time.perf_counter()
            done = self.client.store(numbers)
            seconds += time.perf_counter() - start
            failed += [n for n, ok in zip(numbers, done, strict=True) if not ok]
        return {"failed": failed, "seconds": seconds}

    def load(self, first, count, compare=True):
        missed, wrong, seconds = [], [], 0.0
        for numbers in self._batches(first, count):
            start = time.perf_counter()
            got = self.client.load(numbers)
            seconds += time.perf_counter() - start
            for n, data in zip(numbers, got, strict=True):
                if data is None:
                    missed.append(n)
                elif compare and not numpy.array_equal(data, content(n, self.client.size)):
                    wrong.append(n)
        return {"missed": missed, "wrong": wrong, "seconds": seconds}

    def press(self, first, count, hot):
        """Stores the chunks from number `first` to first + count - 1, and loads the chunks 0 to
        hot - 1 after each batch."""
        failed, lost, wrong, where = [], set(), set(), None
        for numbers in self._batches(first, count):
            done = self.client.store(numbers)
            failed += [n for n, ok in zip(numbers, done, strict=True) if not ok]
            got = self.load(0, hot)
            if got["missed"] and where is None:
                where = numbers[0]
            lost.update(got["missed"])
            wrong.update(got["wrong"])
        return {"failed": failed, "lost": sorted(lost), "wrong": sorted(wrong), "where": where}

    def folders(self):
        return {"gone": [f for f in self.client.folders() if not os.path.isdir(f)]}

    def close(self):
        self.client.close()
        self.client = None


def _child(conn, kinds):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    session, lines = Session(kinds), conn.makefile("rb")
    for line in lines:
        order = json.loads(line)
        try:
            answer = getattr(session, order.pop("do"))(**order) or {}
        except Exception as e:
            traceback.print_exc()
            answer = {"error": f"{type(e).__name__}: {e}"[:300]}
        sys.stdout.flush()
        conn.sendall(json.dumps(answer).encode() + b"\n")


def serve(kinds, versions, skipped=()):
    """Prints kinds, versions and omitted parts with the reasons to stdout; then serves on the
    socket argv[1]."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(8)
    table = {c.name: c for c in kinds}
    known = {
        c.name: {
            k: getattr(c, k)
            for k in ("size", "remembers", "database", "partial", "depths", "connector")
        }
        for c in kinds
    }
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    out.write(
        "\n" + json.dumps({"kinds": known, "versions": versions, "skipped": dict(skipped)}) + "\n"
    )
    out.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        conn, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                _child(conn, table)
            finally:
                os._exit(0)
        conn.close()


def version(*packages):
    from importlib import metadata

    found = {}
    for p in packages:
        try:
            found[p] = metadata.version(p)
        except metadata.PackageNotFoundError:
            pass
    return found
