# SPDX-License-Identifier: Apache-2.0
# ways: fast plain (passthrough)
"""O_TMPFILE: a file without a name leaves nothing behind. linkat makes it an ordinary file, also
after fsync, close, and a kill."""
import ctypes, errno, os, random, sqlite3, time
from kvtest import *

libc = ctypes.CDLL(None, use_errno=True)
AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, AT_FDCWD = 0x1000, 0x400, -100
s = Store(options="settle=0").mount()
m = f"{s.mnt}/model/chunk"
os.makedirs(m)


def unnamed(folder=m, flags=os.O_RDWR, mode=0o640):
    return os.open(folder, os.O_TMPFILE | flags, mode)


def link(fd, path, by_proc=False):
    a = (AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, path.encode(),
         AT_SYMLINK_FOLLOW) if by_proc else \
        (fd, b"", AT_FDCWD, path.encode(), AT_EMPTY_PATH)
    if libc.linkat(*a):
        raise OSError(ctypes.get_errno(), path)


def rows(store=s):
    with sqlite3.connect(f"file:{store.path}/catalog.sqlite?mode=ro", uri=True) as db:
        return db.execute("SELECT count(*) FROM nodes WHERE nlink = 0").fetchone()[0] + \
            db.execute("SELECT count(*) FROM meta WHERE key LIKE 'unnamed:%'").fetchone()[0]


def gone(used):
    """Nothing is left in the pool and in the catalog."""
    wait_for(lambda: s.stats()["pool_used_bytes"] == used and s.stats()["files_open"] == 0)
    wait_for(lambda: rows() == 0)


# two files first, so that the daemon knows the usual size (and uses passthrough, if it can)
for i in range(2):
    s.write(f"model/chunk/first{i}", blob(i, MiB))
s.settle()
used = s.stats()["pool_used_bytes"]

# without a link it has no name, and is freed
ways = s.stats()["passthrough_opens"]
fd = unnamed()
st = os.fstat(fd)
assert st.st_nlink == 0 and st.st_mode & 0o777 == 0o640 and st.st_size == 0
assert os.write(fd, blob(5, MiB)) == MiB and os.pread(fd, MiB, 0) == blob(5, MiB) \
    and os.fstat(fd).st_size == MiB
assert sorted(os.listdir(m)) == ["first0", "first1"]
if s.config()["served_by"] == "passthrough":
    assert s.stats()["passthrough_opens"] > ways
os.setxattr(fd, "user.x", b"1")
os.fchmod(fd, 0o600)
os.fsync(fd)
assert os.pread(fd, MiB, 0) == blob(5, MiB)
os.close(fd)
gone(used)

# linked while open, then written on; linked under a second name like any file
fd = unnamed()
os.write(fd, blob(6, 300000))
link(fd, f"{m}/a")
assert os.fstat(fd).st_nlink == 1 and os.path.samefile(f"{m}/a", fd)
os.write(fd, b"more")
with fails(errno.EEXIST):
    link(fd, f"{m}/a")
link(fd, f"{m}/b")
os.close(fd)
assert s.read("model/chunk/a") == blob(6, 300000) + b"more" and os.stat(f"{m}/b").st_nlink == 2
s.settle()
assert s.attr("model/chunk/a", "state") == "resident+lower" \
    and s.attr("model/chunk/a", "tiers") == "cpu,disk"

# linked through /proc by a reader, after the writer has closed the file
fd = unnamed()
os.write(fd, blob(7, MiB))
os.setxattr(fd, "user.of", b"it")
reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
os.close(fd)
link(reader, f"{m}/c", by_proc=True)
os.close(reader)
assert s.read("model/chunk/c") == blob(7, MiB) and os.getxattr(f"{m}/c", "user.of") == b"it"
# linked through a path descriptor, the only one that is left
fd = unnamed()
os.write(fd, blob(8, MiB))
path = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
os.close(fd)
time.sleep(0.05)
link(path, f"{m}/d", by_proc=True)
os.close(path)
assert s.read("model/chunk/d") == blob(8, MiB)
s.settle()
assert s.attr("model/chunk/d", "state") == "resident+lower"
# with O_EXCL it never gets a name; nor does a file whose last name was deleted
fd = unnamed(flags=os.O_RDWR | os.O_EXCL)
with fails(errno.ENOENT):
    link(fd, f"{m}/no")
os.close(fd)
fd = os.open(f"{m}/e", os.O_CREAT | os.O_RDWR)
os.unlink(f"{m}/e")
with fails(errno.ENOENT):
    link(fd, f"{m}/no")
os.close(fd)
with fails(errno.EPERM, errno.EOPNOTSUPP):
    unnamed(f"{s.mnt}/.kvcachefs")
with fails(errno.EINVAL):
    os.open(m, os.O_TMPFILE | os.O_RDONLY)

# a quota counts it while it exists
os.mkdir(f"{s.mnt}/q")
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"4M")
fd = unnamed(f"{s.mnt}/q")
os.write(fd, blob(9, 3 * MiB))
assert int(s.attr("q", "used")) >= 3 * MiB
with fails(errno.EDQUOT):
    os.posix_fallocate(fd, 3 * MiB, 3 * MiB)
with fails(errno.EXDEV):
    link(fd, f"{m}/no")
os.close(fd)
wait_for(lambda: s.attr("q", "used") == "0")
fd = unnamed(f"{s.mnt}/q")
os.write(fd, blob(9, 2 * MiB))
link(fd, f"{s.mnt}/q/f")
os.close(fd)
s.settle()
assert s.attr("q", "used") == str(2 * MiB)

# a clean stop with such a file open leaves nothing; all linked files are there
used = s.stats()["pool_used_bytes"]
fd = unnamed()
os.write(fd, blob(10, MiB))
os.fsync(fd)
s.term()
os.close(fd)
assert rows() == 0
s.fsck("-n")
s.mount()
assert sorted(os.listdir(m)) == ["a", "b", "c", "d", "first0", "first1"] \
    and os.stat(f"{m}/a").st_nlink == 2
assert s.read("model/chunk/d") == blob(8, MiB) and s.read("q/f") == blob(9, 2 * MiB) \
    and os.getxattr(f"{m}/c", "user.of") == b"it"

# after a kill, files exist that were linked and closed 50 ms before; if they were fsynced before
# the link, they exist even if the pool is lost; nothing is left of the others
seed = time.time_ns() % 10**6
print("seed", seed)
for turn in range(4):
    rng = random.Random(seed + turn)
    keep = {}
    others = []
    for i in range(6):
        fd = unnamed()
        os.write(fd, blob(turn * 100 + i, 500000))
        if i % 2 or turn % 2:
            os.fsync(fd)
        if i < 4:
            link(fd, f"{m}/t{turn}-{i}", by_proc=rng.random() < 0.5)
            keep[f"model/chunk/t{turn}-{i}"] = blob(turn * 100 + i, 500000)
            os.close(fd)
        else:
            others.append(fd)
            if turn > 1:
                os.setxattr(fd, "user.x", b"y")
    if turn % 2:  # the contents are on stable storage already; now the names are, too
        folder = os.open(m, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    else:
        s.committed(still_open=len(others))
    s.kill()
    for fd in others:
        os.close(fd)
    run("umount", "-l", s.mnt)
    if turn % 2:
        s.drop_pool()
    s.fsck("-n")
    s.mount()
    assert {n for n in os.listdir(m) if n.startswith(f"t{turn}-")} == {os.path.basename(p)
                                                                       for p in keep}
    assert all(s.read(p) == body for p, body in keep.items())
    assert rows() == 0
    s.settle()
s.umount()
s.fsck("-n")
