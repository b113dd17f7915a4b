# SPDX-License-Identifier: Apache-2.0
"""Programs whose calls on files go wrong: tests/preload/faults.c has the words of a rule."""
import os, random, struct, subprocess, time
from kvtest import BUILD, TMP, Store, run


def in_memory(name):
    """A folder on a tmpfs, for sweeps: a sync costs nothing there."""
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
    """A store there; its mount is not."""
    s = Store(f"{os.path.basename(top)}/s", **more)
    os.rmdir(s.mnt)
    s.mnt = f"{TMP}/s.mnt"
    os.makedirs(s.mnt, exist_ok=True)
    return s


class Run:
    """A program that ran under rules: its exit status, what it said, and for each rule how many
    calls it met and how many went wrong."""

    def __init__(self, command, *rules):
        count = f"{TMP}/faults.count"
        if os.path.exists(count):
            os.unlink(count)
        p = subprocess.run(command, env=environment(*rules, count=count),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
        self.rc, self.out = p.returncode, p.stdout
        with open(count, "rb") as f:
            n = struct.unpack("<16Q", f.read(128))
        self.met, self.fired = n[0::2], n[1::2]

    def __repr__(self):
        return f"exit {self.rc}, {self.out!r}"


ALL = bool(os.environ.get("SWEEP"))  # make faults: every call, not some of them
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
chance = random.Random(SEED)


def sweep(prepare, command, words, do, step=6):
    """Runs the command with one call that matches `words` going wrong, the next at each time, until
    a run meets none any more; yields the number and the run. prepare() makes the state before each.
    It takes one in `step` calls, beginning with any, or all (ALL)."""
    print(f"SEED={SEED}")
    step = 1 if ALL else step
    n = chance.randint(1, step)
    while True:
        prepare()
        r = Run(command, f"{words} nth={n} do={do}")
        if not r.fired[0]:
            return
        yield n, r
        n += step
