# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Chunks of 256 layers (make check-long: 1024) in a small store are dropped all the time. A drop
processes a few files per lock hold, and still takes effect in one step: a process that opens the
layers of a chunk finds all of them, or none after the first missing one, and an incomplete listing
is soon empty. After a kill during a drop, KILLS times (2), each chunk has all of its layers or is
gone, and fsck finds nothing wrong. The case also covers an unmount during a drop, a create in a
folder that is being dropped, and a folder that stays because it contains other files, with hard
links elsewhere. SEED repeats a run."""
import errno, mmap, os, random, shutil, sqlite3, time
from kvtest import *
from witness import Witness

KILLS = int(os.environ.get("KILLS", 2))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
LAYERS, SIZE = 1024 if LONG else 224, 4096
MOST = 32  # files per lock hold
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO, errno.ESHUTDOWN)
print(f"KILLS={KILLS} SEED={SEED}", flush=True)
NAMES = [f"layer{l:04d}" for l in range(LAYERS)]


def fill(folder, chunk, names=NAMES):
    """Creates the chunk under another name, so that no reader sees it unfinished."""
    new = f"{os.path.dirname(folder)}/.new-{os.path.basename(folder)}"
    os.mkdir(new)
    for name in names:
        fd = os.open(f"{new}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, f"{chunk} {name}\n".encode().ljust(SIZE))
        os.close(fd)
    os.rename(new, folder)


def child(work, *args):
    """A process that writes its errors to TMP/wrong."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*args)
    except BaseException as e:
        if not isinstance(e, OSError) or e.errno not in GONE:
            with open(f"{TMP}/wrong", "a") as f:
                f.write(f"{work.__name__}: {type(e).__name__} {e}\n")
    os._exit(0)


def writer(number, round_):
    for c in range(1 << 30):
        chunk = f"c{round_}-{number}-{c}"
        fill(f"{s.mnt}/m/{chunk}", chunk)


def seen(path):
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 64).split(b"\n")[0].decode()
    finally:
        os.close(fd)


def look(r, chunk):
    """Opens layers of the chunk: after the first missing layer all others are missing."""
    folder, gone = f"{s.mnt}/m/{chunk}", None
    for name in r.sample(NAMES, 100):
        got = seen(f"{folder}/{name}")
        assert got in (None, f"{chunk} {name}"), (chunk, name, got)
        assert not (gone and got), f"{chunk}: {gone} is gone and {name} is there"
        gone = gone or (name if not got else None)


def count(folder):
    try:
        return len(os.listdir(folder))
    except FileNotFoundError:
        return 0


def listing(chunk):
    """Lists the chunk. An incomplete listing, which the kernel may cache until it is notified, is
    empty a moment later."""
    n = count(f"{s.mnt}/m/{chunk}")
    if n not in (0, LAYERS):
        wait_for(lambda: not count(f"{s.mnt}/m/{chunk}"))


def reader(number, round_):
    r = random.Random(f"{SEED}.{round_}.{number}")
    while True:
        chunks = [c for c in os.listdir(f"{s.mnt}/m") if c.startswith("c")]
        if chunks and number % 2:
            look(r, r.choice(chunks))
        elif chunks:
            listing(r.choice(chunks))
        got = seen(f"{s.mnt}/hot/{r.choice(NAMES)}")
        assert got and got.startswith("hot layer"), got
        time.sleep(r.choice((0, 0.01, 0.3)))


def load(round_):
    return [child(writer, n, round_) for n in range(2)] + [
        child(reader, n, round_) for n in range(4)]


def stop(kids):
    for pid in kids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    if os.path.exists(f"{TMP}/wrong"):
        raise AssertionError(open(f"{TMP}/wrong").read())


def dropped():
    return s.stats()["dropped_chunks"]


def next_drop():
    """Waits until the next drop has taken effect; its files may still have to be freed."""
    began = dropped()
    wait_for(lambda: dropped() > began, every=0)


def finished(chunk, killed):
    """Whether the chunk was renamed so long before the kill that the closes of its layers had ended
    by then. killed: the time of the kill, less the time in which the machine did not run the
    daemon."""
    try:
        return os.stat(f"{s.mnt}/m/{chunk}").st_ctime < killed - 2
    except FileNotFoundError:
        return False


def dropping():
    """The chunks of an unmounted store whose drop was interrupted."""
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    try:
        return [k for (k,) in db.execute("SELECT key FROM meta WHERE key GLOB 'dropping:*'")]
    finally:
        db.close()


# a pause of the machine would turn a folder into a container, whose files are dropped one by one
s = Store(size="64M" if LONG else "32M", cpu="32M" if LONG else "16M",
          options="settle=0,pace=100,unit=dir").mount()
fill(f"{s.mnt}/hot", "hot")
os.setxattr(f"{s.mnt}/hot/{NAMES[0]}", "user.kvcachefs.pin", b"1")
os.mkdir(f"{s.mnt}/m")

# drops with concurrent readers
kids = load("a")
try:
    wait_for(lambda: dropped() >= 12, every=0.2)
finally:
    stop(kids)
most = s.stats().get("drop_files")
assert most and most <= MOST, f"a drop worked on {most} files under one hold"

# kills during drops
rng, caught = random.Random(SEED), 0
for round_ in range(KILLS):
    witness, since = Witness(s.daemon.pid, f"{TMP}/witness"), time.monotonic()
    kids = load(round_)
    try:
        began = dropped()
        wait_for(lambda: dropped() > began + 2, every=0.2)
        next_drop()
        time.sleep(rng.uniform(0, 0.03))
        killed, until = time.time(), time.monotonic()
        s.kill()
    finally:
        stop(kids)
    killed -= witness.end().excused(max(since + 0.1, until - 10), until)
    caught += len(dropping())
    s.fsck("-n")
    s.mount()
    for c in os.listdir(f"{s.mnt}/m"):
        if c.startswith("c") and finished(c, killed):
            listing(c)  # it may be dropped meanwhile
            look(rng, c)
        else:  # its writer was killed before it was complete; it may be dropped meanwhile
            shutil.rmtree(f"{s.mnt}/m/{c}", ignore_errors=True)
print(f"{caught} drops were interrupted by {KILLS} kills", flush=True)

# an unmount during a drop completes it
kids = load("u")
try:
    next_drop()
finally:
    stop(kids)
s.umount()
assert not dropping()
assert "no errors found" in s.fsck("-n").stdout

# The state of an interrupted drop: the folder's name and the first files are gone. fsck recognizes
# and completes the drop, and so does a mount; other files are not changed.
s.mount()
for chunk in ("whole", "left", "right"):
    fill(f"{s.mnt}/m/{chunk}", chunk, NAMES[:200])
for chunk in ("left", "right"):
    os.link(f"{s.mnt}/m/{chunk}/{NAMES[150]}", f"{s.mnt}/link-{chunk}")
    # a file is in the chunk of its newest name
    os.rename(f"{s.mnt}/m/{chunk}/{NAMES[150]}", f"{s.mnt}/m/{chunk}/again")
s.settle()
inos = {c: os.stat(f"{s.mnt}/m/{c}").st_ino for c in ("whole", "left", "right")}
s.umount()
for way in ("fsck", "mount"):
    chunk = inos["left" if way == "fsck" else "right"]
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    with db:
        db.execute("INSERT INTO meta VALUES(printf('dropping:%x', ?), '1')", (chunk,))
        db.execute("DELETE FROM chunks WHERE id = ?", (chunk,))
        gone = "(SELECT ino FROM nodes WHERE chunk = %d ORDER BY ino LIMIT 70)" % chunk
        for table in ("objects", "placements", "names", "nodes"):
            db.execute(f"DELETE FROM {table} WHERE ino IN {gone}")
        db.execute("DELETE FROM names WHERE ino = ?", (chunk,))
        db.execute("UPDATE nodes SET nlink = nlink - 1 WHERE ino = (SELECT parent FROM nodes "
                   "WHERE ino = ?)", (chunk,))
        db.execute("DELETE FROM nodes WHERE ino = ?", (chunk,))
        db.execute("UPDATE meta SET value = '0' WHERE key = 'clean'")
    db.close()
    out = s.fsck("-n").stdout
    assert "1 chunks were being dropped" in out and "no errors found" in out, out
    if way == "fsck":
        out = s.fsck("-y").stdout
        assert "completed" in out and "no errors found" in out, out
    else:
        s.mount()
        assert sorted(c for c in os.listdir(f"{s.mnt}/m") if c in inos) == ["whole"]
        assert count(f"{s.mnt}/m/whole") == 200
        assert not [n for n in os.listdir(s.mnt) if n.startswith("link-")]
        s.umount()
    assert not dropping()
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    for table, column in (("names", "parent"), ("nodes", "chunk")):
        n = db.execute(f"SELECT count(*) FROM {table} WHERE {column} = ?", (chunk,)).fetchone()[0]
        assert n == 0, (way, table, n)
    db.close()
    s.fsck("-n")

enough = mmap.mmap(-1, 1)


def push(name):
    """Stores files until the drop is seen. More of them could evict the new file, too."""
    i = 0
    while not enough[0]:
        i += 1
        s.write(f"{name}.{i}/l", bytes(MiB))


# A create by a process in a folder that is dropped: the folder reappears, without old files.
s = Store("b", cpu="32M", options="disk=off,settle=0").mount()
os.mkdir(f"{s.mnt}/m")
for round_ in range(4):
    chunk = f"{s.mnt}/m/{round_}"
    fill(chunk, round_)
    folder = os.open(chunk, os.O_RDONLY)
    enough[0] = 0
    pusher = child(push, f"press/{round_}")
    try:
        wait_for(lambda: os.stat(folder).st_nlink == 0, every=0)
        enough[0] = 1
        name = NAMES[-1 - round_]
        fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=folder)
        os.write(fd, b"new")
        os.close(fd)
        assert os.listdir(folder) == [name]
        wait_for(lambda: os.path.exists(chunk))  # the kernel is notified a moment later
        assert os.listdir(chunk) == [name] and os.stat(f"{chunk}/{name}").st_size == 3
        os.close(folder)
    finally:
        enough[0] = 1
        os.waitpid(pusher, 0)
    stop([])

# A folder that stays, because it has other contents: its files disappear in one step too, together
# with their other names.
os.makedirs(f"{s.mnt}/m/stays")
os.setxattr(f"{s.mnt}/m/stays", "user.kvcachefs.unit", b"dir")
os.makedirs(f"{s.mnt}/links")
os.symlink("x", f"{s.mnt}/m/stays/symlink")
for name in NAMES:
    s.write(f"m/stays/{name}", b"old")
for name in NAMES[:40]:
    os.link(f"{s.mnt}/m/stays/{name}", f"{s.mnt}/links/{name}")
    os.rename(f"{s.mnt}/m/stays/{name}", f"{s.mnt}/m/stays/{name}.2")
last = f"{s.mnt}/m/stays/{NAMES[40]}"
enough[0] = 0
pusher = child(push, "press/s")
try:
    wait_for(lambda: not os.path.exists(last), every=0)
    enough[0] = 1
    left = os.listdir(f"{s.mnt}/m/stays")
    assert left == ["symlink"], f"{len(left)} names are left"
    s.write(f"m/stays/{NAMES[50]}", b"new")
    s.write(f"links/{NAMES[0]}", b"new")
    assert s.read(f"m/stays/{NAMES[50]}") == b"new" and s.read(f"links/{NAMES[0]}") == b"new"
    assert sorted(os.listdir(f"{s.mnt}/m/stays")) == [NAMES[50], "symlink"]
    assert os.listdir(f"{s.mnt}/links") == [NAMES[0]]
finally:
    enough[0] = 1
    os.waitpid(pusher, 0)
stop([])
assert s.stats()["drop_files"] <= MOST
s.umount()
assert "no errors found" in s.fsck("-n").stdout
print("ok")
