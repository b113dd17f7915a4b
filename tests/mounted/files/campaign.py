# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Eight processes run mixed operations against a shadow copy for MINUTES (8 seconds) in each of
five kinds of mount (make check: in two of them at random): plain; sealed and compressed; write=back
with a shared folder; with quotas; with tiers that fail and recover. The data is a multiple of the
pool, so the pool is always full. Some names have one writer, which knows their contents; all
processes share the others.

Data identifies its name: a read never returns another name's data or data that nobody wrote. If the
disk has space, no file is missing; if a quota lets the cache drop files, a file is either missing
or right. Every chunk in the disk tier is in its eviction order. Descriptors, threads and memory of
the daemon do not grow. At the end the store is unmounted, checked, mounted and compared again.
KIND=name selects one kind; SEED repeats the choices, but not their timing."""
import mmap, os, pickle, random, signal, struct, sys, threading, time, traceback
from kvtest import *
import faults

need_mount()
SECONDS = float(os.environ.get("MINUTES", 8 / 60)) * 60
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
PROCESSES, MINE, SHARED, CHUNKS, LAYERS = 8, 20, 40, 6, 4
SIZES = (0, 100, 4096, 5000, 65536, 200000, 200000, 700000, 1500000)
QUOTA = 6 * MiB
STOP = 511  # the counter that ends the clients
# stores wait for copies rather than lose anything
COMMON = "settle=20,deadline=60000,pace=600000"
HEAD = struct.Struct("<8sQQ")


def content(path, version, size):
    """Bytes that name their path and version, as far as they fit."""
    name = path.encode()
    head = HEAD.pack(b"campaign", version, len(name)) + name
    if size < len(head):
        return b""
    return head + blob(f"{path}.{version}", size - len(head))


def told(data):
    """(path, version) that the bytes name."""
    _, version, n = HEAD.unpack_from(data)
    return data[HEAD.size:HEAD.size + n].decode(), version


class File:
    """A process's knowledge of one of its own files, under all its names."""

    def __init__(self, data):
        self.data, self.attr = data, None


class Client:
    """One of the processes. A version consists of the number of the writing process and a count of
    its writes. All processes know the highest count of each process."""

    def __init__(self, number, mnt, top, counts, loses):
        self.n, self.mnt, self.top, self.counts, self.loses = number, mnt, top, counts, loses
        self.rng = random.Random(f"{SEED}.{number}")
        self.mine, self.done, self.missed, self.refused = {}, {}, 0, 0

    def at(self, path):
        return f"{self.mnt}/{path}"

    def version(self):
        self.counts[self.n] += 1
        return self.n << 40 | self.counts[self.n]

    def own(self):
        return f"{self.top}/{self.rng.randrange(MINE):02d}"

    def missing(self, path):
        """A file of its own is missing, so it is missing under all of its names."""
        assert self.loses, f"{path} is missing, and the disk has room for all"
        self.missed += 1
        self.forget(self.mine[path])

    def forget(self, file):
        self.mine = {p: f for p, f in self.mine.items() if f is not file}

    def remove_all(self, file):
        """Removes the file under all of its names, because its contents are unknown."""
        for path in [p for p, f in self.mine.items() if f is file]:
            self.remove(path)

    def known(self):
        return self.rng.choice(sorted(self.mine)) if self.mine else None

    def write(self, fd, data):
        done = 0
        while done < len(data):
            n = os.write(fd, data[done:done + (1 << 20)])
            assert n > 0
            done += n

    def store(self, path, data, flags):
        fd = os.open(self.at(path), os.O_WRONLY | os.O_CREAT | flags, 0o640)
        try:
            self.write(fd, data)
            if self.rng.random() < 0.1:
                os.fsync(fd)
        finally:
            os.close(fd)

    def load(self, path):
        with open(self.at(path), "rb", buffering=0) as f:
            if self.rng.random() < 0.3 and (size := os.fstat(f.fileno()).st_size):
                with mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ) as m:
                    return bytes(m)
            return f.readall()

    def same(self, path, got):
        want = self.mine[path].data
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), None)
            raise AssertionError(
                f"{path}: {len(got)} bytes for {len(want)}, another from {at}: "
                f"{got[at or 0:][:48]!r}, head {got[:64]!r}")

    # ---- its own files ----

    def put(self):
        path = self.own()
        data = content(path, self.version(), self.rng.choice(SIZES))
        tmp = f"{path}.{self.rng.getrandbits(40):x}.tmp"
        try:
            self.store(tmp, data, os.O_EXCL)
            os.replace(self.at(tmp), self.at(path))
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.at(tmp))
            raise
        self.mine[path] = File(data)

    def rewrite(self):
        path = self.own()
        data = content(path, self.version(), self.rng.choice(SIZES))
        file = self.mine.get(path)
        try:
            self.store(path, data, os.O_TRUNC)
        except OSError:
            if file:
                self.remove_all(file)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.at(path))
            raise
        if not file or self.loses and not self.still(path, file):
            self.mine[path] = file = File(data)
        file.data = data

    def still(self, path, file):
        """Whether the file existed when it was opened for overwriting, and was not dropped
        before."""
        others = [p for p, f in self.mine.items() if f is file and p != path]
        if file.attr is None and not others:
            return True
        try:
            here = os.stat(self.at(path)).st_ino
            if any(os.stat(self.at(p)).st_ino != here for p in others):
                raise FileNotFoundError(errno.ENOENT, "another file")
            if file.attr:
                os.getxattr(self.at(path), "user.campaign")
        except OSError as e:
            assert e.errno in (errno.ENOENT, errno.ENODATA), e
            self.missing(path)
            return False
        return True

    def remove(self, path):
        try:
            os.unlink(self.at(path))
        except FileNotFoundError:
            if path in self.mine:
                self.missing(path)
        self.mine.pop(path, None)

    def change(self):
        """Overwrites in place, appends, or changes the length."""
        if not (path := self.known()):
            return
        file, kind = self.mine[path], self.rng.randrange(3)
        data = bytearray(file.data)
        at = self.rng.randrange(len(data) + 1) if kind == 0 else len(data)
        piece = self.rng.randbytes(self.rng.choice((1, 4096, 9000)))
        try:
            if kind == 2:
                size = self.rng.randrange(len(data) + 5000)
                os.truncate(self.at(path), size)
                data = data[:size] + bytes(max(0, size - len(data)))
            else:
                fd = os.open(self.at(path), os.O_RDWR | (os.O_APPEND if kind == 1 else 0))
                try:
                    os.lseek(fd, at, os.SEEK_SET)
                    self.write(fd, piece)
                finally:
                    os.close(fd)
                data[at:at + len(piece)] = piece
        except FileNotFoundError:
            return self.missing(path)
        except OSError:  # a part of the change may have been made
            self.remove_all(file)
            raise
        file.data = bytes(data)

    def check(self):
        if not (path := self.known()):
            return
        try:
            got = self.load(path)
        except FileNotFoundError:
            return self.missing(path)
        self.same(path, got)
        if self.mine[path].attr:
            try:
                value = os.getxattr(self.at(path), "user.campaign")
            except FileNotFoundError:
                return self.missing(path)
            assert value == self.mine[path].attr, f"{path}: its attribute has changed"

    def delete(self):
        if path := self.known():
            self.remove(path)

    def move(self):
        """Renames a file. Its bytes still contain the name for which they were made."""
        path, to = self.known(), self.own()
        if not path or self.mine.get(to) is self.mine[path]:
            return
        try:
            os.rename(self.at(path), self.at(to))
        except FileNotFoundError:
            return self.missing(path)
        self.mine[to] = self.mine.pop(path)

    def link(self):
        path, to = self.known(), f"{self.top}/link{self.rng.randrange(4)}"
        if not path or path == to:
            return
        self.remove(to)
        if path not in self.mine:  # it was dropped under that name too
            return
        try:
            os.link(self.at(path), self.at(to))
        except FileNotFoundError:
            return self.missing(path)
        self.mine[to] = self.mine[path]

    def attribute(self):
        if not (path := self.known()):
            return
        value = self.rng.randbytes(self.rng.choice((1, 30, 3000)))
        try:
            os.setxattr(self.at(path), "user.campaign", value)
            os.chmod(self.at(path), 0o600)
        except FileNotFoundError:
            return self.missing(path)
        self.mine[path].attr = value

    def sync(self):
        if not (path := self.known()):
            return
        try:
            fd = os.open(self.at(path), os.O_RDONLY)
        except FileNotFoundError:
            return self.missing(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unnamed(self):
        """Deleted while it is open, and read to the end."""
        if not (path := self.known()):
            return
        try:
            f = open(self.at(path), "rb", buffering=0)
        except FileNotFoundError:
            return self.missing(path)
        with f:
            data = self.mine[path].data
            self.remove(path)
            assert f.readall() == data, f"{path} was deleted while it was open, and has changed"

    def chunk(self):
        """Makes a folder of layers, or reads or removes a whole one."""
        d = f"{self.top}/chunk{self.rng.randrange(CHUNKS)}"
        layers = [f"{d}/{i}" for i in range(LAYERS)]
        kind = self.rng.random()
        there = [p for p in layers if p in self.mine]
        if not there:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.at(d))
            for p in layers:
                data = content(p, self.version(), 40000)
                self.store(p, data, os.O_TRUNC)
                self.mine[p] = File(data)
        elif kind < 0.7:
            for p in there:
                if p not in self.mine:
                    continue
                try:
                    got = self.load(p)
                except FileNotFoundError:
                    self.missing(p)
                else:
                    self.same(p, got)
        else:
            for p in there:
                self.remove(p)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.at(d))

    # ---- everybody's ----

    def share(self):
        path = f"all/{self.rng.randrange(SHARED):02d}"
        data = content(path, self.version(), self.rng.choice(SIZES[3:]))
        tmp = f"all/{self.n}.{self.rng.getrandbits(40):x}.tmp"
        try:
            self.store(tmp, data, os.O_EXCL)
            os.replace(self.at(tmp), self.at(path))
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.at(tmp))
            raise

    def unshare(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.at(f"all/{self.rng.randrange(SHARED):02d}"))

    def read_shared(self):
        path = f"all/{self.rng.randrange(SHARED):02d}"
        try:
            got = self.load(path)
        except OSError as e:
            # ESTALE: replaced twice, each time while its copy was loaded (kvcachefs-errors(7))
            if e.errno not in (errno.ENOENT, errno.ESTALE):
                raise
        else:
            self.right(path, got)

    def right(self, path, got):
        """Checks that one of the processes wrote this, for this name."""
        name, version = told(got)
        assert name == path, f"{path} has the bytes of {name}"
        assert version & (1 << 40) - 1 <= self.counts[version >> 40], \
            f"{path}: nobody has written version {version:x}"
        assert got == content(path, version, len(got)), f"{path}: version {version:x} is damaged"

    def look(self):
        """Looks at another process's folder and its files."""
        other = self.rng.choice(os.listdir(self.mnt))
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self.at(other))[:10]:
                with contextlib.suppress(FileNotFoundError):
                    os.stat(self.at(f"{other}/{name}"))
        os.statvfs(self.mnt)

    OPS = (("put", 14), ("rewrite", 6), ("change", 12), ("check", 22), ("delete", 4), ("move", 4),
           ("link", 2), ("attribute", 3), ("sync", 2), ("unnamed", 2), ("chunk", 8), ("share", 8),
           ("unshare", 2), ("read_shared", 14), ("look", 1))

    def run(self, may):
        names, weights = zip(*self.OPS)
        while not self.counts[STOP]:
            name = self.rng.choices(names, weights)[0]
            try:
                getattr(self, name)()
            except OSError as e:
                assert e.errno in may, f"{name}: {e}"
                self.refused += 1
            self.done[name] = self.done.get(name, 0) + 1


def client(n, s, tops, counts, kind):
    """Runs in its own process. Writes what the client knows at the end, or the error, to a file."""
    c = Client(n, s.mnt, tops[n], counts, tops[n] in kind["quotas"])
    try:
        c.run(kind["may"])
        out = (c.mine, c.done, c.missed, c.refused)
    except BaseException:
        out = f"process {n}: {traceback.format_exc()}"
    with open(f"{TMP}/end{n}", "wb") as f:
        pickle.dump(out, f)
    os._exit(0)


def compare(s, tops, counts, kind, ends, when):
    """Every file is as its writer knows it. Returns the contents of the shared names."""
    files = 0
    for n, (mine, *_) in enumerate(ends):
        c = Client(n, s.mnt, tops[n], counts, tops[n] in kind["quotas"])
        c.mine = mine
        for path in list(mine):
            try:
                c.same(path, c.load(path))
                files += 1
                if mine[path].attr:
                    assert os.getxattr(c.at(path), "user.campaign") == mine[path].attr, path
            except FileNotFoundError:
                if path in c.mine:
                    c.missing(path)
        there = {os.path.relpath(os.path.join(d, f), s.mnt)
                 for d, _, fs in os.walk(c.at(tops[n])) for f in fs}
        assert there <= mine.keys(), f"{when}: {there - mine.keys()} are back"
    shared = {}
    for name in os.listdir(f"{s.mnt}/all"):
        assert not name.endswith(".tmp"), name
        shared[name] = c.load(f"all/{name}")
        c.right(f"all/{name}", shared[name])
    print(f"  {when}: {files} and {len(shared)} files right", flush=True)
    return shared


class Watch:
    """Samples the daemon's resources, four times a second."""

    def __init__(self, s, kind, until):
        self.s, self.kind, self.until, self.seen = s, kind, until, []

    def sample(self):
        pid = self.s.daemon.pid
        with open(f"/proc/{pid}/status") as f:
            rss = next(int(l.split()[1]) >> 10 for l in f if l.startswith("VmRSS"))
        self.seen.append((len(os.listdir(f"/proc/{pid}/fd")),
                          len(os.listdir(f"/proc/{pid}/task")), rss))

    def run(self, toggle):
        while time.monotonic() < self.until or not self.s.stats()["evictions"]:
            assert self.s.daemon.poll() is None, self.s.log()[-3000:]
            self.sample()
            for top in self.kind["quotas"]:
                used = int(os.getxattr(f"{self.s.mnt}/{top}", "user.kvcachefs.used"))
                assert used <= QUOTA, f"{top} takes {used}"
            toggle()
            time.sleep(0.25)

    def grown(self):
        """The growth from the second quarter to the last: bounded values have reached their limit
        by then."""
        q = len(self.seen) // 4
        if q < 3:
            print("  too few samples on this machine: growth is not checked", flush=True)
            return
        early, late = self.seen[q:2 * q], self.seen[3 * q:]
        both = [(max(s[i] for s in early), max(s[i] for s in late)) for i in range(3)]
        print("  descriptors {}, threads {}, MiB {}".format(
            *(f"{a} then {b}" for a, b in both)), flush=True)
        (fds, fds2), (threads, threads2), (rss, rss2) = both
        assert fds2 <= fds + fds // 4 + 64, f"descriptors: {fds}, then {fds2}"
        # without io_uring libfuse starts a thread for each concurrent request
        assert threads2 <= threads + 4 + PROCESSES, f"threads: {threads}, then {threads2}"
        # sanitizers keep freed memory; and in the first seconds the allocator takes memory for
        # each thread: 58 MiB after 3 s, 87 after 12, 105 after 30, 106 after 48
        more = rss // 2 + 32 if SECONDS < 30 else rss // 4 + 16
        most = max(rss + more, 110)  # on a slow machine the first reading is before most of that
        assert MODE in ("asan", "tsan") or rss2 <= most, f"MiB: {rss}, then {rss2}"


REMOTE = f"{TMP}/remote"
RULES = [f"calls={calls} path={REMOTE}/* nth={faults.FAR} count={faults.FAR} do={do}"
         for calls, do in (("all", "EIO"), ("change", "ENOSPC"), ("read,open", "delay:300"),
                           ("write", "short"))]
KINDS = {
    "plain": {"options": ""},
    "coded": {"options": f"keyfile={TMP}/keys,compress=zstd"},
    "back": {"options": f"write=back,remote=dir://{REMOTE}"},
    "quotas": {"options": "", "quotas": [f"p{n}" for n in range(4)], "may": (errno.EDQUOT,)},
    "failing": {"options": f"remote=dir://{REMOTE}", "rules": RULES},
}


class Toggle:
    """Switches the rules on and off, one after the other, with pauses in which none is on."""

    def __init__(self, rules):
        self.rules, self.on, self.turns = rules, None, 0
        self.rng, self.next = random.Random(SEED), 0

    def __call__(self):
        if not self.rules or time.monotonic() < self.next:
            return
        if self.on is not None:
            self.rules.heal(self.on)
            self.on = None
        else:
            self.on = self.turns % len(RULES)
            self.turns += 1
            self.rules.begin(self.on)
        self.next = time.monotonic() + self.rng.uniform(0.3, 1.5) * (1 + SECONDS / 60)

    def heal(self):
        if self.on is not None:
            self.rules.heal(self.on)


def campaign(name):
    kind = {"quotas": [], "may": (), "rules": None} | KINDS[name]
    if WAY == "fast" and MODE in ("asan", "tsan"):
        # Sanitizers slow down the daemon, but not its clients. With passthrough, clients can then
        # grow files by more than the pool's reserve before the daemon checks (kvcachefs-errors(7)).
        kind["may"] += (errno.ENOSPC,)
    s = Store(name, size="256M", cpu="24M", options=f"{COMMON},{kind['options']}".rstrip(","))
    os.makedirs(REMOTE, exist_ok=True)
    rules = faults.Rules(*kind["rules"]) if kind["rules"] else None
    assert rules.mount(s) if rules else s.mount()
    tops = [f"p{n}" for n in range(PROCESSES)]
    for top in ["all"] + tops:
        os.mkdir(f"{s.mnt}/{top}")
    for top in kind["quotas"]:
        os.setxattr(f"{s.mnt}/{top}", "user.kvcachefs.quota", str(QUOTA).encode())
    # each count is one machine word, which no other process sees half-written
    counts = memoryview(mmap.mmap(-1, 4096)).cast("Q")
    until = time.monotonic() + SECONDS
    kids = []
    sys.stdout.flush()
    for n in range(PROCESSES):
        pid = os.fork()
        if not pid:
            client(n, s, tops, counts, kind)
        kids.append(pid)
    watch, toggle = Watch(s, kind, until), Toggle(rules)
    watch.run(toggle)
    counts[STOP] = 1
    toggle.heal()
    wait_for(lambda: all(os.path.exists(f"{TMP}/end{n}") for n in range(PROCESSES)))
    [os.waitpid(pid, 0) for pid in kids]
    ends = []
    for n in range(PROCESSES):
        with open(f"{TMP}/end{n}", "rb") as f:
            ends.append(pickle.load(f))
        os.unlink(f"{TMP}/end{n}")
    wrong = [e for e in ends if isinstance(e, str)]
    assert not wrong, "\n".join(wrong) + s.log()[-3000:]
    st = s.stats()
    done = {}
    for _, ops, _, _ in ends:
        done |= {op: done.get(op, 0) + count for op, count in ops.items()}
    print(f"{name}: {sum(done.values())} operations in {SECONDS:.0f} s: {done}; "
          f"{sum(e[2] for e in ends)} missing, {sum(e[3] for e in ends)} refused; "
          + ", ".join(f"{k} {st[k]}" for k in (
              "spills", "loads", "evictions", "drops", "quota_drops", "behind_drops",
              "spill_failures", "breaker_opened", "corrupt")), flush=True)
    assert st["corrupt"] == 0 and st["behind_drops"] == 0, st
    watch.grown()
    shared = compare(s, tops, counts, kind, ends, "at the end")
    s.settle()
    counted = []

    def all_in_order():
        """A chunk enters the order once its request has ended. Both numbers are of the mounted
        store, since an unmount may copy more chunks to the disk."""
        counted[:] = s.on_disk(), steady(s.in_order)
        return counted[0] <= counted[1] <= counted[0] + counted[0] // 10 + 5
    try:
        wait_for(all_in_order, every=0.5)
    finally:
        print(f"{name}: %d chunks on the disk, %d in its order" % tuple(counted), flush=True)
    s.umount()
    assert "without waiting" not in s.log() and "are lost" not in s.log(), s.log()[-3000:]
    p = s.fsck("-n", "--data", ok=None)
    assert p.returncode == 0, p.stdout
    s.mount()
    assert compare(s, tops, counts, kind, ends, "after another mount") == shared
    s.umount()
    s.fsck("-n")
    run("rm", "-rf", s.path, REMOTE, ok=True)


with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as key_file:
    key_file.write(f"1 {random.Random(SEED).randbytes(32).hex()}\n")
print(f"SEED={SEED}", flush=True)
for name in [os.environ["KIND"]] if "KIND" in os.environ else \
        list(KINDS) if WAY == "fast" and LONG else random.Random(SEED).sample(sorted(KINDS), 2):
    campaign(name)
