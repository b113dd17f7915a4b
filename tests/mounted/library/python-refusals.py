# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The Python package refuses wrong arguments with an exception that says what is wrong, and never
stores or reads other bytes instead: buffers whose length counts elements, arrays without plain
bytes, numbers that do not fit the library's types, folders in the place of files, headers with
impossible shapes, paths that lead out of the mount, quotas that would remove a limit, and mounts
that do not answer or are gone. Keys with any byte work. Children of a process whose threads use the
package work, too."""
import errno, importlib.util, json, os, shutil, sys, threading
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

# ---- Paths out of the mount ----------------------------------------------------------------------

outside = f"{s.path}.outside"
os.makedirs(f"{outside}/folder")
with open(f"{outside}/file", "w") as f:
    f.write("outside")
os.symlink(outside, f"{s.mnt}/m/link")
os.symlink(f"{outside}/file", f"{s.mnt}/m/one")
os.symlink(f"{s.mnt}/m/folder", f"{s.mnt}/m/within")


def stores(path):
    """Stores of parts write plain files, those of a cache prepared or named ones."""
    parts = kv.Item(path, parts=kv.Parts([(a, 0)]))
    return [lambda: kv.store(s.mnt, None, [parts]).wait(),
            lambda: kv.store(s.mnt, paged, [kv.Item(path, BLOCKS)]).wait(),
            lambda: kv.Buffer.new(s.mnt, path, 4).publish(),
            lambda: kv.Buffer.new(s.mnt, path, 0).publish()]


for key in "link/new", "link/folder/new", "link/more/new", "link/more/and/new":
    wrong(errno.EXDEV, cache.put, key, a)
    for what in stores(f"m/{key}"):
        wrong(errno.EXDEV, what)
for path in "../new", "m/../../new", "m/folder/../../../new":
    for what in stores(path):
        wrong(errno.EXDEV, what)
    buffer = kv.Buffer.new(s.mnt, "m/buffer", 4)
    wrong(errno.EXDEV, buffer.publish, path)
assert sorted(os.listdir(outside)) == ["file", "folder"] and not os.listdir(f"{outside}/folder")
assert not os.path.exists(f"{os.path.dirname(s.mnt)}/new") and not temporaries(s)
for what in cache.delete, cache.pin, cache.unpin:
    wrong(errno.EXDEV, what, "link/file")
    wrong(errno.EXDEV, what, "link/folder") if what != cache.delete else None
wrong(errno.EXDEV, cache.pin, "one")
memory = bytearray(7)
for path in "m/link/file", "m/one":
    wrong(errno.EXDEV, kv.load(s.mnt, None, [kv.Item(path, parts=kv.Parts([(memory, 0)]))]).wait)
    refused(OSError, "", kv.Buffer.open, s.mnt, path)
assert memory == bytes(7)
cache.put("one", a)  # in the place of the link
cache.put("within/two", a)
assert (cache.get("one") == a).all() and (cache.get("folder/two") == a).all()
cache.delete("within/two")
cache.delete("link")
assert open(f"{outside}/file").read() == "outside"
for path in "", ".", "..", "m/", "m/.", "m/new/..", s.mnt, f"{s.mnt}/":
    for what in stores(path):
        wrong(errno.EINVAL, what)
    buffer = kv.Buffer.new(s.mnt, "m/buffer", 4)
    wrong(errno.EINVAL, buffer.publish, path)
assert not os.path.exists(f"{s.mnt}/m/new") and not temporaries(s)

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
    # not ENOENT: a mount is there, but its daemon is not
    assert e.errno in (errno.ENOTCONN, errno.ECONNABORTED), e
for what in (lambda: cache.put("x", a), lambda: cache.get("x"), lambda: cache.has("x"),
             lambda: cache.prefix(["x"]), lambda: cache.delete("x"), cache.status, cache.events):
    refused(OSError, "", what)
s.mount()
cache.put("x", a)
device = os.stat(s.mnt).st_dev
s.umount()
others = []
while not others or os.stat(others[-1]).st_dev != device and len(others) < 50:
    others.append(f"{s.path}.other{len(others)}")  # until one gets the free number of the mount
    os.makedirs(others[-1])
    run("mount", "-t", "tmpfs", "none", others[-1], check=True)
if os.stat(others[-1]).st_dev == device:
    wrong(errno.ENOENT, kv.Buffer.new, others[-1], "m/x", 4)
    wrong(errno.ENOENT, kv.store(others[-1], None, [kv.Item("x", parts=kv.Parts([(a, 0)]))]).wait)
else:
    print("no filesystem got the number of the mount")
for other in others:
    run("umount", other, check=True)
for what in (lambda: cache.put("x", a), lambda: cache.get("x"), lambda: cache.has("x"),
             lambda: cache.pin("x"), lambda: cache.unpin("x"), lambda: cache.quota(5),
             kv.store(s.mnt, None, [kv.Item("m/x", parts=kv.Parts([(a, 0)]))]).wait,
             lambda: kv.warm(s.mnt, None, [kv.Item("m/x", parts=kv.Parts([(a, 0)]))])):
    refused(FileNotFoundError, "", what)
os.makedirs(f"{s.mnt}/m/folder")
with open(f"{s.mnt}/m/x", "wb") as f:
    f.write(b"12345678")
for what in (lambda: cache.delete("x"), lambda: cache.delete("folder"), lambda: cache.unpin("x"),
             kv.load(s.mnt, None, [kv.Item("m/x", parts=kv.Parts([(memory, 0)]))]).wait):
    refused(FileNotFoundError, "", what)
shutil.rmtree(f"{s.mnt}/m")  # fails if anything was deleted
assert os.listdir(s.mnt) == [] and memory == bytes(7), "files below the mount's folder"
s.fsck()
