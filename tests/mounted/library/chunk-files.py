# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""The parts of the vLLM connector that do not need vLLM. Lookups: prefixes and single keys, with
the files of several ranks; leases that end; hints that wait; a tier that is late, a daemon that is
stopped, dead or mounted again. Chunk files: chunks with absent blocks, recurrent states, files that
exist, are missing, too short or too large, blocks outside the cache, a full pool, a dead daemon.
Known keys."""
import errno, os, signal, threading, time
from kvtest import *
from tensors import *
from kvcachefs import _chunkfiles, _lookups
import logging

said = []


class Heard(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


log = logging.getLogger("chunk-files")
log.addHandler(Heard())
log.propagate = False
flag = f"{TMP}/slow.flag"
kv.map_cache(0)
s = Store(options=f"settle=0,shim=delay-get:60000+delay-while:{flag}", size="256M").mount()

# ---- Chunk files ---------------------------------------------------------------------------------

BLOCKS_OF_CACHE, SLOTS, PAGES = 16, 4, (4096, 8192)
tensors = [Memory(BLOCKS_OF_CACHE, page, size=1) for page in PAGES]
states = [Memory(BLOCKS_OF_CACHE, 512, size=1)]
whole = _chunkfiles.Group(kv.Pages(tensors), SLOTS, 65536)
last = _chunkfiles.Group(kv.Pages(states), SLOTS, SLOTS * 512, last=True)
for seed, t in enumerate(tensors + states):
    t.fill(seed)


def contents():
    return [bytes(memoryview(t.data)) for t in tensors + states]


def wipe():
    for t in tensors + states:
        memoryview(t.data)[:] = bytes(len(memoryview(t.data)))


def page(t, block):
    n = len(memoryview(t.data)) // BLOCKS_OF_CACHE
    return slice(block * n, (block + 1) * n)


files = _chunkfiles.ChunkFiles(s.mnt, [whole, last], reports=_lookups.Reports(log))
number = 0


def move(load, chunks, runs):
    global number
    number += 1
    files.submit(number, load, chunks, runs)
    done = []
    wait_for(lambda: done.extend(files.finished()) or done)
    assert len(done) == 1 and done[0].job == number and done[0].load == load
    return done[0]


first = contents()
# three chunks of the first group, one state
chunks = [(0, "v/a"), (0, "v/b"), (0, "v/c"), (1, "v/state")]
runs = [(0, 8, [3, 1, 4, 15, 9, 2, 6, 5, 8, 7, 10, 0]), (1, 3, [11])]
d = move(False, chunks, runs)
assert not d.failed and not d.error and d.size, d
with open(f"{s.mnt}/v/a", "rb") as f:
    data = f.read()
want = b"".join(first[i][page(t, b)] for i, t in enumerate(tensors) for b in (3, 1, 4, 15))
assert data == want + bytes(65536 - len(want))
assert os.path.getsize(f"{s.mnt}/v/state") == SLOTS * 512
wipe()
d = move(True, chunks, runs)
assert not d.failed, d
now = contents()
for i, t in enumerate(tensors):
    for b in range(BLOCKS_OF_CACHE):
        stored = b in runs[0][2]
        assert now[i][page(t, b)] == (first[i][page(t, b)] if stored else bytes(PAGES[i])), (i, b)
assert now[2][page(states[0], 11)] == first[2][page(states[0], 11)]
# a load of the end of the first chunk and of the beginning of the last
wipe()
d = move(True, chunks[:3], [(0, 2, [12, 13, 9, 2, 6, 5, 14])])
assert not d.failed
now = contents()
for to, was in ((12, 4), (13, 15), (14, 8)):
    assert now[0][page(tensors[0], to)] == first[0][page(tensors[0], was)]
assert not any(now[0][page(tensors[0], 3)])

# stores: an existing file is left; chunks with absent blocks are not stored, and that is no error
before = os.stat(f"{s.mnt}/v/a").st_ino
wipe()
d = move(False, [(0, "v/a"), (0, "v/d")], [(0, 0, list(range(8)))])
assert not d.failed and os.stat(f"{s.mnt}/v/a").st_ino == before
with open(f"{s.mnt}/v/a", "rb") as f:
    assert f.read() == data
d = move(False, [(0, "v/e"), (0, "v/f")], [(0, 1, list(range(7)))])
assert d.failed == [0] and not d.error and not os.path.exists(f"{s.mnt}/v/e")
assert os.path.exists(f"{s.mnt}/v/f")
# recurrent states: a chunk consists of the state of its last slot
d = move(False, [(1, "v/s2")], [(1, 0, [1, 2, 3, 4])])
assert not d.failed and os.path.getsize(f"{s.mnt}/v/s2") == SLOTS * 512
d = move(False, [(1, "v/s3")], [(1, 0, [1, 2])])
assert d.failed == [0] and not d.error and not os.path.exists(f"{s.mnt}/v/s3")
d = move(True, [(1, "v/s2")], [(1, 2, [1, 2])])
assert d.failed == [0] and "does not have" in d.error

# blocks and chunks that do not match; nothing is stored
for bad_chunks, bad_runs in (([(0, "v/x")], [(0, 0, list(range(8)))]),
                             ([(0, "v/x"), (0, "v/y")], [(0, 0, [1, 2, 3, 4])]),
                             ([(1, "v/x")], [(0, 0, [1, 2, 3, 4])]),
                             ([(0, "v/x")], [(0, 0, [1, 2, 3, BLOCKS_OF_CACHE])])):
    for load in (False, True):
        d = move(load, bad_chunks, bad_runs)
        assert d.failed == list(range(len(bad_chunks))) and d.error, d
assert not os.path.exists(f"{s.mnt}/v/x")
refused(ValueError, "do not fit", _chunkfiles.ChunkFiles, s.mnt,
        [_chunkfiles.Group(whole.pages, SLOTS, 4096)], reports=_lookups.Reports(log))

# a missing file fails alone; short and long files too, and they are removed for the next store
os.unlink(f"{s.mnt}/v/b")
os.truncate(f"{s.mnt}/v/c", 100)
with open(f"{s.mnt}/v/d", "ab") as f:
    f.write(b"more")
d = move(True, [(0, f"v/{c}") for c in "abcd"], [(0, 0, list(range(16)))])
assert d.failed == [1, 2, 3] and d.error, d
wait_for(lambda: not os.path.exists(f"{s.mnt}/v/c") and not os.path.exists(f"{s.mnt}/v/d"))
assert os.path.exists(f"{s.mnt}/v/a")
assert any("could not be loaded" in line for line in said), said

# a quota that is full of open files
os.makedirs(f"{s.mnt}/small")
os.setxattr(f"{s.mnt}/small", "user.kvcachefs.quota", b"1M")
with open(f"{s.mnt}/small/open", "wb") as f:
    f.write(bytes(1000 << 10))
    f.flush()
    d = move(False, [(0, "small/a")], [(0, 0, [0, 1, 2, 3])])
    assert d.failed == [0] and d.error and not os.path.exists(f"{s.mnt}/small/a"), d

# ---- Lookups -------------------------------------------------------------------------------------

ranks = 2
paths = lambda key: [f"l_r{r}/{key}" for r in range(ranks)]
for r in range(ranks):
    os.makedirs(f"{s.mnt}/l_r{r}")
    os.setxattr(f"{s.mnt}/l_r{r}", "user.kvcachefs.unit", b"file")
for key in "abcdefg":
    for p in paths(key):
        with open(f"{s.mnt}/{p}", "wb") as f:
            f.write(blob(p, 8192))
os.unlink(f"{s.mnt}/l_r1/e")
s.settle()


def lookups(**more):
    return _lookups.Lookups(s.mnt, paths, per=ranks, reports=_lookups.Reports(log), **more)


def answers(l, name, keys, series=0):
    """As an engine asks: all keys in a step, and again in later steps."""
    got = [l.ask(name, k, series) for k in keys]
    l.flush()

    def known():
        assert l.pending or all(l.ask(name, k, series) is not None for k in keys)
        l.take()
        return all(l.ask(name, k, series) is not None for k in keys)
    if None in got:
        wait_for(known)
    return [l.ask(name, k, series) for k in keys]


l = lookups()
l.begin("one")
assert l.ask("nobody", "a", 0) is False
assert answers(l, "one", "abcdefg") == [True] * 4 + [False] * 3
assert l.held_bytes == 8 * 8192 and held() == 1
assert all(s.attr(f"l_r{r}/a", "state").startswith("resident") for r in range(ranks))
assert answers(l, "one", "xga", None) == [False, False, True]  # answered above: g
l.begin("two")
assert answers(l, "two", "gea", None) == [True, False, True] and held() == 1
l.hold("two", "ga")
wait_for(lambda: l.take() or not l._calls)
assert held() == 2
l.loaded("two")
wait_for(lambda: held() == 1)
l.hold("one", "abcd")  # they are held already
l.running("one")  # the request begins its loads
l.refuse("one", "b")
assert l.held_bytes
l.loaded("one")
wait_for(lambda: held() == 0)
assert not l.held_bytes
assert answers(l, "one", "ab") == [True, False]
l.running("one")
wait_for(lambda: held() == 0)
assert answers(l, "one", "ab") == [True, False]  # answers stay valid without the lease
l.forget("one")
assert answers(l, "one", "a") == [True]
l.end("one")
l.end("two")
wait_for(lambda: held() == 0)
assert l.counts["hits"] and l.counts["misses"] and not l.counts["lookup_failures"]
# parents of stored keys: the files of a key, and then those of the next
l.chain([("f", None), ("g", "f"), ("gone", "g")])


def parent(path):
    try:
        return os.getxattr(f"{s.mnt}/{path}", "user.kvcachefs.parent").decode()
    except OSError as e:
        assert e.errno == errno.ENODATA
        return ""


# the parent of the last file is known from an earlier lease
wait_for(lambda: [parent(f"l_r{r}/{k}") for k in "fg" for r in range(ranks)] ==
         ["", "/l_r0/f", "/l_r1/f", "/l_r0/g"])
# a request that ends before its answer leaves no lease
l.begin("three")
l.ask("three", "a", 0)
l.flush()
l.end("three")
assert not l.pending
wait_for(lambda: l.take() or not l._calls)
wait_for(lambda: held() == 0)
l.close()

# hints and parents that wait for the mount do not hold up questions
l = lookups(timeout=60)
told, begun, real_hint = threading.Event(), [], _lookups.hint
_lookups.hint = lambda *_, **__: begun.append(1) or told.wait()
for _ in range(2 * _lookups.THREADS):
    l.hint("ab", finished=True)
wait_for(lambda: len(begun) == _lookups.THREADS)
l.begin("one")
assert answers(l, "one", "ae", None) == [True, False]
names = set(l.counts)
told.set()
l.close()
wait_for(lambda: len(begun) == 2 * _lookups.THREADS)
_lookups.hint = real_hint
# close() drops a lease that was taken before its answer was asked for
l = lookups()
l.begin("one")
l.ask("one", "a", 0)
l.flush()
wait_for(held)
l.close()
wait_for(lambda: held() == 0)
# wrong hints end no thread: leases still end. They add no name to the counts, because another
# thread may iterate over these
l = lookups()
for i in range(_lookups.THREADS + 1):
    l.hint("a", tenant="\ud800")
wait_for(lambda: l.counts["hint_failures"] == _lookups.THREADS + 1)
assert any("the hint tenant failed" in line for line in said), said
assert set(l.counts) == names
l.begin("one")
assert answers(l, "one", "a") == [True] and held() == 1
l.end("one")
wait_for(lambda: held() == 0)
l.close()

# more keys than one call accepts; and a limit of the bytes that are held
many = [f"m{i}" for i in range(2 * _lookups.SLICE + 3)]
for key in many:
    for p in paths(key):
        with open(f"{s.mnt}/{p}", "wb") as f:
            f.write(b"1")
os.unlink(f"{s.mnt}/l_r0/{many[-2]}")
l = lookups(held_most=8192)
l.begin("one")
assert answers(l, "one", many) == [True] * (len(many) - 2) + [False] * 2
l.begin("two")
assert answers(l, "two", "abcd") == [True] * 4 and l.held_bytes < 8192
l.close()
wait_for(lambda: held() == 0)

# a tier that is late: a miss in time, other lookups go on, and the lease that arrives later ends
l = lookups(timeout=0.5)
evict(s, "l_r0/b")
open(flag, "w").close()
l.begin("late")
l.begin("other")
began = time.monotonic()
assert answers(l, "late", "ab") == [False, False] and time.monotonic() - began >= 0.5
l._timeout = 60  # a busy machine may be late, too
assert answers(l, "other", "a") == [True]
assert l.counts["lookup_timeouts"] == 1 and not l.pending
os.unlink(flag)
wait_for(lambda: l.take() or not l._late)
l.end("late")
l.end("other")
wait_for(lambda: held() == 0)

# a stopped daemon: lookups become misses after the timeout. Later lookups are misses at once, but
# one of them, the probe, is sent
freeze(s.daemon.pid)
l._timeout = 0.5
try:
    for i in range(_lookups.LATE_MOST):
        l.begin(i)
        assert answers(l, i, "a") == [False]
    l.begin("probe")
    l.begin("at once")
    calls = l.counts["lookups"]
    l.ask("probe", "a", 0)
    l.ask("at once", "a", 0)
    l.ask("at once", "b", None)
    l.flush()
    assert [l.ask("at once", k) for k in "ab"] == [False, False]
    assert l.ask("probe", "a") is None and l.counts["lookups"] == calls + 1
    # the end does not wait for the mount
    ends = lookups()
    ends.begin("one")
    ends.ask("one", "a", 0)
    ends.flush()
    closing = threading.Thread(target=ends.close, daemon=True)
    closing.start()
    wait_for(lambda: not closing.is_alive(), seconds=30)
finally:
    s.daemon.send_signal(signal.SIGCONT)
wait_for(lambda: l.take() or not l._late)
l._timeout = 60
l.begin("after")
assert answers(l, "after", "abcd") == [True] * 4
l.close()
assert any("lookups are misses until it does" in line for line in said), said

# a daemon that dies, with a load, a store and lookups in progress; then the next daemon
l = lookups(timeout=20)
l.begin("one")
s.settle()
evict(s, "v/a", "l_r0/b")
open(flag, "w").close()
l.ask("one", "a", 0)
l.ask("one", "b", 0)
l.flush()
files.submit(1000, True, [(0, "v/a")], [(0, 0, [0, 1, 2, 3])])
wait_for(lambda: s.attr("v/a", "state") == "loading")
s.kill()
files.submit(1001, False, [(0, "v/new")], [(0, 0, [0, 1, 2, 3])])
done = []
wait_for(lambda: done.extend(files.finished()) or len(done) == 2)
assert all(d.failed == [0] and d.error for d in done), done
assert answers(l, "one", "ab") == [False, False]
l.begin("two")
assert answers(l, "two", "a") == [False] and answers(l, "two", "a", None) == [False]
assert l.counts["lookup_failures"] >= 2
os.unlink(flag)
s.mount()
l.begin("three")
assert answers(l, "three", "abcd") == [True] * 4
assert not move(False, [(0, "v/new")], [(0, 0, [0, 1, 2, 3])]).failed
assert not move(True, [(0, "v/new"), (0, "v/a")], [(0, 0, list(range(8)))]).failed
l.close()
files.close()

# ---- Known keys ----------------------------------------------------------------------------------

k = _lookups.Known(most=3)
assert k.start("ab") == ["a", "b"] and k.start("abc") == ["c"] and len(k) == 0
k.stored("ab", failed="b")
assert k.start("ab") == ["b"]
k.stored("b")
k.add("d")
k.add("e")
assert len(k) == 3 and k.start("a") == ["a"]
k.drop("e")
assert k.start("be") == ["e"]
k.clear()
assert k.start("abc") == ["a", "b", "c"] and len(k) == 0

wait_for(lambda: held() == 0)
s.umount()
