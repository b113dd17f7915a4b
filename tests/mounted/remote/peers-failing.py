# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Three nodes, of which some are killed, stopped, cut off, lie, hold another version, or have
another secret. Nothing wrong is read, no call exceeds its deadline, and the other nodes serve."""
import errno, os, signal, socket, threading, time
from kvtest import KiB, MiB, blob, fails, freeze, need_mount, wait_for
import nodes
from nodes import Proxy

need_mount()

def reads(s, path):
    """Reads a file, or returns None: a miss."""
    try:
        return s.read(path)
    except FileNotFoundError:
        return None


def later(s, path):
    """A miss is remembered for a moment."""
    return wait_for(lambda: reads(s, path), every=0.2)


def warned(s, text):
    return wait_for(lambda: text in s.log())


def lookups_end(s, names):
    """The lookups of names that no node has end, and say so."""
    for n in names:
        with fails(errno.ENOENT):
            os.stat(f"{s.mnt}/{n}")


def failing_nodes():
    a, b, c = nodes.mounted("failing", 3, ",deadline=2s")
    data = {n: blob(n, 300 * KiB + n) for n in range(12)}
    for n, d in data.items():
        b.write(f"m/{n}", d)
        if n % 2:
            c.write(f"m/{n}", d)
    # loops: every node has every other one as a peer, and none of them has the name
    lookups_end(a, ["x/1", "m/none", "none"])
    lookups_end(b, ["x/1", "m/none"])
    assert later(a, "m/0") == data[0]
    assert later(a, "m/1") == data[1]
    asked = {s: s.stats()["asks"] for s in (b, c)}
    lookups_end(a, [f"m/more{i}" for i in range(20)])
    for s, n in asked.items():
        assert s.stats()["asks"] == n  # a request of a node asks no other node
    # a storm: many threads miss many names
    threads = [threading.Thread(target=lookups_end, args=(a, [f"storm/{t % 4}.{i}"
                                                              for i in range(25)]))
               for t in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert later(a, "m/2") == data[2]
    # a node is stopped: the other one serves, and nothing hangs
    freeze(b.daemon.pid)
    try:
        assert later(a, "m/3") == data[3]
        lookups_end(a, ["m/absent1", "m/absent2"])
        warned(a, "does not answer and is left alone")
        assert reads(a, "m/4") is None
    finally:
        os.kill(b.daemon.pid, signal.SIGCONT)
    assert later(a, "m/4") == data[4]
    # it is killed, while the other node has already seen its file
    assert wait_for(lambda: os.path.exists(f"{a.mnt}/m/6"), every=.2)
    b.kill()
    assert reads(a, "m/6") is None     # known, but not there now
    assert later(a, "m/5") == data[5]  # the other node has it
    # it returns: its pool survived, and the name was kept
    b.mount()
    assert later(a, "m/6") == data[6]
    for s in (a, b, c):
        s.umount()


def liar():
    """A node whose answers are changed on the way: the damage is seen, and the next node asked."""
    b, c = nodes.make("liar", 2)
    for s in (b, c):
        s.options = s.options.split(",remote=")[0]
    c.options = c.options.replace(c.secret, b.secret)
    flips = []

    def flip(data):
        """Once `flips` is not empty, flips a bit in each long part. (The headers come in a short
        part.)"""
        if len(data) < 20000 or not flips:
            return data
        flips.append(1)
        return data[:10000] + bytes([data[10000] ^ 4]) + data[10001:]
    proxy = Proxy(b.port, flip)
    a, = nodes.make("reader", 1, secret=b.secret)
    a.options = f"settle=50,remote=" + nodes.url([nodes.local(proxy.port), nodes.local(c.port)],
                                                 b.secret)
    nodes.serve_as(b, proxy.port)
    for s in (b, c, a):
        s.mount()
    one, two = blob(1, MiB), blob(2, MiB)
    b.write("m/both", one)
    b.write("m/only", two)
    assert later(a, "m/both") == one
    c.write("m/second", two)
    b.write("m/second", two)
    flips.append(1)
    # b may be the second node that is asked: read until it was asked
    with fails(errno.ENOENT, errno.ESTALE):
        for i in range(3):
            a.read("m/only")
    assert len(flips) > 1
    assert a.stats()["corrupt"] >= 1
    warned(a, "sent damaged bytes")
    assert later(a, "m/second") == two
    a.umount()
    proxy.close()
    for s in (b, c):
        s.umount()


def cut_off():
    """A node whose packets vanish, and one whose answers stop in the middle."""
    b, = nodes.make("near", 1)
    b.options = b.options.split(",remote=")[0]
    # the kernel drops the packets of new connections if the queue of a listener is full
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    port = hole.getsockname()[1]
    full = [socket.socket() for _ in range(4)]
    for s in full:
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
    stops, held = threading.Event(), []

    def stop(data):
        if stops.is_set() and len(data) > 10000:
            held.append(1)
            threading.Event().wait()
        return data
    proxy = Proxy(b.port, stop)

    def late(data):
        """Delays the start of an answer, so that the other node is asked first."""
        if data.startswith(b"HTTP/"):
            time.sleep(.1)
        return data
    far = Proxy(b.port, late)
    a, = nodes.make("cut", 1, secret=b.secret)
    a.options = "settle=50,deadline=3s,remote=" + nodes.url(
        [nodes.local(port), nodes.local(proxy.port), nodes.local(far.port)], b.secret)
    nodes.serve_as(b, proxy.port, far.port)
    b.mount()
    a.mount()
    data = {n: blob(n, MiB) for n in range(3)}
    for n, d in data.items():
        b.write(f"m/{n}", d)
    assert later(a, "m/0") == data[0]
    lookups_end(a, ["m/absent"])
    warned(a, f"127.0.0.1:{port} does not answer")
    stops.set()
    reads(a, "m/1")
    assert held
    assert later(a, "m/1") == data[1]
    assert a.stats()["corrupt"] == 0
    a.umount()
    for p in (proxy, far):
        p.close()
    b.umount()


def versions():
    """A node finds an object, which the other node then replaces, before it is read."""
    a, b = nodes.mounted("versions", 2)
    old, new = blob(1, 300 * KiB), blob(2, 200 * KiB)
    b.write("m/f", old)
    assert wait_for(lambda: os.path.exists(f"{a.mnt}/m/f"), every=.2)
    b.write("m/f", new)
    b.closed()
    got = later(a, "m/f")
    assert got == new, len(got)
    assert "replaced by another node" in a.log()
    # a file that was deleted there, after it was found here
    b.write("m/g", old)
    assert wait_for(lambda: os.path.exists(f"{a.mnt}/m/g"), every=.2)
    os.unlink(f"{b.mnt}/m/g")
    with fails(errno.ENOENT, errno.ESTALE):
        a.read("m/g")
    # a file that is deleted here is not found again
    b.write("m/h", old)
    assert later(a, "m/h") == old
    os.unlink(f"{a.mnt}/m/h")
    time.sleep(1.5)
    assert reads(a, "m/h") is None
    assert b.read("m/h") == old
    # a rename: the new name is ours
    b.write("m/i", old)
    assert wait_for(lambda: os.path.exists(f"{a.mnt}/m/i"), every=.2)
    os.rename(f"{a.mnt}/m/i", f"{a.mnt}/m/j")
    assert a.read("m/j") == old
    for s in (a, b):
        s.umount()


def secrets_differ():
    b, = nodes.make("other", 1)
    b.options = b.options.split(",remote=")[0]
    p = Proxy(b.port, lambda d: d.replace(b"X-Kvcachefs-Sign: ", b"X-Kvcachefs-Sigh: "))
    nodes.serve_as(b, p.port)
    b.mount()
    b.write("m/f", b"x" * 100000)
    wrong = nodes.secret_file("wrong.secret")
    a, = nodes.make("wrong", 1)
    a.options = "remote=" + nodes.url([nodes.local(b.port)], wrong)
    a.mount()
    warned(a, f"127.0.0.1:{b.port} refuses this node: the signature is wrong: the two nodes have "
              "different secrets")
    assert reads(a, "m/f") is None
    assert a.log().count("refuses this node") == 1
    # an impostor at the node's address, which does not know the secret
    c, = nodes.make("impostor", 1)
    c.options = "remote=" + nodes.url([nodes.local(p.port)], b.secret)
    c.mount()
    warned(c, "its answer is not signed with the secret")
    assert reads(c, "m/f") is None
    p.close()
    for s in (a, b, c):
        s.umount()


def passed_on():
    """An attacker at the address of a node, who passes its requests on to another node: they are
    refused there, until the other node is told that the name is its own."""
    b, = nodes.make("another", 1)
    b.options = b.options.split(",remote=")[0]
    p = Proxy(b.port)
    name = nodes.local(p.port)
    a, = nodes.make("asker", 1, secret=b.secret)
    a.options = "settle=50,remote=" + nodes.url([name], b.secret)
    b.mount()
    a.mount()
    data = blob(1, 100 * KiB)
    b.write("m/f", data)
    warned(a, f"{name} refuses this node: it does not have this name; if it is the right node, "
              "add the name to its option peer_name=")
    assert reads(a, "m/f") is None
    log = b.log()
    assert log.count(f"a request for the node {name} was refused, because this node is "
                     f"{nodes.local(b.port)}: if this node is meant, add peer_name={name} to its "
                     "options") == 1, log
    assert b.stats()["peer_refusals"] >= 1 and b.stats()["peer_answers"] == 0
    b.umount()
    nodes.serve_as(b, p.port)
    b.mount()
    a.umount()
    a.mount()
    assert later(a, "m/f") == data
    a.umount()
    p.close()
    b.umount()


failing_nodes()
cut_off()
liar()
versions()
secrets_differ()
passed_on()
