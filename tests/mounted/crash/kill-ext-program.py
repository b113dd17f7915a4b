# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The programs of an ext tier are killed and stopped at random moments while one node stores and
another one loads. No read returns a wrong byte, each file reaches the tier in the end, a stopped
program is replaced, and a program dies with its daemon."""
import contextlib, os, random, signal, threading, time
from kvtest import KiB, MiB, SLOW, Store, blob, need_mount, run, wait_for
import servers

need_mount()
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}")
rng = random.Random(SEED)
KILLS = 30
program = servers.Program()
options = f"settle=0,disk=off,deadline={500 * SLOW},remote={program.url()}"
# the pool is larger than all files, so that none is evicted before the tier has it
a = Store("a", cpu="256M", options=options).mount()
b = Store("b", cpu="256M", options=options).mount()
data = [blob(i, (3 * KiB, 200 * KiB, 5 * MiB)[i % 3]) for i in range(6)]
stored, wrong, good = [], [], []
over = threading.Event()


def programs():
    """The processes of the programs; the daemons have its path among their arguments."""
    return [int(p) for p in run("pgrep", "-fx", program.path).stdout.split()]


def store():
    while not over.is_set():
        n = len(stored)
        if n < 60:
            a.write(f"m/c{n}/l", data[n % 6])
            stored.append(n)
        time.sleep(0.05)


def load():
    own = random.Random(SEED + 1)
    while not over.is_set():
        if stored:
            n = own.choice(stored)
            with contextlib.suppress(OSError):
                (good if b.read(f"m/c{n}/l") == data[n % 6] else wrong).append(n)
        time.sleep(0.01)


def call_both():
    """Makes a call to the program of each node: the next call starts a program that was killed, and
    a program that does not answer is noticed by its calls."""
    a.write("m/calls/l", data[0])
    with contextlib.suppress(OSError):
        b.read(f"m/absent-{time.monotonic_ns()}/l")


wait_for(lambda: len(programs()) == 2)
threads = [threading.Thread(target=t) for t in (store, load, load)]
for t in threads:
    t.start()
try:
    for _ in range(KILLS):
        time.sleep(rng.uniform(0, 0.4))
        victim = rng.choice(programs() or [None])
        with contextlib.suppress(ProcessLookupError):
            if victim:
                os.kill(victim, rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))
    # a program that answers nothing is replaced after ten deadlines
    wait_for(lambda: call_both() or len(programs()) == 2, every=0.1)
    stopped = programs()
    for p in stopped:
        os.kill(p, signal.SIGSTOP)
    wait_for(lambda: call_both() or not set(stopped) & set(programs()), every=0.1)
    assert "unanswered for ten deadlines" in a.log() + b.log()
    wait_for(lambda: len(stored) == 60)
finally:
    over.set()
    for t in threads:
        t.join()
assert not wrong, wrong
wait_for(lambda: all("ext" in a.attr(f"m/c{n}/l", "tiers").split(",") for n in stored))


def readable(n):
    with contextlib.suppress(OSError):
        return b.read(f"m/c{n}/l") == data[n % 6]


for n in stored:
    wait_for(lambda: readable(n), every=0.1)
print(f"{len(good)} loads beside the kills were right")
# a program that continues after a pause answers late, and nothing is lost
for p in programs():
    os.kill(p, signal.SIGSTOP)
a.write("m/paused/l", data[2])
time.sleep(0.7 * SLOW)
for p in programs():
    os.kill(p, signal.SIGCONT)
wait_for(lambda: "ext" in a.attr("m/paused/l", "tiers").split(","))
# the program dies with its daemon, also while it is stopped
for p in programs():
    os.kill(p, signal.SIGSTOP)
a.kill()
b.kill()
wait_for(lambda: not programs())
# what the tier has is found again
a.mount()
b.mount()
for n in stored:
    wait_for(lambda: readable(n), every=0.1)
assert a.stats()["corrupt"] == b.stats()["corrupt"] == 0
a.umount()
b.umount()
assert not programs()
a.fsck()
b.fsck()
