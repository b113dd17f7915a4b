# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
# level: check
"""Calls of the daemon on the files of its store, its pool and a shared folder fail. The Nth call
fails once, or all calls from the Nth on fail until the fault is removed, in a run that mounts,
stores, syncs, renames, links, deletes, overwrites, evicts, loads and unmounts.

The daemon survives, or the mount is refused with one line and has changed nothing. A failed call
has no effect, and acknowledged changes are visible in this mount and the next one, after an unmount
and after a kill; nothing else is. An error is never ENOENT, no call hangs, and fsck finds nothing
or repairs it at once.

RUNS (10) values of N are random, and SEED repeats them. ONE=place,do,N,lasting,end repeats one.
SWEEP=1 tries every N, or MOST values of N for each place. It takes the kinds of errors in turn,
beginning with the kind that SEED selects."""
import os, re, threading, traceback
from kvtest import *
import faults

need_mount()
RUNS = int(os.environ.get("RUNS", 10))
TOP = faults.in_memory("memory")
REMOTE, RUN = f"{TOP}/remote", f"{TMP}/run"
os.mkdir(REMOTE)
# high= is so low that copied chunks soon leave the pool, but the disk never reaches this mark
s = faults.store_in_memory(TOP, size="64M", cpu="16M", options=(
    f"settle=0,deadline=1000,high=12,low=4,unit=file,huge=never,remote=dir://{REMOTE}"))
ERRORS = (errno.EIO, errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ETIMEDOUT)
# calls, files, and kinds of failures
PLACES = {
    "reads of the store": (f"{s.path}/*", "read", ("EIO", "short", "ENOMEM", "delay:300")),
    "writes of the store": (f"{s.path}/*", "write", ("EIO", "ENOSPC", "short", "delay:300")),
    "syncs of the store": (f"{s.path}/*", "sync", ("EIO", "ENOSPC", "delay:300")),
    "opens in the store": (f"{s.path}/*", "open,alloc,truncate,unlink,rename,link",
                           ("EMFILE", "ENOMEM", "EIO", "ENOSPC", "delay:300")),
    "bytes of the pool": (f"{RUN}/*", "read,write,sync", ("EIO", "ENOSPC", "short")),
    "holes of the pool": (f"{RUN}/*", "seek", ("EIO", "ENOMEM", "delay:300")),
    "files of the pool": (f"{RUN}/*", "open,alloc,truncate,unlink,rename,mkdir",
                          ("ENOMEM", "EMFILE", "ENOSPC", "EIO", "delay:300")),
    "reads of the folder": (f"{REMOTE}*", "read,open,list",
                            ("EIO", "short", "EMFILE", "delay:300")),
    "changes of the folder": (f"{REMOTE}/*", "change", ("EIO", "ENOSPC", "short", "delay:300")),
}


def may_be_dropped(w, paths):
    """Counts each path as possibly gone if any file was dropped. Returns the number of drops."""
    drops = s.stats()["drops"]
    for path in paths if drops else ():
        w.may[path] = w.may[path] + [None] + first.may.get(path, [])
    return drops


class Torn:
    """A failed write: its data, as far as it was written."""

    def __init__(self, data):
        self.data = data

    def __eq__(self, got):
        return got is not None and self.data.startswith(got.rstrip(b"\0")) and \
            len(got) <= len(self.data)

    def __repr__(self):
        return f"part of {len(self.data)} bytes"


def short(state):
    return f"{len(state)} bytes {state[:8].hex()}" if isinstance(state, bytes) else repr(state)


class Shadow:
    """The possible states: path -> states, where None means absent. Attributes and links are states
    of their own paths."""

    def __init__(self):
        self.may, self.refused = {}, 0

    def is_(self, path):
        """Its state if it is certain, else None."""
        states = self.may.get(path, [None])
        return states[0] if len(states) == 1 and isinstance(states[0], bytes) else None

    def does(self, what, *args, then, else_=None):
        """A call, the state after its success, and the other possible states after its failure."""
        try:
            what(*args)
        except OSError as e:
            assert e.errno in ERRORS or e.errno == errno.ENOENT and s.stats()["drops"], \
                f"{errno.errorcode[e.errno]} of {what.__name__}{args}"
            self.refused += 1
            for path, state in (else_ or {}).items():
                self.may[path] = self.may.get(path, [None]) + [state]
            return False
        self.may.update({path: [state] for path, state in then.items()})
        return True

    def observed(self, path, got, when):
        states = self.may.get(path, [None])
        assert any(state == got for state in states), \
            f"{when}: {path} is {short(got)}, not one of {[short(t) for t in states]}"
        self.may[path] = [got]


def at(path):
    return f"{s.mnt}/{path}"


def store(path, data, flags, sync):
    fd = os.open(at(path), os.O_WRONLY | os.O_CREAT | flags, 0o640)
    try:
        if os.write(fd, data) < len(data):
            raise OSError(errno.EIO, "the rest was refused")
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def change(path, data, where):
    fd = os.open(at(path), os.O_RDWR)
    try:
        assert os.pwrite(fd, data, where) == len(data)
        os.fsync(fd)
    finally:
        os.close(fd)


def holey(n):
    return b"a" * 5000 + bytes(2 << 20) + blob(n, 5000)


def sparse(path, n):
    """Stores a file with a hole. A copy searches files for holes."""
    fd = os.open(at(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        data = holey(n)
        os.pwrite(fd, data[:5000], 0)
        os.pwrite(fd, data[-5000:], len(data) - 5000)
        os.fsync(fd)
    finally:
        os.close(fd)


def take_in():
    """Imports the shared folder, and waits for the end of the import, whatever its result."""
    control = at(".kvcachefs/control")
    fd = os.open(control, os.O_WRONLY)
    try:
        os.write(fd, b"import\n")
    finally:
        os.close(fd)
    while True:
        with open(control) as f:
            if " running: " not in f.read():
                return
        time.sleep(0.01)


def load(path):
    """All bytes of a file, or None if it is missing. A file that no tier serves in time is ENOENT
    for a reader, and is still listed."""
    try:
        with open(at(path), "rb", buffering=0) as f:
            return f.readall()
    except FileNotFoundError:
        if os.path.lexists(at(path)):
            raise OSError(errno.EIO, "no tier serves it")
        return None


class Mix:
    """Contents after a failed change in place: each byte is the old or the new one."""

    def __init__(self, old, new):
        self.old, self.new = old, new

    def __eq__(self, got):
        return got is not None and len(got) == len(self.new) and \
            all(g in (a, b) for g, a, b in zip(got, self.old, self.new))


def life(w, n):
    """The calls of the clients. Each path is new, so that no earlier state of it exists."""
    def put(path, size, sync=False, flags=os.O_EXCL):
        data = blob(f"{n}{path}", size)
        return w.does(store, path, data, flags, sync, then={path: data},
                      else_={path: Torn(data)})

    def loaded(path):
        if w.is_(path) is not None:
            may_be_dropped(w, [path])
            w.does(lambda p: w.observed(p, load(p), "in its life"), path, then={})
    w.does(os.mkdir, at("m/new"), then={"m/new/": b""})
    for i in range(5):
        if w.is_("m/new/") is not None:
            put(f"m/new/{i}", (4096, 5000, 70000, 1300000, 300)[i], sync=i % 2)
    for i in range(6):
        loaded(f"m/old/{i}")
    for i in range(4):
        tmp, path, old = f"m/t{i}", f"m/old/{i}" if i % 2 else f"m/r{i}", f"m/old/{i + 2}"
        if put(tmp, 20000 + i):
            data = w.is_(tmp)
            w.does(os.rename, at(tmp), at(path), then={tmp: None, path: data})
        if w.is_(old) is not None and i > 1:
            w.does(os.unlink, at(old), then={old: None})
    if (data := w.is_("m/r0")) is not None:
        w.does(os.link, at("m/r0"), at("m/hard"), then={"m/hard": data})
        w.does(os.setxattr, at("m/r0"), "user.a", b"1", then={"m/r0\0user.a": b"1"})
    w.does(os.symlink, "r0", at("m/soft"), then={"m/soft": b"r0"})
    if (data := w.is_("m/old/6")) is not None:
        new = data[:100] + blob(n, 5000) + data[5100:]
        w.does(change, "m/old/6", new[100:5100], 100, then={"m/old/6": new},
               else_={"m/old/6": Mix(data, new)})
    if (data := w.is_("m/old/7")) is not None:
        w.does(os.truncate, at("m/old/7"), 777, then={"m/old/7": data[:777]},
               else_={"m/old/7": data[:777]})
    w.does(sparse, "m/sparse", n, then={"m/sparse": holey(n)}, else_={"m/sparse": Torn(holey(n))})
    for i in range(9):  # more than may stay in the pool
        put(f"flat{i}", 260000)
    for path in ("m/new/3", "flat0", "m/hard", "m/old/8", "m/sparse"):
        loaded(path)
    w.does(os.listdir, at("m/old"), then={})
    w.does(take_in, then={})


def watched(work, *args):
    """Runs the function and reports errors; it counts as hanging after the time limit."""
    out = []

    def do():
        try:
            out.append(work(*args))
        except BaseException:
            out.append(traceback.format_exc())
    t = threading.Thread(target=do, daemon=True)
    t.start()
    t.join(HANG)
    assert out, f"{work.__name__} hangs"
    assert not isinstance(out[0], str), out[0]
    return out[0]


def look(w, when):
    """All files, as seen through the mount."""
    def ask(call, *args):
        end = time.time() + HANG
        while time.time() < end:  # a suspended tier recovers
            try:
                return call(*args)
            except OSError as e:
                if e.errno in (errno.ENOENT, errno.ENODATA):
                    return None
                last = e
            time.sleep(0.1)
        raise AssertionError(f"{when}: {args}: {last}")
    names = set()
    for d, folders, files in os.walk(s.mnt):
        here = os.path.relpath(d, s.mnt)
        names |= {os.path.normpath(f"{here}/{f}") for f in files}
        names |= {os.path.normpath(f"{here}/{f}") + "/" for f in folders}
    assert names <= w.may.keys(), f"{when}: nobody made {names - w.may.keys()}"
    for path in list(w.may):
        if "\0" in path:
            name, attribute = path.split("\0")
            got = ask(os.getxattr, at(name), attribute)
        elif path.endswith("/"):
            got = b"" if path in names else None
        elif path == "m/soft":
            got = ask(os.readlink, at(path))
            got = got.encode() if got else got
        else:
            got = ask(load, path)
        w.observed(path, got, when)


def droppable(w, heals=True):
    """While no tier accepted copies, a pool above its mark may have dropped files without a copy,
    which it counts. A path whose file was dropped may then show the file that the shared folder has
    had under this path since before the fault. Nothing more is dropped once all files have their
    copies, or when nobody stores any more. Returns the paths that may be gone, and the number of
    drops."""
    if heals:
        s.settle()
    there = [p for p, states in w.may.items()
             if p[-1] != "/" and "\0" not in p and None not in states]
    may_be_dropped(w, [p for p in w.may if "\0" in p])  # they are dropped with their files
    return there, may_be_dropped(w, there)


def few_missing(w, gone, drops, what):
    missing = [p for p in gone if w.may[p] == [None]]
    assert len(missing) <= drops, (what, missing, drops)


def committed():
    return not s.stats()["catalog_pending_bytes"]


# a store as it was left yesterday: ten files that are in the tiers only
first = Shadow()
s.mount()
for d in ("m", "m/old"):
    os.mkdir(at(d))
    first.may[d + "/"] = [b""]
for i in range(10):
    path = f"m/old/{i}"
    s.write(path, blob(path, 30000 + i))
    first.may[path] = [blob(path, 30000 + i)]
s.settle()
s.umount()
KEEP = f"{TMP}/keep"
run("cp", "-a", "--sparse=always", TOP, KEEP, ok=True)


def fresh():
    s.drop_pool()
    run("sh", "-c", f"rm -rf {TOP}/*; cp -a --sparse=always {KEEP}/. {TOP}/", ok=True)
    if os.path.exists(f"{TMP}/log"):
        os.truncate(f"{TMP}/log", 0)
    w = Shadow()
    w.may = {path: list(states) for path, states in first.may.items()}
    return w


def checked(what):
    """fsck finds nothing, or repairs all that it finds."""
    p = s.fsck("-n", ok=None)
    if p.returncode:
        assert s.fsck("-y", ok=None).returncode in (0, 1), (what, p.stdout)
        s.fsck("-n", ok=True)
    return p.returncode


def one(place, do, nth, lasting, end):
    """One run of a daemon, from mount to unmount, with a fault. Returns its result."""
    path, calls, _ = PLACES[place]
    if lasting:
        do = do.replace(":300", ":50")  # a run has hundreds of calls
    what = f"{place}, {do} from {nth} {'on' if lasting else 'once'}, {end}"
    w, late = fresh(), False
    r = faults.Rules(f"calls={calls} path={path} nth={nth} "
                     f"count={faults.FAR if lasting else 1} do={do}")
    if not r.mount(s):
        assert "kvcachefs: " in s.log() and s.daemon.returncode > 0, (what, s.log())
        s.fsck("-n", ok=True)
        came = "refused"
    else:
        watched(life, w, nth)
        assert s.daemon.poll() is None, (what, s.log())
        came = f"{w.refused} calls failed"
        late = end == "late" and lasting and r.fired()[0]
        if late:
            gone, drops = droppable(w, heals=False)
        else:
            r.heal()
            gone, drops = droppable(w) if lasting else ((), 0)
            watched(look, w, what)
            few_missing(w, gone, drops, what)
            if end == "kill":
                wait_for(committed)
                s.kill()
                run("umount", "-l", s.mnt)
        if late or end != "kill":
            run("umount", s.mnt, ok=True)
            try:
                s.daemon.wait(HANG)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{what}: the end hangs")
            assert s.daemon.returncode in ((0, 1) if late else (0,)), (what, s.log())
    fired = r.fired()[0]
    mended = checked(what) if end != "kill" or came == "refused" else 0
    if fired and re.search("the last changes .*are lost", s.log()):  # the log has reported it
        came += ", lost as it said"
        w = None
    s.mount()
    if w:
        watched(look, w, what + ", mounted again")
        if late:
            few_missing(w, gone, drops, what)
    s.settle()
    s.umount()
    s.fsck("-n", ok=True)
    return fired, came + (", mended" if mended else "")


def tried(place, do, nth, lasting, end):
    try:
        fired, came = one(place, do, nth, lasting, end)
    except BaseException:
        print(f"ONE={place},{do},{nth},{int(lasting)},{end}\n{s.log()[-3000:]}")
        raise
    print(f"{place}: {do} from {nth} {'on' if lasting else 'once'}, {end}: "
          f"{came if fired else 'met no more'}", flush=True)
    return fired


# count the calls
r = faults.Rules(*(f"calls={calls} path={path} nth=0 do=EIO" for path, calls, _ in PLACES.values()))
w = fresh()
assert r.mount(s, options=s.options.replace("deadline=1000", "deadline=60000"))
watched(life, w, 0)
assert not w.refused
s.settle()
s.umount()
met = dict(zip(PLACES, r.met()))
assert s.fsck("-n") and all(met.values()), met
print(f"SEED={faults.SEED}", met, flush=True)

if os.environ.get("ONE"):
    for _ in range(RUNS):
        place, do, nth, lasting, end = os.environ["ONE"].split(",")
        tried(place, do, int(nth), int(lasting), end)
elif faults.ALL:
    for place, lasting in [(p, lasting) for p in PLACES for lasting in (0, 1)]:
        step = max(1, -(-met[place] // int(os.environ.get("MOST", faults.FAR))))
        for nth in range(faults.chance.randint(1, step), met[place] + 1, step):
            kinds = PLACES[place][2]
            tried(place, kinds[(nth // step + faults.SEED) % len(kinds)], nth, lasting,
                  ("umount", "kill", "late")[(nth // step + lasting) % 3])
else:
    fired = 0
    for i in range(RUNS):
        place = list(PLACES)[(i + faults.SEED) % len(PLACES)]
        fired += bool(tried(place, faults.chance.choice(PLACES[place][2]),
                            faults.chance.randint(1, met[place]), faults.chance.random() < 0.5,
                            faults.chance.choice(("umount", "kill", "late"))))
    assert fired, "nothing went wrong"
