# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The Python package refuses wrong arguments with an exception that says what is wrong, and never
stores or reads other bytes instead: buffers whose length counts elements, arrays without plain
bytes, numbers that do not fit the library's types, folders in the place of files, headers with
impossible shapes, quotas that would remove a limit, and mounts that do not answer. Keys with any
byte work. Children of a process whose threads use the package work, too."""
import errno, importlib.util, json, os, sys, threading
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
s = Store(options="settle=0", size="512M").mount()
cache = kv.Cache(s.mnt, "m")
a = numpy.arange(6, dtype="int16")

# ---- Keys and models -----------------------------------------------------------------------------

for key in (" a", "a ", "\t", "-x", "!", "#", "finished", "a\rb", "\u00e9", "a\udcff", "%41",
            ".hidden", "\x7f", "\u2028", 'q"q', "back\\slash", "/".join(["y" * 200] * 4)):
    cache.put(key, a)
    assert (cache.get(key) == a).all() and cache.has(key), key
    assert cache.prefix([key, "absent"]) == 1 and not cache.has(key + "x"), key
    cache.pin(key)
    cache.unpin(key)
    cache.delete(key)
    assert not cache.has(key), key
for key in (b"bytes", None, 3):
    refused(TypeError, "", cache.put, key, a)
wrong(errno.ENAMETOOLONG, cache.put, "x" * 256, a)
wrong(errno.EPERM, kv.Cache(s.mnt, ".kvcachefs").put, "k", a)
assert kv.Cache(os.fsencode(s.mnt), "m").mount == s.mnt
refused(OSError, "no kvcachefs is mounted", kv.Cache, "/etc/passwd", "m")

# ---- Folders and files in each other's place -----------------------------------------------------

cache.put("folder/one", a)
wrong(errno.EISDIR, cache.get, "folder")  # it has exactly one file
wrong(errno.EISDIR, kv.Buffer.open, s.mnt, "m/folder")
wrong(errno.EISDIR, kv.Buffer.open, s.mnt, "m/./folder/")
assert len(kv.Buffer.open(s.mnt, "m/./folder//one")) > 0
wrong(errno.EISDIR, cache.put, "folder", a)
wrong(errno.ENOTDIR, cache.put, "folder/one/below", a)
for what in cache.get, cache.delete:
    refused(FileNotFoundError, "", what, "folder/one/below")
assert not cache.has("folder/one/below") and not temporaries(s)
tensors, paged = made("NL_X_TWO_NB_BS_NH_HS", 2)
kv.store(s.mnt, paged, [kv.Item("m/paged/one", BLOCKS)]).wait()
refused(OSError, "folder", kv.load(s.mnt, paged, [kv.Item("m/paged", BLOCKS)]).wait)

# ---- Values --------------------------------------------------------------------------------------


class Interface:
    __array_interface__, keep = a.__array_interface__, a


cache.put("interface", Interface())
assert (cache.get("interface") == a).all()
refused(TypeError, "mask", cache.put, "no", numpy.ma.masked_array([1, 2], [0, 1]))
refused(TypeError, "object", cache.put, "no", numpy.array([object()]))
if torch:
    for t in (torch.zeros(3, 3).to_sparse(), torch.eye(3).to_sparse_csr(),
              torch.zeros(3, device="meta")):
        refused(TypeError, "cannot be stored", cache.put, "no", t)
    refused(ValueError, "dimensions", cache.put, "no", torch.zeros([1] * 65))
assert not cache.has("no")


def file_of(header, data=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


for shape in ([1] * 100 + [4], [0, 1 << 62, 1 << 62], [0, 1 << 70], [1] * 100000 + [4]):
    end = 0 if 0 in shape else 4
    s.write("m/file", file_of({"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, end]}},
                              b"abcd"))
    for framework in (None, "torch") if torch else (None,):
        refused(ValueError, "m/file does not hold arrays", cache.get, "file", framework=framework)

# ---- Buffers and numbers -------------------------------------------------------------------------

tokens = kv.Tokens(blocks=[0, 1])
data = paged.gather(tokens)
for wide in (numpy.zeros(len(data), "int32"), numpy.zeros((len(data), 0), "int8")):
    refused(ValueError, "bytes", paged.scatter, tokens, wide)
    refused(ValueError, "bytes", paged.scatter, tokens, memoryview(wide))
refused(TypeError, "", paged.scatter, tokens, len(data))
assert paged.gather(tokens) == data
paged.scatter(tokens, numpy.frombuffer(data, "int16"))
assert paged.gather(tokens) == data
objects = numpy.array([[object()] * 4] * 4)
refused(TypeError, "Python objects", kv.Parts, [(objects, 0)])
refused(TypeError, "Python objects", kv.Paged, [objects], "NL_X_TWO_NB_BS_NH_HS")
refused(TypeError, "Python objects", kv.Parts, [(numpy.zeros(2, "i8,O"), 0)])
# ctypes would drop the upper bits, and then store other bytes at another place
for offset in (-1, 1 << 64, (1 << 64) + 4):
    refused(ValueError, "offset", kv.Parts, [(a, offset)])
for more in {"size": -1}, {"size": (1 << 64) + 12}, {"layer": -1}, {"layer": 1 << 32}:
    items = [kv.Item("m/parts", parts=kv.Parts([(a, 0)]), **more)]
    refused(ValueError, next(iter(more)), kv.store, s.mnt, None, items)
for skip in (-1, 1 << 64):
    refused(ValueError, "skip", kv.Tokens, blocks=[0], skip=skip)
for layers in (-1, (1 << 32) + 1):
    refused(ValueError, "layers", paged.file_size, tokens, layers)
for size in (-1, 1 << 64):
    refused(ValueError, "size", kv.map_cache, size)
for per in (-1, (1 << 64) + 1):
    refused(ValueError, "per", kv.exists, s.mnt, ["m/a"], per=per)
wrong(errno.EINVAL, kv.exists, s.mnt, ["m/a"], per=0)
for device in (-2, 1 << 31, 1 << 32, (1 << 32) - 1):
    wrong(errno.ENODEV, kv.Buffer.open, s.mnt, "m/folder/one", device=device)
    wrong(errno.ENODEV, kv.Buffer.new, s.mnt, "m/new", 4, device=device)
refused(ValueError, "NUL", kv.hint, s.mnt, ["m/folder/one"], tenant="a\0b")
for tenant in ("a\nfinished", "a finished=1", ""):
    wrong(errno.EINVAL, kv.hint, s.mnt, ["m/folder/one"], tenant=tenant)
assert not os.path.exists(f"{s.mnt}/m/parts") and not temporaries(s)

# ---- Administration ------------------------------------------------------------------------------

cache.quota("100M")
for size in ("", 0.0, False, True, [], b"5M", 1.5):
    refused(ValueError, "a quota is", cache.quota, size)
for size in (-1, "-1", 1 << 62, "9" * 40, "5 M", "0x10"):
    wrong_size = lambda: cache.quota(size)
    try:
        wrong_size()
    except OSError as e:
        assert e.errno == errno.EINVAL, (size, e)
    else:
        raise AssertionError(size)
assert cache.status().quota == 100 << 20
refused(OSError, "", kv.Cache(s.mnt, "new").quota, "many")
assert not os.path.exists(f"{s.mnt}/new"), "a refused quota left a folder"
cache.quota(0)
assert cache.status().quota is None

# ---- Threads and children ------------------------------------------------------------------------

over, bad = threading.Event(), []


def work(i):
    mine = numpy.arange(1000) + i
    try:
        while not over.is_set():
            cache.put(f"thread{i}", mine)
            assert (cache.get(f"thread{i}", copy=i % 2 == 0) == mine).all()
            assert cache.prefix([f"thread{i}"]) == 1
    except BaseException as e:
        bad.append(repr(e))


threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]
for i in range(8 // SLOW or 1):
    child = os.fork()
    if not child:
        try:
            cache.put(f"child{i}", cache.get("folder/one"))
            kv.store(s.mnt, None, [kv.Item(f"m/part{i}", parts=kv.Parts([(a, 0)]))]).wait()
            os._exit(0)
        except BaseException as e:
            print(repr(e), flush=True)
            os._exit(1)
    assert wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] and (True,), 120)
    assert (cache.get(f"child{i}") == a).all() and s.read(f"m/part{i}") == a.tobytes()
over.set()
[t.join() for t in threads]
assert not bad, bad

# ---- A mount that does not answer ----------------------------------------------------------------

kv.map_cache(0)
s.kill()
refused(OSError, "", kv.Cache, s.mnt, "m")
try:
    kv.Cache(s.mnt, "m")
except OSError as e:
    assert e.errno == errno.ENOTCONN, e  # not ENOENT: a mount is there, but its daemon is not
for what in (lambda: cache.put("x", a), lambda: cache.get("x"), lambda: cache.has("x"),
             lambda: cache.prefix(["x"]), lambda: cache.delete("x"), cache.status, cache.events):
    refused(OSError, "", what)
s.mount()
s.umount()
for what in (lambda: cache.put("x", a), lambda: cache.get("x"), lambda: cache.has("x"),
             lambda: cache.pin("x"), lambda: cache.unpin("x"), lambda: cache.quota(5),
             kv.store(s.mnt, None, [kv.Item("m/x", parts=kv.Parts([(a, 0)]))]).wait,
             lambda: kv.warm(s.mnt, None, [kv.Item("m/x", parts=kv.Parts([(a, 0)]))])):
    refused(FileNotFoundError, "", what)
assert os.listdir(s.mnt) == [], "files below the mount's folder"
s.fsck()
