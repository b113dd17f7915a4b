# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Items made of parts in host memory, pages, skipped files, exists(), leases on a queue, a queue's
descriptor, and buffers that are named at publishing: results, errors, and failures of the mount."""
import asyncio, ctypes, errno, os, select, signal, threading
from kvtest import *
from tensors import *

flag = f"{TMP}/slow.flag"
kv.map_cache(0)
s = Store(options=f"settle=0,shim=delay-get:60000+delay-while:{flag}", size="512M",
          cpu="128M").mount()
PAGES, SIZE, LAYERS = 16, 3000, 4
tensors = [Memory(PAGES, SIZE, size=1) for _ in range(LAYERS)]
for seed, t in enumerate(tensors):
    t.fill(seed)
pages = kv.Pages(tensors)
IDS = [3, 4, 5, -1, 9]
assert pages.page_bytes == LAYERS * SIZE and pages.blocks == PAGES
queue = kv.Queue(s.mnt, 2)


def content(ids, by_block=False):
    page = [[bytes(t.data[i * SIZE:(i + 1) * SIZE]) if i >= 0 else bytes(SIZE) for i in ids]
            for t in tensors]
    return b"".join(b"".join(p) for p in (zip(*page) if by_block else page))


def ended(job):
    """Waits for the queue's descriptor and takes only this job."""
    poll = select.poll()
    poll.register(queue.fileno(), select.POLLIN)
    assert poll.poll(60000 * SLOW)
    assert queue.take() == [job] and not poll.poll(0) and queue.take() == []
    return job


def errors(*items, load=False):
    t = (queue.load if load else queue.store)(list(items))
    assert t.join() and queue.take() == [t]
    return [i.error.errno if i.error else 0 for i in items]


# ---- Pages and parts -----------------------------------------------------------------------------

for by_block in (False, True):
    parts = pages.parts(IDS, by_block)
    assert parts.size == 5 * LAYERS * SIZE and len(parts) == (16 if by_block else 2 * LAYERS)
    t = ended(queue.store([kv.Item(f"m/a/{by_block}", parts=parts)]))
    assert not t.error and t.bytes == 4 * LAYERS * SIZE and t.seconds > 0 and not t.skipped
    assert s.read(f"m/a/{by_block}") == content(IDS, by_block)
    back = [Memory(PAGES, SIZE, size=1) for _ in range(LAYERS)]
    t = ended(queue.load([kv.Item(f"m/a/{by_block}", parts=kv.Pages(back).parts(IDS, by_block))]))
    assert not t.error
    for b, of in zip(back, tensors):
        for i in range(PAGES):
            assert b.data[i * SIZE:(i + 1) * SIZE] == \
                (of.data[i * SIZE:(i + 1) * SIZE] if i in IDS else bytes(SIZE))
refused(IndexError, "block 16", pages.parts, [16])
# one page of one tensor, whose pages are apart; a hole
apart = kv.Pages([View(tensors[0], (PAGES // 2, SIZE), (2 * SIZE, 1))])
for i in (0, 5):
    assert errors(kv.Item(f"m/a/one{i}", parts=apart.parts([i]))) == [0]
    assert s.read(f"m/a/one{i}") == bytes(tensors[0].data[2 * i * SIZE:][:SIZE])
assert errors(kv.Item("m/a/hole", parts=apart.parts([-1]))) == [0]
assert s.read("m/a/hole") == bytes(SIZE) and len(apart.parts([])) == 0
refused(IndexError, "block 8", apart.parts, [8])
refused(TypeError, "", apart.parts, [1.5])
refused(ValueError, "contiguous", kv.Pages,
        [View(tensors[0], (4, 10, 10), (1000, 20, 1))])
# any memory; bytes that no part holds are zero, up to the given length
view = memoryview(bytearray(b"view"))
item = kv.Item("m/a/any", parts=kv.Parts([(b"bytes", 10), (bytearray(b"array"), 0), (view, 20)]),
               size=30)
assert errors(item) == [0]
assert s.read("m/a/any") == b"array\0\0\0\0\0bytes\0\0\0\0\0view" + bytes(6)
# read-only memory is for stores; the part keeps it
fixed = [memoryview(b"fixed memory")[2:8], memoryview(bytes(range(6))).cast("B", (2, 3)),
         memoryview(bytearray(b"frozen")).toreadonly()]
parts = kv.Parts([(memory, i * 6) for i, memory in enumerate(fixed)])
assert parts.readonly
del fixed
assert errors(kv.Item("m/a/fixed", parts=parts)) == [0]
assert s.read("m/a/fixed") == b"xed me" + bytes(range(6)) + b"frozen"
refused(ValueError, "read-only", queue.load, [kv.Item("m/a/fixed", parts=parts)])
refused(ValueError, "contiguous", kv.Parts, [(memoryview(b"strides")[::2], 0)])
grows = bytearray(b"grows")
parts = kv.Parts([(grows, 0)])
refused(BufferError, "", grows.append, 1)
del parts
grows.append(1)
raw = (ctypes.c_uint64 * 3)(tensors[0].data_ptr(), SIZE, 7)
assert errors(kv.Item("m/a/raw", parts=kv.Parts.raw(raw))) == [0]
assert s.read("m/a/raw") == bytes(7) + bytes(tensors[0].data[:SIZE])
# a file of its own for each layer's step, and one file in several items of a load
one = bytearray(5)
two = bytearray(4)
load = queue.load([kv.Item("m/a/any", parts=kv.Parts([(two, 20)]), layer=1),
                   kv.Item("m/a/any", parts=kv.Parts([(one, 0)]), layer=0)])
load.wait_layer(0)
assert one == b"array"
load.wait()
assert two == b"view" and queue.take() == [load]
# larger than any buffer, and more files than stay open
large = bytearray(os.urandom(5 * MiB))
many = [kv.Item(f"m/many/{i}", parts=kv.Parts([(large, 0)] if not i else [(b"%d" % i, 0)]))
        for i in range(200)]
assert not any(errors(*many))
assert s.read("m/many/0") == large and all(s.read(f"m/many/{i}") == b"%d" % i
                                           for i in range(1, 200))
assert not temporaries(s)
asyncio.run(kv.store(s.mnt, None, [kv.Item("m/a/task", parts=kv.Parts([(b"x", 0)]))])._complete())
assert s.read("m/a/task") == b"x"

# ---- Wrong parts ---------------------------------------------------------------------------------

x = kv.Parts([(b"x", 0)])
assert errors(kv.Item("m/w/1", parts=kv.Parts.raw([(1, 0, 0)])),
              kv.Item("m/w/2", parts=kv.Parts.raw([(0, 1, 0)])),
              kv.Item("m/w/3", parts=kv.Parts([(b"ab", 0), (b"cd", 1)])),
              kv.Item("m/w/4", parts=kv.Parts([(b"cd", 9), (b"ab", 0), (b"ef", 8)])),
              kv.Item("m/w/5", parts=kv.Parts([(b"a", (1 << 62) + 1)])),
              kv.Item("m/w/6", parts=kv.Parts([(b"a", (1 << 64) - 1)])),
              kv.Item("m/w/7", parts=kv.Parts([(b"ab", 0)]), size=1),
              kv.Item("m/w/8", parts=x)) == \
    [errno.EINVAL] * 4 + [errno.ERANGE] * 3 + [0]
assert sorted(os.listdir(f"{s.mnt}/m/w")) == ["8"]
memory = (ctypes.c_ubyte * 20)()
at = ctypes.addressof(memory)
assert errors(kv.Item("m/a/any", parts=kv.Parts.raw([(at, 10, 0), (at + 9, 5, 10)])),
              kv.Item("m/a/any", parts=kv.Parts.raw([(at, 20, 20)])),
              kv.Item("m/a/any", parts=kv.Parts.raw([(at, 1, 0)]), size=31),
              kv.Item("m/a/none", parts=kv.Parts.raw([(at, 1, 0)])),
              kv.Item("m/a", parts=kv.Parts.raw([(at, 1, 0)])), load=True) == \
    [errno.EINVAL, errno.ERANGE, errno.EPROTOTYPE, errno.ENOENT, errno.EISDIR]
assert bytes(memory) == bytes(20)
most = kv.Parts._made((kv._lib.Part * ((1 << 20) + 1))(), (1 << 20) + 1, 0, -1, False, None)
wrong(errno.E2BIG, queue.store, [kv.Item("m/w/9", parts=most)])
wrong(errno.E2BIG, queue.store, [kv.Item("m/w/9", parts=most), kv.Item("m/w/8", parts=x)])
refused(ValueError, "read-only", queue.load, [kv.Item("m/a/any", parts=x)])
refused(ValueError, "either", queue.store, [kv.Item("m/w/9", BLOCKS, parts=x)])
refused(ValueError, "tokens or parts", queue.store, [kv.Item("m/w/9")])
refused(ValueError, "need a cache", queue.store, [kv.Item("m/w/9", BLOCKS)])

# ---- Existing files ------------------------------------------------------------------------------

new = kv.Parts([(b"new", 0)])
items = [kv.Item(p, parts=new, skip_existing=True) for p in ("m/a/any", "m/s/1", "m/s/2")]
t = ended(queue.store(items))
assert [i.skipped for i in items] == [True, False, False] and t.skipped == 1 and t.bytes == 6
assert s.read("m/a/any")[:5] == b"array" and s.read("m/s/1") == b"new"
t = ended(queue.store([kv.Item("m/s/1", parts=kv.Parts([(b"other", 0)]))]))  # replaces it
assert s.read("m/s/1") == b"other" and not temporaries(s)
tensors2, cache = made("NL_X_TWO_NB_BS_NH_HS")
both = [kv.Item("m/s/tokens", BLOCKS, skip_existing=True),
        kv.Item("m/s/parts", parts=new, skip_existing=True)]
for turn in range(2):
    t = ended(queue.store(both, cache=cache))
    assert [i.skipped for i in both] == [bool(turn)] * 2 and t.skipped == 2 * turn
# one of several concurrent stores writes the file
turns = [kv.Queue(s.mnt, 1) for _ in range(4)]
for r in range(20):
    jobs = [q.store([kv.Item(f"m/race/{r}", parts=kv.Parts([(b"%d" % i, 0)]), skip_existing=True)])
            for i, q in enumerate(turns)]
    for j in jobs:
        j.wait()
    stored = [b"%d" % i for i, j in enumerate(jobs) if not j.skipped]
    assert stored == [s.read(f"m/race/{r}")], stored
for q in turns:
    q.close()
assert not temporaries(s)
paths = ["m/a/any", "m/a/none", "m/s/1", "m/s/2"]
assert kv.exists(s.mnt, paths) == [True, False, True, True]
assert kv.exists(s.mnt, paths, per=2) == [False, True]
assert kv.exists(s.mnt, []) == []
evict(s, "m/s/1")
assert kv.exists(s.mnt, paths, tiers=False)[:3] == [True, False, False]
assert kv.exists(s.mnt, paths * 300, per=4) == [False] * 300
wrong(errno.EINVAL, kv.exists, s.mnt, paths, per=3)
wrong(errno.EINVAL, kv.exists, s.mnt, ["a\nb"])
wrong(errno.ENOENT, kv.exists, f"{TMP}/none", paths)

# ---- Leases --------------------------------------------------------------------------------------

r = ended(queue.lease(["m/a/any", "m/s/1", "m/a/none", "m/s/2"]))
assert r.count == 2 and not r.error and r.bytes == 35 and len(r.lease.objects) == 2
assert kv.exists(s.mnt, ["m/s/1"], tiers=False) == [True] and held() == 1
r.lease.close()
assert held() == 0
r = ended(queue.lease(["m/a/any", "m/s/1", "m/a/none", "m/s/2"], per=2))
assert r.count == 1 and len(r.lease) == 2
r = ended(queue.lease(["m/a/any", "m/a/none", "m/s/1", "m/s/2"], per=2, prefix=False))
assert r.count == 1 and [o.errno for o in r.lease] == [0, errno.ENOENT, 0, 0]
r = ended(queue.lease(["m/a/none", "m/s/1"]))
assert r.count == 0 and r.lease is None and not r.error and held() == 0
assert ended(queue.lease([])).count == 0
wrong(errno.EINVAL, queue.lease, paths, per=3)
wrong(errno.EINVAL, queue.lease, ["a\nb"])
count, lease = asyncio.run(queue.lease(["m/a/any"])._complete())
assert count == 1 and len(queue.take()) == 1
lease.close()
r = queue.lease(["m/a/any"])
assert r.join()
queue.take()
del r  # and with it the lease
assert held() == 0
# leases that wait for a tier delay neither other leases nor transfers
evict(s, "m/s/1", "m/s/2")
open(flag, "w").close()
slow = [queue.lease(["m/s/1"]) for _ in range(20)] + [queue.lease(["m/s/2"], prefix=False)]
wait_for(lambda: s.attr("m/s/1", "state") == "loading")
r = queue.lease(["m/a/any"])
t = queue.store([kv.Item("m/a/beside", parts=x)])
assert r.join(60 * SLOW) and t.join(60 * SLOW) and not any(l.done() for l in slow)
assert not slow[0].join(0.01) and slow[19].cancel() is None
os.unlink(flag)
assert all(l.join(60 * SLOW) for l in slow)
assert {l.count for l in slow[:19]} == {1} and slow[20].count == 1
assert slow[19].error.errno == errno.ECANCELED and slow[19].lease is None
assert set(queue.take()) == {r, t, *slow}
del slow, r, t
assert held() == 0
# a load without a lease waits for its tier too
evict(s, *[f"m/many/{i}" for i in range(1, 9)])
backs = [bytearray(1) for _ in range(1, 9)]
assert not any(errors(*[kv.Item(f"m/many/{i + 1}", parts=kv.Parts([(b, 0)]))
                        for i, b in enumerate(backs)], load=True))
assert backs == [b"%d" % i for i in range(1, 9)]

# ---- Buffers that are named at publishing --------------------------------------------------------

for first, then in (("m/b/x", "m/c/y"), ("m", "m/d/e/z"), ("n/b", "m/q")):
    b = kv.Buffer.new(s.mnt, first, 5)
    with b.data as memory:
        memory[:] = b"12345"
    assert not os.path.exists(f"{s.mnt}/{then}")
    b.publish(then)
    assert s.read(then) == b"12345"
b = kv.Buffer.new(s.mnt, "m/b/x", 5)
wrong(errno.EINVAL, b.publish, "")
assert not temporaries(s) and not os.path.exists(f"{s.mnt}/m/b/x")

# ---- Failures of the mount -----------------------------------------------------------------------

full = bytearray(40 * MiB)
assert errno.ENOSPC in errors(*[kv.Item(f"m/full/{i}", parts=kv.Parts([(full, 0)]))
                                for i in range(20)])
assert not temporaries(s)
s.settle()


def through():
    """Transfers end with errors, and none hangs, if the daemon dies during them."""
    done = []
    while not stop:
        jobs = [queue.store([kv.Item(f"m/kill/{i}-{len(done)}",
                                     parts=kv.Parts([(large, 0)])) for i in range(2)]),
                queue.load([kv.Item("m/many/0", parts=kv.Parts([(bytearray(5 * MiB), 0)]))]),
                queue.lease(["m/many/0", "m/many/1"])]
        for j in jobs:
            assert j.join(60 * SLOW)
        queue.take()
        done.append([j.error for j in jobs])
    return done


stop, results = [], []
worker = threading.Thread(target=lambda: results.append(through()))
worker.start()
wait_for(lambda: len(os.listdir(f"{s.mnt}/m/kill")) > 4 if os.path.exists(f"{s.mnt}/m/kill")
         else False)
s.daemon.send_signal(signal.SIGKILL)
s.daemon.wait()
time.sleep(0.3)
stop.append(1)
worker.join()
assert not any(results[0][0]) and all(results[0][-1]), results[0][-1]
closed = kv.Queue(s.mnt, 1)
closed.close()
wrong(errno.ESHUTDOWN, closed.lease, ["m/a"])
queue.close()
run("umount", "-l", s.mnt)
