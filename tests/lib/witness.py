# SPDX-License-Identifier: Apache-2.0
"""Measures how long the machine does not run the daemon, because a promise in milliseconds cannot
cover that time. A process next to the daemon does the minimum work of a commit, without a sync: it
sleeps for 10 ms and writes a page to a file on the same filesystem. It also records how long each
thread of the daemon was ready to run and did not run. The delay is measured, not assumed, and a
commit that waits for a lock is not excused by it.

While the catalog's log restarts, a commit may wait for two syncs by the thread kv-checkpoint, one
of the log and one of the database. The witness sees in /proc how long each of them takes."""
import os, signal, time

TURN = 0.01
COMMIT = 0.03  # seconds between a change and its commit, if nothing waits: commit= and the writing
SYNCS = ("74", "75", "82", "83")  # fsync and fdatasync on x86-64 and on other machines


def checkpointer(pid):
    """The daemon's thread that restarts the log, or None."""
    try:
        for t in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{t}/comm") as f:
                if f.read() == "kv-checkpoint\n":
                    return t
    except OSError:
        pass


def synced(pid, thread):
    """The file that this thread syncs at this moment (log, database or mark), and how many reads
    and writes it had made before, which tells two syncs of a file apart; or ''."""
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall") as f:
            call, first, *_ = f.read().split() + ["", ""]
        if call not in SYNCS:
            return ""
        name = os.readlink(f"/proc/{pid}/fd/{int(first, 16)}")
        with open(f"/proc/{pid}/task/{thread}/io") as f:
            made = sum(int(line.split()[1]) for line in f if line.startswith("sysc"))
        kind = {"wal": "log", "mark": "mark"}.get(name.rpartition("-")[2], "database")
        return f"{kind}:{made}"
    except (OSError, ValueError):
        return ""


def waited(pid):
    """{thread: seconds in which it was ready and did not run}, as the kernel counts them."""
    out = {}
    try:
        for t in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{t}/schedstat") as f:
                out[t] = int(f.read().split()[1]) / 1e9
    except OSError:
        pass
    return out


class Witness:
    def __init__(self, daemon, path):
        self.path = path
        self.pid = os.fork()
        if not self.pid:
            try:
                self.look(daemon)
            finally:
                os._exit(1)

    def look(self, daemon):
        out = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        fd = os.open(f"{self.path}.page", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        page, n, late, syncer = os.urandom(4096), 0, 0.0, checkpointer(daemon)
        while True:
            began = time.monotonic()
            time.sleep(TURN)
            os.pwrite(fd, page, n % 2000 * 4096)
            n += 1
            threads = " ".join(f"{t}:{s:.6f}" for t, s in waited(daemon).items())
            now = time.monotonic()
            late += now - began - TURN
            sync = synced(daemon, syncer) if syncer else ""  # KIND:NUMBER
            os.write(out, f"{now:.6f} {late:.6f} {sync or '-'} {threads}\n".encode())

    def end(self):
        """Ends the measurement; after it, the functions below can be called. Returns self."""
        os.kill(self.pid, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(self.pid, 0)[1]), "the witness has ended by itself"
        self.read()
        return self

    def read(self):
        """Reads what the process has recorded."""
        self.seen, self.syncs, under_way, begun = [], [], "-", 0
        with open(self.path) as f:
            for line in f:
                at, late, sync, *threads = line.split()
                if line.endswith("\n"):
                    pairs = (t.split(":") for t in threads)
                    self.seen.append((float(at), float(late), {t: float(s) for t, s in pairs}))
                    if sync != under_way and under_way != "-":
                        self.syncs.append((begun, float(at), under_way.split(":")[0]))
                    if sync != under_way:
                        under_way, begun = sync, float(at) - TURN
        if under_way != "-":
            self.syncs.append((begun, self.seen[-1][0], under_way.split(":")[0]))

    def longest_syncs(self, since, until):
        """Seconds of the longest sync of the log and of the longest one of the database between the
        two times, together; 0 if both were short."""
        log, database = (max((b - a for a, b, kind in self.syncs
                              if kind == which and b > since and a < until), default=0)
                         for which in ("log", "database"))
        return log + database if max(log, database) > 2 * TURN else 0

    def longest_pause(self, since, until):
        """Seconds of the longest delay of one turn between the two times."""
        seen = [s for s in self.seen if since < s[0] <= until]
        if not seen:
            return until - since
        return max([b[1] - a[1] for a, b in zip(seen, seen[1:])] + [until - seen[-1][0] - TURN, 0])

    def may_be_lost(self, at, killed, promise, excused=None):
        """Whether promise 1 of kvcachefs-design(7) allows the loss of a change whose call returned
        at this time.
        excused: the seconds to allow, instead of all the time since the change in which the machine
        did not run the daemon."""
        most = max(promise, self.longest_syncs(at, killed) + COMMIT)
        return killed - at <= most + (self.excused(at, killed) if excused is None else excused)

    def excused(self, since, until):
        """Seconds between the two times in which the machine did not run the daemon."""
        before = [s for s in self.seen if s[0] <= since]
        between = [s for s in self.seen if since < s[0] <= until]
        if not before or not between:
            return until - since
        (_, late, threads), (last, late2, threads2) = before[-1], between[-1]
        kept = max((s - threads.get(t, 0) for t, s in threads2.items()), default=0)
        return kept + late2 - late + max(0, until - last - TURN)
