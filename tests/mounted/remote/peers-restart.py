# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A node is killed and started again: it refuses the requests that were recorded before, and the
other nodes read on without a failure. Only the first request to a node takes another round trip."""
import re, threading
from kvtest import KiB, blob, need_mount, wait_for
import nodes, servers
from nodes import Proxy, Request

need_mount()


def restart(s):
    s.kill()
    s.mount()
    wait_for(lambda: servers.answers(s.port))


def recorded():
    b, = nodes.make("recorded", 1)
    b.options = b.options.split(",remote=")[0]
    b.mount()
    b.write("m/f", blob(1, 100 * KiB))
    b.settle()
    answered, kept = Request(b, "m/f"), Request(b, "m/f")
    first = Request(b, "m/f", epoch="0" * 32)
    epoch = answered.epoch
    assert answered.send()[0] == 206
    assert answered.send() == (403, b"the request was sent before")
    assert first.send() == (425, epoch.encode())
    refused = b.stats()["peer_stale"]
    restart(b)
    now = nodes.ask_epoch(b)
    assert now != epoch
    for _ in range(2):
        for q in answered, kept, first:
            status, body = q.send()
            assert status == 425 and body == now.encode(), status
    assert b.stats()["peer_stale"] == 7 and refused >= 2, b.stats()
    assert b.stats()["peer_answers"] == b.stats()["peer_refusals"] == 0
    # a recorded request with the new epoch in it
    assert kept.send(**{"X-Kvcachefs-Epoch": now})[0] == 403
    for epoch in "0" * 31, "0" * 33, "A" * 32, "x":
        assert Request(b, "m/f", epoch=epoch).send()[0] == (403 if len(epoch) > 32 else 425)
    assert Request(b, "m/f").send()[0] == 206
    b.umount()


def readers():
    b, = nodes.make("restarted", 1)
    b.options = b.options.split(",remote=")[0]
    got = []

    def note(data):
        got.extend(re.findall(rb"HTTP/1\.1 (\d+) ", data))
        return data
    p = Proxy(b.port, note)
    nodes.serve_as(b, p.port)
    a, = nodes.make("reader", 1, secret=b.secret)
    a.options = "settle=50,remote=" + nodes.url([nodes.local(p.port)], b.secret)
    b.mount()
    data = {f"m/{n}": blob(n, 20 * KiB + n) for n in range(60)}
    for name, d in data.items():
        b.write(name, d)
    b.settle()
    a.mount()
    assert got.count(b"425") == 1, got  # the first request asks for the epoch
    names = list(data)

    def read(n):
        before = len(got)
        for name in names[:n]:
            assert a.read(name) == data[name], name
        del names[:n]
        return got[before:]
    normal = read(20)
    assert set(normal) == {b"206"}, normal
    for _ in range(2):
        restart(b)
        after = read(10)
        assert after[0] == b"425" and set(after[1:]) == {b"206"}, after
    # many readers at once
    restart(b)
    wrong = []

    def one(name):
        try:
            if a.read(name) != data[name]:
                wrong.append(name)
        except OSError as e:
            wrong.append((name, e))
    threads = [threading.Thread(target=one, args=[n]) for n in names]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(threads) == 20, wrong
    assert "left alone" not in a.log()
    print(f"{len(normal)} answers for 20 files; {len(after)} for 10 files after a restart")
    a.umount()
    p.close()
    b.umount()


recorded()
readers()
