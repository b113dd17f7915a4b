# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""kvcachectl cluster pin, unpin and evict change chunks on all nodes, if these have the option
peer_control; kvcachectl push --remove moves chunks to another node."""
import errno, json, os, subprocess, threading
from kvtest import *
import nodes
from nodes import Change, Have, Hostile, Where, local

need_mount()
CTL = binary("kvcachectl")
REFUSED = "refused: it allows no changes by other nodes; they need its option peer_control"


def ctl(*words, code=0):
    p = subprocess.run([CTL, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=HANG)
    assert p.returncode == code, p
    return p.stdout, p.stderr


def cluster(*words, code=0):
    """The line of each node, by its name."""
    out, err = ctl("cluster", *words, code=code)
    return dict(line.split(": ", 1) for line in out.splitlines()), err


def listing(s, path):
    """The names that the node knows. Unlike a lookup, a listing asks no other node."""
    try:
        return sorted(os.listdir(f"{s.mnt}/{path}"))
    except FileNotFoundError:
        return []


def pins(s):
    """The pinned chunks."""
    j = json.loads(run(CTL, "pins", "--json", s.mnt, ok=True).stdout)
    return {os.path.relpath(p["path"], s.mnt): p["pin"] for p in j["pins"]}


def fill(a, b, c):
    """m/0 to m/3 on all nodes, m/mine only on b."""
    for i in range(4):
        a.write(f"m/{i}/l", blob(i, 50 * KiB))
        for s in (b, c):
            assert s.read(f"m/{i}/l") == blob(i, 50 * KiB)
    # a folder whose folders were all found on other nodes is not a chunk
    lines = run(CTL, "ls", "-r", c.mnt, ok=True).stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [f"m/{i}/" for i in range(4)], lines
    b.write("m/mine/l", blob(9, 50 * KiB))
    for s in (a, b, c):
        s.settle()


def pinning(a, b, c):
    every = ("this node", local(b.port), local(c.port))
    got, err = cluster("pin", f"{a.mnt}/m/0")
    assert got == {n: "1 chunk pinned" for n in every} and not err, (got, err)
    assert pins(a) == pins(b) == pins(c) == {"m/0": 1}, [pins(s) for s in (a, b, c)]
    # a folder, of which each node pins its own chunks; a part of a chunk; and a time
    got, _ = cluster("pin", "--for", "2h", f"{a.mnt}/m", f"{a.mnt}/m/1/l")
    assert got == {"this node": "5 chunks pinned", local(b.port): "6 chunks pinned",
                   local(c.port): "5 chunks pinned"}, got
    for s in (a, b, c):
        have = pins(s)
        assert set(have) == {f"m/{i}" for i in range(4)} | ({"m/mine"} if s is b else set()), have
        assert all(7000 < v <= 7200 for v in have.values()), have
    # a path that only another node has, and that this one does not learn
    got, _ = cluster("unpin", f"{a.mnt}/m/mine")
    assert got == {"this node": "0 chunks unpinned", local(b.port): "1 chunk unpinned",
                   local(c.port): "0 chunks unpinned"}, got
    assert "m/mine" not in pins(b) and "mine" not in listing(a, "m")
    got, err = cluster("unpin", f"{a.mnt}/m", f"{a.mnt}/none", code=1)
    assert err == f"kvcachectl: {a.mnt}/none: no node that has answered has it\n", err
    assert not pins(a) and not pins(b) and not pins(c)
    j = json.loads(ctl("cluster", "pin", "--json", f"{a.mnt}/m/2")[0])
    assert j == {"command": "pin", "nodes": [
        {"node": local(s.port), "here": s is a, "failed": None, "chunks": 1, "failed_chunks": 0}
        for s in (a, b, c)]}, j
    # a node without the option: it refuses, and the others do it
    got, err = cluster("unpin", f"{b.mnt}/m/2", code=1)
    assert got == {"this node": "1 chunk unpinned", local(a.port): REFUSED,
                   local(c.port): "1 chunk unpinned"}, got
    assert pins(a) == {"m/2": 1} and not pins(b) and not pins(c)
    j = json.loads(ctl("cluster", "unpin", "--json", f"{b.mnt}/m/2", code=1)[0])
    assert [n["failed"] for n in j["nodes"]] == [None, REFUSED, None], j
    st = a.stats(), b.stats()
    assert st[0]["peer_changes"] == st[0]["peer_changes_refused"] == 2, st
    assert st[1]["peer_changes"] == 5 and st[1]["peer_changes_refused"] == 0, st
    cluster("unpin", f"{a.mnt}/m")
    # a limit of one node
    run(CTL, "reload", "-o", "pins=0", c.mnt, ok=True)
    got, err = cluster("pin", f"{a.mnt}/m/0", code=1)
    assert got[local(b.port)] == "1 chunk pinned", got
    assert got[local(c.port)] == "0 chunks pinned, 1 failed", got
    assert err.startswith(f"kvcachectl: {local(c.port)}: {a.mnt}/m/0: the limit of pins="), err
    run(CTL, "reload", "-o", "pins=50", c.mnt, ok=True)
    cluster("unpin", f"{a.mnt}/m")


def evicting(a, b, c):
    every = (a, b, c)
    got, _ = cluster("evict", f"{a.mnt}/m/0")
    assert all(v == "1 chunk evicted" for v in got.values()) and len(got) == 3, got
    assert all(s.attr("m/0", "tiers") == "disk" for s in every)
    # nobody has agreed
    out, err = ctl("cluster", "evict", "--from", "all", f"{a.mnt}/m/1", code=1)
    assert not out and "of all nodes" in err and "nothing is changed" in err, err
    assert all(s.attr("m/1", "tiers") == "cpu,disk" for s in every)
    got, _ = cluster("evict", "--from", "disk", "--yes", f"{a.mnt}/m/1")
    assert all(s.attr("m/1", "tiers") == "cpu" for s in every), got
    got, err = cluster("evict", "--from", "s3", "--yes", f"{a.mnt}/m/1", code=1)
    assert all(v == "0 chunks evicted, 1 failed" for v in got.values()), got
    assert err.count("the node has no tier s3") == 3, err
    # a file that a writer has open stays, with its chunk
    with open(f"{c.mnt}/m/1/l", "r+b", buffering=0) as f:
        f.write(b"new")
        got, err = cluster("evict", "--from", "all", "--yes", f"{a.mnt}/m/1", code=1)
        assert got == {"this node": "1 chunk evicted", local(b.port): "1 chunk evicted",
                       local(c.port): "0 chunks evicted, 1 failed"}, got
        assert f"{local(c.port)}: {a.mnt}/m/1: a file in it is open" in err, err
        f.write(b"er")
    assert c.read("m/1/l")[:5] == b"newer" and len(c.read("m/1/l")) == 50 * KiB
    assert "1" not in listing(a, "m") and "1" not in listing(b, "m")
    # the rest of the model, which every node has in part
    got, _ = cluster("evict", "--from", "all", "--yes", f"{a.mnt}/m")
    assert got == {"this node": "3 chunks evicted", local(b.port): "4 chunks evicted",
                   local(c.port): "4 chunks evicted"}, got
    assert not listing(a, "m") and not listing(b, "m") and not listing(c, "m")


def protocol(a, b):
    b.write("p/c/l", b"x")
    b.closed()
    assert Change(b, ["pin=1", "p/c", "p/none", "p", "p/c/l"]).ask() == \
        (200, b"1 0 0\n0 0 2\n1 0 0\n1 0 0\n")
    assert pins(b) == {"p/c": 1}
    assert Change(b, ["pin=x", "p/c"]).ask() == (200, b"0 1 22\n")
    for names in (["pin=0"], ["ttl=5", "p/c"], ["pin", "p/c"], ["", ""], ["tenant=x", "p/c"],
                  ["push=h:1", "p/c"], ["xpin=0", "p/c"]):
        assert Change(b, names).ask() == (400, b""), names
    assert Change(a, ["pin=0", "p/c"]).ask() == (405, b"")
    for made in Have, Where, Change:
        q = made(b, ["pin=0", "p/c"])
        q.place = "/where" if made is Change else "/change"
        assert q.ask()[0] == 403
    q = Change(b, ["pin=1", "p/c"])
    assert q.ask()[0] == 200 and q.ask()[0] == 403
    for q in (Change(b, ["pin=0", "p/c"], key=b"x" * 32), Change(b, [], body=b"pin=0\0p/c")):
        assert q.ask()[0] == 403
    assert Change(b, ["pin=0", "p/c"]).ask(body=b"pin=2\0p/c\0")[0] == 403
    assert pins(b) == {"p/c": 1}
    # changes that arrive while one waits
    got = []

    def change():
        got.append(Change(b, ["demote=cpu", "p/c"]).ask()[0])
    threads = [threading.Thread(target=change) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(got) <= {200, 503} and 200 in got, got
    assert Change(b, ["pin=0", "p/c"]).ask() == (200, b"1 0 0\n")


def strangers(a, b):
    """A node with another secret, and one that answers nonsense."""
    other, = nodes.make("other", 1)
    other.options = other.options.split(",remote=")[0] + ",peer_control"
    other.mount()
    answers = iter([b"1 0\n", b"1 0 -1\n", b"1 0 0 0\n", b"", b"-1 0 0\n", b"1 0 0"])
    f = Hostile(a.secret, lambda path: (200, next(answers), True))
    every = [local(other.port), local(f.port)]
    s, = nodes.make("victim", 1, secret=a.secret)
    s.options = s.options.split(",remote=")[0] + ",remote=" + nodes.url(every, a.secret)
    s.mount()
    for d in (s, other):
        d.write("m/c/l", b"x")
        d.closed()
    for _ in range(6):
        got, _ = cluster("pin", f"{s.mnt}/m/c", code=1)
        assert got["this node"] == "1 chunk pinned", got
        assert "different secrets" in got[local(other.port)], got
        assert "not understood" in got[local(f.port)], got
    assert not pins(other)
    # more chunks than one path may have
    for i in range(16385):
        os.mkdir(f"{other.mnt}/m/{i}")
    got = Change(other, ["pin=1", "m", "m/c"]).ask()
    assert got == (200, b"0 0 7\n1 0 0\n"), got
    assert other.attr("m/c", "pin") == "1"
    got, err = cluster("pin", f"{other.mnt}/m", code=1)
    assert got == {"this node": "0 chunks pinned, 1 failed"}, got
    assert err == f"kvcachectl: this node: {other.mnt}/m: it has more than 16384 chunks; give " \
        "folders in it\n", err
    s.umount()
    other.umount()


def moving(a, b, c):
    data = {f"x/{i}/{n}": blob(10 * i + n, 300 * KiB) for i in range(6) for n in range(2)}
    for path, d in data.items():
        a.write(path, d)
    a.write("x/file", b"y")
    _, err = ctl("push", "--remove", local(b.port), f"{a.mnt}/x/0/0", code=1)
    assert "it is a part of a chunk" in err and len(listing(a, "x/0")) == 2, err
    # the node takes nothing: nothing is removed
    os.makedirs(f"{c.mnt}/x", exist_ok=True)
    os.setxattr(f"{c.mnt}/x", "user.kvcachefs.quota", b"1M")
    _, err = ctl("push", "--remove", local(c.port), f"{a.mnt}/x", code=1)
    assert "nothing is removed here" in err and len(listing(a, "x")) == 7, (err, listing(a, "x"))
    j = json.loads(ctl("push", "--remove", "--json", local(b.port), f"{a.mnt}/x")[0])
    assert j["paths"][0]["chunks"] == 7 and j["paths"][0]["failed"] == 0, j
    assert not listing(a, "x"), listing(a, "x")
    assert len(listing(b, "x")) == 7 and a.stats()["load_failures"] == 0
    for path in data:
        assert b.attr(path, "tiers").startswith("cpu"), path
    b.settle()
    for path, d in data.items():
        assert a.read(path) == d == b.read(path)  # here from b again
    # a file that is open here stays
    with open(f"{a.mnt}/x/1/0", "rb"):
        _, err = ctl("push", "--remove", local(b.port), f"{a.mnt}/x/1", code=1)
        assert "a file in it is open" in err and len(listing(a, "x/1")) == 2, err


a, b, c = nodes.make("three", 3)
for s in (b, c):
    s.options += ",peer_control=1"
for s in (a, b, c):
    s.mount()
fill(a, b, c)
pinning(a, b, c)
evicting(a, b, c)
protocol(a, b)
moving(a, b, c)
strangers(a, b)
for s in (a, b, c):
    s.umount()
