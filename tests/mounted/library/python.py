# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""The Python package on a real mount: keys and names match kvcachectl hash; leases and their bytes,
prefixes and plain buffers, stores and loads by polling, by asyncio and layer by layer; the GIL,
cancelling, errors; the example. library/python-queue tests how queues signal completion."""
import asyncio, errno, os, sys, threading
from kvtest import *
from tensors import *

flag = f"{TMP}/slow.flag"
# a get from the tier lasts as long as the flag is there
kv.map_cache(0)  # kept mappings prevent eviction
s = Store(options=f"settle=0,shim=delay-get:60000+delay-while:{flag}", size="512M").mount()

# ---- Keys ----------------------------------------------------------------------------------------

tokens = f"{TMP}/tokens"
prompt = [i * 7919 % 152064 for i in range(600)]
with open(tokens, "w") as f:
    f.write(" ".join(map(str, prompt)))
os.environ["PYTHONHASHSEED"] = "0"
for scheme in kv.schemes():
    said = run(binary("kvcachectl"), "hash", f"{scheme}:64", tokens, ok=True).stdout.split()
    assert kv.chunk_keys(scheme, prompt, block_tokens=64) == said and len(said) == 9, scheme
    grown = kv.Hasher(scheme, block_tokens=64)
    assert [grown.text(k) for n in range(0, 600, 50) for k in grown.feed(prompt[n:n + 50])] == said
for naming, more in (("lmcache-fs", {"world_size": 2}), ("sglang-file", {"tp_size": 2}),
                     ("vllm-fs", {"config": "0123456789ab"}), ("lmcache-l2", {"group": 1}),
                     ("lmcache-disk", {"dtype": "half"})):
    said = run(binary("kvcachectl"), "hash", "--as", naming, "vllm-sha256_cbor:256", tokens, "a/b",
               *[f"{k}={v}" for k, v in more.items()], ok=True).stdout.split()
    keys = kv.chunk_keys("vllm-sha256_cbor", prompt, block_tokens=256)
    names = [kv.Name(model="a/b", key=k, **more) for k in keys]
    assert [kv.build(naming, n) for n in names] == said
    assert all(kv.build(naming, kv.parse(naming, p)) == p for p in said)
wrong(errno.EINVAL, kv.parse, "vllm-fs", "nothing of it")
wrong(errno.EINVAL, kv.Hasher, "nobody")
wrong(errno.EINVAL, kv.Hasher, "vllm-xxhash", seed=None)  # vLLM draws this seed at random
refused(ValueError, "world_size", kv.build, "lmcache-fs", kv.Name("m", "1", world_size=1 << 32))
refused(ValueError, "model", kv.build, "lmcache-fs", kv.Name("m" * 256, "1"))
h = kv.Hasher("lmcache-sha256_cbor", seed="0")
assert h.none.hex() == "4e1195df020de59e" and h.rest() is None and h.key_len == 8
assert h.text(h.feed(range(256))[0]) == "b8a960cfcc69e7a5" and h.feed([1]) == [] and h.rest()
assert [(g.start, g.end) for g in h.segments([1, 2, 9, 3], [9])] == [(0, 2), (3, 4)]
assert [(g.start, g.end) for g in h.segments([9] * 5, [9, 9])] == \
    [(0, 0), (2, 2), (4, 4), (6, 6), (8, 8)]  # as LMCache splits overlapping separators
assert [(g.start, g.end) for g in h.segments([], [9])] == [(0, 0)]
assert kv.example_folder(range(1, 17)) == "de98b0f7ffb9598372b2cd3a11f29e03"
assert kv.key_int(kv.group_key(bytes(32), 7)) == 7 and len(kv.fingerprints(prompt, 256)) == 345
assert kv.blake3(bytes(12)).hex() == kv.Hasher("lmcache-mp-blake3").none.hex()
# published vectors: SGLang's chain of pages, vLLM's integers (sha256_cbor, seed "0")
assert kv.chunk_keys("sglang", range(1, 33), block_tokens=16) == [
    "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07",
    "1170426cf2449cebf4d17f087ce5bb43b6a910ce91b3f40922868e913e8ee91d"]
assert kv.chunk_keys("sglang", [0], block_tokens=1) == [
    "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119"]
for block, ints in (4, [2164874634404590027, 17270480062156288726]), (16, [3236607068019569386]):
    h = kv.Hasher("vllm-sha256_cbor", seed="0", block_tokens=block)
    assert [kv.key_int(k) for k in h.feed(range(1, block * len(ints) + 1))] == ints
seen = []
h = kv.Hasher("vllm-sha256_cbor", embeds=lambda block: seen.append(block) or bytes(32),
              lora_name="l", mm=[("item", 3, 20)], cache_salt="salt")
assert len(h.feed(range(33))) == 2 and seen == [0, 1]
h = kv.Hasher("vllm-sha256_cbor", embeds=lambda block: 1 // block)
refused(ZeroDivisionError, "zero", h.feed, range(16))
refused(ValueError, "after an error", h.feed, range(16))

# ---- Leases --------------------------------------------------------------------------------------

s.write("l/a", b"bytes of a")
s.write("l/b", bytes(100000))
s.write("l/empty", b"")
evict(s, "l/a", "l/b")
assert [o.errno for o in kv.look(s.mnt, ["l/a", "l/b"])] == [errno.ENODATA] * 2
with kv.Lease(s.mnt, ["l", "l/none"]) as lease:
    at = {o.path: o for o in lease}
    assert len(lease) == 4 and at["l/a"].size == 10 and at["l/none"].errno == errno.ENOENT
    view = lease.map("l/a")
    assert view == b"bytes of a" and view.readonly and lease.map("l/empty") == b""
    refused(TypeError, "read-only", view.__setitem__, 0, 1)
    wrong(errno.ENOENT, lease.map, "l/none")
    refused(KeyError, "l/c", lease.map, "l/c")
    refused(IndexError, "4", lease.map, 4)
    wrong(errno.ENOENT, lease.check)
assert held() == 1 and view == b"bytes of a"  # a view keeps its lease
refused(ValueError, "closed", lease.map, 0)
del view
assert held() == 0
wrong(errno.ENOENT, kv.Lease, f"{TMP}/nothing", ["a"])
refused(TypeError, "list", kv.Lease, s.mnt, "l/a")
evict(s, "l/a", "l/b")
kv.prefetch(s.mnt, ["l/a", "l/b"])
wait_for(lambda: not any(o.errno for o in kv.look(s.mnt, ["l/a", "l/b"])))

# ---- Prefixes ------------------------------------------------------------------------------------

for chunk in range(4):
    for layer in range(2):
        s.write(f"p/{chunk}/{layer}", bytes([chunk, layer]) * 3000)
chunks = [f"p/{chunk}" for chunk in range(4)]
assert kv.prefix(s.mnt, [*chunks, "p/none"]) == 4 and kv.prefix(s.mnt, []) == 0
evict(s, "p/1/0", "p/2/1")
os.mkdir(f"{s.mnt}/p/empty")
assert kv.prefix(s.mnt, [*chunks[:2], "p/2/0", "p/2/none", "p/3"]) == 3
assert kv.prefix(s.mnt, [chunks[0], "p/empty", chunks[1]]) == 1 and not held()
assert [o.errno for o in kv.look(s.mnt, ["p/1/0"])] == [errno.ENODATA], "it loads nothing"
wrong(errno.ENOENT, kv.prefix, f"{TMP}/nothing", ["a"])
wrong(errno.EINVAL, kv.prefix, s.mnt, ["a\nb"])
refused(TypeError, "list", kv.prefix, s.mnt, "l/a")
count, lease = kv.Lease.prefix(s.mnt, [*chunks[:3], "p/none"])
assert count == 3 and len(lease) == 6 and held() == 1
assert lease.map("p/1/0") == bytes([1, 0]) * 3000
lease.check()
lease.close()
count, lease = asyncio.run(kv.Lease.take_prefix(s.mnt, ["p/none", "p/0"]))
assert count == 0 and len(lease) == 0 and not held()
lease.close()

# ---- Plain buffers -------------------------------------------------------------------------------

evict(s, "p/3/0")
with kv.Buffer.open(s.mnt, "p/3/0") as buffer:
    assert buffer.readonly and not buffer.pinned and len(buffer) == 6000 and held() == 1
    part = buffer.data[4:8]
    refused(TypeError, "read-only", part.__setitem__, 0, 1)
    refused(ValueError, "read-only", buffer.publish)
assert part == bytes([3, 0, 3, 0]) and held() == 1  # a view keeps its lease
refused(ValueError, "closed", lambda: buffer.data)
del part
assert held() == 0
wrong(errno.ENOENT, kv.Buffer.open, s.mnt, "p/none")
wrong(errno.EISDIR, kv.Buffer.open, s.mnt, "p/3")
with kv.Buffer.new(s.mnt, "b/new", 5000) as buffer:
    view = buffer.data
    assert view == bytes(5000) and not os.path.exists(f"{s.mnt}/b/new") and temporaries(s)
    view[-3:] = b"end"
    part = view[10:20]
    view.release()
    refused(BufferError, "view", buffer.publish)
    part[:2] = b"in"
    part.release()
    pid = os.fork()
    if not pid:
        buffer.close()  # the new file is the parent's
        os._exit(len(temporaries(s)) != 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    buffer.publish()
    refused(ValueError, "closed", buffer.publish)
assert s.read("b/new") == bytes(10) + b"in" + bytes(4985) + b"end" and not temporaries(s)
with kv.Buffer.new(s.mnt, "b/other", 100) as buffer:
    view = buffer.data
view[0] = 1  # its memory stays as long as the view
assert temporaries(s)
del view
assert not temporaries(s) and os.listdir(f"{s.mnt}/b") == ["new"]
kv.Buffer.new(s.mnt, "b/empty", 0).publish()
assert s.read("b/empty") == b"" and kv.Buffer.open(s.mnt, "b/empty").data == b""
wrong(errno.ENOSPC, kv.Buffer.new, s.mnt, "b/huge", 1 << 50)
refused(ValueError, "-1", kv.Buffer.new, s.mnt, "b/huge", -1)
assert not temporaries(s)

# ---- Transfers -----------------------------------------------------------------------------------

tensors, cache = made("NL_X_TWO_NB_BS_NH_HS")
path = "x/{}/{}".format
FAST = 2  # layers
items = kv.layerwise(cache, lambda layer: path("fast" if layer < FAST else "slow", layer), BLOCKS)
kv.store(s.mnt, cache, items).wait()
slow = items[FAST:]


# the GIL is released: while the library's call waits for its tier, this thread goes on
def while_slow(what):
    evict(s, *[i.path for i in slow])
    open(flag, "w").close()
    what(slow[0])


def gil(item):
    kv.workers(1)
    load = kv.load(s.mnt, cache, [item])
    wait_for(lambda: s.attr(item.path, "state") == "loading")
    assert not load.poll()
    refused(TimeoutError, "not complete", load.wait, 0)
    queued = kv.load(s.mnt, cache, items[:1])
    queued.cancel()
    wrong(errno.ECANCELED, queued.poll)
    assert not load.done() and queued.done() and items[0].error.errno == errno.ECANCELED
    os.unlink(flag)
    load.wait()
    assert load.poll()
    queued.cancel()  # no effect any more
    kv.workers(8)


def gil_of_a_lease(item):
    got = []
    t = threading.Thread(target=lambda: got.append(kv.Lease(s.mnt, [item.path])))
    t.start()
    wait_for(lambda: s.attr(item.path, "state") == "loading")
    assert not got
    os.unlink(flag)
    t.join()
    assert got[0].objects[0].errno == 0
    got[0].close()


while_slow(gil)
while_slow(gil_of_a_lease)


async def many():
    """More transfers than threads."""
    caches = [made("NL_X_NB_TWO_BS_NH_HS")[1] for _ in range(20)]
    each = [kv.layerwise(c, lambda layer, n=n: path(n, layer), BLOCKS)
            for n, c in enumerate(caches)]
    for c in caches:
        c.tensors[0].fill(caches.index(c))
    await asyncio.gather(*[kv.store(s.mnt, c, e) for c, e in zip(caches, each)])
    was = [c.gather(BLOCKS) for c in caches]
    for c in caches:
        c.scatter(BLOCKS, bytes(len(was[0])))
    loads = [kv.load(s.mnt, c, e) for c, e in zip(caches, each)]
    await asyncio.gather(*loads)
    assert [c.gather(BLOCKS) for c in caches] == was and all(l.poll() for l in loads)
    async with kv.load(s.mnt, caches[0], each[0]) as load:
        assert [layer async for layer in load.layers()] == list(range(NL))
    lease = await kv.Lease.take(s.mnt, [path(0, 0)])
    assert lease.objects[0].errno == 0
    lease.close()


async def layer_by_layer():
    """The first layers are loaded and used while the tier of the others does not answer."""
    evict(s, *[i.path for i in slow])
    open(flag, "w").close()
    whole = cache.gather(BLOCKS)
    cache.scatter(BLOCKS, bytes(len(whole)))
    load, seen = kv.load(s.mnt, cache, items), []
    async for layer in load.layers():
        seen.append(layer)
        assert cache.gather(BLOCKS, layer, 1) == s.read(items[layer].path)
        if layer == FAST - 1:
            assert not load.poll() and load.poll_layer(0) and not load.poll_layer(FAST)
            load.wait_layer(0, 0)
            refused(TimeoutError, "not done", load.wait_layer, FAST, 0)
            refused(TimeoutError, "not done", load.wait_layer, FAST, 0.01)
            os.unlink(flag)
    assert seen == list(range(NL)) and load.poll() and cache.gather(BLOCKS) == whole


async def cancelled():
    """No data moves after the CancelledError: work in progress has ended, and the rest never
    begins."""
    kv.workers(1)
    evict(s, *[i.path for i in slow])
    open(flag, "w").close()
    load = kv.load(s.mnt, cache, slow)
    task = asyncio.ensure_future(load)
    await asyncio.to_thread(wait_for, lambda: s.attr(slow[0].path, "state") == "loading")
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # and once more while it waits
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done and not load.done()
    os.unlink(flag)
    await asyncio.wait([task])
    assert task.cancelled() and load.items[0].error is None
    assert [i.error.errno for i in slow[1:]] == [errno.ECANCELED] * (NL - FAST - 1)
    wrong(errno.ECANCELED, load.wait)
    kv.workers(8)


async def no_lease():
    """A lease whose task was cancelled while it waited is released when it arrives."""
    evict(s, *[i.path for i in slow])
    open(flag, "w").close()
    task = asyncio.ensure_future(kv.Lease.take(s.mnt, [slow[0].path]))
    await asyncio.to_thread(wait_for, lambda: s.attr(slow[0].path, "state") == "loading")
    assert held() == 1
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    os.unlink(flag)


asyncio.run(many())
asyncio.run(layer_by_layer())
asyncio.run(cancelled())
asyncio.run(no_lease())
wait_for(lambda: not held())
s.settle()
assert not temporaries(s)

# ---- Errors --------------------------------------------------------------------------------------

missing = kv.layerwise(cache, lambda layer: items[layer].path, BLOCKS)
missing[3].path = "x/none"
load = kv.load(s.mnt, cache, missing)
assert "x/none" in wrong(errno.ENOENT, load.wait).strerror
assert [i.error is None for i in missing] == [True, True, True, False, True]
wrong(errno.ENOENT, load.poll)
load.wait_layer(2)
for layer in 3, 4:  # the failed layer, and the next one
    assert "x/none" in wrong(errno.ENOENT, load.wait_layer, layer).strerror
    wrong(errno.ENOENT, load.poll_layer, layer)
wrong(errno.EPROTOTYPE,
      kv.load(s.mnt, cache, [kv.Item(items[0].path, SLOTS, 0, 1)]).wait)
wrong(errno.ERANGE, kv.store(s.mnt, cache, [kv.Item("x/out", kv.Tokens(blocks=[NB]))]).wait)
assert not os.path.exists(f"{s.mnt}/x/out")
wrong(errno.ENOENT, kv.load(f"{TMP}/nothing", cache, items).wait)
refused(ValueError, "outside", kv.load, s.mnt, cache, [kv.Item("x/a", BLOCKS, NL)])
refused(ValueError, "by blocks or by slots", kv.Tokens)
refused(ValueError, "bytes, not 3", cache.scatter, BLOCKS, b"abc")
kv.store(s.mnt, cache, []).wait()


async def raised():
    try:
        await kv.load(s.mnt, cache, missing)
    except kv.Error as e:
        assert e.errno == errno.ENOENT
    else:
        raise AssertionError("no error")
asyncio.run(raised())

# ---- The example ---------------------------------------------------------------------------------

env = dict(os.environ, PYTHONPATH=package.SOURCE)
if MODE != "asan":
    p = run(sys.executable, "-m", "kvcachefs.examples.layers", s.mnt, env=env)
    assert p.returncode == 0 and "loaded again: the same" in p.stdout, p.stdout
    assert p.stdout.count("is there") == 8 and "2 of 3 chunks are cached" in p.stdout, p.stdout
    p = run(sys.executable, "-m", "kvcachefs.examples.layers", f"{TMP}/nothing", env=env)
    assert p.returncode == 1 and len(p.stdout.splitlines()) == 1, p.stdout
s.umount()
s.fsck()
