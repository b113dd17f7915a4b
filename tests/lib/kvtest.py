# SPDX-License-Identifier: Apache-2.0
"""Shared code of the mounted cases: a store in its own folder, mounted in the way that the runner
selects."""
import contextlib, ctypes, errno, fcntl, hashlib, os, pty, random, re, signal, sqlite3, struct
import subprocess, sys, time, traceback

BUILD = os.environ["KV_BUILD"]
WAY = os.environ.get("KV_WAY", "fast")
TMP = os.environ["KV_CASE_TMP"]
MODE = os.path.basename(BUILD)
LONG = os.environ.get("LEVEL") == "long"
LOG = f"{TMP}/log"  # the log of this process's daemons
SLOW = 6 if MODE in ("asan", "tsan") else 1
KiB, MiB = 1 << 10, 1 << 20
F_OFD_GETLK = 36
AT_FDCWD, AT_STATX_FORCE_SYNC, STATX_BLOCKS = -100, 0x2000, 0x400
LIBC = ctypes.CDLL(None, use_errno=True)
WAYS = {"fast": "", "plain": "passthrough=off,io_uring=off", "passthrough": "io_uring=off",
        "none": ""}
# By default a full pool drops objects without a committed copy after 0.1 s. On a busy machine the
# disk can pause for that time. Cases about kept files wait longer; cases about drops set pace=
# themselves. The value is less than the pause that makes a folder a container (names/chunking.c).
PATIENT = "pace=4000"


def skip(why):
    print(why)
    sys.exit(77)


def need_mount():
    if os.geteuid() != 0:
        skip("needs root")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        skip("needs /dev/fuse")


def binary(name):
    return f"{BUILD}/bin/{name}"


def run(*command, ok=None, **more):
    p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, **more)
    if ok is not None and (p.returncode == 0) != ok:
        raise AssertionError(f"{command} ended with {p.returncode}: {p.stdout}")
    return p


def apart():
    """Runs the case again in its own namespaces, so that its mounts on the machine's folders end
    with it. Other FUSE mounts are removed from the namespace, because a daemon ends only when its
    filesystem is mounted in no namespace any more."""
    if len(sys.argv) == 1:
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child",
                              "--mount-proc", "--propagation", "private", sys.executable,
                              os.path.abspath(sys.argv[0]), "inside"])
    with open("/proc/mounts") as f:
        for source, where, kind in [l.split()[:3] for l in f]:
            if kind.startswith("fuse"):
                run("umount", "-l", where)


def asked(answer, *command, meanwhile=lambda: None):
    """Runs the command at a terminal, and answers its question. Returns the exit status and the
    output on the terminal."""
    pid, fd = pty.fork()
    if not pid:
        os.execv(command[0], command)
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(fd, 65536)
    meanwhile()
    os.write(fd, answer)
    try:
        while more := os.read(fd, 65536):
            seen += more
    except OSError:  # the end of the output
        pass
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()


NOISE, SLICES = [b""], 256 * KiB  # random bytes, and the number of places where a blob may begin


def blob(seed, size):
    """Bytes that any process can compute from the seed and the size: 4 KiB of their own, then
    random bytes that all blobs share, from a place that depends on seed and size. The own bytes
    alone take 2 ns each to compute."""
    own = hashlib.shake_128(f"{seed!r} {size}".encode()).digest(min(size, 4 * KiB))
    parts, left = [own], size - len(own)
    at = int.from_bytes(own[:4], "big") % SLICES
    while left > 0:
        piece = min(left, 8 * MiB)
        if len(NOISE[0]) < at + piece:
            NOISE[0] = hashlib.shake_128(b"noise").digest(1 << (at + piece - 1).bit_length())
        parts.append(memoryview(NOISE[0])[at:at + piece])
        left, at = left - piece, (at + 4099) % SLICES
    return b"".join(parts)


def stored(path):
    """The bytes that a file uses, as the daemon knows them. os.stat may return an older number from
    the kernel's cache, because the last close, which frees unused bytes, arrives late."""
    statx = bytearray(256)
    buf = (ctypes.c_char * 256).from_buffer(statx)
    if LIBC.statx(AT_FDCWD, os.fsencode(path), AT_STATX_FORCE_SYNC, STATX_BLOCKS, buf):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return struct.unpack_from("Q", statx, 48)[0] * 512


HANG = 240 * SLOW  # seconds after which a call counts as hanging, on a busy machine too


def wait_for(what, seconds=240, every=None):
    """Waits until what() returns a true value, and returns it. Calls what() every `every` seconds.
    By default the pauses grow with the time that has passed and with the time that a call takes,
    because the calls of all cases together use much of the machine. The time limit is for
    conditions that never become true; it does not test how fast the machine is."""
    begun = now = time.time()
    while now < begun + seconds * SLOW:
        got = what()
        if got:
            return got
        look, now = time.time() - now, time.time()
        time.sleep(min(0.1, max(0.01, (now - begun) / 8, 4 * look)) if every is None else every)
        now = time.time()
    raise AssertionError(f"not true within {seconds * SLOW} s: "
                         f"{getattr(what, '__name__', what)}")


def freeze(pid):
    """Stops a process with SIGSTOP. kill() does not wait for the threads: on a busy machine they
    may go on answering for some time."""
    os.kill(pid, signal.SIGSTOP)

    def stopped():
        with contextlib.suppress(OSError):  # a thread ended before it stopped
            states = []
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stat") as f:
                    states.append(f.read().rsplit(")")[-1].split()[0])
            return set(states) == {"T"}
    wait_for(stopped)


def within_a_day(seconds=60):
    """For code that counts bytes per day (UTC): waits until this much of today is left, if
    necessary until tomorrow."""
    left = 86400 - time.time() % 86400
    if left < seconds * SLOW:
        time.sleep(left + 0.1)


def steady(look):
    """A value that look() returns twice in a row. look() reads counters one by one; if they only
    grow, two equal values mean that they were consistent at one moment."""
    got = look()
    while (again := look()) != got:
        got = again
    return got


def beside(parts, most=4):
    """Runs each of these (function, argument...) in its own process and on its own stores, a
    limited number at a time: for parts that mostly wait. If one of them fails or skips, so does the
    case."""
    left, under_way, ends = list(parts), {}, []
    while left or under_way:
        while left and len(under_way) < most:
            said = f"{TMP}/said{len(left)}"
            under_way[in_process(said, *left.pop(0))] = said
        for pid in list(under_way):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ends.append((os.waitstatus_to_exitcode(status), under_way.pop(pid)))
        time.sleep(0.01)
    # failures last, because the runner shows the end of the output
    for _, said in sorted(ends, key=lambda e: e[0] != 0):
        with open(said, errors="replace") as f:
            print(f.read(), end="", flush=True)
    wrong = [e for e, _ in ends if e]
    if wrong:
        sys.exit(next((e for e in wrong if e != 77), 77))


def in_process(said, part, *args):
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    global LOG
    LOG, code = f"{LOG}{os.getpid()}", 1
    fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    try:
        part(*args)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        print(part.__name__, args, e.code)
    except BaseException:
        print_log()
        print(part.__name__, args, traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(code)


def print_log():
    """Prints the end of the log of this process's daemons: what they said before a case failed."""
    try:
        with open(LOG, errors="replace") as f:
            print("the end of the daemons' log:", *f.read().splitlines()[-15:], sep="\n  ",
                  flush=True)
    except FileNotFoundError:
        pass


def on_error(*what):
    print_log()  # before the error, because the runner shows the end of the output
    sys.__excepthook__(*what)


sys.excepthook = on_error


@contextlib.contextmanager
def fails(*numbers):
    names = " or ".join(errno.errorcode[n] for n in numbers)
    try:
        yield
    except OSError as e:
        assert e.errno in numbers, f"{errno.errorcode.get(e.errno)} where {names} was expected"
    else:
        raise AssertionError(f"no error where {names} was expected")


class Store:
    def __init__(self, name="s", size="256M", cpu="64M", options="", make=True):
        need_mount()
        self.path, self.mnt = f"{TMP}/{name}", f"{TMP}/{name}.mnt"
        self.cpu, self.options, self.daemon, self.marks = cpu, options, None, 0
        os.makedirs(self.mnt, exist_ok=True)
        if make:
            run(binary("mkfs.kvcachefs"), "--size", size, self.path, ok=True)

    def mount(self, options=None, cpu=None):
        o = ",".join(filter(None, [f"cpu={cpu or self.cpu}", f"run={TMP}/run", PATIENT, WAYS[WAY],
                                   self.options if options is None else options]))
        log = open(LOG, "ab")
        before = os.stat(os.path.dirname(self.mnt)).st_dev
        self.daemon = subprocess.Popen([binary("kvcachefs"), self.path, self.mnt, "-f", "-o", o],
                                       stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
        log.close()

        def up():
            if self.daemon.poll() is not None:
                raise AssertionError(
                    f"the daemon ended with {self.daemon.returncode}: {self.log()}")
            try:
                # the mount of a dead daemon may still return cached attributes, but not this
                os.statvfs(self.mnt)
                return os.stat(self.mnt).st_dev != before
            except OSError:
                return False
        wait_for(up)
        return self

    def log(self):
        with open(LOG, errors="replace") as f:
            return f.read()

    def ending(self):
        """Whether the daemon has released the byte of its lock that says that it serves. Before
        that, another daemon is refused; after it, another daemon waits."""
        with open(f"{self.path}/superblock", "rb") as f:
            byte = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 1 << 40, 1, 0)
            got = fcntl.fcntl(f, F_OFD_GETLK, byte)
            return struct.unpack("h", got[:2])[0] == fcntl.F_UNLCK

    def umount(self):
        for _ in range(1200):  # a client that was killed may hold a file for some time
            p = run("umount", self.mnt)
            if p.returncode == 0:
                break
            time.sleep(0.1)
        else:
            users = run("sh", "-c", f"ls -l /proc/*/fd 2>/dev/null | grep {self.mnt}").stdout
            raise AssertionError(f"umount: {p.stdout} {users}")
        self.ended()

    def term(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self):
        rc = self.daemon.wait(timeout=HANG)
        assert rc == 0, f"the daemon ended with {rc}: {self.log()[-3000:]}"

    def kill(self):
        self.daemon.kill()
        self.daemon.wait()

    def again(self, end):
        """Mounts it again after an "umount" or a "kill", with the accesses so far saved; "none":
        does nothing."""
        if end == "none":
            return
        if end == "umount":
            self.umount()
        else:
            self.committed(uses=True)
            self.kill()
            run("umount", "-l", self.mnt)
        self.mount()
        self.let_go()

    def drop_pool(self, pool=f"{TMP}/run/*"):
        """Loses this pool, or all pools, as a reboot does."""
        run("sh", "-c", f"umount -l {pool} 2>/dev/null; rmdir {pool} 2>/dev/null")

    def stats(self):
        with open(f"{self.mnt}/.kvcachefs/stats") as f:
            return {l.split()[0]: int(l.split()[1]) for l in f}

    def config(self):
        with open(f"{self.mnt}/.kvcachefs/config") as f:
            return dict(l.rstrip("\n").split("=", 1) for l in f if "=" in l)

    def settle(self, still_open=0):
        """Waits until every close has arrived at the daemon and every copy is made."""
        def done():
            s = self.stats()
            return s["files_open"] <= still_open and s["jobs"] == 0
        time.sleep(0.02)
        wait_for(done)

    def closed(self, still_open=0):
        """Waits until every close has arrived at the daemon, because close() does not wait."""
        wait_for(lambda: self.stats()["files_open"] <= still_open)

    def committed(self, still_open=0, uses=False):
        """Waits until a kill cannot lose any change: every close has arrived, and a later change is
        in the catalog. uses: also the uses of chunks, which are written once a second."""
        self.closed(still_open)
        for pause in (0, 1.05 if SLOW == 1 else 3) if uses else (0,):
            time.sleep(pause)
            self.marks += 1
            os.setxattr(self.mnt, "user.mark", b"%08d" % self.marks)
            wait_for(lambda: not self.stats()["catalog_pending_bytes"])

    def let_go(self):
        """For cases that check the order of victims after a remount with a warm pool. Some moments
        after the end of the previous daemon, the kernel closes the files that it had registered.
        Until then the new daemon regards them as mapped by a client, and does not evict them. Waits
        until they are closed, and tests this as the daemon does: the kernel grants a lease only for
        a file that nobody else has open."""
        pool = self.config()["pool"]

        def taken(name):
            try:
                fd = os.open(f"{pool}/{name}", os.O_RDONLY)
            except FileNotFoundError:
                return False
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                return False
            except BlockingIOError:
                return True
            finally:
                os.close(fd)

        wait_for(lambda: not any(taken(n) for n in os.listdir(pool) if n.startswith("p-")))

    def attr(self, path, name):
        return os.getxattr(f"{self.mnt}/{path}", f"user.kvcachefs.{name}").decode()

    def in_order(self):
        """The number of chunks in the disk tier's eviction order, under a policy that keeps it in
        memory."""
        with open(f"{self.mnt}/.kvcachefs/policies") as f:
            return sum(map(int, re.findall(r"^disk \w+\n +chunks (\d+)$", f.read(), re.M)))

    def on_disk(self):
        """The number of chunks in the disk tier, by the committed rows of the catalog."""
        catalog = f"file:{self.path}/catalog.sqlite?mode=ro"
        with contextlib.closing(sqlite3.connect(catalog, uri=True)) as c:
            return c.execute("SELECT count(DISTINCT chunk) FROM placements JOIN nodes USING(ino) "
                             "JOIN objects o USING(ino) WHERE tier = 0 AND placements.gen = o.gen"
                             ).fetchone()[0]

    def fsck(self, *options, ok=True):
        return run(binary("fsck.kvcachefs"), *options, self.path, ok=ok)

    def write(self, path, data, **more):
        full = f"{self.mnt}/{path}"
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb", **more) as f:
            f.write(data)

    def read(self, path):
        with open(f"{self.mnt}/{path}", "rb", buffering=0) as f:
            return f.readall()
