# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""SIGKILL while readers open distinct chunks at full rate. Reads change the access data of every
chunk that they open, and no commit of names may wait for that: a close, rename or unlink that ended
more than 50 ms before the kill is in effect after the next mount (promise 1). The case kills one
store of CHUNKS (15000) chunks of 4 KiB KILLS (2) times; make kill-campaign does 500 kills with
100,000 chunks. The time in which the machine did not run the daemon after the change (witness.py)
is added to the 50 ms. SEED repeats a run."""
import os, random, signal, sys, time
from kvtest import *
from witness import Witness

KILLS = int(os.environ.get("KILLS", 3 if LONG else 2))
CHUNKS = int(os.environ.get("CHUNKS", 60000 if LONG else 15000))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
READERS = 1
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO, errno.ENOENT,
        errno.ESHUTDOWN)
print(f"KILLS={KILLS} CHUNKS={CHUNKS} SEED={SEED}", flush=True)


def child(work, *args):
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*args)
    except BaseException as e:
        if not isinstance(e, OSError) or e.errno not in GONE:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os._exit(0)


def fill(first):
    for i in range(first, CHUNKS, READERS):
        fd = os.open(f"{s.mnt}/A/b/{i}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, bytes(4096))
        os.close(fd)


def reader(seed):
    rng = random.Random(seed)
    os.nice(10)  # on a small machine the daemon must get enough of the CPU
    order = list(range(CHUNKS))
    rng.shuffle(order)
    while True:
        for i in order:
            os.close(os.open(f"{s.mnt}/A/b/{i}", os.O_RDONLY))


def writer(round_, journal):
    """Reports each change with the time at which its call had returned."""
    rng = random.Random(f"{SEED}.{round_}")
    j = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    folder, mine, n = f"new/d/{round_}", [], 0

    def tell(what, path):
        os.write(j, f"{time.monotonic():.6f} {what} {path}\n".encode())
    os.mkdir(f"{s.mnt}/{folder}")
    os.mkdir(f"{s.mnt}/{folder}/sub")  # so that each file is a chunk
    while True:
        n += 1
        path, kind = f"{folder}/{n}", rng.random()
        if kind < 0.15 and mine:
            path = mine.pop(rng.randrange(len(mine)))
            tell("deletes", path)
            os.unlink(f"{s.mnt}/{path}")
            tell("deleted", path)
        else:
            name = f"{s.mnt}/{path}" + (".tmp" if kind < 0.5 else "")
            tell("puts", path)
            with open(name, "wb", buffering=0) as f:
                f.write(blob(path, 512))
            if kind < 0.5:
                os.rename(name, f"{s.mnt}/{path}")
            tell("put", path)
            mine.append(path)
        time.sleep(0.002)


def check(journal, killed, witness):
    known, lost = {}, []
    with open(journal) as f:
        for line in f:
            if line.endswith("\n"):
                at, what, path = line.split()
                known[path] = (float(at), what)
    for path, (at, what) in known.items():
        there = os.path.lexists(f"{s.mnt}/{path}")
        if there and what != "deletes":
            assert s.read(path) == blob(path, 512) or what == "puts", path
        if what in ("put", "deleted") and there != (what == "put") and \
                not witness.may_be_lost(at, killed, 0.05 * SLOW):
            lost.append(f"{path} was {what} {(killed - at) * 1000:.0f} ms before the kill")
    return len(known), lost


s = Store(size="2G", cpu="1G", options="settle=50")
s.mount()
os.makedirs(f"{s.mnt}/A/b/sub")
os.makedirs(f"{s.mnt}/new/d/sub")
for pid in [child(fill, i) for i in range(READERS)]:
    assert os.waitpid(pid, 0)[1] == 0
opens = told = lost_in_all = 0
round_ = -1
while told < KILLS and round_ < 3 * KILLS + 5:
    round_ += 1
    rng = random.Random(f"{SEED}.{round_}")
    journal = f"{TMP}/journal{round_}"
    witness = Witness(s.daemon.pid, f"{TMP}/witness")
    kids = [child(reader, f"{SEED}.{round_}.{i}") for i in range(READERS)]
    time.sleep(rng.uniform(*((2.0, 3.0) if LONG else (1.2, 2.0))) * SLOW)
    kids.append(child(writer, round_, journal))
    time.sleep(rng.uniform(0.5, 1.2) * SLOW)
    before, log = (s.stats()[name] for name in ("opens", "catalog_log_bytes"))
    time.sleep(rng.uniform(0, 0.05))
    killed = time.monotonic()
    s.kill()
    for pid in kids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    opens += before
    witness.end()
    run("umount", "-l", s.mnt)
    s.mount()
    excused = witness.excused(killed - 0.1, killed)
    files, lost = check(journal, killed, witness)
    print(f"round {round_}: {files} names, {before} opens, {excused * 1000:.0f} ms excused in the "
          f"last 100 ms, syncs took {witness.longest_syncs(killed - 3, killed) * 1000:.0f} ms, "
          f"the log had {log >> 10} KiB, {len(lost)} lost", flush=True)
    assert not lost, f"SEED={SEED}: {len(lost)} of {files} lost: {lost[:5]}"
    os.unlink(journal)
    told += excused < 0.2
print(f"{told} kills were conclusive, {opens} opens")
if not told:
    skip("the machine is too busy: no kill was conclusive")
s.umount()
s.fsck("-n")
