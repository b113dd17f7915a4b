# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The Python package with tensors on a device, under tests/fakecuda: a store takes what its stream
had before, a load is seen by what the stream gets after; completion by polling, asyncio and layer
by layer."""
import asyncio, ctypes, errno, os, threading
from kvtest import *
import package

FAKE = f"{BUILD}/lib/libkvcachefs_fake.so"
os.environ["KVCACHEFS_LIBRARY"] = FAKE
import kvcachefs as kv
from example_layers import Memory

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
    """As torch's, with a function that the stream runs in its turn."""

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
    seen, ended = [], asyncio.Event()
    loop = asyncio.get_running_loop()
    gate.clear()
    stream.then(lambda: (gate.wait(), wipe()))
    load = kv.load(s.mnt, cache, items, stream=stream)
    stream.then(lambda: (seen.extend(t.get() for t in tensors),
                         loop.call_soon_threadsafe(ended.set)))
    assert not load.poll()
    gate.set()
    assert [layer async for layer in load.layers()] == list(range(NL))
    await load
    await ended.wait()
    assert seen == [bytes(h.data) for h in host.tensors]
asyncio.run(load())
items[2].path = "m/none"
load = kv.load(s.mnt, cache, items, stream=stream)
try:
    load.wait()
    raise AssertionError("no error")
except kv.Error as e:
    assert e.errno == errno.ENOENT
assert [i.error is None for i in items] == [True, True, False, True]
for t in tensors:
    t.device = "cuda:5"
try:
    kv.load(s.mnt, kv.Paged(tensors, "NL_X_TWO_NB_BS_NH_HS"), items[:1]).wait()
    raise AssertionError("no error")
except kv.Error as e:
    assert e.errno == errno.ENODEV, e
kv.map_cache(0)
s.umount()
s.fsck()
