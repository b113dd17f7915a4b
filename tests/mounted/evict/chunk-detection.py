# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Chunks are recognized by behaviour, in the mount's root and one, two and three folders down. A
folder whose files arrive in one burst is dropped whole and is never visible in part. The files of a
flat folder are dropped one by one and the folder stays. Buckets that were created beforehand stay.
A late file, an attribute and unit= change the unit, also over remounts and a rebuild."""
import errno, os, random, threading, time
from kvtest import *

N = 512 * KiB
DEPTHS = ("", "a", "a/b", "a/b/c") if WAY == "fast" and LONG else ("", "a/b/c")


def at(s, depth):
    os.makedirs(f"{s.mnt}/{depth}", exist_ok=True)
    return f"{s.mnt}/{depth}" if depth else s.mnt


def put(folder, name, size=N):
    with open(f"{folder}/{name}.tmp", "wb", buffering=0) as f:
        assert f.write(blob(name, size)) == size
    os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")


def unit(path):
    return os.getxattr(path, "user.kvcachefs.unit_now").decode()


def press(s, n, tag):
    """Stores new chunks, in their own flat folder, so that old ones are evicted."""
    os.makedirs(f"{s.mnt}/press", exist_ok=True)
    for i in range(n):
        put(f"{s.mnt}/press", f"{tag}{i}")
    s.settle()


# chunk folders, as ExampleConnector creates them: a process that looks up the folder and then its
# files, each within a tenth of a second (as the manual says), finds all files or no folder
GRACE = 0.1


def chunks(number, depth):
    s = Store(f"chunk{number}", size="64M", cpu="32M").mount()
    top, errors, seen, end = at(s, depth), [], [0, 0], threading.Event()
    layers = [blob(f"layer{l}", N // 4) for l in range(4)]

    def store_all():
        """The only writer: a chunk is written under another name and renamed, so that nobody sees
        it unfinished."""
        for c in range(400):
            folder = f"{top}/{c % 200:032x}"
            if os.path.exists(folder):
                continue
            new = f"{top}/.new{c}"
            os.mkdir(new)
            for l in range(4):
                with open(f"{new}/layer{l}", "wb") as f:
                    f.write(layers[l])
            os.rename(new, folder)
            seen[1] += 1

    def load(w):
        r = random.Random(w)
        while not end.is_set():
            folder = f"{top}/{r.randrange(200):032x}"
            began = time.monotonic()
            try:
                if not os.path.exists(folder):
                    time.sleep(0.001)
                    continue
                for l in range(4):
                    step = time.monotonic()
                    with open(f"{folder}/layer{l}", "rb") as f:
                        began = step
                        if f.read() != layers[l]:
                            errors.append((w, "other bytes"))
                seen[0] += 1
            except FileNotFoundError as e:
                # a busy machine may run none of the processes for that long
                away = time.monotonic() - began
                if away < GRACE:
                    errors.append((w, e, away))
            except OSError as e:
                errors.append((w, e))

    threads = [threading.Thread(target=load, args=(w,)) for w in range(1, 4)]
    [t.start() for t in threads]
    store_all()
    wait_for(lambda: errors or seen[0] > 50)
    end.set()
    [t.join() for t in threads]
    assert not errors, (depth, len(errors), errors[:3])
    assert seen[0] > 50 and seen[1] > 200, (depth, seen)
    there = [d for d in os.listdir(top) if len(d) == 32]
    assert len(there) < 200 and s.stats()["dropped_chunks"] > 20, (depth, len(there))
    for d in there:
        try:
            names, kind = os.listdir(f"{top}/{d}"), unit(f"{top}/{d}")
        except FileNotFoundError:
            continue  # it was dropped as a whole
        assert len(names) == 4 and kind == "dir", (names, kind)
    assert unit(top) == "file"
    s.umount()
    s.fsck("-n")


# flat folders: files are dropped one by one, files in use stay, and the folder stays even when it
# is empty
def flat(number, depth):
    s = Store(f"flat{number}", size="64M", cpu="32M").mount()
    top = at(s, depth)
    for i in range(300):
        put(top, f"{i:04d}")
        with open(f"{top}/{i % 2:04d}", "rb") as f:
            assert f.read() == blob(f"{i % 2:04d}", N)
    s.settle()
    wait_for(lambda: len(os.listdir(top)) < 150)
    left = os.listdir(top)
    assert 60 < len(left) and {"0000", "0001", "0299"} <= set(left), (depth, len(left))
    assert unit(top) == "file"
    time.sleep(0.4)
    press(s, 200, "x")
    wait_for(lambda: not os.listdir(top))
    put(top, "again")
    assert os.path.isdir(top)
    s.umount()
    s.fsck("-n")


# 256 buckets are created first. Then files arrive in them, three times the store's size, some of
# them after a remount
def buckets(number, depth):
    s = Store(f"bucket{number}", size="64M", cpu="32M").mount()
    top = at(s, depth)
    for b in range(256):
        os.makedirs(f"{top}/{b:02x}", exist_ok=True)
    for i in range(400):
        fd = os.open(f"{top}/{i * 37 % 256:02x}/{i}", os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, bytes(N))
        os.close(fd)
    s.settle()
    assert s.stats()["dropped_chunks"] > 200
    assert all(unit(f"{top}/{b:02x}") == "file" for b in range(0, 256, 5))
    s.umount()
    s.mount()
    for i in range(400, 600):
        fd = os.open(f"{top}/{i * 37 % 256:02x}/{i}", os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, bytes(N))
        os.close(fd)
    assert len([b for b in os.listdir(top) if len(b) == 2]) == 256
    s.umount()
    s.fsck("-n")


# two levels of buckets that are created when needed: they are recognized from then on, and a chunk
# folder elsewhere is not taken for a bucket
def tree(number, depth):
    s = Store(f"tree{number}", size="64M", cpu="32M").mount()
    top, known, r = at(s, depth), set(), random.Random(5)
    for i in range(300):
        b = f"{r.randrange(16):02x}/{r.randrange(16):02x}"
        if b not in known:
            os.makedirs(f"{top}/{b}", exist_ok=True)
            known.add(b)
        put(f"{top}/{b}", f"{i}.data")
        put(f"{top}/{b}", f"{i}.data.metadata", 4096)
    s.settle()
    assert s.stats()["dropped_chunks"] > 100 and all(os.path.isdir(f"{top}/{b}") for b in known)
    assert all(unit(f"{top}/{b}") == "file" for b in known)
    left = steady(lambda: {f"{b}/{n}" for b in known for n in os.listdir(f"{top}/{b}")})
    assert len(left) > 60 and all((n.removesuffix(".metadata") if n.endswith(".metadata") else n
                                   + ".metadata") in left
                                   for n in left), "data and metadata are one chunk"
    os.makedirs(f"{s.mnt}/models/c0de/cafe")
    put(f"{s.mnt}/models/c0de/cafe", "l")
    assert unit(f"{s.mnt}/models/c0de/cafe") == "dir"
    s.umount()
    s.mount()
    os.makedirs(f"{top}/ff/ff")
    assert unit(f"{top}/ff/ff") == "file"
    s.umount()
    s.fsck("-n")


# a late file shows that a folder is a container; its earlier files become separate chunks, and used
# ones stay
def late():
    s = Store("late", size="64M", cpu="48M").mount()
    os.makedirs(f"{s.mnt}/m/c")
    for i in range(20):
        put(f"{s.mnt}/m/c", f"f{i}")
    assert unit(f"{s.mnt}/m/c") == "dir" and unit(f"{s.mnt}/m") == "file" and unit(s.mnt) == "file"
    assert s.attr("m/c", "state") and s.attr("m/c/f3", "hits") == "0"
    s.read("m/c/f3")
    assert s.attr("m/c", "hits") == s.attr("m/c/f4", "hits") == "1", "one chunk, one count"
    time.sleep(5.2)
    put(f"{s.mnt}/m/c", "late")
    wait_for(lambda: unit(f"{s.mnt}/m/c") == "file" and s.stats()["jobs"] == 0)
    assert s.attr("m/c/late", "hits") == "0" and s.attr("m/c/f4", "hits") == "1"
    s.read("m/c/f4")
    assert s.attr("m/c/f4", "hits") == "2" and s.attr("m/c/f3", "hits") == "1"
    with fails(errno.ENODATA):
        s.attr("m/c", "hits")
    s.settle()
    for i in range(150):
        put(f"{s.mnt}/m/c", f"g{i}")
        s.read("m/c/f4")
    s.settle()
    wait_for(lambda: not {"f3", "f5", "f6"} & set(os.listdir(f"{s.mnt}/m/c")))
    left = set(os.listdir(f"{s.mnt}/m/c"))
    assert "f4" in left and "g149" in left, sorted(left)[:8]
    s.committed(uses=True)
    s.kill()
    run("umount", "-l", s.mnt)
    s.mount()
    assert unit(f"{s.mnt}/m/c") == "file" and int(s.attr("m/c/f4", "hits")) >= 100
    s.umount()
    s.fsck("-n")


# the unit is set on the folder, on a folder above it, and by the mount option; it is shown, and
# existing files follow it
def asked():
    s = Store("asked", cpu="64M").mount()
    os.makedirs(f"{s.mnt}/m/c/deep")
    os.makedirs(f"{s.mnt}/m/d")
    for where in ("m/c", "m/d", "m/c/deep"):
        for i in range(3):
            put(f"{s.mnt}/{where}", f"f{i}")
    with fails(errno.ENODATA):
        s.attr("m/c", "unit")
    for bad in (b"files", b"", b"DIR", b"x" * 200):
        with fails(errno.EINVAL):
            os.setxattr(f"{s.mnt}/m/c", "user.kvcachefs.unit", bad)
    with fails(errno.EINVAL):
        os.setxattr(f"{s.mnt}/m/c/f1", "user.kvcachefs.unit", b"dir")
    with fails(errno.EOPNOTSUPP):
        os.setxattr(f"{s.mnt}/m/c", "user.kvcachefs.unit_now", b"dir")
    assert [unit(f"{s.mnt}/{w}")
            for w in ("m", "m/c", "m/d", "m/c/deep")] == ["file", "file", "dir", "dir"]
    os.setxattr(f"{s.mnt}/m", "user.kvcachefs.unit", b"file")
    assert [unit(f"{s.mnt}/{w}") for w in ("m", "m/c", "m/d", "m/c/deep")] == ["file"] * 4
    s.settle()
    s.read("m/d/f1")
    assert s.attr("m/d/f1", "hits") == "1" and s.attr("m/d/f0", "hits") == "0"
    os.setxattr(f"{s.mnt}/m/d", "user.kvcachefs.unit", b"dir")
    assert s.attr("m/d", "unit") == "dir" and unit(f"{s.mnt}/m/d") == "dir" \
        and s.attr("m", "unit") == "file"
    s.settle()
    assert s.attr("m/d/f0", "hits") == s.attr("m/d", "hits") == "1"
    os.removexattr(f"{s.mnt}/m", "user.kvcachefs.unit")
    with fails(errno.ENODATA):
        os.removexattr(f"{s.mnt}/m", "user.kvcachefs.unit")
    assert [unit(f"{s.mnt}/{w}")
            for w in ("m", "m/c", "m/d", "m/c/deep")] == ["file", "file", "dir", "dir"]
    s.umount()
    s.mount(options="unit=file")
    assert unit(f"{s.mnt}/m/c/deep") == "file" and unit(f"{s.mnt}/m/d") == "dir" \
        and s.config()["unit"] == "file"
    s.umount()
    s.mount(options="unit=dir")
    assert unit(f"{s.mnt}/m/c") == "dir"
    s.umount()
    s.fsck("-n")


# a rebuild groups files by their creation times
def again():
    s = Store("again", cpu="64M").mount()
    os.makedirs(f"{s.mnt}/m/c")
    os.makedirs(f"{s.mnt}/flat")
    for i in range(4):
        put(f"{s.mnt}/m/c", f"f{i}")
    for i in range(1100):
        put(f"{s.mnt}/flat", f"f{i}", 4096)
    s.settle()
    s.umount()
    os.unlink(f"{s.path}/catalog.sqlite")
    s.fsck("-y", "--rebuild")
    s.fsck("-n")
    s.mount()
    assert unit(f"{s.mnt}/m/c") == "dir" and unit(f"{s.mnt}/flat") == "file" \
        and unit(f"{s.mnt}/m") == "file"
    s.read("m/c/f1"), s.read("flat/f1")
    assert s.attr("m/c/f0", "hits") == "1" and s.attr("flat/f0", "hits") == "0" \
        and s.attr("flat/f1", "hits") == "1"
    s.umount()
    s.fsck("-n")


beside([(late,), *((f, n, d) for f in (chunks, flat, buckets, tree)
                   for n, d in enumerate(DEPTHS) if d or f != flat), (asked,), (again,)])
print("ok")
