# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Chunks that one node computes for another, as the connectors hand them over: the node that stored
them offers them in the background (_push.py), and a request on the other one waits for them
(_lookups.py). No call of the scheduler waits, and what does not arrive is a miss."""
import logging
from kvtest import *
from tensors import *
import nodes
from kvcachefs import _lookups, _push, admin
from kvcachefs.lmcache import Client

SIZE = 100 * KiB
a, b = nodes.mounted("nodes", 2)
said = []


class Log(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logger = logging.getLogger("kvcachefs.test")
logger.addHandler(Log())
logger.setLevel(logging.INFO)


def lookups(**more):
    return _lookups.Lookups(b.mnt, lambda key: [f"m/{key}.{rank}" for rank in range(2)], per=2,
                            timeout=600, reports=_lookups.Reports(logger), **more)


def ask(l, name, keys, series=0):
    return [l.ask(name, k, series) for k in keys]


def answers(l, name, keys, series=0):
    def known():
        l.take()
        l.flush()
        got = ask(l, name, keys, series)
        return None not in got and got
    return wait_for(known)


def store(*keys, size=SIZE):
    """Stores the files of two ranks for each key. Returns their paths."""
    paths = [f"m/{k}.{rank}" for k in keys for rank in range(2)]
    for p in paths:
        a.write(p, blob(p, size))
    return paths


def starts_to_wait(l, name, keys, seconds=60):
    before = b.stats()["arrival_waits"], l.counts["waits"]
    l.begin(name, seconds)
    assert ask(l, name, keys) == [None] * len(keys)
    l.flush()
    wait_for(lambda: b.stats()["arrival_waits"] > before[0])
    l.take()
    assert ask(l, name, keys) == [None] * len(keys) and l.pending
    assert l.counts["waits"] == before[1] + 1


def handed_over():
    """The request gets all chunks, which are leased until they are loaded."""
    l = lookups()
    push = _push.Pusher(a.mnt, "m", [nodes.local(b.port)], logger)
    keys = [f"k{i}" for i in range(6)]
    starts_to_wait(l, "r", keys)
    push.add(store(*keys))
    assert answers(l, "r", keys) == [True] * 6
    assert held() == 1 and l.held_bytes == 12 * SIZE
    wait_for(lambda: push.counts["pushes"] == 12)
    assert push.counts["push_failures"] == 0 and a.stats()["pushes"] == 12
    assert b.stats()["peer_offers"] == 12 and not b.stats()["peer_offers_refused"]
    l.loaded("r")
    wait_for(lambda: not held())
    assert not l.held_bytes
    # asked again, they are there
    assert answers(l, "r", keys) == [True] * 6
    l.end("r")
    # another request does not wait
    l.begin("now")
    assert answers(l, "now", ["k0", "none"]) == [True, False]
    l.end("now")
    push.close()
    return l


def not_all(l):
    """What has not arrived in time is a miss, and so is what follows."""
    l.begin("part", 0.5)
    ask(l, "part", ["p0", "p1", "p2"])
    l.flush()
    store("p0", "p2")
    assert answers(l, "part", ["p0", "p1", "p2"]) == [True, False, False]
    l.end("part")
    # keys that form no series are asked after the wait
    l.begin("both", 60)
    ask(l, "both", ["s0", "s1"])
    ask(l, "both", ["w"], None)
    l.flush()
    wait_for(lambda: l._waits == 1)
    store("w", "s1")
    l.take()
    assert l.ask("both", "w", None) is None
    store("s0")
    assert answers(l, "both", ["s0", "s1"]) == [True, True]
    assert answers(l, "both", ["w"], None) == [True]
    l.end("both")
    # a request that ends while it waits
    starts_to_wait(l, "gone", ["g"], 3)
    l.end("gone")
    assert not l.pending

    def over():
        l.take()
        return not l._waits and not held()
    wait_for(over)
    # beyond the limit of waiting requests, one does not wait
    _lookups.WAITS_MOST = 0
    l.begin("most", 60)
    assert answers(l, "most", ["x"]) == [False]
    l.end("most")
    l.close()


def failures():
    """Offers that fail are counted, and logged once until one succeeds."""
    said.clear()
    push = _push.Pusher(a.mnt, "m", ["nobody:1", nodes.local(b.port)], logger)
    for i in range(3):
        push.add(store(f"f{i}"))
        wait_for(lambda: sum(push.counts.values()) == 4 * i + 4)
    assert push.counts == {"pushes": 6, "push_failures": 6}, push.counts
    assert len(said) == 1 and "nobody:1: it is not in nodes=" in said[0], said
    push.add(["m/f0.0", "other/file"])  # not below the folder
    wait_for(lambda: sum(push.counts.values()) == 16)
    assert push.counts["push_failures"] == 10 and len(said) == 2, (push.counts, said)
    push.add(store("f3"))
    wait_for(lambda: push.counts["pushes"] == 8)
    wait_for(lambda: "takes files again" in said[-1])
    push.close()
    _push.Pusher(a.mnt, "m", [], logger).add(["m/f0.0"])  # no node
    for value, want in (("", []), ("b:1", ["b:1"]), (["b:1", "c:2"], ["b:1", "c:2"])):
        assert _push.nodes(value) == want
    for value in (1, [1], "b", ["b:1\nc"], None):
        refused(ValueError, "push must", _push.nodes, value)


def lmcache():
    """The client for LMCache offers what it has stored."""
    c = Client(a.mnt, folder="lmcache", push=[nodes.local(b.port)])
    keys = [f"org/model@01000100@0@{i:064x}" for i in range(3)]
    c.submit_batch_set(keys, [memoryview(bytearray(blob(k, 5000))) for k in keys])
    wait_for(lambda: os.path.isdir(f"{b.mnt}/lmcache") and len(os.listdir(f"{b.mnt}/lmcache")) == 3
             or c.drain_completions() and False)
    c.close()


def many():
    """More files than one offer may have, in few offers; and names that do not exist."""
    keys = [f"many{i:03}" for i in range(300)]
    paths = store(*keys, size=5 * KiB)
    admin.push(a.mnt, nodes.local(b.port), [*paths, "m/none"], folder="m")
    wait_for(lambda: sum(n.startswith("many") for n in os.listdir(f"{b.mnt}/m")) == 600)
    admin.push(a.mnt, nodes.local(b.port), [f"{a.mnt}/{paths[0]}"])
    with fails(errno.ENODATA):
        admin.push(a.mnt, nodes.local(b.port), ["m/none"])
    with fails(errno.ENXIO):
        admin.push(a.mnt, "nobody:1", paths[:1])
    refused(ValueError, "not a file in", admin.push, a.mnt, "b:1", ["m/x"], folder="other")
    admin.push(a.mnt, nodes.local(b.port), [])


not_all(handed_over())
failures()
lmcache()
many()
a.umount()
b.umount()
print("ok")
