# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The Python package with tensors: caches of every format are stored and loaded. The format is
given by name, guessed, or derived from the dims= letters of a permuted view. Also: tensors that do
not fit, numpy and torch if they are installed, and rotation."""
import array, errno, math
from kvtest import *
from tensors import *

s = Store(size="512M").mount()


def there_and_back(name, cache, tensors, tokens, left=()):
    items = kv.layerwise(cache, lambda layer: f"t/{name}/{layer}", tokens)
    kv.store(s.mnt, cache, items).wait()
    was, whole = [bytes(t.data) for t in tensors], cache.gather(tokens)
    for item in items:
        assert s.read(item.path) == cache.gather(tokens, item.layer, 1), name
    for t in tensors:
        t.data[:] = bytes(len(t.data))
    kv.load(s.mnt, cache, items).wait()
    assert cache.gather(tokens) == whole and any(whole), name
    others = [n * BS for n in range(NB) if n not in (0, 2, 7, 9, 11)]
    assert not any(cache.gather(kv.Tokens(slots=[*others, *left]))), name
    for t, bytes_before in zip(tensors, was):
        t.data[:] = bytes_before


for name in kv.formats():
    tensors, cache = made(name, 4 if name == "NL_X_NB_BSV_BSS" else 2)
    there_and_back(name, cache, tensors, BLOCKS)
tensors, cache = made("NL_X_TWO_NB_BS_NH_HS")
there_and_back("slots", cache, tensors, SLOTS, left=[30, 46])
# a guessed format; the dims= letters of a permuted view; padded blocks
assert kv.Paged(tensors, block_size=BS, heads=NH).format == "NL_X_TWO_NB_BS_NH_HS"
refused(ValueError, "name the format", kv.Paged, tensors)
permuted = [View(t, (2, NB, NH, BS, HS), (NB * NH * BS * HS, NH * BS * HS, HS, NH * HS, 1))
            for t in tensors]
assert kv.Paged(permuted, dims="KBHSE").format == "NL_X_TWO_NB_BS_NH_HS"
assert kv.Paged(permuted, dims="KBHSE").gather(BLOCKS) == cache.gather(BLOCKS)
refused(ValueError, "give dims", kv.Paged, permuted, "NL_X_TWO_NB_NH_BS_HS")
padded = Memory(NB, 2 * BS * NH * HS + 100)
padded.fill(3)
view = View(padded, (NB, 2, BS, NH, HS), (2 * BS * NH * HS + 100, BS * NH * HS, NH * HS, HS, 1))
cache = kv.Paged(view, "NL_X_NB_TWO_BS_NH_HS")
assert cache.struct.block_stride == 2 * BS * NH * HS + 100 and cache.layers == 1
there_and_back("padded", cache, [padded], BLOCKS)
odd = View(padded, (NB, 2, BS, NH, HS), (2 * BS * NH * HS + 100, BS * NH * HS, NH * HS, HS, 2))
refused(ValueError, "elements", kv.Paged, odd, "NL_X_NB_TWO_BS_NH_HS")
refused(ValueError, "dimensions", kv.Paged, odd, "NL_X_NB_BS_HS")
refused(ValueError, "not like the first", kv.Paged, [tensors[0], Memory(*tensors[0].shape, size=4)],
        "NL_X_TWO_NB_BS_NH_HS")
refused(ValueError, "K and V", kv.Paged, [Memory(3, NB, BS, NH, HS)], "NL_X_TWO_NB_BS_NH_HS")
refused(TypeError, "not a tensor", kv.Paged, [3], "NL_X_TWO_NB_BS_NH_HS")
elsewhere = Memory(2, NB, BS, NH, HS)
elsewhere.device = "npu:0"
refused(ValueError, "npu", kv.Paged, elsewhere, "NL_X_TWO_NB_BS_NH_HS")
wrong(errno.EINVAL, kv.Paged, Memory(2, NB, BS, NH, HS, size=8), "NL_X_TWO_NB_BS_NH_HS")
wrong(errno.EINVAL, kv.Paged, tensors, "NL_X_TWO_NB_BS_NH_HS", fused=True)
wrong(errno.EINVAL, kv.Paged, tensors, "NOBODYS")
for module in ("numpy", "torch"):
    try:
        library = __import__(module)
    except ImportError:
        print(f"without {module}")
        continue
    arrays = [library.zeros((2, NB, BS, NH, HS), dtype=library.float16) for _ in range(NL)]
    for i, a in enumerate(arrays):
        a[:] = i + 1
    of = kv.Paged(arrays, "NL_X_TWO_NB_BS_NH_HS")
    items = kv.layerwise(of, lambda layer: f"t/{module}/{layer}", BLOCKS)
    kv.store(s.mnt, of, items).wait()
    for a in arrays:
        a[:] = 0
    kv.load(s.mnt, of, items).wait()
    assert [float(a[1, 7, 3, 2, 7]) for a in arrays] == [1, 2, 3, 4, 5]
    assert not any(float(a[:, 1].sum()) for a in arrays)
    order = (0, 1, 3, 2, 4)
    turned = [a.transpose(*order) if module == "numpy" else a.permute(*order) for a in arrays]
    assert kv.Paged(turned, dims="KBHSE").gather(BLOCKS) == of.gather(BLOCKS)
    if module == "numpy":
        arrays[0].flags.writeable = False
        refused(ValueError, "read-only", kv.load, s.mnt, kv.Paged(arrays, "NL_X_TWO_NB_BS_NH_HS"),
                items)
# keys at other positions
tensors, cache = made("NL_X_TWO_NB_BS_NH_HS", 4)
turn = kv.Rope(delta=0, type="float32", theta=10000)
items = kv.layerwise(cache, lambda layer: f"t/rope/{layer}", BLOCKS)
kv.store(s.mnt, cache, items).wait()
kv.load(s.mnt, cache, kv.layerwise(cache, lambda layer: f"t/rope/{layer}", BLOCKS, turn)).wait()
for item in items:
    item.rope = kv.Rope(delta=5, type="float16", theta=10000)
wrong(errno.EINVAL, kv.load(s.mnt, cache, items).wait)


class Table(list):
    seen = 0

    def __iter__(self):
        self.seen += 1
        return super().__iter__()


# a table that several rotations share is converted once per call, and rotates keys by its angles
table = Table([math.cos(p * 0.01 ** i) for i in range(HS // 2)] +
              [math.sin(p * 0.01 ** i) for i in range(HS // 2)] for p in range(20))
for i, item in enumerate(items):
    item.rope = kv.Rope(delta=i + 1, type="float32", cos_sin=table, dims=HS)
kv.load(s.mnt, cache, items).wait()
assert table.seen == 1
by_table = cache.gather(BLOCKS)
for i, item in enumerate(items):
    item.rope = kv.Rope(delta=i + 1, type="float32", dims=HS,
                        inv_freq=[0.01 ** k for k in range(HS // 2)])
kv.load(s.mnt, cache, items).wait()
by_angles = array.array("f", bytes(cache.gather(BLOCKS)))
assert all(abs(a - b) <= 1e-4 * (1 + abs(b)) or a != a
           for a, b in zip(array.array("f", bytes(by_table)), by_angles))
for ragged in [[0.0] * HS, [0.0]], [[0.0] * (HS + 2)]:
    rope = kv.Rope(delta=0, type="float32", cos_sin=ragged, dims=HS)
    refused(ValueError, "each row", rope.struct)
refused(ValueError, "dims is 0", kv.Rope(delta=0, type="float32", cos_sin=[]).struct)
assert len(kv.rope.llama3(500000, 128)) == len(kv.rope.yarn(10000, 128, 4, 4096)) == 64
kv.map_cache(0)
s.umount()
s.fsck()
