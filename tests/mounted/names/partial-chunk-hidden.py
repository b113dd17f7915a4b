# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Complete chunks: a folder with fewer files than its model's layers is reported as partial. With
partial=miss its files are hidden until it is complete, and then all appear at once. Writers can
create the files in any way. The case covers deletes, restarts, and chunks that existed before the
setting."""
import errno, os, shutil, threading
from kvtest import *

LAYERS = "user.kvcachefs.layers"
KV = "user.kvcachefs."
N = 4


def P(path):
    return f"{s.mnt}/{path}"


def lease(*paths):
    with open(P(".kvcachefs/lease"), "r+b", buffering=0) as f:
        f.write("\n".join(paths).encode())
        f.seek(0)
        return f.read(65536).decode().split("\n")[:-1]


def seen(chunk, names):
    """The visible files. All ways to look for them must agree."""
    names = sorted(names)
    by_stat = [n for n in names if os.path.exists(P(f"{chunk}/{n}"))]
    by_open = []
    for n in names:
        try:
            os.close(os.open(P(f"{chunk}/{n}"), os.O_RDONLY))
            by_open.append(n)
        except FileNotFoundError:
            pass
    by_list = sorted(n for n in os.listdir(P(chunk)) if n in names)
    leased = [l for l in lease(chunk) if l]
    by_lease = sorted(l.split()[0].rsplit("/", 1)[1] for l in leased)
    each = lease(*(f"{chunk}/{n}" for n in names))
    by_path = [n for n, l in zip(names, each) if not l.endswith("ENOENT")]
    assert by_stat == by_open == by_path, (by_stat, by_open, by_path)
    assert [n for n in by_lease if n in names] == by_stat, (by_lease, by_stat)
    wait_for(lambda: sorted(n for n in os.listdir(P(chunk)) if n in names) == by_stat)
    assert os.path.isdir(P(chunk)) and by_list is not None
    return by_stat


ALL = [f"l{i}" for i in range(N)]

# by default a partial chunk is reported, and not hidden
s = Store("show", cpu="32M", options="settle=0").mount()
assert s.config()["partial"] == "show"
s.write("m/before/l0", b"x")
for bad in ("-1", "x", "1025"):
    with fails(errno.EINVAL):
        os.setxattr(P("m"), LAYERS, bad.encode())
with fails(errno.EINVAL):
    os.setxattr(P("m/before"), LAYERS, b"4")
os.setxattr(P("m"), LAYERS, b"4")
assert s.attr("m", "layers") == "4" and LAYERS in os.listxattr(P("m"))
s.settle()
assert s.attr("m/before", "state") == "partial" and s.read("m/before/l0") == b"x"
for i, name in enumerate(ALL):
    assert i == 0 or s.attr("m/c", "state") == "partial"
    s.write(f"m/c/{name}", blob(i, 5000))
    wait_for(lambda: s.stats()["files_open"] == 0)
s.settle()
assert s.attr("m/c", "state") == "resident+lower" and s.attr("m/c/l0", "state") == "resident+lower"
os.unlink(P("m/c/l2"))
assert s.attr("m/c", "state") == "partial"
os.mkdir(P("m/empty"))
assert s.attr("m/empty", "state") == "partial" and s.attr("m", "unit_now") == "file"
os.removexattr(P("m"), LAYERS)
with fails(errno.ENODATA):
    s.attr("m", "layers")
assert s.attr("m/empty", "state") == "empty" and s.attr("m/before", "state") == "resident+lower"
s.umount()

s = Store("miss", cpu="64M", options="settle=0,partial=miss").mount()
s.write("other/c/l0", b"x")
s.write("m/old/l0", b"old")
s.write("m/full/l0", b"x")
for n in ALL[1:]:
    s.write(f"m/full/{n}", b"x")
s.settle()
inside = os.open(P("m/old/l0"), os.O_RDONLY)
assert seen("m/old", ALL) == ["l0"]

# chunks that exist when layers is set
os.setxattr(P("m"), LAYERS, str(N).encode())
wait_for(lambda: not os.path.exists(P("m/old/l0")))
assert seen("m/old", ALL) == [] and seen("m/full", ALL) == ALL and seen("other/c", ALL) == ["l0"]
assert os.read(inside, 9) == b"old"  # a process with the file open continues
os.close(inside)

# files created under their final names, with lookups in between: the writer sees its file only
# through its descriptor
os.makedirs(P("m/c"))
os.makedirs(P("m/c"), exist_ok=True)
for i, name in enumerate(ALL):
    assert seen("m/c", ALL) == []
    with open(P(f"m/c/{name}"), "wb") as f:
        f.write(blob(i, 100000))
        f.flush()
        assert os.fstat(f.fileno()).st_size == 100000
        assert seen("m/c", ALL) == [], "before its close"
    os.makedirs(P("m/c"), exist_ok=True)
    wait_for(lambda: s.stats()["files_open"] == 0)
    if i < N - 1:
        assert s.attr("m/c", "state") == "partial"
        with fails(errno.EEXIST):
            os.open(P(f"m/c/{name}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        with fails(errno.ENOENT):
            os.open(P(f"m/c/{name}"), os.O_RDONLY)
        with open(P(f"m/c/{name}"), "wb") as f:  # write the hidden file again
            f.write(blob(i, 90000))
        wait_for(lambda: s.stats()["files_open"] == 0)
        assert s.attr("m/c", "state") == "partial"
assert seen("m/c", ALL) == ALL
for i in range(N):
    assert s.read(f"m/c/{ALL[i]}") == blob(i, 90000 if i < N - 1 else 100000)

# temporary names in the folder or outside it, which are renamed or linked: no file counts twice
os.makedirs(P("m/t"))
os.makedirs(P("m/stage"))
for i, name in enumerate(ALL):
    tmp = [f"m/t/{name}.tmp.7", f"m/t/.{name}", f"other/{name}", f"m/t/{name}_9.tmp"][i]
    s.write(tmp, blob(i, 3000))
    wait_for(lambda: s.stats()["files_open"] == 0)
    assert os.path.exists(P(tmp)) and seen("m/t", ALL) == []
    if i == 1:
        os.link(P(tmp), P(f"m/t/{name}"))
        assert seen("m/t", ALL) == []
        os.unlink(P(tmp))
    elif i == 3:
        os.replace(P(tmp), P(f"m/t/{name}"))
    else:
        os.rename(P(tmp), P(f"m/t/{name}"))
        if i == 2:  # it was visible under its old name: stat may find it for a moment, open may not
            with fails(errno.ENOENT):
                os.open(P(f"m/t/{name}"), os.O_RDONLY)
            wait_for(lambda: not os.path.exists(P(f"m/t/{name}")))
assert seen("m/t", ALL) == ALL and s.attr("m/t", "state") != "partial"
assert all(s.read(f"m/t/{n}") == blob(i, 3000) for i, n in enumerate(ALL))

# empty files and unnamed files do not count; an empty file counts when it has been written
for i, name in enumerate(ALL):
    s.write(f"m/e/{name}", b"" if i == 0 else b"y")
fd = os.open(P("m/e"), os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b"z")
os.close(fd)
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/e", ALL) == []
s.write("m/e/l0", b"now")
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/e", ALL) == ALL

# a file of a complete chunk is deleted: the others are hidden again, and open files still work
with open(P("m/e/l3"), "rb") as f:
    os.unlink(P("m/e/l1"))
    wait_for(lambda: not os.path.exists(P("m/e/l3")))
    assert seen("m/e", ALL) == [] and f.read() == b"y"
s.write("m/e/l1", b"back")
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/e", ALL) == ALL
os.rename(P("m/e/l1"), P("other/l1"))
wait_for(lambda: not os.path.exists(P("m/e/l3")))
assert seen("m/e", ALL) == []
os.rename(P("other/l1"), P("m/e/l1"))
assert seen("m/e", ALL) == ALL
os.truncate(P("m/e/l2"), 0)
wait_for(lambda: not os.path.exists(P("m/e/l3")))
assert seen("m/e", ALL) == []
s.write("m/e/l2", b"y")
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/e", ALL) == ALL

# a folder moved into the model, and out of it
s.write("other/half/l0", b"x")
assert os.path.exists(P("other/half/l0"))
os.rename(P("other/half"), P("m/half"))
wait_for(lambda: not os.path.exists(P("m/half/l0")))
assert seen("m/half", ALL) == []
os.rename(P("m/half"), P("other/half"))
assert seen("other/half", ALL) == ["l0"]

# a folder that seems empty can be removed; a temporary file prevents that
s.write("m/gone/l0", b"x")
s.write("m/gone/l1.tmp", b"x")
wait_for(lambda: s.stats()["files_open"] == 0)
with fails(errno.ENOTEMPTY):
    os.rmdir(P("m/gone"))
os.unlink(P("m/gone/l1.tmp"))
shutil.rmtree(P("m/gone"))
assert not os.path.exists(P("m/gone"))
os.mkdir(P("m/gone"))
for n in ALL[1:]:
    s.write(f"m/gone/{n}", b"z")
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/gone", ALL) == []  # l0 was deleted

# layers applies to the whole model, also after a kill and a remount
os.mkdir(P("m/files"))
os.setxattr(P("m/files"), KV + "unit", b"file")
s.write("m/files/a", b"x")
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/files", ["a"]) == ["a"]
s.settle()
s.committed()
s.kill()
run("umount", "-l", s.mnt)
s.mount()
for _ in range(2):
    assert s.attr("m", "layers") == str(N)
    for chunk in ("c", "t", "e", "full"):
        assert seen(f"m/{chunk}", ALL) == ALL, chunk
    for chunk in ("old", "gone"):
        assert seen(f"m/{chunk}", ALL) == [] and s.attr(f"m/{chunk}", "state") == "partial"
    assert seen("m/files", ["a"]) == ["a"] and seen("other/c", ALL) == ["l0"]
    s.umount()
    s.mount()
s.write("m/gone/l0", b"z")
wait_for(lambda: s.stats()["files_open"] == 0)
assert seen("m/gone", ALL) == ALL

# concurrent readers: a reader that finds one file finds all, with the written contents
stop, wrong, hits = threading.Event(), [], [0]


def reader():
    while not stop.is_set():
        for c in range(20):
            try:
                fd = os.open(P(f"m/r{c}/l0"), os.O_RDONLY)
            except FileNotFoundError:
                continue
            os.close(fd)
            try:
                got = [s.read(f"m/r{c}/{n}") for n in ALL]
            except OSError as e:
                wrong.append((c, e))
                continue
            hits[0] += got == [blob((c, n).__repr__(), 20000) for n in ALL]
            if got != [blob((c, n).__repr__(), 20000) for n in ALL]:
                wrong.append((c, [len(g) for g in got]))


threads = [threading.Thread(target=reader) for _ in range(3)]
[t.start() for t in threads]
for c in range(20):
    for n in ALL:
        s.write(f"m/r{c}/{n}.tmp" if c % 2 else f"m/r{c}/{n}", blob((c, n).__repr__(), 20000))
        if c % 2:
            os.rename(P(f"m/r{c}/{n}.tmp"), P(f"m/r{c}/{n}"))
wait_for(lambda: hits[0] > 100 or wrong)
stop.set()
[t.join() for t in threads]
assert not wrong, wrong[:3]

# another number of layers, and none: without it all files are visible
os.setxattr(P("m"), LAYERS, b"5")
wait_for(lambda: not os.path.exists(P("m/c/l0")))
assert seen("m/c", ALL) == []
os.removexattr(P("m"), LAYERS)
wait_for(lambda: os.path.exists(P("m/c/l0")))
assert seen("m/c", ALL) == ALL and seen("m/old", ALL) == ["l0"]
os.setxattr(P("m"), LAYERS, b"1")
assert seen("m/old", ALL) == ["l0"]
s.umount()
s.fsck("-n")
