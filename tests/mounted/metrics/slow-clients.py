# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""HTTP clients that hold every connection they get and send a byte at a time cannot block other
clients, whichever user they belong to, and each of their requests is ended."""
import os, signal, socket, time
from kvtest import *
from prometheus import ask, port_of

USERS, EACH = 10, 64
"x".encode("idna")  # load the codec now, since other users may not be able to read its file
s = Store(options="metrics=127.0.0.1:0").mount()
port = port_of(s)
ready, told = os.pipe()
slow = []
for user in range(USERS):
    pid = os.fork()
    if pid:
        slow.append(pid)
        continue
    os.setgid(20000 + user)
    os.setuid(20000 + user)
    mine = []
    while True:
        try:
            while len(mine) < EACH:
                c = socket.create_connection(("127.0.0.1", port), 10)
                c.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: ")
                mine.append(c)
        except OSError:
            pass
        os.write(told, b"x")
        for c in list(mine):
            try:
                c.sendall(b"a")
            except OSError:
                mine.remove(c)
        time.sleep(0.5)


def as_user(user, call):
    """The result of call(), true or false, in a process of this user."""
    pid = os.fork()
    if not pid:
        os.setuid(user)
        try:
            os._exit(0 if call() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


try:
    for _ in range(3 * USERS):
        os.read(ready, 1)
    # root, and a user who has no connection yet
    for n in range(10):
        assert ask(port, "/healthz")[0] == 200, n
        assert as_user(30000 + n, lambda: ask(port, "/healthz")[0] == 200), n
    # a request that never ends is ended; its client sends a byte all the time
    with socket.create_connection(("127.0.0.1", port), HANG) as c:
        c.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: ")

        def ended():
            try:
                c.sendall(b"a")
                return c.recv(1, socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True
        wait_for(ended, every=0.2)
finally:
    for pid in slow:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
# an answer that its client does not read holds its connection only for a short time
for _ in range(3):
    assert ask(port, "/metrics")[0] == 200
s.umount()
