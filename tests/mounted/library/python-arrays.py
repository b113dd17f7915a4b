# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""kvcachefs.Cache on a real mount: numpy arrays and torch tensors of each type come back equal,
also from the disk and after a restart; absent keys are FileNotFoundErrors; keys and paths may be
absolute if they are inside the mount; files of other programs and damaged headers are refused; the
status, pins, quotas and events. Without torch, its part is skipped, and a line of the output says
so."""
import errno, importlib.util, json, os, sys
from kvtest import *

if not importlib.util.find_spec("numpy"):  # Debian's Python may have it
    other = "/usr/bin/python3"
    if os.path.realpath(sys.executable) == os.path.realpath(other) or \
            run(other, "-c", "import numpy").returncode:
        skip("needs numpy")
    os.execv(other, [other, *sys.argv])
from tensors import *

import numpy
torch = importlib.util.find_spec("torch") and __import__("torch")
kv.map_cache(0)
s = Store(options="settle=0", size="512M").mount()
cache = kv.Cache(s.mnt, "m")
rng = numpy.random.default_rng(1)


def same(a, b):
    return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and (a == b).all()


# ---- Arrays of numpy -----------------------------------------------------------------------------

KINDS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
         "float16", "float32", "float64")
arrays = {k: rng.integers(0, 2 if k == "bool" else 100, (3, 5, 7)).astype(k) for k in KINDS}
for k, a in arrays.items():
    cache.put(f"types/{k}", a)
    assert same(cache.get(f"types/{k}"), a), k
cache.put("dict", arrays)
got = cache.get("dict")
assert set(got) == set(KINDS) and all(same(got[k], a) for k, a in arrays.items())
shapes = {"none": numpy.zeros((0, 4), "float32"), "scalar": numpy.float64(2.5).reshape(()),
          "view": numpy.arange(60).reshape(3, 4, 5)[::2, 1:, ::-1],
          "fortran": numpy.asfortranarray(rng.random((4, 6))),
          "big": numpy.arange(9, dtype=">i4")}
cache.put("shapes", shapes)
got = cache.get("shapes")
for k, a in shapes.items():
    assert got[k].shape == a.shape and (got[k] == a).all() and got[k].flags.writeable, k
assert got["big"].dtype == "<i4"
cache.put("empty", {})
assert cache.get("empty") == {}
one = cache.get("types/int16", copy=False)
assert same(one, arrays["int16"]) and not one.flags.writeable and held() == 1
both = cache.get("dict", copy=False)
assert all(same(both[k], a) and a.ctypes.data % a.itemsize == 0 for k, a in both.items())
del one, both, a
assert held() == 0
cache.put("types/int8", arrays["int64"])  # another value
assert same(cache.get("types/int8"), arrays["int64"])
evict(s, "m/dict")
assert same(cache.get("dict")["float16"], arrays["float16"]) and cache.has("dict")

# the file is a safetensors file: parsed here by the format's own description
with open(f"{s.mnt}/m/dict", "rb") as f:
    raw = f.read()
end = 8 + int.from_bytes(raw[:8], "little")
header = json.loads(raw[8:end])
assert end % 64 == 0 and header.pop("__metadata__") == {"format": "np"}
assert set(header) == set(KINDS)
places = sorted(e["data_offsets"] for e in header.values())
assert [p[0] for p in places] == [0] + [p[1] for p in places[:-1]]
assert places[-1][1] == len(raw) - end
for k, e in header.items():
    begin, stop = e["data_offsets"]
    assert raw[end + begin:end + stop] == arrays[k].tobytes() and e["shape"] == [3, 5, 7]

# ---- Tensors of torch ----------------------------------------------------------------------------

if torch:
    tensors = {k: torch.arange(24).reshape(2, 3, 4).to(getattr(torch, k))
               for k in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
                         "float32", "float64")}
    cache.put("torch", tensors)
    for k, t in cache.get("torch").items():
        assert t.dtype == tensors[k].dtype and torch.equal(t, tensors[k]), k
    cache.put("one", torch.rand(5, 3).t().requires_grad_())
    assert cache.get("one").shape == (3, 5) and isinstance(cache.get("one"), torch.Tensor)
    cache.put("t/none", torch.empty(0, 3))
    assert cache.get("t/none").shape == (0, 3)
    refused(ValueError, "bfloat16", cache.get, "torch", framework="numpy")
    assert torch.equal(cache.get("types/int16", framework="torch"),
                       torch.from_numpy(arrays["int16"]))
    refused(ValueError, "read-only", cache.get, "torch", copy=False)
    refused(TypeError, "complex64", cache.put, "no", torch.zeros(2, dtype=torch.complex64))
    refused(TypeError, "all of torch", cache.put, "no", {"a": torch.zeros(2), "b": arrays["int8"]})
else:
    print("without torch")

# ---- Absent keys, prefixes, deletes --------------------------------------------------------------

for what in (cache.get, cache.delete, cache.pin, cache.unpin):
    try:
        what("absent")
    except FileNotFoundError as e:
        assert e.errno == errno.ENOENT
    else:
        raise AssertionError(f"{what} did not raise FileNotFoundError")
assert not cache.has("absent") and not kv.Cache(s.mnt, "absent").has("absent")
for what in (lambda: kv.Buffer.open(s.mnt, "absent"), lambda: kv.Cache(TMP, "m"),
             lambda: kv.hint(s.mnt, ["m/dict"], superseded_by="m/absent"),
             lambda: kv.Lease(s.mnt, ["m/absent"]).check(),
             lambda: kv.load(s.mnt, kv.Paged([Memory(2, 4, 4, 3, 8)] * 2, block_size=4, heads=3),
                             [kv.Item("m/absent", kv.Tokens(blocks=[0]))]).wait()):
    try:
        what()
    except FileNotFoundError as e:
        assert isinstance(e, kv.Error) and type(e).__name__ == "Error" and e.errno == errno.ENOENT
    else:
        raise AssertionError("no FileNotFoundError")
assert not isinstance(kv.Error(errno.EINVAL, "x"), FileNotFoundError)
child = os.fork()  # the queue of the load is idle, and only the package refers to it
if not child:
    os._exit(0)
wait_for(lambda: os.waitpid(child, os.WNOHANG)[0], 60)
keys = [f"p{i}" for i in range(6)]
for k in keys[:4]:
    cache.put(k, arrays["int8"])
assert cache.prefix(keys) == 4 and cache.prefix([]) == 0
cache.delete("p2")
assert cache.prefix(keys) == 2 and not cache.has("p2") and not os.path.exists(f"{s.mnt}/m/p2")
cache.delete("types")  # a folder with its files
assert not cache.has("types/int16") and not os.path.exists(f"{s.mnt}/m/types")
refused(TypeError, "list", cache.prefix, "p0")

# ---- Absolute paths, wrong names -----------------------------------------------------------------

full = f"{s.mnt}/m/p0"
assert cache.has(full) and cache.path(full) == "m/p0" and same(cache.get(full), arrays["int8"])
assert kv.Cache(s.mnt, f"{s.mnt}/m").has("p0")
assert kv.prefix(s.mnt, [full, "m/p1", f"{s.mnt}/m/../m/p3"]) == 3
assert kv.exists(s.mnt, [full, f"{s.mnt}/m/absent"]) == [True, False]
with kv.Lease(s.mnt, [full]) as lease:
    assert lease.objects[0].path == "m/p0" and lease.map(full) == lease.map("m/p0") and lease
with kv.Buffer.open(s.mnt, full) as b:
    assert len(b) == os.stat(full).st_size
with kv.Buffer.new(s.mnt, f"{s.mnt}/abs/1", 3) as b:
    b.publish(f"{s.mnt}/abs/2")
assert os.listdir(f"{s.mnt}/abs") == ["2"]
with kv.Queue(s.mnt) as q:
    lease = q.lease([full])
    assert lease.join() and lease.count == 1 and lease.lease.map(full) == lease.lease.map(0)
    lease.lease.close()
assert kv.hint(s.mnt, [full], superseded_by=f"{s.mnt}/m/p1") == 0
for outside in (f"{TMP}/x", f"{s.mnt}/../x", f"{s.mnt}x/m/p0"):
    for what in (lambda p: kv.prefix(s.mnt, [p]), lambda p: kv.Buffer.open(s.mnt, p),
                 lambda p: kv.Buffer.new(s.mnt, p, 1), lambda p: cache.get(p),
                 lambda p: kv.Cache(s.mnt, p), lambda p: kv.admin.pin(s.mnt, p)):
        refused(ValueError, "not inside the mount", what, outside)
refused(ValueError, "not inside", cache.get, f"{s.mnt}/abs/2")  # of another model
for key in ("", "..", "../abs/2", "a//b", "a/../b", ".", "a\nb", "a\0b"):
    refused(ValueError, "", cache.put, key, arrays["int8"])
refused(ValueError, "one folder", kv.Cache, s.mnt, "a/b")
assert sorted(os.listdir(s.mnt)) == ["abs", "m"]

# ---- Values that cannot be stored, files that hold no arrays -------------------------------------

refused(TypeError, "neither", cache.put, "no", [1, 2])
refused(TypeError, "neither", cache.put, "no", {"a": arrays["int8"], "b": b"x"})
refused(TypeError, "complex", cache.put, "no", numpy.zeros(2, "complex64"))
refused(TypeError, "cannot be stored", cache.put, "no", numpy.array(["text"]))
refused(ValueError, "name", cache.put, "no", {"__metadata__": arrays["int8"]})
refused(ValueError, "name", cache.put, "no", {1: arrays["int8"]})
refused(ValueError, "framework", cache.get, "p0", framework="jax")
assert not cache.has("no") and not temporaries(s)


def file_of(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
s.write("m/good", file_of({"a": ENTRY}, b"abcd"))
assert (cache.get("good")["a"] == numpy.frombuffer(b"abcd", "uint8")).all()
damaged = [b"", b"\0" * 7, b"text of another program", file_of(b"{", size=1 << 60), file_of(b"[]"),
           file_of(b"\xff\xfe"), file_of(b"[" * 200000), file_of({"a": 1}), file_of({"a": ENTRY}),
           file_of({"__metadata__": 3}), file_of(b"{}", size=3)]
damaged += [file_of({"a": {**ENTRY, **change}}, b"abcdefgh") for change in (
    {"dtype": "U9"}, {"dtype": ["U8"]}, {"shape": [5]}, {"shape": [-4]}, {"shape": [2, -2]},
    {"shape": 4}, {"shape": [4.0]}, {"shape": [True, 4]}, {"data_offsets": [8, 12]},
    {"data_offsets": [-4, 0]}, {"data_offsets": [4, 0]}, {"data_offsets": [0]},
    {"shape": [1 << 62, 1 << 62], "data_offsets": [0, 0]})]
for i, data in enumerate(damaged):
    s.write("m/damaged", data)
    refused(ValueError, "m/damaged does not hold arrays", cache.get, "damaged")
    assert held() == 0, "the error keeps the file"
refused(OSError, "", cache.put, "huge", numpy.broadcast_to(numpy.zeros(1, "uint8"), (1 << 29,)))
assert not cache.has("huge") and not temporaries(s)

# ---- Administration ------------------------------------------------------------------------------

s.settle()
status = cache.status()
assert set(status.counters) == set(s.stats()) and status.config == s.config()
inside = [os.path.join(d, f) for d, _, fs in os.walk(f"{s.mnt}/m") for f in fs]
assert status.files == len(inside) and status.quota is None
assert status.tier_bytes["cpu"] > 0 and set(status.tier_bytes) >= {"cpu", "disk"}
assert kv.admin.status(s.mnt).files is None and kv.Cache(s.mnt, "new").status().files is None
cache.pin("p0")
assert s.attr("m/p0", "pin") == "1"
cache.pin("p0", 3600)
assert 3000 < int(s.attr("m/p0", "pin")) <= 3600
cache.unpin(full)
assert s.attr("m/p0", "pin") == "0"
for seconds in (0, 1, -1, 7000000001):
    refused(ValueError, "seconds", cache.pin, "p0", seconds)
for size, now in (("200M", 200 << 20), (64 << 20, 64 << 20), ("1G", 1 << 30)):
    cache.quota(size)
    assert cache.status().quota == now, (size, s.attr("m", "quota"))
cache.quota(None)
assert cache.status().quota is None
refused(OSError, "", cache.quota, "many")
new = kv.Cache(s.mnt, "limited")
new.quota("5M")
assert new.status().quota == 5 << 20 and os.path.isdir(f"{s.mnt}/limited")
with kv.Cache(s.mnt, "ev ent%").events() as mine, kv.admin.Events(s.mnt) as all_events:
    kv.Cache(s.mnt, "ev ent%").put("ke y", arrays["int8"])
    cache.put("other", arrays["int8"])
    s.settle()
    seen = wait_for(lambda: mine.take())
    assert {e["model"] for e in seen} == {"ev ent%"}, seen
    assert "ev ent%/ke y" in {e["path"] for e in seen}, seen
    # the pool, the name and the disk
    assert sorted(e["event"] for e in seen) == ["renamed", "stored", "stored"], seen
    first = next(iter(all_events))
    rest = all_events.take()
    assert first["path"].startswith("ev ent%/ke y.tmp.") and first["event"] == "stored", first
    assert {"ev ent%/ke y", "m/other"} <= {e["path"] for e in rest}, rest
refused(ValueError, "closed", mine.take)
os.seteuid(12345)
try:
    cache.events()
except PermissionError:
    pass
else:
    raise AssertionError("another user reads the events")
finally:
    os.seteuid(0)

# ---- After a restart -----------------------------------------------------------------------------

s.umount()
wrong(errno.ENOENT, kv.Cache, s.mnt, "m")
s.mount()
assert same(kv.Cache(s.mnt, "m").get("dict")["int64"], arrays["int64"])
if MODE != "asan":
    env = dict(os.environ, PYTHONPATH=package.SOURCE)
    p = run(sys.executable, "-m", "kvcachefs.examples.cache", s.mnt, env=env)
    assert p.returncode == 0 and "3 of 5 chunks are cached\nloaded again: the same\n" in p.stdout, p
    assert "after a delete, 2 chunks are cached" in p.stdout, p
    p = run(sys.executable, "-m", "kvcachefs.examples.cache", TMP, env=env)
    assert p.returncode == 1 and p.stdout.startswith("cache: no kvcachefs is mounted on"), p
s.umount()
s.fsck()
