# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A connection to a Redis server delivers a byte now and then, always within deadline=. A load
through it ends with an error, the tier is suspended, and the daemon can stop. The same with TLS,
where a read needs a whole record and a handshake needs many."""
import errno, os, shutil, socket, threading, time
from kvtest import HANG, KiB, SLOW, Store, blob, skip, wait_for
import servers

if not shutil.which("openssl"):
    skip("needs openssl")
DEADLINE = 4000 * SLOW
LIMIT = HANG  # a call that takes longer counts as hanging


class Line:
    """Forwards to a port of this machine; slow: returns a byte every half second."""

    def __init__(self, port):
        self.slow, self.to = False, port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            here = self.listener.accept()[0]
            there = socket.create_connection(("127.0.0.1", self.to))
            for a, b, back in ((here, there, False), (there, here, True)):
                threading.Thread(target=self.carry, args=(a, b, back), daemon=True).start()

    def carry(self, a, b, back):
        try:
            while data := a.recv(65536):
                while data and back and self.slow:
                    b.sendall(data[:1])
                    data = data[1:]
                    time.sleep(0.5)
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def lowered():
    return all(s.attr(p, "state") == "lower" for p in data)


for tls in (False, True):
    server = servers.Redis(f"redis{tls}", tls=tls)
    line = Line(server.port)
    url = server.url().replace(f":{server.port}/", f":{line.port}/")
    s = Store(f"s{tls}", size="64M",
              options=f"settle=0,deadline={DEADLINE},disk=off,remote={url}").mount()
    data = {f"m/c{i}/l": blob(i, 200 * KiB) for i in range(8)}
    for path, d in data.items():
        s.write(path, d)
        wait_for(lambda: "redis" in s.attr(path, "tiers").split(","))
        os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    wait_for(lowered)
    assert s.stats()["tier_errors"] == 0

    line.slow = True
    ends, begun = [], time.time()

    def load(path):
        try:
            s.read(path)
        except OSError as e:
            ends.append(e.errno)

    threads = [threading.Thread(target=load, args=(p,)) for p in data]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(ends) == len(data) and set(ends) == {errno.ENOENT}, ends
    wait_for(lambda: s.stats()["tier_redis_up"] == 0, LIMIT)
    wait_for(lowered, LIMIT)
    print(f"tls {tls}: all have ended after {time.time() - begun:.1f} s")

    # the stop with calls in progress: a probe of the breaker, and calls that wait for it
    s.write("m/new", b"n" * 5000)
    begun = time.time()
    s.umount()
    assert time.time() - begun < LIMIT

    line.slow = False
    s.mount()
    for path, d in data.items():
        assert s.read(path) == d
    wait_for(lambda: "redis" in s.attr("m/new", "tiers").split(","))
    s.umount()
    server.stop()
