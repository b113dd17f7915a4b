# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""No program calls a file function by a name that the libraries of tests/preload, or the --wrap of
a unit test, do not replace: with _FORTIFY_SOURCE, read() may be __read_chk, and open() __open_2.
The replacements of these names obey the fault rules and keep libc's check. A rule ends with its
descriptor, even if libc closes it."""
import glob, re
from kvtest import *
from faults import environment

PROGRAMS = ["kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "mount.kvcachefs", "kvcachectl"]
# Functions of libc that work on files, by their plain names. faults.c replaces those that the
# programs use, except those in NOT_REPLACED, whose faults no test needs.
FILES = """
    open openat creat close read pread readv preadv preadv2 write pwrite writev pwritev pwritev2
    lseek truncate ftruncate fallocate posix_fallocate fsync fdatasync sync_file_range syncfs msync
    copy_file_range sendfile unlink unlinkat rmdir rename renameat renameat2 link linkat symlink
    symlinkat mkdir mkdirat mknod mknodat mkstemp mkostemp mkdtemp stat lstat fstat fstatat statx
    statfs fstatfs statvfs fstatvfs access faccessat euidaccess readlink readlinkat realpath
    getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
    listxattr llistxattr flistxattr chmod fchmod fchmodat chown lchown fchown fchownat utimensat
    futimens opendir fdopendir readdir scandir nftw ftw glob fopen fdopen freopen tmpfile dup dup2
    dup3 fcntl flock lockf closedir""".split()
NOT_REPLACED = """
    access chmod faccessat fchmod fchmodat fchown fdopendir flock fstat fstatfs
    fstatvfs futimens glob nftw readlink realpath scandir statvfs statx""".split()


def names(*options):
    """The symbols that nm shows, without versions."""
    return {l.split()[-1].split("@")[0] for l in run("nm", *options, ok=True).stdout.splitlines()}


def plain(name):
    """read for __read_chk, open for __open64_2, pread for pread64."""
    m = re.fullmatch(r"__(\w+?)(?:_chk|_2)", name)
    return re.sub(r"64$", "", m.group(1) if m else name)


def linked(program):
    """The program and its shared libraries, but for libc and the loader."""
    paths = re.findall(r"=> (/\S+)", run("ldd", program, ok=True).stdout)
    return [program] + [p for p in paths if not re.search(r"/(libc|ld-linux\S*)\.so", p)]


imports = {f: names("-D", "--undefined-only", f)
           for f in {f for p in PROGRAMS for f in linked(binary(p))}}
assert any("sqlite3" in f for f in imports) and len(imports) > 10, list(imports)
ours = {n for p in PROGRAMS for n in imports[binary(p)]}
libraries = glob.glob(f"{BUILD}/lib/*.so")
for library in [l for l in libraries if "libkvcachefs" not in l]:
    replaced = names("-D", "--defined-only", library)
    plainly = {plain(n) for n in replaced}
    missed = {(f, n) for f, used in imports.items() for n in used - replaced if plain(n) in plainly}
    assert not missed, (library, "does not replace", missed)

replaced = names("-D", "--defined-only", f"{BUILD}/lib/faults.so")
missed = {n for n in ours - replaced if plain(n) in set(FILES) - set(NOT_REPLACED)}
assert not missed, ("faults.c does not replace", missed)
assert "read" in {plain(n) for n in ours} and "__read_chk" in replaced

for unit in glob.glob(f"{BUILD}/bin/unit-*"):
    symbols = names(unit)
    wrapped = {n[len("__wrap_"):] for n in symbols if n.startswith("__wrap_")}
    missed = {n for n in symbols if n.startswith("__") and plain(n) != n
              and plain(n) in {plain(w) for w in wrapped}}
    assert not missed, (unit, "wraps", wrapped, "but calls", missed)

# They obey the rules, and end a program that would overrun its buffer.
path, other = f"{TMP}/a", f"{TMP}/b"
for p in (path, other):
    with open(p, "w") as f:
        f.write("0123456789")
CALLS = f"""
import ctypes, os
c, buf = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(16)
def of(n):
    return n if n >= 0 else -ctypes.get_errno()
a, b = {path.encode()!r}, {other.encode()!r}
n = lambda *numbers: [ctypes.c_long(i) for i in numbers]
print([of(f(x, 0)) for f in (c.__open_2, c.__open64_2) for x in (a,)],
      [of(f(-100, a, 0)) for f in (c.__openat_2, c.__openat64_2)])
fd = c.__open64_2(b, 0)
print(c.__read_chk(fd, buf, *n(10, 16)), c.__pread_chk(fd, buf, *n(10, 0, 16)),
      c.__pread64_chk(fd, buf, *n(10, 0, 16)), flush=True)
c.__read_chk(fd, buf, *n(17, 16))
print("not ended")
"""
p = subprocess.run([sys.executable, "-c", CALLS], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                   text=True, env=environment(f"calls=open path={path} nth=1 count=0 do=ENOSPC",
                                              f"calls=read path={other} nth=1 count=0 do=short"))
e = -errno.ENOSPC
assert p.stdout == f"{[e, e]} {[e, e]}\n5 5 5\n" and p.returncode == -signal.SIGABRT, p

# If libc closes a descriptor (closedir) and a new one gets its number, the rule does not apply to
# the new one.
folder = f"{TMP}/d"
os.mkdir(folder)
CALLS = f"""
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
c.opendir.restype, c.closedir.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
c.dirfd.argtypes = [ctypes.c_void_p]
d = c.opendir({folder.encode()!r})
fd = c.dirfd(d)
assert c.closedir(d) == 0
e = c.eventfd(0, 0)
assert e == fd, (e, fd)
print(c.write(e, ctypes.byref(ctypes.c_uint64(1)), ctypes.c_long(8)))
"""
p = subprocess.run([sys.executable, "-c", CALLS], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                   text=True, env=environment(f"calls=write path={folder} nth=1 count=0 do=EIO"))
assert p.stdout == "8\n", p
