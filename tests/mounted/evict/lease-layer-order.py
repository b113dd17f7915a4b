# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A lease, a prefetch and a hint load the files of several chunks layer by layer: the first file of
each chunk, then the second, and so on, with the numbers in names in the order of their values.
Files that are chunks by themselves, and lists that name the files layer by layer, are loaded in the
order of the list, and so are those of the library's transfers by layers. The loads of a tier
overlap, so the case counts the pairs of files that were loaded in the wrong order."""
import itertools, json, os
from kvtest import *
from tensors import kv

CHUNKS, LAYERS = 6, 12
SHARED = f"{TMP}/shared"
os.mkdir(SHARED)


def node(name):
    return Store(name, options=f"settle=0,disk=off,remote=dir://{SHARED},"
                               f"shim=delay-get:30").mount()


def lease(s, command, paths):
    fd = os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR)
    os.write(fd, (command + "\n".join(paths)).encode())
    return fd


def taken(s, command, paths):
    fd = lease(s, command, paths)
    while piece := os.read(fd, 1 << 20):  # a lease or hint that nobody reads does nothing
        assert b" E" not in piece, piece
    os.close(fd)


def loaded(s, files, load, *arguments):
    """The files in the order in which load() brings them to the pool."""
    events, text = os.open(f"{s.mnt}/.kvcachefs/events", os.O_RDONLY), b""
    load(*arguments)

    def order():
        nonlocal text
        text += os.read(events, 1 << 20)
        found = [json.loads(line) for line in text.splitlines()]
        found = [e["path"] for e in found if e["event"] == "loaded"]
        return len(found) == len(files) and found
    found = wait_for(order)
    os.close(events)
    assert sorted(found) == sorted(files)
    return found


def wrong(found, place):
    """The share of the pairs of files, with different places, that were loaded in the wrong
    order."""
    pairs = [(place(a), place(b)) for a, b in itertools.combinations(found, 2)]
    return sum(a > b for a, b in pairs) / sum(a != b for a, b in pairs)


def layer(path):
    return int(path.rsplit("_", 1)[1])


def check(what, found, place):
    share = wrong(found, place)
    print(f"{what}: {share:.0%} of the pairs in the wrong order")
    assert share < 0.18, (what, found)


a, b = node("a"), node("b")
for c in range(CHUNKS):
    os.makedirs(f"{a.mnt}/m/c{c}")
    os.setxattr(f"{a.mnt}/m/c{c}", "user.kvcachefs.unit", b"dir")
chunks = [f"m/c{c}" for c in range(CHUNKS)]
files = [f"{c}/layer_{i}" for c in chunks for i in range(LAYERS)]
for f in files:
    a.write(f, blob(f, 20 * KiB))
flat = [f"flat/{i:02}" for i in reversed(range(40))]
os.makedirs(f"{a.mnt}/flat")
os.setxattr(f"{a.mnt}/flat", "user.kvcachefs.unit", b"file")
for f in flat:
    a.write(f, blob(f, 20 * KiB))
a.settle()


def lower(*paths):
    for p in paths:
        os.setxattr(f"{a.mnt}/{p}", "user.kvcachefs.demote", b"cpu")


for what, command, paths in (("lease of chunks", "", chunks), ("lease of files", "", files),
                             ("prefetch", "prefetch\n", files),
                             ("hint", "hint prefetch\n", chunks)):
    lower(*chunks)
    check(what, loaded(a, files, taken, a, command, paths), layer)
# the client has listed the layers in another order; two prompts with the same first chunks
order = [7, 3, 11, 0, 5, 2, 9, 1, 10, 4, 8, 6]
lower(*chunks)
listed = [f"{c}/layer_{i}" for i in order for c in chunks]
check("list by layers", loaded(a, files, taken, a, "", listed), lambda p: order.index(layer(p)))
lower(*chunks)
two = [*chunks[:4], "", *chunks[:2], *chunks[4:]]
check("two prompts", loaded(a, files, taken, a, "", two), layer)
lower(*chunks)
items = [kv.Item(f, parts=kv.Parts([(bytearray(20 * KiB), 0)]), layer=order.index(layer(f)))
         for f in files]
check("transfer by layers", loaded(a, files, lambda: kv.load(a.mnt, None, items).join()),
      lambda p: order.index(layer(p)))
assert not any(item.error for item in items)
lower(*flat)
check("files that are chunks", loaded(a, flat, taken, a, "", flat), flat.index)
# chunks of another node, of which only their names are known
for c in chunks:
    os.makedirs(f"{b.mnt}/{c}", exist_ok=True)
    os.setxattr(f"{b.mnt}/{c}", "user.kvcachefs.unit", b"dir")
check("waiting lease", loaded(b, files, taken, b, "wait 60000\n", files), layer)
for f in files:
    assert b.read(f) == a.read(f) == blob(f, 20 * KiB)
a.umount()
b.umount()
print("ok")
