# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""SIGKILL under load, KILLS times (6), with the stores and loads of vLLM and LMCache from many
processes. After each kill the store is mounted again, every third time without the pool, and
promise 1 is checked: a close, rename or unlink that ended more than 50 ms before the kill is in
effect, and no partial file is visible. The time in which the machine did not run the daemon is
measured and added to the 50 ms. SEED repeats a run."""
import json, os, random, signal, sys, time
from kvtest import *
from witness import Witness

KILLS = int(os.environ.get("KILLS", 6))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
WORKERS = 4
print(f"KILLS={KILLS} SEED={SEED}", flush=True)


def folder(path):
    """Creates the folder. makedirs(exist_ok=True) fails if the folder exists, but is dropped before
    the check that it is a folder."""
    for _ in range(20):
        try:
            return os.makedirs(path, exist_ok=True)
        except FileExistsError:
            pass


def worker(number, round_, mnt, journal):
    """Stores, loads and deletes, and writes each finished change with its time to the journal.
    Contents follow from (path, version)."""
    rng = random.Random(SEED * 1000003 + round_ * 101 + number)
    mine = {}
    j = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(what, path, version, size):
        os.write(j, (json.dumps([time.monotonic(), what, path, version, size]) + "\n").encode())
    n = 0
    try:
        while True:
            n += 1
            kind = rng.random()
            if kind < 0.45:      # vLLM's file tier: a temporary name, one write, rename
                path = f"m_r0/{rng.randrange(16):03x}/w{number}-{rng.randrange(40)}.bin"
                version, size = f"{round_}.{number}.{n}", rng.choice([4096, 131072, 655360])
                folder(os.path.dirname(f"{mnt}/{path}"))
                tmp = f"{mnt}/{path}_{rng.randrange(1 << 62)}.tmp"
                fd = os.open(tmp, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                short = os.write(fd, blob(path + version, size)) != size
                os.close(fd)
                if short:  # like the engine: after an error it removes the file
                    tell("short", path, version, size)
                    os.unlink(tmp)
                    continue
                tell("try", path, version, size)
                os.replace(tmp, f"{mnt}/{path}")
                tell("put", path, version, size)
                mine[path] = (version, size)
            elif kind < 0.7:     # LMCache's local disk: straight to the final name
                path = f"flat/w{number}@{round_}.{n}.pt"
                version, size = f"{round_}.{number}.{n}", rng.choice([65536, 262144])
                folder(f"{mnt}/flat")
                try:
                    with open(f"{mnt}/{path}", "wb") as f:
                        f.write(blob(path + version, size))
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    tell("full", path, version, size)
                    os.unlink(f"{mnt}/{path}")
                    continue
                tell("put", path, version, size)
                mine[path] = (version, size)
            elif kind < 0.8 and mine:
                path = rng.choice(sorted(mine))
                tell("try-del", path, None, 0)
                os.unlink(f"{mnt}/{path}")
                tell("del", path, None, 0)
                del mine[path]
            elif mine:
                path = rng.choice(sorted(mine))
                version, size = mine[path]
                with open(f"{mnt}/{path}", "rb") as f:
                    if f.read() != blob(path + version, size):
                        tell("WRONG", path, version, size)
    except OSError as e:
        if e.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT,
                           errno.ESHUTDOWN, errno.ECANCELED):
            tell("ERROR", str(e), None, 0)
    os._exit(0)


s = Store(size="3G", cpu="64M", options="settle=50").mount()
known = {}  # path -> list of (version, size) that may be there; None: may be missing
for round_ in range(KILLS):
    journal = f"{TMP}/journal{round_}"
    witness = Witness(s.daemon.pid, f"{TMP}/witness")
    kids = []
    for i in range(WORKERS):
        pid = os.fork()
        if not pid:
            try:
                worker(i, round_, s.mnt, journal)
            finally:
                os._exit(1)
        kids.append(pid)
    time.sleep(random.Random(SEED + round_).uniform(0.3, 1.5) * SLOW)
    killed = time.monotonic()
    s.kill()
    for pid in kids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    witness.end()
    lost = round_ % 3 == 2
    if os.path.exists(journal):
        with open(journal) as f:
            for line in f:
                try:
                    t, what, path, version, size = json.loads(line)
                except ValueError:
                    continue  # the last line, cut by the kill
                assert what not in ("WRONG", "ERROR"), line
                late = t > killed - 0.05 or (t > killed - 3 and
                                             witness.may_be_lost(t, killed, 0.05))
                if what == "put":
                    old = known.get(path, [None])
                    known[path] = [(version, size)] + (old if late else [])
                elif what == "del":
                    known[path] = [None] + (known.get(path, []) if late else [])
                elif what == "try":
                    known[path] = known.get(path, [None]) + [(version, size)]
                elif what == "try-del":
                    known[path] = known.get(path, [None]) + [None]
    run("umount", "-l", s.mnt)
    if lost:
        s.drop_pool()
    out = s.fsck("-n").stdout
    s.mount()
    counted = 0
    for folder, _, files in os.walk(s.mnt):
        for name in files:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, s.mnt)
            if name.endswith(".tmp"):
                os.unlink(full)
                continue
            data = open(full, "rb").read()
            may = known.get(path, [None])
            # after the loss of the pool only files with a copy in the tier are there, and never in
            # an older version, because the generations differ
            assert any(m and len(data) == m[1] and data == blob(path + m[0], m[1]) for m in may) \
                or path not in known, \
                f"round {round_}: {path} is {len(data)} bytes of none of {may[:3]}"
            if path not in known and data:
                assert path.startswith("flat/"), path  # closed, but not in the journal yet
            counted += 1
            known[path] = [next(m for m in may if m
                                and data == blob(path + m[0], m[1]))] if path in known else [None]
    for path, may in list(known.items()):
        if not os.path.exists(f"{s.mnt}/{path}"):
            assert lost or None in may, \
            f"round {round_}: {path} is missing, it should be one of {may[:3]}"
            known[path] = [None]
    s.settle()

    def accounts():
        """Whether the counted bytes of the pool are those of its files, as they are after all
        frees."""
        used = run("sh", "-c", f"du -s -B1 {TMP}/run/*/ | cut -f1", ok=True).stdout.split()[0]
        return abs(int(used) - s.stats()["pool_used_bytes"]) <= 64 * KiB

    wait_for(accounts)
    st = s.stats()
    print(f"round {round_}: {counted} files right, {'pool lost' if lost else 'pool kept'}, "
          f"recovered {st['recovered']}", flush=True)
s.umount()
s.fsck("-n")
s.mount()
s.umount()
s.fsck("-n")
