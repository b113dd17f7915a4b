# SPDX-License-Identifier: Apache-2.0
# ways: fast plain (passthrough)
"""Names, files and attributes behave as kvcachefs-attributes(7) and kvcachefs-errors(7) say, call
by call, also after a remount."""
import ctypes, errno, fcntl, mmap, os, random, stat, subprocess, threading, time
from kvtest import *

s = Store().mount()
m = s.mnt
P = lambda *a: os.path.join(m, *a)

# create: O_EXCL, O_TRUNC, O_APPEND, modes, owner
os.makedirs(P("model/chunk"))
fd = os.open(P("model/chunk/a"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
with fails(errno.EEXIST):
    os.open(P("model/chunk/a"), os.O_CREAT | os.O_EXCL | os.O_RDWR)
assert os.write(fd, b"hello world") == 11
assert os.pread(fd, 5, 6) == b"world"
assert os.fstat(fd).st_size == 11
os.pwrite(fd, b"W", 6)
assert os.preadv(fd, [bytearray(5), b := bytearray(6)], 0) == 11 and bytes(b) == b" World"
os.close(fd)
assert stat.S_IMODE(os.stat(P("model/chunk/a")).st_mode) == 0o640
with open(P("model/chunk/a"), "ab") as f:
    f.write(b"!")
assert s.read("model/chunk/a") == b"hello World!"
with open(P("model/chunk/a"), "wb"):
    pass
assert os.stat(P("model/chunk/a")).st_size == 0
with open(P("model/chunk/a"), "r+b") as f:
    f.write(blob(1, 300000))
    f.seek(1000)
    f.write(b"in place")
want = bytearray(blob(1, 300000))
want[1000:1008] = b"in place"
assert s.read("model/chunk/a") == bytes(want)

# O_DIRECT, one write and one readv; the buffers are aligned
buf = mmap.mmap(-1, 2 * MiB)
buf[:] = blob(2, 2 * MiB)
fd = os.open(P("direct"), os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
assert os.write(fd, buf) == 2 * MiB
os.close(fd)
back = mmap.mmap(-1, 2 * MiB)
fd = os.open(P("direct"), os.O_RDONLY | os.O_DIRECT)
assert os.readv(fd, [back]) == 2 * MiB and back[:] == buf[:]
os.close(fd)

# sparse, ftruncate, fallocate, holes, st_blocks
fd = os.open(P("sparse"), os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 1 << 30)
os.pwrite(fd, b"x" * 8192, 512 * MiB)
assert os.fstat(fd).st_size == 1 << 30 and os.fstat(fd).st_blocks * 512 <= 4 * MiB
assert os.lseek(fd, 0, os.SEEK_DATA) > 0
os.close(fd)
fd = os.open(P("prepared"), os.O_CREAT | os.O_RDWR)
os.posix_fallocate(fd, 0, MiB)
assert os.fstat(fd).st_size == MiB
os.ftruncate(fd, 100)
assert os.fstat(fd).st_size == 100
os.close(fd)
os.truncate(P("prepared"), 50)
assert os.stat(P("prepared")).st_size == 50
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(P("huge"), os.O_CREAT | os.O_RDWR)
assert libc.fallocate(fd, 0, ctypes.c_long(0),
                      ctypes.c_long(1 << 40)) == -1 and ctypes.get_errno() == errno.ENOSPC
os.close(fd)
os.unlink(P("huge"))

# fallocate: space, holes and zeros; the result is compared with a copy in memory
KEEP, PUNCH, ZERO = 1, 2, 16


def fallocate(fd, mode, off, length):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), f"fallocate {mode} {off} {length}")


fd = os.open(P("zeros"), os.O_CREAT | os.O_RDWR)
os.write(fd, blob(9, MiB))
before = os.fstat(fd)
fallocate(fd, ZERO, 5000, 300000)
assert os.pread(fd, 2 * MiB, 0) == blob(9, MiB)[:5000] + bytes(300000) + blob(9, MiB)[305000:]
assert os.fstat(fd).st_blocks == before.st_blocks and os.fstat(fd).st_mtime_ns > before.st_mtime_ns
fallocate(fd, ZERO | KEEP, MiB - 100, MiB)
assert os.fstat(fd).st_size == MiB and os.fstat(fd).st_blocks * 512 >= 2 * MiB - 4096
fallocate(fd, ZERO, MiB - 100, 2 * MiB)
assert os.fstat(fd).st_size == 3 * MiB - 100 and os.fstat(fd).st_blocks * 512 >= 3 * MiB - 4096
with fails(errno.ENOSPC):
    fallocate(fd, ZERO, 0, 1 << 40)
assert os.fstat(fd).st_size == 3 * MiB - 100 and os.pread(fd, 5000, 0) == blob(9, MiB)[:5000]
for bad in (ZERO | PUNCH, PUNCH, 8, 32, 64):
    with fails(errno.EOPNOTSUPP, errno.EINVAL):
        fallocate(fd, bad, 0, 4096)
seed = time.time_ns() % 10**6
print("seed", seed)
rng, want = random.Random(seed), bytearray(os.pread(fd, 4 * MiB, 0))
for turn in range(300):
    off, n = rng.randrange(3 * MiB), rng.randrange(1, 400000)
    what = rng.choice(("write", "truncate", KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP))
    if what == "truncate":
        off, n = rng.randrange(len(want) + 100000), 0
        os.ftruncate(fd, off)
        del want[off:]
    elif what == "write":
        os.pwrite(fd, blob(turn, n), off)
    else:
        fallocate(fd, what, off, n)
    if what in ("truncate", "write", ZERO):
        want += bytes(max(0, off + n - len(want)))
    end = min(off + n, len(want))
    if off < end and what != KEEP:
        want[off:end] = blob(turn, n) if what == "write" else bytes(end - off)
    got = os.pread(fd, 8 * MiB, 0)
    assert len(got) == len(want) == os.fstat(fd).st_size \
        and got == want, (seed, turn, what, off, n, len(got), len(want))
os.close(fd)
assert s.read("zeros") == bytes(want)

# mmap, shared for writing and private for reading
fd = os.open(P("mapped"), os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, MiB)
w = mmap.mmap(fd, MiB)
w[:] = blob(3, MiB)
w.flush()
w.close()
os.close(fd)
assert s.read("mapped") == blob(3, MiB)
with open(P("mapped"), "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as r:
    assert r[:] == blob(3, MiB)

# rename over a file, a folder over an empty one, into another folder; NOREPLACE
s.write("r/old", b"old")
s.write("r/new", b"new")
os.rename(P("r/new"), P("r/old"))
assert s.read("r/old") == b"new" and os.listdir(P("r")) == ["old"]
os.makedirs(P("d1/sub"))
os.mkdir(P("d2"))
os.rename(P("d1"), P("d2"))
assert os.listdir(P("d2")) == ["sub"] and not os.path.exists(P("d1"))
with fails(errno.ENOTEMPTY):
    os.rename(P("r"), P("d2"))
with fails(errno.EISDIR):
    os.rename(P("r/old"), P("d2"))
with fails(errno.EINVAL):
    os.rename(P("d2"), P("d2/sub/x"))
s.write("r/x", b"x")
assert libc.renameat2(-100, P("r/x").encode(), -100, P("r/old").encode(),
                      1) == -1 and ctypes.get_errno() == errno.EEXIST
os.rename(P("r/x"), P("d2/sub/y"))
assert s.read("d2/sub/y") == b"x"

# RENAME_EXCHANGE: files, folders, one of each, in one folder and over two; both names or neither
def exchange(a, b):
    if libc.renameat2(-100, P(a).encode(), -100, P(b).encode(), 2):
        raise OSError(ctypes.get_errno(), f"{a} {b}")


s.write("x/one/a", b"first")
s.write("x/one/b", b"second one")
s.write("x/two/deep/c", b"third")
os.symlink("one/a", P("x/sym"))
ino = {n: os.lstat(P("x", n)).st_ino
       for n in ("one/a", "one/b", "two/deep", "two/deep/c", "sym", "one")}
before = time.time_ns()
exchange("x/one/a", "x/one/b")
assert s.read("x/one/a") == b"second one" and s.read("x/one/b") == b"first" \
    and os.stat(P("x/one/a")).st_ino == ino["one/b"]
assert os.stat(P("x/one")).st_mtime_ns >= before and os.stat(P("x/one/a")).st_ctime_ns >= before
assert os.stat(P("x/one")).st_nlink == 2 and os.stat(P("x/two")).st_nlink == 3
exchange("x/one/a", "x/two/deep")  # a file and a folder: both parents' links change
wait_for(lambda: os.stat(P("x/one")).st_nlink == 3 and os.stat(P("x/two")).st_nlink == 2)
assert s.read("x/two/deep") == b"second one" and s.read("x/one/a/c") == b"third" \
    and os.listdir(P("x/two")) == ["deep"]
exchange("x/sym", "x/one/b")
assert os.readlink(P("x/one/b")) == "one/a" and s.read("x/sym") == b"first"
os.mkdir(P("x/full"))
s.write("x/full/f", b"4")
exchange("x/full", "x/one")  # neither is empty
assert s.read("x/one/f") == b"4" and os.stat(P("x/full")).st_ino == ino["one"] \
    and s.read("x/full/a/c") == b"third"
with fails(errno.ENOENT):
    exchange("x/full", "x/none")
with fails(errno.ENOENT):
    exchange("x/none", "x/full")
with fails(errno.EINVAL):
    exchange("x", "x/full")
with fails(errno.EINVAL):
    exchange("x/full", "x")
for bad in (3, 4, 6, 8):
    assert libc.renameat2(-100, P("x/sym").encode(), -100, P("x/none").encode(),
                          bad) == -1 and ctypes.get_errno() == errno.EINVAL
os.link(P("x/sym"), P("x/same"))
exchange("x/sym", "x/same")
assert os.stat(P("x/sym")).st_nlink == 2
with open(P("x/tmp"), "wb") as f:  # a file closed a moment ago; its new name is deleted at once
    f.write(b"new")
exchange("x/tmp", "x/sym")
os.unlink(P("x/tmp"))
assert s.read("x/sym") == b"new" and s.read("x/same") == b"first"

# links
os.link(P("r/old"), P("d2/link"))
assert os.stat(P("d2/link")).st_nlink == 2 and os.path.samefile(P("r/old"), P("d2/link"))
os.unlink(P("r/old"))
assert s.read("d2/link") == b"new" and os.stat(P("d2/link")).st_nlink == 1
os.symlink("d2/link", P("sym"))
assert os.readlink(P("sym")) == "d2/link" and s.read("sym") == b"new"

# unlinked while open
fd = os.open(P("gone"), os.O_CREAT | os.O_RDWR | os.O_EXCL)
os.write(fd, b"still here")
os.unlink(P("gone"))
assert os.pread(fd, 20, 0) == b"still here" and os.fstat(fd).st_nlink == 0
os.close(fd)

# many at once: the same folder tree
def mk(i):
    for j in range(20):
        os.makedirs(P(f"many/{j}/x"), exist_ok=True)
        open(P(f"many/{j}/x/{i}"), "w").close()
t = [threading.Thread(target=mk, args=(i,)) for i in range(8)]
[x.start() for x in t]
[x.join() for x in t]
assert all(len(os.listdir(P(f"many/{j}/x"))) == 8 for j in range(20))

# readdir with types, over more than one request's worth; odd names
os.mkdir(P("big"))
names = {f"name-{i}-" + "n" * (i % 90) for i in range(1500)} | {".dot", "sp ace", "ü", "x" * 255,
                                                                "a@b%c"}
for n in names:
    os.close(os.open(P("big", n), os.O_CREAT | os.O_WRONLY))
os.mkdir(P("big/folder"))
with os.scandir(P("big")) as it:
    seen = {e.name: e.is_dir(follow_symlinks=False) for e in it}
assert set(seen) == names | {"folder"} and [n for n in seen if seen[n]] == ["folder"]
with fails(errno.ENAMETOOLONG):
    open(P("big", "y" * 256), "w")

# times
st = os.stat(P("big/.dot"))
os.utime(P("big/.dot"), ns=(10**18 + 5, 10**18 + 7))
st = os.stat(P("big/.dot"))
assert (st.st_atime_ns, st.st_mtime_ns) == (10**18 + 5, 10**18 + 7) and st.st_ctime_ns > 10**18 + 7
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
class T(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("n", ctypes.c_long)]
assert libc.utimensat(-100, P("big/.dot").encode(), (T * 2)(T(0, UTIME_NOW), T(0, UTIME_OMIT)),
                      0) == 0
st = os.stat(P("big/.dot"))
assert st.st_mtime_ns == 10**18 + 7 and st.st_atime_ns > 10**18 + 7
t0 = time.time_ns()
time.sleep(0.02)
s.write("stamp", b"1")
s.settle()
st = os.stat(P("stamp"))
assert t0 < st.st_mtime_ns <= time.time_ns() and st.st_mtime_ns <= st.st_ctime_ns
birth = int(float(run("stat", "-c", "%.9W", P("stamp"), ok=True).stdout.replace("-", "0")) * 1e9)
assert birth == 0 or t0 - 10**9 < birth < st.st_mtime_ns + 10**9, birth
a0 = os.stat(P("stamp")).st_atime_ns
time.sleep(0.02)
s.read("stamp")
wait_for(lambda: os.stat(P("stamp")).st_atime_ns > a0)

# mode, owner, enforced
os.chmod(P("stamp"), 0o600)
os.chown(P("stamp"), 1234, 4321)
st = os.stat(P("stamp"))
assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid) == (0o600, 1234, 4321)
assert os.stat(P("d2")).st_nlink == 3

# a plain file by mknod (special-files.py has the other kinds); changes in .kvcachefs are refused
os.mknod(P("plain"), 0o600 | stat.S_IFREG)
assert os.stat(P("plain")).st_size == 0
with fails(errno.EPERM):
    os.mkdir(P(".kvcachefs/x"))
with fails(errno.EPERM):
    os.unlink(P(".kvcachefs/stats"))
assert ".kvcachefs" not in os.listdir(m) and "stats" in os.listdir(P(".kvcachefs"))
with fails(errno.ENOENT):
    os.stat(P(".kvcachefs/nothing"))

# xattrs stay with a renamed file
os.setxattr(P("stamp"), "user.vllm.kv_crc32c", b"\x01\x02\0\x03")
with fails(errno.EEXIST):
    os.setxattr(P("stamp"), "user.vllm.kv_crc32c", b"", os.XATTR_CREATE)
with fails(errno.ENODATA):
    os.setxattr(P("stamp"), "user.other", b"", os.XATTR_REPLACE)
os.rename(P("stamp"), P("stamped"))
assert os.getxattr(P("stamped"), "user.vllm.kv_crc32c") == b"\x01\x02\0\x03"
assert "user.vllm.kv_crc32c" in os.listxattr(P("stamped"))
os.setxattr(P("stamped"), "user.gone", b"1")
os.removexattr(P("stamped"), "user.gone")
with fails(errno.ENODATA):
    os.getxattr(P("stamped"), "user.gone")
for name, value in (("nonsense", b"1"), ("pin", b"x"), ("pin", b""), ("pin", b"-1"),
                    ("ttl", b"1.5"), ("unit", b"dir")):
    with fails(errno.EINVAL):
        os.setxattr(P("stamped"), "user.kvcachefs." + name, value)
with fails(errno.EOPNOTSUPP):
    os.setxattr(P("stamped"), "user.kvcachefs.hits", b"1")

# fsync of files and folders
fd = os.open(P("synced"), os.O_CREAT | os.O_RDWR)
os.write(fd, blob(4, 100000))
os.fsync(fd)
os.fdatasync(fd)
os.write(fd, b"more")
os.close(fd)
fd = os.open(m, os.O_RDONLY)
os.fsync(fd)
os.close(fd)

# cp works, with any method of the kernel (copy_file_range, sendfile)
run("cp", "-a", P("mapped"), P("copied"), ok=True)
assert s.read("copied") == blob(3, MiB)

# statfs returns plausible numbers for df
v = os.statvfs(m)
assert v.f_blocks * v.f_frsize == 256 * MiB // 100 * 90 // 4096 * 4096 \
    and 0 < v.f_bfree < v.f_blocks and v.f_namemax == 255

# everything is the same after a clean remount
def picture():
    out = {}
    for folder, dirs, files in os.walk(m):
        for n in dirs + files:
            p = os.path.join(folder, n)
            st = os.lstat(p)
            key = (st.st_mode, st.st_uid, st.st_gid, st.st_nlink,
                   st.st_size if not stat.S_ISDIR(st.st_mode) else 0, st.st_mtime_ns)
            read = stat.S_ISREG(st.st_mode) and n != "sparse"
            body = hashlib.md5(open(p, "rb").read()).hexdigest() if read else None
            out[os.path.relpath(p, m)] = (key, body)
    return out
s.settle()
time.sleep(1.1)
one = picture()
s.umount()
s.fsck("-n")
s.mount()
two = picture()
assert one == two, [(k, one.get(k), two.get(k)) for k in set(one) | set(two)
                    if one.get(k) != two.get(k)][:5]
assert os.getxattr(P("stamped"), "user.vllm.kv_crc32c") == b"\x01\x02\0\x03"
fd = os.open(P("sparse"), os.O_RDONLY)
assert os.pread(fd, 8192, 512 * MiB) == b"x" * 8192 and os.pread(fd, 4096, 0) == bytes(4096)
assert os.fstat(fd).st_blocks * 512 <= 4 * MiB
os.close(fd)
for name in os.listdir(m):
    run("rm", "-rf", P(name), ok=True)
assert os.listdir(m) == []
s.umount()
s.fsck("-n")
