# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A list of names is looked up in Redis in one round trip, and in a cluster in one to each node. An
answer is an absence only if the server says so: not an error, a moved key or a server that hangs.
The command is the one that loads need anyway."""
import binascii, os, signal
from fakes import Redis as Fake, bulk
from kvtest import KiB, Store, blob, need_mount
import frames, nodes, servers

need_mount()
N = 400


def look(s, paths):
    fd, lines = nodes.lease(s, "look\n", paths)
    os.close(fd)
    return {words[0]: words[3] for words in lines}


def found(s, paths):
    return {path for path, state in look(s, paths).items() if state != "ENOENT"}


def mount(name, url, more=""):
    return Store(name, options=f"settle=20,remote={url}{more}").mount()


def missing(n, of="m"):
    return [f"{of}/{n}-{i}" for i in range(N)]


class Client:
    """Answers no command before all commands of a list have arrived, as a server may that is
    busy."""

    def __init__(self):
        self.held, self.fake = [], Fake(self.how)

    def how(self, fake, words, _):
        if words[0].upper() != b"GETRANGE" or words[2:] != [b"0", b"0"]:
            return None
        self.held.append(fake.usual(words))
        return b"".join(self.held) if len(self.held) % N == 0 else b""


def one_round_trip():
    client = Client()
    s = mount("held", f"redis://127.0.0.1:{client.fake.port}/kv", ",deadline=4s")
    client.fake.seen.clear()
    before = s.stats()["ask_batches"]
    assert found(s, ["m/a", "m/b"]) == set()  # the folder m: one name, without a list
    assert s.stats()["ask_batches"] == before
    os.mkdir(f"{s.mnt}/m")
    client.fake.seen.clear()
    assert found(s, missing(1)) == set()
    assert client.fake.seen.count(b"GETRANGE") == N, len(client.fake.seen)
    assert s.stats()["ask_batches"] == before + 1 and s.stats()["tier_errors"] == 0, s.stats()
    s.umount()


def real():
    r = servers.Redis()
    a = mount("a", r.url())
    data = {f"m/{n}": blob(n, 20 * KiB + n) for n in range(N)}
    for path, d in data.items():
        a.write(path, d)
    a.settle()
    b = mount("b", r.url(), ",deadline=2s")
    assert found(b, [*missing(1), *data]) == set(data)
    for path in list(data)[::40]:
        assert b.read(path) == data[path]
    # a user who may only load
    r.command("acl", "setuser", "loader", "on", ">loaderpassword", "~kv:*", "+getrange")
    word = nodes.secret_file("loader", "loaderpassword")
    c = mount("c", r.url().replace("redis://", "redis://loader@") + f"?password_file={word}")
    assert found(c, [*missing(2), *data]) == set(data)
    assert c.stats()["tier_refusals"] == 0, c.stats()
    c.umount()
    # a server that was restarted empty, on the connections of before
    r.stop()
    r.start()
    assert found(b, missing(3)) == set()
    a.umount()
    # a server that hangs: the list is answered at its deadline, and known files stay
    r.process.send_signal(signal.SIGSTOP)
    assert found(b, missing(4)) == set()
    assert len(found(b, data)) == N
    r.process.send_signal(signal.SIGCONT)
    b.umount()
    r.stop()


def errors():
    """Errors of single commands, and a key that has moved, are no absences: get is asked."""
    asked = []

    def how(fake, words, _):
        if words[0].upper() == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%d\r\n" % (bulk(b"127.0.0.1"), fake.port)
        if words[0].upper() != b"GETRANGE" or words[2:] != [b"0", b"0"]:
            return None
        asked.append(words[1])
        tag = words[1].partition(b"{")[2].partition(b"}")[0]
        if len(asked) % 4 == 0:
            return b"-MOVED %d 127.0.0.1:%d\r\n" % (binascii.crc_hqx(tag, 0) % 16384, fake.port)
        return b"-ASK 1 127.0.0.1:1\r\n" if len(asked) % 4 == 1 else (
            b"-WRONGTYPE of another program\r\n" if len(asked) % 4 == 2 else None)
    fake = Fake(how)
    url = f"redis+cluster://127.0.0.1:{fake.port}/kv"
    a = mount("errors.a", url)
    data = {f"m/{n}": blob(n, 2 * KiB + n) for n in range(40)}
    for path, d in data.items():
        a.write(path, d)
    a.settle()
    b = mount("errors.b", url)
    assert found(b, [*missing(5)[:100], *data]) == set(data)
    assert len(asked) == 140, len(asked)
    a.umount()
    b.umount()


def cluster():
    c = servers.Cluster()
    a = mount("cluster.a", c.url())
    data = {f"m/{n}": blob(n, 20 * KiB + n) for n in range(60)}
    for path, d in data.items():
        a.write(path, d)
    a.settle()
    b = mount("cluster.b", c.url())
    look(b, ["m/x"])
    before = {n.port: count(n) for n in c.masters()}
    assert found(b, [*missing(6), *missing(7)]) == set()
    after = {n.port: count(n) for n in c.masters()}
    assert sum(after.values()) - sum(before.values()) == 2 * N, (before, after)
    assert all(after[port] > before[port] for port in before)
    # a slot moves without the mount's knowledge
    one, other = c.masters()[:2]
    slot = int(one.command("cluster", "keyslot", "kv:{%s}" % frames.name_of("m/7")))
    where = next(n for n in c.masters() if "kv:{%s}" % frames.name_of("m/7")
                 in n.command("keys", "*"))
    to = other if where is one else one
    ids = {n.port: n.command("cluster", "myid") for n in (where, to)}
    to.command("cluster", "setslot", str(slot), "importing", ids[where.port])
    where.command("cluster", "setslot", str(slot), "migrating", ids[to.port])
    keys = where.command("cluster", "getkeysinslot", str(slot), "100").split()
    for key in keys:
        assert "OK" in where.command("migrate", "127.0.0.1", str(to.port), key, "0", "2000")
    for n in (to, where):
        n.command("cluster", "setslot", str(slot), "node", ids[to.port])
    assert found(b, [*missing(8), *data]) == set(data)
    a.umount()
    b.umount()
    c.stop()


def count(server):
    lines = server.command("info", "commandstats").splitlines()
    calls = [l for l in lines if l.startswith("cmdstat_getrange:")]
    return int(calls[0].partition("calls=")[2].partition(",")[0]) if calls else 0


one_round_trip()
real()
errors()
cluster()
