# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Power loss by replay (tests/lib/replay.py). Clients store, overwrite, delete and rename in a
small store that is always full, so that extents are reused all the time. The daemon's writes and
syncs are recorded. Then, for many points of the record, at syncs and between them, the store is
reconstructed as a power failure could have left it, with unsynced data present, absent, torn or
mixed. It is mounted, half of the time after fsck.

Promise 2: every fsynced file is there byte for byte; every other file is complete or absent; no
file has bytes of an older file or of another file. A record may also contain a kill or an unmount.
A store that had a failure is used again and has another failure. The kind "devices" has three data
files; after a failure, the unsynced writes of each are present or absent. In the kind "lossy" the
files are keys and values that are copied with a lossy codec, so that they have the written or the
decoded bytes; those that are never changed in part have the same decoded bytes after each failure.
"lossy-shared" also has a remote. SEED repeats a run. With MINUTES, runs with successive seeds are
made for that many minutes, of one kind if KIND names it; to repeat one of them, give its SEED and
KIND. CUTS is the greatest number of points that are tried in each life of a store."""
import contextlib, os, random, shutil, sys, threading, time
import kvdata
from kvtest import *
from replay import *

need_mount()
if MODE in ("asan", "tsan"):
    skip("the recorder replaces functions of libc that the sanitizers replace, too")
MINUTES = float(os.environ.get("MINUTES", 0))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
CUTS = int(os.environ.get("CUTS", 26 if LONG else 8))
LIFE = 3.0 if LONG else 1.5  # seconds of load
HOW = ("none", "all", "data", "log", "rest", "torn", "mixed", "mixed", "torn")
HOW_DEVICES = HOW + ("device", "device", "device")
TOP = f"{TMP}/top"
# The disk that all cases share may pause for seconds, which must not exceed deadline=.
COMMON = "log=1M,unit=file,settle=20,deadline=60000"
KINDS = {  # name: options, whether there is a remote
    "disk": (COMMON, False),
    "coded": (f"{COMMON},compress=zstd", False),
    "shared": (f"{COMMON},disk=on", True),
    "devices": (COMMON, False),
    "lossy": (f"{COMMON},compress=kvq-mid", False),
    "lossy-shared": (f"{COMMON},disk=on,compress=kvq-mid", True),
}
DECODINGS = kvdata.Decodings()
PARTS = [f"{TOP}/part{i}" for i in range(3)]  # the devices of the kind "devices"


def contents(s, lossy):
    """What look() returns; files with decoded bytes have those that were written."""
    found, unreadable = look(s)
    if not lossy:
        return found, unreadable
    written = {p: kvdata.written(d) for p, d in found.items()}
    for p, d in written.items():
        if p.startswith("bulk"):
            assert DECODINGS.holds(DECODINGS.digest(d), d, found[p], object()), \
                f"SEED={SEED}: {p} was decoded to other bytes before"
    return written, unreadable


class Life:
    """Clients at work on a mount below TOP, recorded."""

    def __init__(self, store, model, state, seed, lossy):
        self.lossy = lossy
        self.s, self.model, self.state, self.stop = store, model, state, threading.Event()
        self.quiet = threading.Event()
        self.seed, self.wrong, self.kept = seed, [], {}
        self.rounds = 0

    def path(self, p):
        return f"{self.s.mnt}/{p}"

    def start(self):
        self.stop.clear()
        self.quiet.clear()
        self.rounds += 1
        self.threads = [threading.Thread(target=self.guard, args=(f, n)) for f, n in
                        ((self.keeper, 0), (self.keeper, 1), (self.filler, 2))]
        [t.start() for t in self.threads]

    def end(self):
        """Ends the keepers first, and waits for two commits, so that their pins are committed: the
        first commit may be of a batch that began before the keepers ended."""
        self.quiet.set()
        [t.join() for t in self.threads[:2]]
        before = self.s.stats()["commits"]
        wait_for(lambda: self.wrong or self.s.stats()["commits"] >= before + 2)
        self.stop.set()
        [t.join() for t in self.threads]
        assert not self.wrong, "\n".join(self.wrong) + str(self.s.stats())

    def guard(self, work, n):
        try:
            work(n, random.Random(f"{self.seed}.{n}.{self.rounds}"))
        except BaseException as e:
            import traceback
            self.wrong.append(traceback.format_exc())

    def begin(self, effects):
        return self.model.begin(self.state.seq() + 1, effects)

    def sync(self, fd, *changes):
        os.fsync(fd)
        now = self.state.seq()
        for c in changes:
            c.durable = now

    def sync_folder(self, path, *changes):
        """Makes names durable. A file that was not synced itself need not survive."""
        changes = [c for c in changes if not c.of or c.of.durable is not None]
        fd = os.open(self.path(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(fd, *changes)
        finally:
            os.close(fd)

    def pin(self, p):
        try:
            os.setxattr(self.path(p), "user.kvcachefs.pin", b"1")
        except FileNotFoundError:  # it was dropped already, which is allowed
            self.model.evictable.add(p)

    def calm(self):
        """True in every second interval of 0.7 s. Clients do not sync then, because otherwise the
        daemon's own syncs would have nothing to do."""
        return int(time.monotonic() / 0.7) % 2

    def folder(self, name):
        os.makedirs(self.path(name), exist_ok=True)
        if self.lossy:
            os.setxattr(self.path(name), "user.kvcachefs.layout", kvdata.LAYOUT.encode())

    def piece(self, rng, size):
        if self.lossy:
            return kvdata.kv(rng.randrange(1 << 30), -(-size // kvdata.PAGE) * kvdata.PAGE)
        return rng.randbytes(size)

    def data(self, rng):
        if self.lossy:
            return self.piece(rng, rng.choice((4096, 40000, 65536, 140000))) + \
                rng.randbytes(rng.choice((0, 100)))
        return rng.randbytes(rng.choice((100, 4096, 5000, 16384, 65536, 140000)))

    def put(self, p, data, flags, rng, sync):
        c = self.begin({p: data})
        fd = os.open(self.path(p), flags | os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            assert os.write(fd, data) == len(data)
            if sync and rng.random() < 0.5:  # while it is open
                self.sync(fd, c)
        finally:
            os.close(fd)
        self.pin(p)
        if sync and c.durable is None:
            fd = os.open(self.path(p), os.O_RDONLY)
            try:
                self.sync(fd, c)
            finally:
                os.close(fd)

    def keeper(self, n, rng):
        """Fsynced and pinned files must survive."""
        mine = self.kept.setdefault(n, {})
        top = f"keep{n}"
        self.folder(top)
        while not self.quiet.is_set():
            p = f"{top}/{rng.randrange(14):02d}"
            kind = rng.random()
            try:
                if kind < 0.35:  # a temporary name, synced, renamed over
                    data, tmp = self.data(rng), f"{p}.tmp"
                    self.put(tmp, data, os.O_EXCL, rng, not self.calm() and rng.random() < 0.8)
                    if tmp in self.model.evictable:
                        self.model.evictable.add(p)
                    c = self.model.begin_move(self.state.seq() + 1, tmp, p, data)
                    os.rename(self.path(tmp), self.path(p))
                    mine[p] = data
                    if not self.calm() and rng.random() < 0.6:
                        self.sync_folder(top, c)
                elif kind < 0.5:  # a new file under the name
                    data = self.data(rng)
                    self.put(p, data, os.O_TRUNC, rng, not self.calm() and rng.random() < 0.8)
                    mine[p] = data
                elif kind < 0.65 and p in mine:  # in place
                    data = bytearray(mine[p])
                    at = rng.randrange(len(data))
                    if self.lossy:
                        at -= at % kvdata.PAGE
                    piece = self.piece(rng, min(len(data) - at, 9000))[:len(data) - at]
                    data[at:at + len(piece)] = piece
                    fd = os.open(self.path(p), os.O_RDWR)
                    try:
                        c = self.begin({p: bytes(data)})
                        os.pwrite(fd, piece, at)
                        if not self.calm() and rng.random() < 0.7:
                            self.sync(fd, c)
                    finally:
                        os.close(fd)
                    mine[p] = bytes(data)
                elif kind < 0.8 and p in mine:  # moved
                    q = f"{top}/{rng.randrange(14):02d}"
                    if q != p:
                        c = self.model.begin_move(self.state.seq() + 1, p, q, mine[p])
                        if p in self.model.evictable:
                            self.model.evictable.add(q)
                        os.rename(self.path(p), self.path(q))
                        mine[q] = mine.pop(p)
                        if rng.random() < 0.4:
                            self.sync_folder(top, c)
                elif kind < 0.88 and p in mine:
                    c = self.begin({p: None})
                    os.unlink(self.path(p))
                    del mine[p]
                    if not self.calm() and rng.random() < 0.5:
                        self.sync_folder(top, c)
                elif p in mine:
                    with open(self.path(p), "rb") as f:
                        got = f.read()
                    assert (kvdata.written(got) if self.lossy else got) == mine[p], p
            except FileNotFoundError:
                assert p in self.model.evictable or f"{p}.tmp" in self.model.evictable, p
                mine.pop(p, None)
                self.model.evictable.add(p)
            time.sleep(rng.choice((0, 0, 0.002, 0.02)))

    def filler(self, n, rng):
        """Keeps the tier full. Its files must be intact or absent."""
        self.folder("bulk")
        held = []
        while not self.stop.is_set():
            p = f"bulk/{rng.randrange(400):03d}"
            self.model.evictable.add(p)
            if rng.random() < 0.1:
                self.begin({p: None})
                try:
                    os.unlink(self.path(p))
                except FileNotFoundError:
                    pass
                continue
            if rng.random() < 0.1:  # evicted files are loaded
                with contextlib.suppress(FileNotFoundError), open(self.path(p), "rb") as f:
                    f.read()
                continue
            data = self.piece(rng, rng.choice((4096, 16384, 65536, 131072, 262144)))
            c = self.begin({p: data})
            try:
                with open(self.path(p), "wb", buffering=0) as f:
                    f.write(data)
                    if not self.calm() and rng.random() < 0.5:
                        self.sync(f.fileno(), c)
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
            time.sleep(rng.choice((0, 0.004)))


def fsck_mends(s, rng):
    p = s.fsck("-n", ok=None)
    assert p.returncode in (0, 4), p.stdout
    for line in p.stdout.splitlines():  # transactions are complete, so only frames may be missing
        assert any(w in line for w in ("points to no frame", "note: ", "no errors found",
                                       "errors were found")), p.stdout
    p = s.fsck("-y", *(["--data"] if rng.random() < 0.3 else []), ok=None)
    assert p.returncode in (0, 1), p.stdout
    s.fsck("-n", ok=True)


def life(kind, model, seed, seconds):
    """One life of the store below TOP. Returns the record, the folder with the files as they were
    before, and a description."""
    options, _ = KINDS[kind]
    rng = random.Random(seed)
    base, log, state_path = f"{TMP}/base", f"{TMP}/record", f"{TMP}/state"
    shutil.rmtree(base, ignore_errors=True)
    shutil.copytree(TOP, base)
    if os.path.exists(log):
        os.unlink(log)
    state = State(state_path)
    s = store_at(TOP, options + (f",remote=dir://{TOP}/remote" if KINDS[kind][1] else ""),
                 f"{TMP}/mnt")
    mount_recorded(s, TOP, log, state_path)
    lossy = kind.startswith("lossy")
    l = Life(s, model, state, seed, lossy)
    for p, d in contents(s, lossy)[0].items():  # files of an earlier life, which survived a failure
        c = model.begin(0, {p: d})
        if p.startswith("bulk"):
            model.evictable.add(p)
        else:
            model.evictable.discard(p)
            l.pin(p)
            if not p.endswith(".tmp"):
                l.kept.setdefault(int(p[4]), {})[p] = d
        l.sync_folder("", c)
    for n in (0, 1):
        for p in [p for p in os.listdir(s.mnt) if p == f"keep{n}"]:
            for name in os.listdir(f"{s.mnt}/{p}"):
                if name.endswith(".tmp"):
                    l.begin({f"{p}/{name}": None})
                    os.unlink(f"{s.mnt}/{p}/{name}")
    l.start()
    time.sleep(seconds * 0.6)
    then = rng.choice(("on", "kill", "umount"))
    if then != "on":
        l.end()
        if then == "kill":
            state.kill(1)
            s.daemon.wait()
            state.kill(0)
            run("umount", "-l", s.mnt)
        else:
            s.umount()
        mount_recorded(s, TOP, log, state_path)
        l.start()
    time.sleep(seconds * 0.4)

    def enough():
        assert s.daemon.poll() is None, f"the daemon ended: {s.log()[-2000:]}"
        st = s.stats()
        coded = st["lossy_copies"] > 20 and st["loads_decoded"] > 0
        return l.wrong or (st["spills"] > 50 and st["publishes"] > 50 and (coded or not lossy))

    wait_for(enough)
    l.end()
    st = s.stats()
    if rng.random() < 0.5:
        s.umount()
        then += ", umount"
    else:
        state.kill(1)
        s.daemon.wait()
        gone(s)
        then += ", kill"
    run("umount", "-l", s.mnt)
    s.drop_pool()
    return log, base, f"{then}; {st['spills']} copies, {st['trimmed_chunks']} trimmed"


def try_image(*args):
    """Creates the store as a failure leaves it, and checks it. It takes the path of the real store,
    because a remote is known by its URL."""
    os.rename(TOP, f"{TMP}/held")
    try:
        return try_here(*args)
    finally:
        shutil.rmtree(TOP, ignore_errors=True)
        os.rename(f"{TMP}/held", TOP)


def try_here(kind, model, replay, seq, how, seed):
    rng = random.Random(f"{seed}.{seq}.{how}")
    options, remote = KINDS[kind]
    replay.image(TOP, how, rng)
    # The store may be full. Nothing must be evicted to make space, or for copies of objects that
    # are read.
    s = store_at(TOP, options + ",high=100,low=99,write=back"
                 + (f",remote=dir://{TOP}/remote" if remote else ""), f"{TMP}/mnt2")
    s.cpu = "64M"
    checked = rng.random() < 0.5
    if checked:
        fsck_mends(s, rng)
    s.mount()
    found, unreadable = contents(s, kind.startswith("lossy"))
    # fsck removes each placement without a frame, whatever the reason
    wrong = model.check(found, {} if checked else unreadable, seq, remote)
    if wrong:
        print(s.log()[-4000:], {n: v for n, v in s.stats().items() if v})
    assert not wrong, (
        f"{kind}, SEED={seed}: power lost at record {seq} ({how}{', fsck' if checked else ''}): "
        + "\n".join(wrong[:8]))
    s.umount()
    s.drop_pool()
    s.fsck("-n", ok=None if remote else True)
    return len(found)


def cuts_of(replay, n, rng, hows):
    """Returns (point, how) in order: before the largest syncs, with the loss of the data that they
    would have synced; at any syncs; and anywhere."""
    all = replay.all_records()
    syncs = [seq for seq, op in all if op in (SYNC, SYNC_DIR)]
    gaps = sorted(zip(syncs, syncs[1:]), key=lambda g: g[0] - g[1])[:n]
    some = [(b - 1, rng.choice(("data", "data", "data", "none", "mixed") + hows[len(HOW):]))
            for a, b in rng.sample(gaps, min(len(gaps), n // 2))]
    some += [(seq, rng.choice(hows)) for seq in rng.sample(syncs, min(len(syncs), n // 4))]
    some += [(seq, rng.choice(hows)) for seq, _ in rng.sample(all, min(len(all), n - len(some)))]
    return sorted(some), len(all), len(syncs)


def one(kind, seed, cuts, lives):
    rng = random.Random(seed)
    shutil.rmtree(TOP, ignore_errors=True)
    os.makedirs(f"{TOP}/remote")
    parts = PARTS if kind == "devices" else []
    run(binary("mkfs.kvcachefs"), "--size", "24M" if parts else "20M",
        *(w for p in parts for w in ("--file", p)), f"{TOP}/s", ok=True)
    os.unlink(f"{TOP}/s/reserve")
    hows = HOW_DEVICES if parts else HOW
    model = Model()
    for n in range(lives):
        log, base, story = life(kind, model, f"{seed}.{n}", LIFE)
        replay = Replay(log, base)
        points, records, syncs = cuts_of(replay, cuts, rng, hows)
        files = 0
        for seq, how in points:
            replay.to(seq)
            files += try_image(kind, model, replay, seq, how, seed)
        last = None
        # the power is lost at some point, and the next life starts from that state
        if n + 1 < lives:
            again = Replay(log, base)
            last = rng.choice(points)[0]
            again.to(last)
            nxt = f"{TMP}/next"
            shutil.rmtree(nxt, ignore_errors=True)
            again.image(nxt, rng.choice(hows), rng)
        replay.to(1 << 62)
        replay.same_as(TOP)
        print(f"{kind}, SEED={seed}, life {n}: {records} records, {syncs} of syncs; {story}; "
              f"{len(points)} failures, {files} files right", flush=True)
        if last is not None:
            shutil.rmtree(TOP)
            os.rename(nxt, TOP)
            before, model = model, Model()
            model.outlived(before, last)


if MINUTES:
    end = time.time() + 60 * MINUTES
    n = 0
    while time.time() < end:
        one(list(KINDS)[n % len(KINDS)]
            if not os.environ.get("KIND") else os.environ["KIND"],
            SEED + n, CUTS, 1 + (SEED + n) % 3)
        n += 1
    print(f"{n} stores")
else:
    one("disk", SEED, CUTS, 2)
    one("shared", SEED, CUTS // 3, 1)
    one("devices", SEED, CUTS // 2, 1)
    if LONG:
        one("lossy", SEED, CUTS // 2, 2)
        one("lossy-shared", SEED, CUTS // 3, 2)
print("ok")
