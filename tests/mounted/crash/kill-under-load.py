# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""SIGKILL under load, KILLS times (6), with the stores and loads of vLLM and LMCache from many
processes. After each kill the store is mounted again, every third time without the pool, and
promise 1 is checked: a close, rename or unlink that ended more than 50 ms before the kill is in
effect, and no partial file is visible. The time in which the machine did not run the daemon is
measured and added to the 50 ms. SEED repeats a run.

The same is done for LOSSY kills (3) with a lossy codec, and a pool from which files are evicted and
loaded before each kill. Then a file has the written bytes or, once anybody saw them, the decoded
ones, also after the kill."""
import json, os, random, signal, sys, time
import kvdata
from kvtest import *
from witness import Witness

KILLS = int(os.environ.get("KILLS", 6))
LOSSY = int(os.environ.get("LOSSY", min(3, KILLS)))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
WORKERS = 4
print(f"KILLS={KILLS} LOSSY={LOSSY} SEED={SEED}", flush=True)


def folder(path):
    """Creates the folder. makedirs(exist_ok=True) fails if the folder exists, but is dropped before
    the check that it is a folder."""
    for _ in range(20):
        try:
            return os.makedirs(path, exist_ok=True)
        except FileExistsError:
            pass


def worker(number, round_, mnt, journal, content, holds):
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
                short = os.write(fd, content(path + version, size)) != size
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
                        f.write(content(path + version, size))
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
                    data = f.read()
                if not holds(path + version, content(path + version, size), data):
                    tell("WRONG", path, version, size)
                elif data != content(path + version, size):
                    tell("decoded", path, version, kvdata.Decodings.digest(data))
    except OSError as e:
        if e.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT,
                           errno.ESHUTDOWN, errno.ECANCELED):
            tell("ERROR", str(e), None, 0)
    os._exit(0)


class Campaign:
    """Kills of one store. known: path -> list of (version, size) that may be there; None: may be
    missing."""

    def __init__(self, lossy):
        self.lossy, self.known, self.decodings = lossy, {}, kvdata.Decodings()
        self.content = kvdata.kv if lossy else blob
        self.s = Store("lossy" if lossy else "s", size="3G", cpu="32M" if lossy else "64M",
                       options="settle=50" + (",compress=kvq-mid" if lossy else "")).mount()

    def holds(self, of, written, data):
        return self.decodings.holds(of, written, data) if self.lossy else data == written

    def is_version(self, version, path, data):
        return version and len(data) == version[1] and self.holds(
            path + version[0], self.content(path + version[0], version[1]), data)

    def layouts(self):
        for folder in ("m_r0", "flat") if self.lossy else ():
            os.makedirs(f"{self.s.mnt}/{folder}", exist_ok=True)
            os.setxattr(f"{self.s.mnt}/{folder}", "user.kvcachefs.layout", kvdata.LAYOUT.encode())

    def load(self, round_, journal):
        """Kills the daemon while workers use it. Returns when, and how late it may have been."""
        s, kids = self.s, []
        self.layouts()
        witness = Witness(s.daemon.pid, f"{TMP}/witness")
        for i in range(WORKERS):
            pid = os.fork()
            if not pid:
                try:
                    worker(i, round_, s.mnt, journal, self.content, self.holds)
                finally:
                    os._exit(1)
            kids.append(pid)
        time.sleep(random.Random(SEED + round_).uniform(0.3, 1.5) * SLOW)
        if self.lossy:
            wait_for(lambda: (st := s.stats())["lossy_copies"] and st["evictions"]
                     and st["loads_decoded"])
        killed = time.monotonic()
        s.kill()
        for pid in kids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        witness.end()
        return killed, witness

    def follow(self, journal, killed, witness):
        """Notes the changes in the journal, and which of them the kill may have undone."""
        for line in journal:
            try:
                t, what, path, version, size = json.loads(line)
            except ValueError:
                continue  # the last line, cut by the kill
            assert what not in ("WRONG", "ERROR"), line
            late = t > killed - 0.05 or (t > killed - 3 and
                                         witness.may_be_lost(t, killed, 0.05))
            old = self.known.get(path, [])
            if what == "put":
                self.known[path] = [(version, size)] + ((old or [None]) if late else [])
            elif what == "del":
                self.known[path] = [None] + (old if late else [])
            elif what == "try":
                self.known[path] = (old or [None]) + [(version, size)]
            elif what == "try-del":
                self.known[path] = (old or [None]) + [None]
            elif what == "decoded":
                self.decodings.learn(path + version, size)

    def check(self, round_, lost):
        """Compares all files with the known versions. Returns their number."""
        s, known, counted = self.s, self.known, 0
        for folder, _, files in os.walk(s.mnt):
            for name in files:
                full = os.path.join(folder, name)
                path = os.path.relpath(full, s.mnt)
                if name.endswith(".tmp"):
                    os.unlink(full)
                    continue
                with open(full, "rb") as f:
                    data = f.read()
                may = known.get(path, [None])
                # after the loss of the pool only files with a copy in the tier are there, and never
                # in an older version, because the generations differ
                found = next((m for m in may if self.is_version(m, path, data)), None)
                assert found or path not in known, \
                    f"round {round_}: {path} is {len(data)} bytes of none of {may[:3]}"
                if path not in known and data:
                    assert path.startswith("flat/"), path  # closed, but not in the journal yet
                counted += 1
                known[path] = [found]
        for path, may in list(known.items()):
            if not os.path.exists(f"{s.mnt}/{path}"):
                assert lost or None in may, \
                    f"round {round_}: {path} is missing, it should be one of {may[:3]}"
                known[path] = [None]
        return counted

    def accounts(self):
        """Whether the counted bytes of the pool are those of its files, as they are after all
        frees."""
        used = run("du", "-s", "-B1", self.s.config()["pool"], ok=True).stdout.split()[0]
        return abs(int(used) - self.s.stats()["pool_used_bytes"]) <= 64 * KiB

    def round(self, round_):
        s, journal = self.s, f"{TMP}/journal"
        killed, witness = self.load(round_, journal)
        lost = round_ % 3 == 2
        if os.path.exists(journal):
            with open(journal) as f:
                self.follow(f, killed, witness)
            os.unlink(journal)
        run("umount", "-l", s.mnt)
        if lost:
            s.drop_pool()
        s.fsck("-n")
        s.mount()
        counted = self.check(round_, lost)
        s.settle()
        wait_for(self.accounts)
        st = s.stats()
        assert not st["corrupt"], st
        print(f"{'lossy, ' * self.lossy}round {round_}: {counted} files right, "
              f"{'pool lost' if lost else 'pool kept'}, recovered {st['recovered']}, "
              f"{len(self.decodings.of)} were decoded", flush=True)

    def run(self, kills):
        for round_ in range(kills):
            self.round(round_)
        self.s.umount()
        self.s.fsck("-n")
        self.s.mount()
        self.s.umount()
        self.s.fsck("-n")


Campaign(False).run(KILLS)
Campaign(True).run(LOSSY)
