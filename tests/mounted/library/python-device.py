# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The Python package with device tensors, under tests/fakecuda. A store gets the data that its
stream wrote before, and a stream that waits for a layer continues after it, before the device has
begun. Completion by polling, asyncio and layer by layer; pinned buffers."""
import asyncio, ctypes, errno, os, threading
from kvtest import *
import package

FAKE = f"{BUILD}/lib/libkvcachefs_fake.so"
os.environ["KVCACHEFS_LIBRARY"] = FAKE
import kvcachefs as kv
from kvcachefs.examples.layers import Memory

cuda = ctypes.CDLL(FAKE)
Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NB, NL = 8, 4
BLOCKS = kv.Tokens(blocks=[6, 1, 3])


class OnDevice(Memory):
    device = "cuda:0"

    def __init__(self, *shape):
        super().__init__(*shape)
        self.at = ctypes.c_void_p()
        assert not cuda.cudaMalloc(ctypes.byref(self.at), ctypes.c_size_t(len(self.data)))

    def data_ptr(self):
        return self.at.value

    def put(self):
        ctypes.memmove(self.at, bytes(self.data), len(self.data))

    def get(self):
        return ctypes.string_at(self.at, len(self.data))


class Stream:
    """A stream like torch's, which also runs a given function in its order."""

    def __init__(self):
        self.h, self.kept = ctypes.c_void_p(), []
        assert not cuda.cudaStreamCreateWithFlags(ctypes.byref(self.h), 0)
        self.cuda_stream = self.h.value

    def then(self, what):
        self.kept.append(Function(lambda _: what()))
        assert not cuda.cudaLaunchHostFunc(self.h, self.kept[-1], None)


s = Store().mount()
tensors = [OnDevice(2, NB, 4, 3, 16) for _ in range(NL)]
cache = kv.Paged(tensors, "NL_X_TWO_NB_BS_NH_HS")
host = kv.Paged([Memory(*t.shape) for t in tensors], "NL_X_TWO_NB_BS_NH_HS")
assert cache.device == 0 and host.device == -1
items = kv.layerwise(cache, lambda layer: f"m/c/{layer}", BLOCKS)
gate, stream = threading.Event(), Stream()


def late():
    gate.wait()
    for i, (t, h) in enumerate(zip(tensors, host.tensors)):
        t.fill(i)
        h.fill(i)
        t.put()


stream.then(late)
store = kv.store(s.mnt, cache, items, stream=stream)
assert not store.poll() and not any(os.path.exists(f"{s.mnt}/{i.path}") for i in items)
assert not store.poll_layer(NL - 1)
store.wait_layer(0)  # on the stream, which has not begun
stream.then(lambda: ctypes.memset(tensors[0].at, 0xff, len(tensors[0].data)))
gate.set()
store.wait()
for item in items:
    assert s.read(item.path) == host.gather(BLOCKS, item.layer, 1)
host.scatter(kv.Tokens(blocks=[b for b in range(NB) if b not in (1, 3, 6)]),
             bytes(5 * len(host.gather(kv.Tokens(blocks=[0])))))


def wipe():
    for t in tensors:
        ctypes.memset(t.at, 0, len(t.data))


async def load():
    seen, ended, other, first = [], asyncio.Event(), Stream(), []
    loop = asyncio.get_running_loop()
    gate.clear()
    stream.then(lambda: (gate.wait(), wipe()))
    load = kv.load(s.mnt, cache, items, stream=stream)
    assert not load.poll() and not load.poll_layer(NL - 1)
    await load.layer(0)
    stream.then(lambda: first.append(tensors[0].get()))
    await load.layer(0, stream=other)
    other.then(lambda: first.append(tensors[0].get()))
    assert not first and not load.done()
    gate.set()
    async for layer in load.layers(stream=other):
        other.then(lambda at=layer: seen.append(tensors[at].get()))
    other.then(lambda: loop.call_soon_threadsafe(ended.set))
    await load
    await ended.wait()
    await asyncio.to_thread(wait_for, lambda: len(first) == 2)
    assert seen == [bytes(h.data) for h in host.tensors] and first == seen[:1] * 2
asyncio.run(load())
items[2].path = "m/none"
load = kv.load(s.mnt, cache, items, stream=stream)
try:
    load.wait()
    raise AssertionError("no error")
except kv.Error as e:
    assert e.errno == errno.ENOENT
assert [i.error is None for i in items] == [True, True, False, True]
moved = kv.gpu_stats()
kv.warm(s.mnt, cache, items, keep_s=60)
assert sum(kv.gpu_stats()[:3]) > sum(moved[:3]) > 0, (moved, kv.gpu_stats())
assert s.stats()["files_open"] >= NL, s.stats()  # ready, without a name
assert not os.path.exists(f"{s.mnt}/m/none")
try:
    kv.warm(s.mnt, cache, items, transfers=9)
    raise AssertionError("no error")
except kv.Error as e:
    assert e.errno == errno.EINVAL
with kv.Buffer.open(s.mnt, items[0].path, device=0) as buffer:
    assert buffer.pinned and buffer.data == s.read(items[0].path)
buffer = kv.Buffer.new(s.mnt, "m/pinned", 4096, device=0)
assert buffer.pinned
buffer.data[:] = bytes(range(256)) * 16
buffer.publish()
assert s.read("m/pinned") == bytes(range(256)) * 16
for t in tensors:
    t.device = "cuda:5"
elsewhere = kv.Paged(tensors, "NL_X_TWO_NB_BS_NH_HS")
for refused in (lambda: kv.load(s.mnt, elsewhere, items[:1]),
                lambda: kv.Buffer.open(s.mnt, items[0].path, device=5)):
    try:
        refused()
        raise AssertionError("no error")
    except kv.Error as e:
        assert e.errno == errno.ENODEV, e
kv.map_cache(0)
s.umount()
s.fsck()
