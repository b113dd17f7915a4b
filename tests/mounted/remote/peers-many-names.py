# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A list of names, as engines look up a prompt, finds what other nodes have: a chain that no node
has costs each node one request, and not one per name. The same through other remotes."""
import os, re, threading
from kvtest import KiB, TMP, blob, need_mount, run, binary, wait_for
import nodes, servers
from nodes import Proxy

need_mount()


def ask(s, command, paths):
    """Writes a list to .kvcachefs/lease. Returns the descriptor, and the states by path."""
    fd, lines = nodes.lease(s, command, paths)
    return fd, {words[0]: words[3] for words in lines}


def look(s, paths, command="look\n"):
    fd, states = ask(s, command, paths)
    os.close(fd)
    assert list(states) == list(dict.fromkeys(paths)), (len(states), len(paths))
    return states


def in_pool(state):
    return state.startswith("resident")


def counting(s):
    """A proxy before the node, and the list of the statuses of its answers."""
    got = []

    def count(data):
        got.extend(re.findall(rb"HTTP/1\.1 (\d+)", data))
        return data
    p = Proxy(s.port, count)
    nodes.serve_as(s, p.port)
    return p, got


def chain():
    b, c = nodes.make("chain", 2)
    for s in (b, c):
        s.options = s.options.split(",remote=")[0]
    c.options = c.options.replace(c.secret, b.secret)
    (p, of_b), (q, of_c) = counting(b), counting(c)
    a, = nodes.make("reader", 1, secret=b.secret)
    a.options = "settle=50,remote=" + nodes.url([nodes.local(p.port), nodes.local(q.port)],
                                                b.secret)
    for s in (b, c, a):
        s.mount()
    data = {f"m/{n:03}/layer{i}": blob(n, 20 * KiB + n) for n in range(40) for i in range(2)}
    for n, (path, d) in enumerate(data.items()):
        (b if n % 4 < 2 else c).write(path, d)

    def requests():
        counts = len(of_b), len(of_c)
        of_b.clear()
        of_c.clear()
        return counts
    requests()
    # no node has any of these names: one request to each node, of all names at once
    missing = [f"m/{n:03}/layer0" for n in range(1000, 1400)]
    look(a, ["m/x"])  # so that the folder m is known
    requests()
    assert set(look(a, [*missing, *data], "look here\n").values()) == {"ENOENT"}
    assert requests() == (0, 0)
    assert set(look(a, missing).values()) == {"ENOENT"}
    assert requests() == (1, 1)
    # and none within the second for which misses are remembered; the kernel's lookups know them too
    asks = a.stats()["asks"]
    assert set(look(a, missing[:300]).values()) == {"ENOENT"}
    assert a.stats()["asks"] - asks < 30, a.stats()
    # more names than one request may have
    requests()
    assert set(look(a, [f"m/{n:04}" for n in range(2000, 3200)]).values()) == {"ENOENT"}
    assert requests() == (3, 3)
    # a chain that both nodes have a part of, with a hole: all that exists is found
    paths = list(data)
    paths[10:10] = ["m/hole/layer0"]
    states = look(a, paths)
    assert states.pop("m/hole/layer0") == "ENOENT"
    assert set(states.values()) == {"lower"}, states
    asked = requests()
    assert sum(asked) <= 40 + 80 + 4 + 4, asked
    # a lease loads them
    fd, states = ask(a, "", paths)
    assert states.pop("m/hole/layer0") == "ENOENT"
    assert all(map(in_pool, states.values())), states
    for path, d in data.items():
        assert a.read(path) == d
    os.close(fd)
    assert a.stats()["corrupt"] == 0
    for s in (a, b, c):
        s.umount()
    for proxy in (p, q):
        proxy.close()


def prefetched():
    """A list without a reader: the close does not wait, and the names are found and loaded."""
    a, b = nodes.mounted("prefetch", 2)
    data = {f"m/{n}/f": blob(n, 30 * KiB + n) for n in range(20)}
    for path, d in data.items():
        a.write(path, d)
    with open(f"{b.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write(("prefetch\n" + "\n".join([*data, "m/none"])).encode())
    assert wait_for(lambda: all(map(in_pool, look(b, list(data)).values())))
    # a list that names other users' and hidden things is answered as before
    states = look(b, ["m/none", "m/../x", "m/0/f/x", "m", "m/0/f"][:3] + ["m/0/f"])
    assert states["m/none"] == "ENOENT" and states["m/../x"] == "EINVAL", states
    # a name that was deleted here stays hidden
    os.unlink(f"{b.mnt}/m/3/f")
    assert look(b, ["m/3/f"])["m/3/f"] == "ENOENT"
    # many lists at once, some of them the same
    wrong = []

    def one(t):
        names = [f"m/{(i * 7 + t % 3) % 400}/f" for i in range(200)]
        for name, state in look(b, list(dict.fromkeys(names))).items():
            if (state == "ENOENT") == (name in data and name != "m/3/f"):
                wrong.append((name, state))
    threads = [threading.Thread(target=one, args=[t]) for t in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]
    for s in (a, b):
        s.umount()


def silent():
    """Nodes that do not answer: the list is answered at its deadline, and the mount ends."""
    hole = nodes.Proxy(1, lambda d: d)
    a, = nodes.make("silent", 1)
    a.options = "settle=50,deadline=1s,remote=" + nodes.url([nodes.local(hole.port)], a.secret)
    a.mount()
    assert set(look(a, [f"m/{i}" for i in range(600)]).values()) == {"ENOENT"}
    fd = os.open(f"{a.mnt}/.kvcachefs/lease", os.O_RDWR)
    os.write(fd, b"prefetch\n" + b"\n".join(b"k/%d" % i for i in range(300)))
    os.close(fd)
    a.umount()
    hole.close()


def other_remotes():
    """Remotes without such a request find the names, too: many lookups at the same time."""
    os.makedirs(f"{TMP}/shared")
    a, b = (nodes.Store(f"dir.{n}", options=f"settle=50,remote=dir://{TMP}/shared") for n in "ab")
    a.mount()
    data = {f"m/{n}/f": blob(n, 30 * KiB + n) for n in range(50)}
    for path, d in data.items():
        a.write(path, d)
    a.settle()
    b.mount()
    states = look(b, [*data, *[f"m/{n}/f" for n in range(1000, 1100)]])
    assert {p for p, s in states.items() if s != "ENOENT"} == set(data), states
    for s in (a, b):
        s.umount()


chain()
prefetched()
silent()
other_remotes()
