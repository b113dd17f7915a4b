# SPDX-License-Identifier: Apache-2.0
"""Power loss by replay. tests/preload/record.c records the file operations of a daemon. Replay
builds the files from the records as a power failure at any record may leave them, and Model
compares the promises that clients received with these files. The number of the last record is the
clock of both.

The model of a failure: an operation that a sync covers survives (the operation had returned when
the sync was called, and the sync has returned). Every other operation may survive or not, and each
sector of a write independently. This includes reordering: a medium keeps two writes to one sector
in order, so a sector holds one of its versions since the last sync. The length of a file and the
names in a folder are metadata, which filesystems keep in order: if a truncation does not survive,
data that was written beyond it does not either, and creations, renames and unlinks survive up to
some point. Only a sync of its folder covers a name. Files below `remote` are on another machine,
and all of them survive."""
import errno, hashlib, mmap, os, struct, threading
from kvtest import BUILD, TMP, Store, binary, run

OPEN, WRITE, TRUNCATE, SYNC, SYNC_DIR, UNLINK, RENAME, MKDIR, CLOSE, END = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
HEADER = struct.Struct("<QQQQIIiI")  # seq, id, off, len, op, pid, fd, tid


class State:
    """The page shared with the daemon."""

    def __init__(self, path):
        with open(path, "wb") as f:
            f.truncate(4096)
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 4096)

    def seq(self):
        return struct.unpack_from("<Q", self.map, 0)[0]

    def kill(self, on):
        struct.pack_into("<I", self.map, 8, on)


class File:
    def __init__(self, data=b""):
        self.durable = bytearray(data)
        self.pending = []  # operations in order

    def sync(self, began):
        """Makes durable all calls that had returned before `began`."""
        left = []
        for o in self.pending:
            if o.done and o.done < began:
                o.apply(self.durable)
            else:
                left.append(o)
        self.pending = left

    def after(self, keep, grain, rng):
        """The file as a failure leaves it: each piece of `grain` bytes (0: each operation) that is
        not durable survives with the probability `keep`."""
        data, bound = bytearray(self.durable), None
        for o in self.pending:
            if o.op == TRUNCATE:
                if bound is None and rng.random() < keep:
                    o.apply(data)
                else:
                    bound = o.off if bound is None else min(bound, o.off)
                continue
            end = o.off + len(o.data) if bound is None else min(o.off + len(o.data), bound)
            at = o.off
            while at < end:
                to = end if not grain else min(end, (at // grain + 1) * grain)
                if rng.random() < keep:
                    put(data, at, o.data[at - o.off:to - o.off])
                at = to
        return data


def put(data, at, piece):
    if at > len(data):
        data.extend(bytes(at - len(data)))
    data[at:at + len(piece)] = piece


class Operation:
    def __init__(self, seq, op, off=0, data=b"", target=None):
        self.seq, self.op, self.off, self.data, self.target, self.done = (
            seq, op, off, data, target, 0)

    def apply(self, data):
        if self.op == TRUNCATE:
            del data[self.off:]
            data.extend(bytes(self.off - len(data)))
        else:
            put(data, self.off, self.data)


class Replay:
    """Applies the records in order, starting with the files below `base` before the first
    record."""

    def __init__(self, log, base):
        with open(log, "rb") as f:
            self.log = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
        self.at = self.seq = 0
        self.names, self.folders = {}, {""}  # as the daemon sees them
        self.fds, self.under_way = {}, {}
        for folder, folders, files in os.walk(base):
            where = os.path.relpath(folder, base)
            where = "" if where == "." else where + "/"
            self.folders |= {where + f for f in folders}
            for name in files:
                if name.endswith("-shm") or name == "reserve":
                    continue
                with open(f"{folder}/{name}", "rb") as f:
                    self.names[where + name] = File(f.read())
        self.durable_names = dict(self.names)
        self.pending_names = []

    def all_records(self):
        """(seq, op) of each record, to choose cuts from."""
        at, out = 0, []
        ops = {}
        while at + HEADER.size <= len(self.log):
            seq, id, off, length, op, pid, fd, tid = HEADER.unpack_from(self.log, at)
            ops[seq] = op
            out.append((seq, ops.get(id, 0) if op == END else op))
            at += HEADER.size + length
        return out

    def to(self, seq):
        """Applies the records up to and including this one."""
        while self.seq < seq and self.at + HEADER.size <= len(self.log):
            head = HEADER.unpack_from(self.log, self.at)
            data = self.log[self.at + HEADER.size:self.at + HEADER.size + head[3]]
            self.at += HEADER.size + head[3]
            self.seq = head[0]
            self.one(head, data)

    def one(self, head, data):
        seq, id, off, length, op, pid, fd, tid = head
        if op == END:
            self.end(self.under_way.pop(id), off - (1 << 64) if off >> 63 else off, pid, seq)
            return
        o = Operation(seq, op, off)
        if op in (OPEN, UNLINK, MKDIR):
            o.target = bytes(data).decode()
        elif op == RENAME:
            o.target = bytes(data).decode().split("\0")
        elif op == CLOSE:
            self.fds.pop((pid, fd), None)
        else:
            o.target = self.fds[pid, fd]
            o.data = data
            if op in (WRITE, TRUNCATE):
                o.target.pending.append(o)
        if (op == OPEN and off) or op in (UNLINK, RENAME, MKDIR):
            self.pending_names.append(o)
            if op == OPEN:
                o.made = self.names[o.target] = File()
            else:
                self.change_names(self.names, self.folders, o)
        self.under_way[seq] = o

    def end(self, o, result, pid, seq):
        o.done = seq
        if o.op == OPEN:
            if result >= 0:
                self.fds[pid, result] = self.names.get(o.target, o.target)
            elif o.off and self.names.get(o.target) is o.made:  # its folder does not exist
                del self.names[o.target]
                self.pending_names = [p for p in self.pending_names if p is not o]
        elif o.op == WRITE:
            o.data = o.data[:max(result, 0)]
        elif result < 0 and o.op in (UNLINK, RENAME, MKDIR, TRUNCATE):
            # unlink fails if the name does not exist, and mkdir if it exists
            assert o.op in (UNLINK, MKDIR), (o.op, o.target, result)
        elif o.op == SYNC and result == 0:
            o.target.sync(o.seq)
        elif o.op == SYNC_DIR and result == 0:
            assert isinstance(o.target, str), o.target
            self.sync_names(o.target, o.seq)
        if o.op in (OPEN, UNLINK, RENAME, MKDIR, WRITE, TRUNCATE):
            self.remote(o)

    def remote(self, o):
        """Makes the changes below `remote` durable: nothing is lost there."""
        for path, f in self.names.items():
            if path.startswith("remote/") and f.pending:
                f.sync(o.done + 1)
        self.pending_names = [p for p in self.pending_names if not self.is_remote(p)]

    @staticmethod
    def is_remote(o):
        return (o.target if isinstance(o.target, str) else o.target[0]).startswith("remote")

    @staticmethod
    def change_names(names, folders, o):
        if o.op == OPEN:
            names[o.target] = o.made
        elif o.op == UNLINK:
            names.pop(o.target, None)
        elif o.op == RENAME:
            if o.target[0] in names:
                names[o.target[1]] = names.pop(o.target[0])
        elif o.op == MKDIR:
            folders.add(o.target)

    def sync_names(self, folder, began):
        left = []
        for o in self.pending_names:
            paths = [o.target] if isinstance(o.target, str) else o.target
            # independent of earlier changes in another folder: a sync does not wait for those names
            if o.done and o.done < began and all(os.path.dirname(p) == folder for p in paths):
                self.change_names(self.durable_names, self.folders, o)
            else:
                left.append(o)
        self.pending_names = left

    def left(self, how, rng):
        """The folders, and {path: bytes} of the files, as a failure may leave them. `how` selects
        the surviving operations since the last sync: all, none, data (only the data files'), log
        (only the catalog log's), rest (all but the log's), device (those of the log, or of some of
        the devices), torn, mixed."""
        names = dict(self.durable_names)
        folders = set(self.folders)
        many = (len(self.pending_names) if how == "all" else
                0 if how == "none" else
                rng.randint(0, len(self.pending_names)))
        for o in self.pending_names[:many]:
            self.change_names(names, folders, o)
        for path in [p for p in self.names if p.startswith("remote/")]:
            names[path] = self.names[path]
            folders.add(os.path.dirname(path))
        files = {}
        for path, f in names.items():
            log, data = path.endswith("-wal"), path.endswith("/data") or path.startswith("part")
            keep, grain = {
                "all": (1, 0),
                "none": (0, 0),
                "data": (data, 0),
                "log": (log, 0),
                "rest": (not log, 0),
                "device": (rng.choice((0, 1)), 0),
                "torn": (rng.choice((.1, .5, .9)), rng.choice((512, 4096))),
                "mixed": (rng.choice((0, .5, .95, 1)), rng.choice((0, 512, 4096))),
            }[how]
            if path.startswith("remote/"):
                keep, grain = rng.choice((0, 1)), 0
            if os.path.dirname(path) not in folders:
                continue  # the open is about to fail, because the folder does not exist
            files[path] = f.after(keep, grain, rng)
        return folders, files

    def image(self, to, how, rng):
        """Makes the files below `to` as a failure may leave them."""
        make_image(to, *self.left(how, rng))

    def same_as(self, base):
        """Checks, with all records applied, that the files below `base` are the same. This detects
        operations that were not recorded."""
        for path, f in self.names.items():
            mine = f.after(1, 0, None if not f.pending else ALWAYS)
            with open(f"{base}/{path}", "rb") as real:
                theirs = real.read()
            if mine != theirs:
                first = next((i for i in range(min(len(mine), len(theirs)))
                              if mine[i] != theirs[i]), -1)
                raise AssertionError(f"{path} was changed in a way that is not recorded: "
                                     f"{len(mine)} and {len(theirs)} bytes, from {first} on")


ZEROS = bytes(1 << 16)


def used(data):
    """The number of bytes without the zeros at the end, or some more."""
    n = len(data)
    while n and data[max(n - len(ZEROS), 0):n] == ZEROS[:n]:
        n = max(n - len(ZEROS), 0)
    return n


def make_image(to, folders, files):
    for f in folders:
        os.makedirs(f"{to}/{f}", exist_ok=True)
    for path, data in files.items():
        with open(f"{to}/{path}", "wb") as out:
            out.write(data[:used(data)])  # most of a data file is a hole at its end
            out.truncate(len(data))


class Always:
    @staticmethod
    def random():
        return 0


ALWAYS = Always()


class Change:
    """A change by a client. It may have an effect after record `began`, and must have it after
    record `durable`."""

    def __init__(self, began, effects):
        self.began, self.effects, self.durable = began, effects, None
        self.of = None  # for a move: the change that made the bytes


class Model:
    """For every path its possible contents, in order."""

    def __init__(self):
        self.lock = threading.Lock()
        self.of, self.evictable, self.moves = {}, set(), []
        self.older = {}  # path -> contents of earlier lives, which a remote may still have

    @staticmethod
    def identity(data):
        return None if data is None else hashlib.md5(data).hexdigest()

    def begin(self, seq, effects):
        """`effects`: path -> its bytes, or None if it is removed. Called before the change is
        made."""
        c = Change(seq, {p: self.identity(d) for p, d in effects.items()})
        with self.lock:
            for p in effects:
                self.of.setdefault(p, []).append(c)
        return c

    def outlived(self, before, seq):
        """Begins with the contents that the model `before` allows after a failure at `seq`."""
        for path, changes in before.of.items():
            self.older[path] = before.older.get(path, set()) | {
                c.effects[path] for c in changes if c.began <= seq and c.effects[path]}
            for id in before.may_be(path, seq):
                c = Change(0, {})
                c.effects[path] = id
                self.of.setdefault(path, []).append(c)

    def begin_move(self, seq, a, b, data):
        c = self.begin(seq, {a: None, b: data})
        with self.lock:
            made = self.of[a][-2]
            c.of = made.of or made
            self.moves.append((c, a, b))
        return c

    def may_be(self, path, seq):
        """The contents that the path may have after a failure at `seq`; None: it is missing."""
        may, must = {None}, False
        for c in self.of.get(path, ()):
            if c.began > seq:
                break
            if c.durable is not None and c.durable <= seq:
                may, must = set(), True
            else:
                may.add(None)
            may.add(c.effects[path])
        if path in self.evictable:
            may.add(None)
        return may

    def must_read(self, path, seq):
        """Whether all contents that the path may have were on stable storage: if its name is there,
        its bytes must be, too. This is not so if it may be evicted: then a full tier may have
        dropped the copy that was synced while the pool still had the file, and a later copy may not
        be synced."""
        if path in self.evictable:
            return False
        last = []
        for c in self.of.get(path, ()):
            if c.began > seq:
                break
            if c.durable is not None and c.durable <= seq:
                last = []
            last.append(c)
        return bool(last) and all(
            c.effects[path] is None
            or (c.of or c).durable is not None and (c.of or c).durable <= seq
            for c in last)

    def check(self, found, unreadable, seq, shared=False):
        """`found`: path -> bytes of each file. `unreadable`: name -> error of each file that cannot
        be read. `shared`: a missing name is looked up in the remote, which may have an older copy,
        also from an earlier life of the store. Returns a list of what is wrong."""
        wrong = [f"{p} exists and cannot be read ({unreadable[p]}), although all contents that it "
                 f"may have were synced; record {seq}; its changes: "
                 f"{[(c.began, c.durable, c.effects[p]) for c in self.of[p]]}"
                 for p in unreadable if self.must_read(p, seq)]
        got = {p: self.identity(d) for p, d in found.items()}
        for path in set(self.of) | set(got):
            if path not in self.of:
                wrong.append(f"{path} was never created")
                continue
            may = self.may_be(path, seq)
            if got.get(path) in may:
                continue
            if shared and None in may and (
                    got[path] in self.older.get(path, ()) or any(
                        c.effects[path] == got[path] for c in self.of[path] if c.began <= seq)):
                continue
            ever = [i for i, c in enumerate(self.of[path]) if c.effects[path] == got.get(path)]
            other = [p for p, l in self.of.items()
                     if got.get(path) and any(c.effects[p] == got[path] for c in l)]
            last = [(c.began, c.durable, c.effects[path] and c.effects[path][:6])
                    for c in self.of[path] if c.began <= seq][-4:]
            what = ("is missing" if path not in got else
                    f"has older or newer contents (change {ever})" if ever else
                    f"has the bytes of {other}" if other else
                    f"has {len(found[path])} bytes that nobody wrote")
            wrong.append(f"{path} {what}; record {seq}; its last changes: {last}")
        for c, a, b in self.moves:
            if (c.began > seq or c.of.durable is None or c.of.durable >= c.began
                    or {a, b} & self.evictable):
                continue
            if (self.of[a][-1] is c and self.of[b][-1] is c
                    and got.get(a) is None and got.get(b) is None):
                wrong.append(f"{a} was synced and renamed to {b}, and has neither name; record "
                             f"{seq}")
        return wrong


def store_at(top, options, mnt):
    """The store top/s, to be mounted at mnt."""
    s = Store(make=False, options=options, cpu="16M")
    s.path, s.mnt = f"{top}/s", mnt
    os.makedirs(mnt, exist_ok=True)
    return s


def mount_recorded(s, top, log, state_path):
    """Mounts the store, and records the daemon's operations below `top`."""
    os.environ.update(LD_PRELOAD=f"{BUILD}/lib/record.so", RECORD_UNDER=top, RECORD_LOG=log,
                      RECORD_STATE=state_path)
    try:
        s.mount()
    finally:
        for name in ("LD_PRELOAD", "RECORD_UNDER", "RECORD_LOG", "RECORD_STATE"):
            del os.environ[name]


def recorded_store(top, base, log, state_path, options, parts):
    """Makes a store with these data files below `top`, copies `top` to `base`, and mounts the store
    as mount_recorded() does. Returns the store and its State."""
    os.mkdir(top)
    s = store_at(top, options, f"{TMP}/mnt")
    run(binary("mkfs.kvcachefs"), "--size", "24M", *(w for p in parts for w in ("--file", p)),
        s.path, ok=True)
    os.unlink(f"{s.path}/reserve")
    run("cp", "-a", top, base, ok=True)
    state = State(state_path)
    mount_recorded(s, top, log, state_path)
    return s, state


def gone(s):
    run("umount", "-l", s.mnt)
    s.drop_pool()


def look(s):
    """Returns the contents of the readable files, and the errors of the others."""
    found, unreadable = {}, {}
    for folder, _, files in os.walk(s.mnt):
        for name in files:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as f:
                    found[os.path.relpath(path, s.mnt)] = f.read()
            except OSError as e:
                assert e.errno in (errno.ENOENT, errno.EIO, errno.ESTALE), (path, e)
                unreadable[os.path.relpath(path, s.mnt)] = errno.errorcode[e.errno]
    return found, unreadable
