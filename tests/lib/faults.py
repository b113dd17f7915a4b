# SPDX-License-Identifier: Apache-2.0
"""Runs programs whose file calls fail by rules. tests/preload/faults.c describes the rules."""
import mmap, os, random, struct, subprocess, time
from kvtest import BUILD, LONG, TMP, Store, run


def in_memory(name):
    """A folder on a tmpfs, for sweeps, because a sync takes no time there."""
    path = f"{TMP}/{name}"
    os.makedirs(path)
    run("mount", "-t", "tmpfs", "-o", "mode=0700", "kvtest", path, ok=True)
    return path


def environment(*rules, count=None):
    env = dict(os.environ, LD_PRELOAD=f"{BUILD}/lib/faults.so", FAULTS=";".join(rules))
    if count:
        env["FAULTS_COUNT"] = count
    return env


def store_in_memory(top, **more):
    """A store in that folder; its mount point is elsewhere."""
    s = Store(f"{os.path.basename(top)}/s", **more)
    os.rmdir(s.mnt)
    s.mnt = f"{TMP}/s.mnt"
    os.makedirs(s.mnt, exist_ok=True)
    return s


class Run:
    """A program that ran under rules: its exit status, its output, and for each rule the number of
    matching calls and of failures."""

    def __init__(self, command, *rules):
        count = f"{TMP}/faults.count{os.getpid()}"
        if os.path.exists(count):
            os.unlink(count)
        p = subprocess.run(command, env=environment(*rules, count=count),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        self.rc, self.out, self.err = p.returncode, p.stdout + p.stderr, p.stderr
        with open(count, "rb") as f:
            n = struct.unpack("<32Q", f.read(256))
        self.met, self.fired = n[0::2], n[1::2]

    def __repr__(self):
        return f"exit {self.rc}, {self.out!r}"


# FAR: a number of calls that is never reached; HEALED: a number beyond the last call of any rule
FAR, HEALED = 1 << 40, 1 << 62


class Rules:
    """The rules of a mount. The daemon counts the calls in a file that this process maps, too. So
    the counts are known while the daemon runs, and a write to them begins or ends a rule."""

    def __init__(self, *rules):
        path = f"{TMP}/faults.mount{os.getpid()}"
        with open(path, "wb") as f:
            f.write(bytes(256))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 256)
        self.env = environment(*rules, count=path)

    def met(self):
        return struct.unpack("<32Q", self.map[:])[0::2]

    def fired(self):
        return struct.unpack("<32Q", self.map[:])[1::2]

    def begin(self, rule=0, after=0):
        """Makes a rule with nth=FAR fail from the next call on, or after a number of further
        calls."""
        self.map[rule * 16:rule * 16 + 8] = struct.pack("<Q", FAR - 1 - after)

    def heal(self, rule=0):
        """Ends a rule that has a count (count=FAR if all calls fail), and releases the calls that
        it holds."""
        self.map[rule * 16:rule * 16 + 8] = struct.pack("<Q", HEALED)

    def mount(self, store, **more):
        """False if the mount was refused."""
        keep = {k: os.environ.get(k) for k in self.env}
        os.environ.update(self.env)
        try:
            store.mount(**more)
        except AssertionError:
            if store.daemon.poll() is None:
                raise
        finally:
            for k, v in keep.items():
                os.environ.pop(k)
                if v is not None:
                    os.environ[k] = v
        return store.daemon.poll() is None


ALL = bool(os.environ.get("SWEEP"))  # set by make faults: every call is tried
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
chance = random.Random(SEED)


def sweep(prepare, command, words, do, step=6):
    """Runs the command again and again. In each run a later one of the calls that match `words`
    fails, until no such call is left. Yields the number of the call, and the run. prepare() creates
    the state before each run. One in `step` calls is tried, beginning with a random one; with ALL,
    each call. make check doubles a step that is more than 3."""
    print(f"SEED={SEED}")
    step = 1 if ALL else step if LONG or step < 4 else 2 * step
    n, tried = chance.randint(1, step), 0
    while True:
        prepare()
        r = Run(command, f"{words} nth={n} do={do}")
        if r.fired[0]:
            yield n, r
            n += step
            tried += 1
        elif not tried and r.met[0]:  # fewer calls than a step: try one
            n = chance.randint(1, r.met[0])
        else:
            return
