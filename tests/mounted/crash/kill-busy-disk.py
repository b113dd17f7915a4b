# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""SIGKILL while other processes saturate the disk below the store. FLOODERS processes write and
fsync on its filesystem at full rate while clients store, rename and delete; then the daemon is
killed, KILLS times (4). Changes that were acknowledged more than 50 ms before the kill are there
(promise 1). The catalog's log is small, so that checkpoints and their syncs happen during the run.

The promise cannot cover a machine that does not run the daemon, and while the log restarts a commit
may wait for two syncs. Both times are measured (witness.py): the longest pause in the last second
is added to the 50 ms, or to the time of two syncs if they take longer. A round in which the machine
paused so long that nothing can be checked is repeated with half of the flood. Every second round is
killed just after the log restarts, if it does: at that point SQLite would sync the log's header
within the commit."""
import os, random, signal, sys, time
from kvtest import *
from witness import Witness

KILLS = int(os.environ.get("KILLS", 4))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
FLOODERS, CLIENTS = 4, 2
PROMISE = 0.05 * SLOW  # a sanitizer makes the committer that much slower too
MOST = 1.0  # maximum of the excused time in seconds
LOG = os.environ.get("LOG", "8M")  # small, so that the log restarts every few seconds
print(f"KILLS={KILLS} SEED={SEED}", flush=True)


def child(work, *args):
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*args)
    except BaseException as e:
        if not isinstance(e, OSError) or e.errno not in (
                errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO, errno.ENOENT,
                errno.ESHUTDOWN):
            sys.excepthook(*sys.exc_info())
    os._exit(0)


def flood(n):
    fd = os.open(f"{TMP}/flood{n}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    data, at = os.urandom(16 * MiB), 0
    while True:
        os.pwrite(fd, data, at)
        os.fsync(fd)
        at = (at + len(data)) % (64 * MiB)


def client(n, round_, journal):
    rng = random.Random(f"{SEED}.{round_}.{n}")
    j = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    serial, mine = 0, []

    def tell(what, path):
        os.write(j, f"{time.monotonic():.6f} {what} {path}\n".encode())
    folder = f"r{round_}c{n}"
    os.makedirs(f"{s.mnt}/{folder}")
    while True:
        serial += 1
        path = f"{folder}/{serial:06d}"
        full = f"{s.mnt}/{path}"
        if rng.random() < 0.2 and mine:
            path = mine.pop(rng.randrange(len(mine)))
            tell("deletes", path)
            os.unlink(f"{s.mnt}/{path}")
            tell("deleted", path)
        else:
            tell("puts", path)
            with open(full + ".tmp", "wb", buffering=0) as f:
                f.write(blob(path, 4096))
            os.rename(full + ".tmp", full)
            tell("put", path)
            mine.append(path)
        time.sleep(0.0005)


def header():
    """The header of the log, which changes whenever the log restarts."""
    with open(f"{s.path}/catalog.sqlite-wal", "rb") as f:
        return f.read(32)


def wait_anew(rng):
    """Waits until the log restarts, and then for a part of the time that a commit with a sync could
    take. Returns false if the log does not restart."""
    was, end = header(), time.monotonic() + 12
    while header() == was:
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.15))
    return True


def check(journal, killed, witness, excused):
    known, lost, late = {}, [], 0
    with open(journal) as f:
        for line in f:
            if not line.endswith("\n"):
                break
            at, what, path = line.split()
            known[path] = (float(at), what)
    for path, (at, what) in known.items():
        may_be_lost = witness.may_be_lost(at, killed, PROMISE, excused)
        late += may_be_lost
        there = os.path.lexists(f"{s.mnt}/{path}")
        if there:
            assert s.read(path) == blob(path, 4096), path
        if not may_be_lost and what in ("put", "deleted") and there != (what == "put"):
            lost.append(f"{path} was {what} {(killed - at) * 1000:.0f} ms before the kill")
    return len(known), late, lost


# Far more space than needed, so that nothing is evicted: eviction is not the subject of this case.
s = Store(size="256M", cpu="512M", options=f"log={LOG},unit=file,settle=50")
flooders = FLOODERS
for round_ in range(KILLS):
    for attempt in range(6):
        name = f"{round_}x{attempt}"
        s.mount()
        kids = [child(flood, n) for n in range(flooders)]
        witness = Witness(s.daemon.pid, f"{TMP}/witness")
        time.sleep(0.5)
        kids += [child(client, n, name, f"{TMP}/journal{name}.{n}") for n in range(CLIENTS)]
        rng = random.Random(f"{SEED}.{name}")
        time.sleep(rng.uniform(2.0, 3.5))
        st = s.stats()
        anew = round_ % 2 and wait_anew(rng)
        killed = time.monotonic()
        s.kill()
        for pid in kids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        run("umount", "-l", s.mnt)
        excused = witness.end().longest_pause(killed - 1, killed)
        s.mount()
        all = [check(f"{TMP}/journal{name}.{n}", killed, witness, excused)
               for n in range(CLIENTS)]
        lost = [l for _, _, some in all for l in some]
        files, late = sum(a[0] for a in all), sum(a[1] for a in all)
        print(f"round {name}: {files} files, {late} of them too late to count, "
              f"{st['commits']} commits, log {st['catalog_log_bytes'] >> 10} KiB; "
              f"excused {excused * 1000:.0f} ms, the longest two syncs took "
              f"{witness.longest_syncs(killed - 1, killed) * 1000:.0f} ms, with {flooders} flooders"
              f"{', the log has just restarted' if anew else ''}",
              flush=True)
        assert not lost, (
            f"SEED={SEED}: {len(lost)} of {files} lost, {excused * 1000:.0f} ms excused: "
            f"{lost[:5]}")
        s.umount()
        if excused <= MOST and files > late:
            break
        flooders = max(1, flooders // 2)
    else:
        skip("the machine is too busy: no kill was conclusive")
for n in range(FLOODERS):
    if os.path.exists(f"{TMP}/flood{n}"):
        os.unlink(f"{TMP}/flood{n}")
s.fsck("-n")
