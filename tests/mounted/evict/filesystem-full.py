# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""The filesystem below the store is filled from outside under load, and emptied again. No
acknowledged change is lost, unreadable or wrong while it is full, afterwards, after a kill while it
is full, and after a remount. While it is full, lookups, opens, reads and deletes work; operations
that need space fail with ENOSPC before they change anything."""
import errno, os, threading, time
from kvtest import *

need_mount()
FS = f"{TMP}/fs"
SIZE = 4096
names = {}  # path -> seed; None: deleted
lock = threading.Lock()
serial = 0


def make_fs(mib):
    os.makedirs(FS)
    run("truncate", "-s", f"{mib}M", f"{TMP}/image", ok=True)
    run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", f"{TMP}/image", ok=True)
    p = run("mount", "-o", "loop", f"{TMP}/image", FS)
    if p.returncode:
        skip(f"needs loop devices: {p.stdout.strip()}")


def create(s, folder):
    """Creates a file under a temporary name. Returns the errno, or 0 if it is acknowledged."""
    global serial
    with lock:
        serial += 1
        seed = serial
    path = f"{folder}/{seed:06x}"
    try:
        fd = os.open(f"{s.mnt}/{path}.tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except OSError as e:
        return e.errno
    try:
        assert os.write(fd, blob(seed, SIZE)) == SIZE
    finally:
        os.close(fd)
    try:
        os.rename(f"{s.mnt}/{path}.tmp", f"{s.mnt}/{path}")
    except OSError as e:
        os.unlink(f"{s.mnt}/{path}.tmp")
        return e.errno
    with lock:
        names[path] = seed
    return 0


def delete(s, n):
    with lock:
        some = [p for p, v in names.items() if v is not None][:n]
    for path in some:
        os.unlink(f"{s.mnt}/{path}")
        names[path] = None


def check(s, when):
    for path, seed in list(names.items()):
        full = f"{s.mnt}/{path}"
        if seed is None:
            assert not os.path.lexists(full), f"{when}: {path} was deleted and is there"
        else:
            try:
                assert s.read(path) == blob(seed, SIZE), f"{when}: {path} has other bytes"
            except FileNotFoundError:
                raise AssertionError(f"{when}: {path} is gone")
    there = {f"{d}/{x}" for d in ("m/a", "m/b") for x in os.listdir(f"{s.mnt}/{d}")}
    assert there == {p for p, v in names.items() if v is not None}, (when, len(there ^ set(names)))


class Filler(threading.Thread):
    """Takes all free space. If greedy, also takes space that becomes free later, until it is
    stopped."""

    def __init__(self, greedy):
        super().__init__(daemon=True)
        self.greedy, self.stop, self.full = greedy, threading.Event(), threading.Event()

    def run(self):
        fd = os.open(f"{FS}/fill", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        piece = 1 << 20
        while not self.stop.is_set():
            try:
                os.write(fd, b"x" * piece)
            except OSError as e:
                assert e.errno == errno.ENOSPC
                if piece > 4096:
                    piece //= 2
                    continue
                self.full.set()
                if not self.greedy:
                    break
                time.sleep(0.002)
        os.close(fd)

    def empty(self):
        self.stop.set()
        self.join()
        os.unlink(f"{FS}/fill")


def until_refused(s):
    """Threads create files until a create is refused."""
    refused, wrong = threading.Event(), []

    def work(folder):
        while not refused.is_set() and len(names) < 20000:
            e = create(s, folder)
            if e == errno.ENOSPC:
                refused.set()
            elif e:
                wrong.append(errno.errorcode[e])
                refused.set()
    threads = [threading.Thread(target=work, args=(f"m/{x}",)) for x in "ab"]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong
    assert refused.is_set(), "no create was refused on a full filesystem"


def while_full(s):
    st = s.stats()
    assert st["catalog_ok"] == 0 and st["refused_changes"] > 0, st
    path, seed = next((p, v) for p, v in names.items() if v is not None)
    full = f"{s.mnt}/{path}"
    with fails(errno.ENOSPC):
        os.mkdir(f"{s.mnt}/m/new")
    with fails(errno.ENOSPC):
        os.rename(full, full + ".other")
    with fails(errno.ENOSPC):
        os.link(full, full + ".other")
    with fails(errno.ENOSPC):
        os.symlink("x", f"{s.mnt}/m/link")
    with fails(errno.ENOSPC):
        os.setxattr(full, "user.x", b"1")
    with fails(errno.ENOSPC):
        os.chmod(full, 0o600)
    with fails(errno.ENOSPC):
        open(full, "r+b")
    with fails(errno.ENOENT):
        os.stat(full + ".other")
    assert s.read(path) == blob(seed, SIZE)
    wait_for(lambda: "no space left on the store's filesystem" in s.log())


make_fs(144)
s = Store("fs/s", size="64M", options="log=1M,settle=50,unit=file")
s.mnt = f"{TMP}/mnt"
os.mkdir(s.mnt)
s.mount()
reserve = f"{s.path}/reserve"
assert os.stat(reserve).st_blocks * 512 >= 8 * MiB
for d in ("m", "m/a", "m/b"):
    os.mkdir(f"{s.mnt}/{d}")
for i in range(600):
    assert create(s, "m/a") == 0

# filled once: the daemon uses its reserve, and deletes are committed; then a kill and a start while
# the filesystem is full
f = Filler(greedy=False)
f.start()
f.full.wait()
until_refused(s)
while_full(s)
check(s, "while it is full")
delete(s, 400)
check(s, "deleted while it is full")
wait_for(lambda: s.stats()["catalog_pending_bytes"] == 0)
assert os.stat(reserve).st_size < 8 * MiB
s.kill()
run("umount", "-l", s.mnt)
s.mount()
check(s, "after a kill while it was full")
delete(s, 50)
f.empty()
wait_for(lambda: s.stats()["catalog_ok"] == 1)
assert os.stat(reserve).st_blocks * 512 >= 8 * MiB
assert "all changes are accepted" in s.log()
for i in range(200):
    assert create(s, "m/b") == 0
check(s, "after it was emptied")
s.umount()
s.fsck("-n")
s.mount()
check(s, "after a remount")

# another process fills the filesystem again and again: acknowledged changes may wait in memory and
# are correct
f = Filler(greedy=True)
f.start()
f.full.wait()
until_refused(s)
end = time.time() + 3
while time.time() < end:
    delete(s, 1)
    create(s, "m/a")
    time.sleep(0.02)
while_full(s)
check(s, "while all is taken")
f.empty()
wait_for(lambda: s.stats()["catalog_ok"] == 1)
check(s, "after all was taken")
for i in range(100):
    assert create(s, "m/a") == 0
s.umount()
s.fsck("-n")
s.mount()
check(s, "after the second remount")

# an unmount on a full filesystem waits for space
f = Filler(greedy=True)
f.start()
f.full.wait()
until_refused(s)
later = threading.Timer(1, f.empty)
later.start()
s.umount()
later.join()
s.fsck("-n")
s.mount()
check(s, "after an unmount that waited for room")
s.umount()
run("umount", FS, ok=True)
print("ok")
