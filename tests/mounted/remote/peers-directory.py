# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Three nodes with a directory in Redis. Only nodes that have an object are asked for it, so a name
that nobody has costs no request to a node. A directory that is down, hangs, or lost its entries
costs requests, but no hits; an old entry is a miss, and the next node is asked."""
import os, re, signal, threading
from kvtest import KiB, TMP, Store, blob, need_mount, wait_for
import nodes, servers

need_mount()
N = 200


class Node:
    """A store that serves, behind a proxy that counts the answers. Each test has a directory of
    its own (a prefix)."""

    def __init__(self, name, secret):
        self.port, self.got = servers.free_port(), []
        self.proxy = nodes.Proxy(self.port, self.count)
        self.s = Store(name, options=f"settle=50,peer_listen={nodes.local(self.port)},"
                                     f"peer_name={nodes.local(self.proxy.port)},"
                                     f"peer_secret={secret}")
        self.name = nodes.local(self.proxy.port)

    def count(self, data):
        self.got.extend(re.findall(rb"HTTP/1\.1 (\d+)", data))
        return data

    def mount(self, others, secret, directory):
        url = nodes.url([o.name for o in others], secret) + f"&directory={directory}"
        self.s.options = self.s.options.split(",remote=")[0] + f",deadline=4s,remote={url}"
        self.s.mount()


class Three:
    def __init__(self, name, redis):
        self.name, self.redis, self.secret = name, redis, nodes.secret_file(f"{name}.secret")
        self.url = f"redis://127.0.0.1:{redis.port}/{name}"
        self.all = [Node(f"{name}.{i}", self.secret) for i in "abc"]
        for n in self.all:
            self.mount(n)
        self.wait_complete()

    def mount(self, n):
        n.mount([o for o in self.all if o is not n], self.secret, self.url)

    def entries(self):
        keys = self.redis.command("keys", f"{self.name}:n:*").split()
        return [self.redis.command("get", k).split() for k in keys]

    def wait_complete(self, count=3):
        """Each node has two names. The others use the entries of nodes for a second."""
        wait_for(lambda: sum(e[1:2] == ["1"] for e in self.entries()) == 2 * count, every=0.1)
        probe = iter(range(10**6))

        def asks_nobody():
            self.requests()
            self.look(self.all[0], [f"probe{next(probe)}-{i}" for i in (1, 2)])
            self.look(self.all[1], [f"probe{next(probe)}-{i}" for i in (1, 2)])
            return not any(self.requests())
        wait_for(asks_nobody, every=0.2)

    def requests(self):
        counts = [len(n.got) for n in self.all]
        for n in self.all:
            n.got.clear()
        return counts

    def look(self, node, paths):
        """Returns the paths of the list that exist."""
        fd, lines = nodes.lease(node.s, "look\n", paths)
        os.close(fd)
        return {words[0] for words in lines if words[3] != "ENOENT"}

    def members(self, path):
        key = f"{self.name}:{nodes.directory_id(self.secret, path)}"
        return set(self.redis.command("smembers", key).split())

    def write(self, node, data):
        for path, d in data.items():
            node.s.write(path, d)
        wait_for(lambda: all(map(self.members, data)), every=0.1)

    def umount(self):
        for n in self.all:
            n.s.umount()
            n.proxy.close()


def files(folder, count=20, size=20 * KiB):
    return {f"{folder}/{n}": blob(n, size + n) for n in range(count)}


def missing(folder, count=N):
    return [f"{folder}/none{n}" for n in range(count)]


def places(redis):
    t = Three("places", redis)
    a, b, c = t.all
    of_a, of_b = files("m/a"), files("m/b")
    t.write(a, of_a)
    t.write(b, of_b)
    # no name of a path is in the directory
    assert not [k for k in redis.command("keys", "places:*").split()
                if "m/a" in k or str(a.proxy.port) in k]
    for folder in ("m/a", "m/b"):
        assert os.path.isdir(f"{c.s.mnt}/{folder}")
    t.requests()
    assert t.look(c, [*missing("m/a"), *missing("m/b", 1200)]) == set()
    for name in missing("m/a", 300)[N:]:
        assert not os.path.exists(f"{c.s.mnt}/{name}")
    assert t.requests() == [0, 0, 0]
    # one request with the list, and one for each header
    assert t.look(c, [*of_a, *of_b, "m/a/x"]) == {*of_a, *of_b}
    asked = t.requests()
    assert asked[0] <= len(of_a) + 1 and asked[1] <= len(of_b) + 1, asked
    for path, d in {**of_a, **of_b}.items():
        assert c.s.read(path) == d
    # now c has them, too, and offers them
    wait_for(lambda: all(len(t.members(path)) == 2 for path in of_a), every=0.1)
    # a renamed folder, without a walk over all objects
    before = a.s.stats()["announce_restarts"]
    os.mkdir(f"{a.s.mnt}/m/temporary")
    for n in range(5):
        a.s.write(f"m/temporary/{n}", of_a[f"m/a/{n}"])
    wait_for(lambda: t.members("m/temporary/4"), every=0.1)
    os.rename(f"{a.s.mnt}/m/temporary", f"{a.s.mnt}/m/final")
    wait_for(lambda: all(t.members(f"m/final/{n}") for n in range(5)), every=0.1)
    wait_for(lambda: not t.members("m/temporary"), every=0.1)
    wait_for(lambda: os.path.isdir(f"{b.s.mnt}/m/final"), every=0.3)
    assert b.s.read("m/final/2") == of_a["m/a/2"]
    assert a.s.stats()["announce_restarts"] == before
    # a storm of lists and single names that nobody has, in a folder that all nodes know
    assert all(os.path.isdir(f"{n.s.mnt}/m/a") for n in t.all)
    t.requests()
    wrong = []

    def storm(n):
        for i in range(5):
            wrong.extend(t.look(t.all[n % 3], [f"m/a/s{n}-{i}-{j}" for j in range(N)]))
            os.path.exists(f"{t.all[n % 3].s.mnt}/m/a/t{n}-{i}") and wrong.append(i)
    threads = [threading.Thread(target=storm, args=[n]) for n in range(12)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    asked = t.requests()
    assert not wrong and asked == [0, 0, 0], (wrong, asked)
    assert all(n.s.stats()["announce_failures"] == 0 for n in t.all)
    # a node that is in the directory but not in nodes= is not asked
    d = Node("places.d", t.secret)
    d.mount([b], t.secret, t.url)
    wait_for(lambda: os.path.exists(f"{d.s.mnt}/m/b/0"), every=0.3)
    assert d.s.read("m/b/0") == of_b["m/b/0"] and not t.look(d, list(of_a))
    d.s.umount()
    d.proxy.close()
    t.umount()


def stale(redis):
    t = Three("stale", redis)
    a, b, c = t.all
    gone, kept = files("m/gone"), files("m/kept")
    t.write(a, {**gone, **kept})
    assert all(map(b.s.read, kept))
    wait_for(lambda: all(len(t.members(path)) == 2 for path in kept), every=0.1)
    ids = {path: t.members(path) for path in kept}
    # deleted files leave the directory
    for path in gone:
        os.unlink(f"{a.s.mnt}/{path}")
    wait_for(lambda: not any(map(t.members, gone)), every=0.1)
    # a dropped chunk leaves it as a folder; its files do when they are asked for in vain
    folder = len(t.members("m/kept"))
    os.setxattr(f"{a.s.mnt}/m/kept/0", "user.kvcachefs.demote", b"all")
    wait_for(lambda: len(t.members("m/kept")) == folder - 1, every=0.1)
    assert os.path.isdir(f"{c.s.mnt}/m/kept")
    wait_for(lambda: t.look(c, kept) == set(kept), every=0.5)
    # entries of objects that the nodes do not have: one request each, and the next place
    old = missing("m/kept", 10)
    for path in old:
        redis.command("sadd", f"stale:{nodes.directory_id(t.secret, path)}", *ids["m/kept/0"])
    t.requests()
    assert t.look(c, [*old, *kept]) == set(kept)
    asked = t.requests()
    assert asked[0] and asked[1], asked
    wait_for(lambda: not any(map(t.members, old)), every=0.1)
    assert all(c.s.read(path) == d for path, d in kept.items())
    t.umount()


def killed_node(redis):
    t = Three("killed", redis)
    a, b, c = t.all
    data, both = files("m/a"), files("m/both")
    t.write(a, {**data, **both})
    assert all(map(b.s.read, both))
    wait_for(lambda: all(len(t.members(path)) == 2 for path in both), every=0.1)
    assert os.path.isdir(f"{c.s.mnt}/m/both") and os.path.isdir(f"{c.s.mnt}/m/a")
    a.s.kill()
    assert all(c.s.read(path) == d for path, d in both.items())
    assert t.look(c, data) == set()
    wait_for(lambda: len(t.entries()) == 4, every=0.5)  # its entries have expired
    wait_for(lambda: not t.requests()[1] and not t.look(c, missing("m/a", 30)) and
             not any(t.requests()), every=1.1)
    t.mount(a)
    t.wait_complete()
    wait_for(lambda: t.look(c, data) == set(data), every=0.5)
    t.umount()


def failing_directory(redis):
    t = Three("failing", redis)
    a, b, c = t.all
    data = files("m/a")
    t.write(a, data)
    assert os.path.isdir(f"{c.s.mnt}/m/a")
    # it hangs: lists and opens end, and find what the nodes have
    redis.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: t.look(c, [*data, *missing("m/a")]) == set(data), every=0.3)
    assert not t.look(b, missing("m/a"))
    assert b.s.read("m/a/3") == data["m/a/3"]
    redis.process.send_signal(signal.SIGCONT)
    t.wait_complete()
    # it is full: the entries of nodes expire, but not the hits
    limit = redis.command("config", "get", "maxmemory").split()[-1]
    redis.command("config", "set", "maxmemory", "1")
    wait_for(lambda: not t.entries(), every=0.5)
    full = files("m/full")
    for path, d in full.items():
        a.s.write(path, d)
    wait_for(lambda: os.path.isdir(f"{c.s.mnt}/m/full"), every=0.3)
    wait_for(lambda: t.look(c, full) == set(full), every=0.5)
    redis.command("config", "set", "maxmemory", limit)
    t.wait_complete()
    # it is down
    redis.stop()
    more = files("m/more")
    for path, d in more.items():
        a.s.write(path, d)
    wait_for(lambda: os.path.isdir(f"{b.s.mnt}/m/more"), every=0.3)
    wait_for(lambda: t.look(b, more) == set(more), every=0.5)
    assert all(b.s.read(path) == d for path, d in more.items())
    # restarted empty: nothing is missed, and all entries come back
    redis.start()
    wait_for(lambda: os.path.isdir(f"{c.s.mnt}/m/more"), every=0.3)
    wait_for(lambda: t.look(c, more) == set(more), every=0.5)
    wait_for(lambda: all(map(t.members, [*data, *more])), every=0.2)
    t.wait_complete()
    assert t.look(c, missing("m/more")) == set() and t.requests() == [0, 0, 0]
    # emptied while it runs: no hit is lost, not even at once
    for n in range(2):
        new = files(f"m/new{n}")
        t.write(a, new)
        redis.command("flushall")
        assert os.path.isdir(f"{b.s.mnt}/m/new{n}") and t.look(b, new) == set(new)
        wait_for(lambda: all(map(t.members, [*data, *more, *new])), every=0.2)
    t.wait_complete()
    assert all(n.s.stats()["announce_restarts"] >= 2 for n in t.all)
    # more changes than are kept while it hangs
    redis.process.send_signal(signal.SIGSTOP)
    before = a.s.stats()["announce_restarts"]
    many = [f"m/many/{n}" for n in range(9000)]
    os.mkdir(f"{a.s.mnt}/m/many")
    for path in many:
        with open(f"{a.s.mnt}/{path}", "wb") as f:
            f.write(b"x")
    a.s.settle()
    redis.process.send_signal(signal.SIGCONT)
    wait_for(lambda: a.s.stats()["announce_restarts"] > before, every=0.1)
    # the entry of the node may be the earlier one for a moment, and says that it is complete
    wait_for(lambda: all(map(t.members, many[::500])), every=0.2)
    t.wait_complete()
    assert t.look(c, many[::500]) <= set(many)
    t.umount()


def states(redis):
    """Entries of a node, made by hand: which of them let it be asked for objects without entries.
    Each is for a reader that has just been mounted, because a reader uses them for a second."""
    secret = nodes.secret_file("states.secret")
    d = Node("states.d", secret)  # without a directory
    d.s.mount()
    data = {f"m/{n}": blob(n, 5 * KiB) for n in range(20)}
    for path, content in data.items():
        d.s.write(path, content)
    key, other = (f"states:{nodes.directory_node(secret, name)}"
                  for name in (d.name, "127.0.0.1:1"))
    url = nodes.url([d.name, "127.0.0.1:1"], secret)
    names = iter(data)

    def reader(value):
        redis.command("set", key, value) if value else redis.command("del", key)
        s = Store(f"states.{next(numbers)}", options=f"settle=50,deadline=4s,disk=off,remote={url}"
                  f"&directory=redis://127.0.0.1:{redis.port}/states").mount()
        d.got.clear()
        return s

    def finds(value):
        s = reader(value)
        found = os.path.exists(f"{s.mnt}/{next(names)}")
        s.umount()
        assert found == bool(d.got), (value, d.got)
        return found
    numbers = iter(range(100))
    redis.command("set", "states:epoch", "e1")
    redis.command("set", other, "7 1 e1 1")
    assert finds(None)  # it may use no directory
    assert finds("5 0 e1 1")  # it is not complete
    assert not finds("5 1 e1 1")
    assert finds("5 1 e2 1")  # complete in another directory
    assert finds("5 1") and finds("-5 1 e1 1") and finds("0 1 e1 1")  # not an entry
    for path in ("m", *data):
        redis.command("sadd", f"states:{nodes.directory_id(secret, path)}", "5", "9", "x")
    assert finds("5 1 e1 1") and not finds("6 1 e1 1")
    # an entry that expires while another node has one: the node is dead
    s = reader("6 0 e1 1")
    assert os.path.isdir(f"{s.mnt}/m") and d.got
    redis.command("del", key)

    def asks(n):
        d.got.clear()
        return os.path.exists(f"{s.mnt}/m/none{n}") or bool(d.got)
    tries = iter(range(10**6))
    wait_for(lambda: not asks(next(tries)), every=0.2)
    # but not if no node has one, as in a directory that is full
    redis.command("del", other)
    wait_for(lambda: asks(next(tries)), every=0.2)
    s.umount()
    d.s.umount()
    d.proxy.close()


def guarded():
    """A directory with a password and TLS; its commands are those of the manual."""
    r = servers.Redis("guarded", password="pässword with spaces", tls=True)
    word = nodes.secret_file("directory", "userpassword")
    r.command("acl", "setuser", "dir", "on", ">userpassword", "~kv:*", "+get", "+set", "+sadd",
              "+srem", "+smembers", "+expire")
    secret = nodes.secret_file("guarded.secret")
    both = [Node(f"guarded.{i}", secret) for i in "ab"]
    url = f"rediss://dir@127.0.0.1:{r.port}/kv&password_file={word}&ca={r.dir}/cert.pem"
    for n in both:
        n.mount([o for o in both if o is not n], secret, url)
    a, b = both
    a.s.write("m/f", b"x" * 5000)
    wait_for(lambda: os.path.exists(f"{b.s.mnt}/m/f"), every=0.3)
    wait_for(lambda: [n.s.stats()["announces"] > 0 for n in both] == [True, False] or
             b.s.read("m/f") and b.s.stats()["announces"] > 0, every=0.2)
    assert a.s.stats()["announce_failures"] == 0
    for n in both:
        n.s.umount()
        n.proxy.close()
    r.stop()


r = servers.Redis()
places(r)
stale(r)
killed_node(r)
failing_directory(r)
states(r)
r.stop()
guarded()
