# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""One user's pins, open files, leases and mappings hold at most a share of the pool and of the
disk. Anything beyond fails with EDQUOT or ENOSPC, or is not protected from eviction, and another
user can always store and load. The same holds through a kill and a remount."""
import ast, errno, mmap, os, resource, subprocess, traceback
from kvtest import *

need_mount()
for p in (TMP, os.path.dirname(TMP)):
    os.chmod(p, 0o755)
N = 2 * MiB
kept = []


class User:
    """A process of that user, which runs functions of this file and keeps the objects that they
    leave open."""
    def __init__(self, uid):
        ask, self.ask = os.pipe()
        self.answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(ask), os.close(answer)
            self.lines = os.fdopen(self.answer)
            return
        os.close(self.ask), os.close(self.answer)
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        for line in os.fdopen(ask):
            name, args = ast.literal_eval(line)
            try:
                got = 0, globals()[name](*args)
            except OSError as e:
                got = e.errno, str(e)
            except BaseException:
                got = -1, traceback.format_exc()
            os.write(answer, (repr(got) + "\n").encode())
        os._exit(0)

    def __call__(self, name, *args):
        os.write(self.ask, (repr((name, args)) + "\n").encode())
        err, got = ast.literal_eval(self.lines.readline())
        assert err >= 0, got
        if err:
            raise OSError(err, got)
        return got

    def end(self):
        os.write(self.ask, b"('leave', ())\n")  # a close is not enough: other processes have it too
        os.close(self.ask)
        self.lines.close()
        os.waitpid(self.pid, 0)


# actions of users, repeated until they fail: returns the count and the error
def each(n, do):
    for i in range(n):
        try:
            do(i)
        except OSError as e:
            return i, e.errno
    return n, 0


def store(folder, n, size=N, first=0):
    os.makedirs(folder, exist_ok=True)

    def one(i):
        with open(f"{folder}/{first + i}", "wb", buffering=0) as f:
            if size:
                f.write(blob(first + i, size))
        assert os.path.getsize(f"{folder}/{first + i}") == size
    return each(n, one)


def load(folder, n, size=N, first=0):
    def one(i):
        with open(f"{folder}/{first + i}", "rb", buffering=0) as f:
            assert f.readall() == blob(first + i, size)
    return each(n, one)


def pin(folder, n, value="1", first=0):
    return each(n, lambda i: os.setxattr(f"{folder}/{first + i}", "user.kvcachefs.pin",
                                         value.encode()))


def grow(folder, n):
    def one(i):
        with open(f"{folder}/{i}", "r+b", buffering=0) as f:
            f.write(blob(i, N))
    return each(n, one)


def hold(folder, n, flags=os.O_RDONLY, write=0):
    def one(i):
        kept.append(os.open(f"{folder}/{i}", flags, 0o644))
        if write:
            os.write(kept[-1], blob(i, write))
    return each(n, one)


def map_all(folder, n):
    def one(i):
        with open(f"{folder}/{i}", "rb", buffering=0) as f:
            m = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        assert m[:] == blob(i, N)
        kept.append(m)
    return each(n, one)


def lease(mount, *paths):
    kept.append(os.open(f"{mount}/.kvcachefs/lease", os.O_RDWR))
    os.write(kept[-1], "".join(f"{p}\n" for p in paths).encode())
    text = b""
    while piece := os.pread(kept[-1], 65536, len(text)):
        text += piece
    return [l.split()[-1] for l in text.decode().splitlines()]


def texts(mount, n):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return each(n, lambda i: kept.append(os.open(f"{mount}/.kvcachefs/metrics", os.O_RDONLY)))


def read_text(mount, name):
    with open(f"{mount}/.kvcachefs/{name}") as f:
        return len(f.read())


def leave():
    os._exit(0)


def release():
    while kept:
        k = kept.pop()
        k.close() if isinstance(k, mmap.mmap) else os.close(k)


def new(name, **more):
    s = Store(name, **more)
    s.options = ",".join(filter(None, [s.options, "allow_other,mode=1777,unit=file"]))
    s.mount()
    return s, User(1001), User(1002), f"{s.mnt}/a", f"{s.mnt}/b"


def goes_on(s, b, folder, what, n=40):
    """The other user stores more than the pool holds, and can load the last file."""
    b("release")
    got = b("store", folder, n)
    assert got == (n, 0), f"{what}: the other user could not store: {got}"
    got = b("load", folder, 1, N, n - 1)
    assert got == (1, 0), f"{what}: the other user could not load the last file: {got}"


def done(s, *users):
    [u.end() for u in users]
    s.umount()
    s.fsck("-n")


# pins: a quarter of the pool for one user, and half of it for all users, including root
def pins():
    s, a, b, A, B = new("pins", cpu="64M", size="128M", options="deadline=60000")
    assert s.stats()["pins"] == 0 and s.config()["pins"] == "50"
    assert a("store", A, 10) == (10, 0)
    s.settle()
    n, err = a("pin", A, 10)
    assert err == errno.EDQUOT and 4 <= n <= 8, (n, err)
    assert a("pin", A, 1, "1", 9) == (0, errno.EDQUOT)
    assert s.attr("a/9", "pin") == "0" and s.attr("a/0", "pin") == "1"
    assert a("pin", A, 1, "1") == (1, 0), "the user may pin a pinned file again"
    assert store(f"{s.mnt}/r", 12) == (12, 0)
    s.settle()
    more, err = pin(f"{s.mnt}/r", 12)
    assert err == errno.ENOSPC and n + more <= 16 and more >= n, (n, more, err)
    st = s.stats()
    assert st["pins"] == n + more and st["pin_refusals"] >= 3, st
    assert st["pinned_pool_bytes"] == (n + more) * N
    assert (n + more) * N < st["pinned_disk_bytes"] <= (n + more) * (N + 8 * KiB), st
    with open(f"{s.mnt}/.kvcachefs/metrics") as f:
        assert f"\nkvcachefs_pins {n + more}\n" in f.read()
    goes_on(s, b, B, "pins", 80)
    for i in range(n):
        assert s.attr(f"a/{i}", "state") == "resident+lower", i
    assert load(f"{s.mnt}/r", more) == (more, 0) and load(A, n) == (n, 0)

    # a kill and an unmount change nothing
    want = {k: s.stats()[k] for k in ("pins", "pinned_disk_bytes")}
    for end in (s.kill, s.umount):
        [u.end() for u in (a, b)]
        if end == s.kill:
            s.committed()
            end()
            run("umount", "-l", s.mnt)
        else:
            end()
        s.mount()
        a, b = User(1001), User(1002)
        assert {k: s.stats()[k] for k in want} == want, (s.stats(), want)
        assert a("load", A, n) == (n, 0)
        assert a("pin", A, 1, "1", n)[1] in (errno.EDQUOT, errno.ENOENT)

    # a pin that is removed, expires, or is deleted with its file makes room for another
    assert a("store", A, 10) == (10, 0)
    wait_for(lambda: s.stats()["files_open"] == 0)
    assert load(f"{s.mnt}/r", more) == (more, 0) and pin(f"{s.mnt}/r", 2, "0") == (2, 0)
    before = s.stats()["pins"]
    assert s.stats()["pinned_pool_bytes"] == before * N, s.stats()
    assert a("pin", A, 1, "0") == (1, 0) and s.stats()["pins"] == before - 1
    # so long that it does not expire early if the machine pauses for seconds
    assert a("pin", A, 1, "20") == (1, 0) and s.stats()["pins"] == before
    assert a("pin", A, 1, "1", 8)[1] == errno.EDQUOT
    # the error of the user's own share comes first, even if the limit for all is reached, too
    assert store(f"{s.mnt}/all", 3) == (3, 0) and pin(f"{s.mnt}/all", 3) == (2, errno.ENOSPC)
    assert a("pin", A, 1, "1", 8)[1] == errno.EDQUOT and pin(f"{s.mnt}/all", 2, "0") == (2, 0)
    wait_for(lambda: s.stats()["pins"] == before - 1)
    assert a("pin", A, 1, "1", 8) == (1, 0) and a("pin", A, 1, "1", 9)[1] == errno.EDQUOT
    os.unlink(f"{A}/8")
    assert s.stats()["pins"] == before - 1 and a("pin", A, 1, "1", 7) == (1, 0)
    assert a("pin", A, 1, "1", 9)[1] == errno.EDQUOT
    # a pin counts for the user who set it last: root takes it over, and the user may pin again
    assert pin(A, 1, "1", 7) == (1, 0)
    assert a("pin", A, 1, "1", 9) == (1, 0)
    done(s, a, b)


# empty files are pinned and then written: beyond the share, the pins do not keep them in the pool
# or on the disk
def pinned_first(name, more):
    s, a, b, A, B = new(name, **({"cpu": "32M", "size": "64M", "options": "deadline=60000"} | more))
    assert a("store", A, 40, 0) == (40, 0)
    assert a("pin", A, 40) == (40, 0)
    a("grow", A, 40)
    for _ in range(3):  # a walk starts again if a chunk that it has passed exceeds the share later
        goes_on(s, b, B, name, 60)
        s.settle()
        st = s.stats()
        if st["pinned_pool_bytes"] <= 10 * MiB and st["pinned_disk_bytes"] <= 24 * MiB:
            break
    assert st["pinned_pool_bytes"] <= 10 * MiB, st
    assert st["pinned_disk_bytes"] <= 24 * MiB, st
    left = [i for i in range(40) if os.path.exists(f"{A}/{i}")]
    assert 1 <= len(left) < 40, "the pins within the share must still work"
    done(s, a, b)


def public(s, n=15):
    store(f"{s.mnt}/p", n)
    s.settle()


# a user opens all files for reading
def opened():
    s, a, b, A, B = new("open", cpu="32M", size="256M", options="deadline=60000")
    assert s.config()["share"] == "90"
    public(s)
    n, err = a("hold", f"{s.mnt}/p", 15)
    assert err == errno.EDQUOT and 12 <= n < 15, (n, err)
    assert a("load", f"{s.mnt}/p", n) == (n, 0), "the user may open an open file again"
    assert s.stats()["share_refusals"] >= 1
    goes_on(s, b, B, "open files")
    assert a("load", f"{s.mnt}/p", 1, N, 14)[1] == errno.EDQUOT
    a("release")
    s.settle()
    assert a("load", f"{s.mnt}/p", 15) == (15, 0), "closed files still count for the user"

    # files in a lease
    public(s)
    a("release")
    got = a("lease", s.mnt, "p")
    assert got.count("EDQUOT") == 15 - len([g for g in got if g.startswith("resident")]) >= 1, got
    assert len(got) == 15
    goes_on(s, b, B, "leases")
    # a lease with "look" keeps nothing, and so counts nothing
    assert "EDQUOT" not in a("lease", s.mnt, "look", "p")
    a("release")

    # files that are mapped and closed
    public(s)
    n, err = a("map_all", f"{s.mnt}/p", 15)
    if WAY == "fast" and s.config()["served_by"] == "passthrough":
        assert err == errno.EDQUOT and 12 <= n < 15, (n, err)
    goes_on(s, b, B, "mappings")
    a("release")
    assert a("load", f"{s.mnt}/p", 15) == (15, 0), "unmapped files still count for the user"

    # files that are created, written and kept open
    a("release")
    n, err = a("store", A, 1)
    n, err = a("hold", A, 40, os.O_RDWR | os.O_CREAT, N)
    assert err == errno.EDQUOT and 8 <= n < 16, (n, err)
    goes_on(s, b, B, "files that are written")
    a("release")
    done(s, a, b)


# names and attributes, which are in the catalog only: half of catalog= for one user
def make(folder, n, first=0):
    os.makedirs(folder, exist_ok=True)
    kinds = (lambda p: os.close(os.open(p, os.O_CREAT | os.O_WRONLY, 0o644)), os.mkdir,
             lambda p: os.symlink("x" * 1024, p), lambda p: os.link(f"{folder}/{first}", p),
             os.mkfifo)
    return each(n, lambda i: kinds[i % len(kinds)](f"{folder}/{first + i}"))


def call(name, *args):
    getattr(os, name)(*args)


def describe(folder, n, size):
    return each(n, lambda i: os.setxattr(f"{folder}/{i // 8 * 5}", f"user.{i}", bytes(size)))


def remove(folder, n):
    return each(n, lambda i: (os.rmdir if i % 5 == 1 else os.unlink)(f"{folder}/{i}"))


def counted(s):
    s.committed()  # a row is counted with the commit that writes it
    return {k: v for k, v in s.stats().items() if k in ("catalog_inode_bytes",
                                                        "catalog_attribute_bytes")}


def names():
    s, a, b, A, B = new("names", cpu="32M", size="64M", options="catalog=8M")
    assert s.stats()["catalog_limit"] == 8 * MiB
    empty = counted(s)
    n = err = 0
    while n < 8000 and not err:  # the user may create some more before a commit counts them
        made, err = a("make", A, 200, n)
        n += made
        s.committed()
    assert err == errno.EDQUOT and 3000 < n < 8000, (n, err)
    s.committed()
    assert a("make", A, 1, n) == (0, errno.EDQUOT)
    for name, *more in (("mkdir",), ("mkfifo",), ("symlink", f"{A}/0"), ("link", f"{A}/0")):
        with fails(errno.EDQUOT):
            a("call", name, *more, f"{A}/new")
    assert b("make", B, 1000) == (1000, 0) and make(f"{s.mnt}/r", 1000) == (1000, 0)
    m, err = a("describe", A, 1000, 4000)
    assert err == errno.EDQUOT and 100 < m < 135, (m, err)
    assert b("describe", B, 50, 4000) == (50, 0)
    full = counted(s)
    assert full["catalog_attribute_bytes"] > (m + 50) * 4000, full

    # a kill does not change the count, and a new count gives the same result
    for anew in (False, True):
        [u.end() for u in (a, b)]
        if anew:
            s.umount()
            run("sqlite3", f"{s.path}/catalog.sqlite",
                "DELETE FROM meta WHERE key = 'usage'", ok=True)
        else:
            s.committed()
            s.kill()
            run("umount", "-l", s.mnt)
        s.mount()
        a, b = User(1001), User(1002)
        wait_for(lambda: counted(s) == full)
        assert a("make", A, 1, n) == (0, errno.EDQUOT)
        assert a("describe", A, m + 1, 4000)[0] == m
    # after chown the files count for the new owner
    [os.chown(f"{A}/{i}", 1002, 1002, follow_symlinks=False) for i in range(n)]
    wait_for(lambda: a("make", A, 1, 9000) == (1, 0))
    os.unlink(f"{A}/9000")
    [os.chown(f"{A}/{i}", 1001, 1001, follow_symlinks=False) for i in range(n)]
    wait_for(lambda: counted(s) == full)
    # removed files no longer count
    assert a("remove", A, n) == (n, 0) and b("remove", B, 1000) == (1000, 0)
    assert remove(f"{s.mnt}/r", 1000) == (1000, 0)
    [os.rmdir(f) for f in (A, B, f"{s.mnt}/r")]
    wait_for(lambda: counted(s) == empty)
    # files that are deleted, and attributes that are set, before a commit
    for i in range(200):
        a("make", A, 1)
        a("describe", A, 1, 4000)
        a("remove", A, 1)
    os.rmdir(A)
    wait_for(lambda: counted(s) == empty)
    done(s, a, b)


# share=100 has no limit, and root never has one
def free():
    s, a, b, A, B = new("free", cpu="32M", size="256M", options="share=100,pins=0")
    store(f"{s.mnt}/p", 12)
    s.settle()
    assert hold(f"{s.mnt}/p", 12) == (12, 0) and a("hold", f"{s.mnt}/p", 12) == (12, 0)
    assert pin(f"{s.mnt}/p", 1) == (0, errno.ENOSPC) and s.stats()["pins"] == 0
    release()
    done(s, a, b)


# open files, each of which may need a descriptor in the daemon: one user may have half of them
def files():
    popen = subprocess.Popen
    subprocess.Popen = lambda *command, **more: popen(*command, **more, preexec_fn=lambda: (
        resource.setrlimit(resource.RLIMIT_NOFILE, (640, 640))))
    s, a, b, A, B = new("files", cpu="64M", size="64M")
    subprocess.Popen = popen
    assert store(f"{s.mnt}/p", 400, 1) == (400, 0)
    n, err = a("hold", f"{s.mnt}/p", 400)
    assert (n, err) == (320, errno.EMFILE), (n, err)
    refused = s.stats()["share_refusals"]
    assert refused >= 1
    assert a("hold", f"{s.mnt}/p", 100) == (100, 0), "the user may open an open file again"
    assert a("store", A, 1, 1) == (0, errno.EMFILE), "the user must not create a file"
    assert b("hold", f"{s.mnt}/p", 150) == (150, 0) and b("store", B, 10, 1) == (10, 0)
    assert hold(f"{s.mnt}/p", 100) == (100, 0), "root could not open files"
    a("release"), b("release"), release()
    s.closed()
    assert a("hold", f"{s.mnt}/p", 320) == (320, 0) and a("store", A, 1, 1) == (0, errno.EMFILE)
    a("release")
    s.closed()
    assert a("store", A, 10, 1) == (10, 0)
    done(s, a, b)


# the texts of .kvcachefs/, which the daemon keeps while they are open: all users together (also
# root) may use a quarter of the part of memory= that is not fixed, and one user half of that
def of_texts():
    s, a, b, A, B = new("texts", cpu="32M", size="64M", options="memory=128M")
    size, st = a("read_text", s.mnt, "metrics"), s.stats()
    most = (st["memory_bytes"] - st["memory_fixed_bytes"]) // 8 // size
    n, err = a("texts", s.mnt, most + 1000)
    if err == errno.EMFILE:  # the process's own limit
        print(f"{n} of {most} texts can be open here")
    else:
        assert err == errno.EDQUOT and most * 3 // 4 < n <= most, (n, err, most)
        assert b("read_text", s.mnt, "metrics") and b("read_text", s.mnt, "stats")
        with fails(errno.EDQUOT):  # leases use the same memory
            a("lease", s.mnt, *["p/" + "x" * 200] * 1000)
        more, err = b("texts", s.mnt, most + 1000)
        assert err == errno.EDQUOT and most * 3 // 4 < more <= most, (more, err, most)
        try:
            before = s.stats()["memory_refusals"]
        except OSError as e:  # no space is left for this text either
            assert e.errno == errno.EDQUOT, e
            before = 0
        release()
        rest, err = texts(s.mnt, most + 1000)
        assert err == errno.EDQUOT and n + more + rest <= 2 * most, (n, more, rest, err, most)
        with fails(errno.EDQUOT):
            lease(s.mnt, *["p/" + "x" * 200] * 1000)
        release(), b("release")
        assert s.stats()["memory_refusals"] > before
    a("release")
    wait_for(lambda: a("texts", s.mnt, 10) == (10, 0))
    done(s, a, b)


beside([(pins,), (opened,), (names,), (files,), (of_texts,), (free,), (pinned_first, "grown", {}),
        (pinned_first, "memory", {"options": "disk=off,deadline=60000"})])
