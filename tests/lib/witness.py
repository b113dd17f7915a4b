# SPDX-License-Identifier: Apache-2.0
"""Measures how long the machine does not run the daemon, because a promise in milliseconds cannot
cover that time. A process next to the daemon does the minimum work of a commit, without a sync: it
sleeps for 10 ms and writes a page to a file on the same filesystem. It also records how long each
thread of the daemon was ready to run and did not run. The delay is measured, not assumed, and a
commit that waits for a sync or a lock is not excused by it."""
import os, signal, time

TURN = 0.01


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
                os._exit(0)

    def look(self, daemon):
        out = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        fd = os.open(f"{self.path}.page", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        page, n, late = os.urandom(4096), 0, 0.0
        while True:
            began = time.monotonic()
            time.sleep(TURN)
            os.pwrite(fd, page, n % 2000 * 4096)
            n += 1
            threads = " ".join(f"{t}:{s:.6f}" for t, s in waited(daemon).items())
            now = time.monotonic()
            late += now - began - TURN
            os.write(out, f"{now:.6f} {late:.6f} {threads}\n".encode())

    def end(self):
        """Ends the measurement; after it, excused() can be called. Returns self."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.seen = []
        with open(self.path) as f:
            for line in f:
                at, late, *threads = line.split()
                if line.endswith("\n"):
                    pairs = (t.split(":") for t in threads)
                    self.seen.append((float(at), float(late), {t: float(s) for t, s in pairs}))
        return self

    def excused(self, since, until):
        """Seconds between the two times in which the machine did not run the daemon."""
        before = [s for s in self.seen if s[0] <= since]
        between = [s for s in self.seen if since < s[0] <= until]
        if not before or not between:
            return until - since
        (_, late, threads), (last, late2, threads2) = before[-1], between[-1]
        kept = max((s - threads.get(t, 0) for t, s in threads2.items()), default=0)
        return kept + late2 - late + max(0, until - last - TURN)
