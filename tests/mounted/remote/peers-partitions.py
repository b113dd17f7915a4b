# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""Three nodes in network namespaces that read each other's objects, while nodes are killed, stopped
and cut off from one or all others, in an order that SEED chooses. Nothing wrong is read, every call
ends, and when the network is whole again each node finds all objects that a node has."""
import errno, os, random, signal, threading, time
from kvtest import KiB, LONG, MODE, Store, blob, freeze, need_mount, run, wait_for
import network, nodes

need_mount()
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}", flush=True)
rng = random.Random(SEED)
ROUNDS = 60 if LONG else 3 if MODE != "release" else 7
PORT = 9465


def content(name):
    return blob(name, 20 * KiB + hash_of(name) % 60000)


def hash_of(name):
    return int.from_bytes(name.encode(), "little") % 7919


class Node:
    def __init__(self, number, hosts, secret):
        self.host = hosts[number]
        others = [f"{h.address}:{PORT}" for h in hosts if h is not self.host]
        self.s = Store(f"node{number}", options=f"settle=50,deadline=2s,peer_secret={secret},"
                       f"peer_listen={self.host.address}:{PORT},"
                       f"remote={nodes.url(others, secret)}")
        self.fault = None

    def mount(self):
        with self.host.entered():
            self.s.mount()

    def serves(self):
        """Can its mount be used now?"""
        return self.fault not in ("kill", "stop")

    def hurt(self, fault):
        self.fault = fault
        if fault == "kill":
            self.s.kill()
            run("umount", "-l", self.s.mnt)
        elif fault == "stop":
            freeze(self.s.daemon.pid)
        else:
            getattr(self.host, fault)()

    def heal(self):
        if self.fault == "kill":
            self.mount()
        elif self.fault == "stop":
            os.kill(self.s.daemon.pid, signal.SIGCONT)
        elif self.fault:
            self.host.heal()
        self.fault = None


class Work:
    """Reads on the nodes, and what went wrong."""

    def __init__(self):
        self.names, self.wrong, self.longest, self.hits, self.misses = [], [], 0, 0, 0
        self.lock = threading.Lock()

    def call(self, what, *args):
        begun = time.monotonic()
        try:
            return what(*args)
        finally:
            with self.lock:
                self.longest = max(self.longest, time.monotonic() - begun)

    def read(self, node, name, exists):
        """An object is read as it was written, or is a miss."""
        try:
            data = self.call(node.s.read, name)
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ESTALE):
                self.wrong.append((node.host.number, name, repr(e)))
            self.misses += 1
            return False
        if not exists or data != content(name):
            self.wrong.append((node.host.number, name, len(data)))
        self.hits += 1
        return True

    def look(self, node, names):
        def ask():
            fd = os.open(f"{node.s.mnt}/.kvcachefs/lease", os.O_RDWR)
            os.write(fd, ("look\n" + "\n".join(names)).encode())
            text = os.read(fd, 1 << 20)
            os.close(fd)
            return [line.split()[3] for line in text.decode().splitlines()]
        states = self.call(ask)
        for name, state in zip(names, states):
            if state != "ENOENT" and name.startswith("none"):
                self.wrong.append((node.host.number, name, state))
        if len(states) != len(names):
            self.wrong.append((node.host.number, "look", len(states)))

    def on(self, node, names, number):
        for name in names:
            self.read(node, name, True)
            self.read(node, f"none{number}/{name}", False)
        self.look(node, names + [f"none{number}/x{i}" for i in range(100)])


def write(node, work, number):
    for i in range(4):
        name = f"m/{number}.{i}/f"
        node.s.write(name, content(name))
        work.names.append(name)


def hurt_some(all):
    """One node has a fault, or two nodes do not reach each other, or two have different faults."""
    kind = rng.choice(["one", "one", "pair", "two"])
    some = rng.sample(all, 1 if kind == "one" else 2)
    for n in some:
        n.hurt("isolate" if kind == "pair" else rng.choice(["kill", "stop", "unplug", "down"]))
    print([(n.host.number, n.fault) for n in some], flush=True)


def turn(all, work, number):
    for n in all:
        write(n, work, f"{number}.{n.host.number}")
    hurt_some(all)
    names = rng.sample(work.names, min(12, len(work.names)))
    threads = [threading.Thread(target=work.on, args=(n, names, number)) for n in all if n.serves()]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in all:
        n.heal()


def main():
    hosts = network.hosts(3)
    secret = nodes.secret_file("partitions.secret")
    all = [Node(i, hosts, secret) for i in range(3)]
    for n in all:
        n.mount()
    work = Work()
    for number in range(ROUNDS):
        turn(all, work, number)
        assert not work.wrong, work.wrong[:5]
    # files that were written a moment before a kill may be lost; all others are found everywhere
    kept = [name for name in work.names if any(os.path.exists(f"{n.s.mnt}/{name}") for n in all)]
    assert len(kept) > len(work.names) // 2, (len(kept), len(work.names))
    for n in all:
        for name in kept:
            assert wait_for(lambda: work.read(n, name, True), every=.2), name
    assert not work.wrong, work.wrong[:5]
    for n in all:
        assert n.s.stats()["corrupt"] == 0
    print(f"{work.hits} reads, {work.misses} misses, longest call {work.longest:.1f} s")
    for n in all:
        n.s.umount()
        n.s.fsck()
    for h in hosts:
        h.end()


main()
