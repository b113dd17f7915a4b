# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""What a node answers to requests (peer_listen=): only those that are signed with the secret, new,
and sent once; ranges of frames; the same frame each time for the same bytes, and another one for
others; and nothing that is being written or that only another remote has."""
import contextlib, http.client, mmap, os, socket, threading, time
from kvtest import MiB, TMP, WAY, blob, need_mount, wait_for
import nodes
from nodes import PAGE, Have, Request

need_mount()


def refusals(a):
    now = int(time.time() * 1000)
    assert Request(a, "m/f").send()[0] == 206
    before = a.stats()["peer_refusals"]
    wrong = [
        Request(a, "m/f", key=b"x" * 32).send(),
        Request(a, "m/f", when=now - 31000).send(),
        Request(a, "m/f", when=now + 31000 + 60000).send(),
        Request(a, "m/f", when=0).send(),
        Request(a, "m/f", nonce="x" * 32).send(),
        Request(a, "m/f", nonce="a" * 31).send(),
        Request(a, "m/f").send(Range="bytes=0-8191"),
        Request(a, "m/f").send(**{"X-Kvcachefs-Sign": "0" * 32}),
        Request(a, "m/f").send(**{"X-Kvcachefs-Sign": ""}),
        Request(a, "m/f").send(Range="bytes=-4096"),
        Request(a, "m/f").send(Range="bytes=+0-4095"),
        Request(a, "m/f").send(Range="bytes= 0-4095"),
        Request(a, "m/f", first=5, last=4).send(),
    ]
    assert [w[0] for w in wrong] == [403] * len(wrong), wrong
    assert all(len(w[1]) < 200 for w in wrong)
    # a request that was recorded, and is sent again
    q = Request(a, "m/f")
    assert q.send()[0] == 206
    assert q.send() == (403, b"the request was sent before")
    # a request for another node, and one whose name was changed on the way
    other = nodes.local(a.port + 1)
    for _ in range(3):
        assert Request(a, "m/f", node=other).send() == (421, b"")
    assert a.log().count(f"add peer_name={other} to its options") == 1
    assert Request(a, "m/f", node=other).send(**{"X-Kvcachefs-Node": nodes.local(a.port)})[0] == 403
    assert Request(a, "m/f").send(**{"X-Kvcachefs-Node": other})[0] == 403
    assert Request(a, "m/f", node="x" * 400 + ":1").send()[0] == 403
    assert Request(a, "m/f", node="OTHER:1").send()[0] == 206  # a name of peer_name=
    # only a few wrong names are logged
    for i in range(1, 21):
        assert Request(a, "m/f", node=f"n{i}:1").send()[0] == 421
    assert a.log().count(f"this node is {nodes.local(a.port)}+") == 8
    # the same request for another path
    q = Request(a, "m/f")
    q.path = "m/g"
    assert q.send()[0] == 403
    assert a.stats()["peer_refusals"] == before + len(wrong) + 28


def ranges(a, data, sealed):
    status, head = Request(a, "m/f").send()
    assert status == 206 and len(head) == PAGE and head[:8] == b"KVCFRAME"
    status, whole = Request(a, "m/f", last=len(data) + 64 * PAGE).send()
    assert status == 206 and whole[:PAGE] == head  # the same header each time
    if not sealed:
        assert whole[PAGE:PAGE + len(data)] == data
        assert len(whole) == PAGE + (len(data) + PAGE - 1) // PAGE * PAGE
    else:
        assert data[:64] not in whole
    # parts in any order
    for first in (3 * PAGE, PAGE, len(whole) - PAGE, 0, 100 * PAGE, 17 * PAGE + 5):
        last = min(first + 7 * PAGE + 3, len(whole) - 1)
        assert Request(a, "m/f", first=first, last=last).send() == (206, whole[first:last + 1])
    assert Request(a, "m/f", first=len(whole), last=len(whole) + 1).send()[0] == 416
    return whole


def absent(a):
    for path in ("", "nobody", "m/nobody", "m/f/x", "..", "m/../m/f", "m//f", "m/f/", "/m/f",
                 ".", "m/./f", ".kvcachefs/stats", "x" * 256, "x/" * 1500):
        assert Request(a, path).send()[0] == 404, path
    assert Request(a, "m").send()[1][:8] == b"KVCFRAME"  # a folder
    assert Request(a, "m", last=9 * PAGE).send() == Request(a, "m").send()


def many(a):
    """Many names in one request: which of them the node may have, and what it refuses."""
    names = ["m/f", "m/none", "m", "none", "m/f/x", "", "..", "m//f", "/m/f", "x/" * 1500,
             ".kvcachefs/stats", "m/f"]
    before = a.stats()
    assert Have(a, names).post() == (200, {0, 2, 11})
    assert Have(a, ["m/f"] * 512).post() == (200, set(range(512)))
    assert Have(a, ["n" * 126] * 512).post() == (200, set())
    q = Have(a, names)
    assert q.post()[0] == 200 and q.post()[0] == 403  # sent again
    assert Have(a, names, node=nodes.local(a.port + 1)).post()[0] == 421
    assert Have(a, names, epoch="1" * 32).post()[0] == 425
    wrong = [
        Have(a, names, key=b"x" * 32).post(),
        Have(a, names, when=int(time.time() * 1000) - 31000).post(),
        Have(a, ["m/f"] * 513).post(),
        Have(a, [], body=b"m/f\0m").post(),
        Have(a, [], body=b"m/f").post(),
        Have(a, names).post(body=b"m/f\0" * 9),
        Have(a, names).post(body=Have(a, names).body[:-1] + b"x"),
        Have(a, names).post(**{"X-Kvcachefs-Body": "0" * 32}),
        Have(a, names).post(**{"X-Kvcachefs-Body": ""}),
        Have(a, names).post(**{"X-Kvcachefs-Sign": "0" * 32}),
    ]
    assert [w[0] for w in wrong] == [403] * len(wrong), wrong
    after = a.stats()
    assert after["peer_haves"] == before["peer_haves"] + 4
    assert after["peer_refusals"] == before["peer_refusals"] + len(wrong) + 2
    # bodies that are too long, and one without a length
    for body in (b"n" * 127 + b"\0", b"n" * 4000 + b"\0"):
        try:
            assert Have(a, [], body=body * 513).post()[0] == 403
        except OSError:  # the node does not read it to its end
            pass
    try:
        assert Have(a, names).post(body=iter([b"m/f\0"]))[0] == 403
    except OSError:
        pass
    assert Have(a, names).post() == (200, {0, 2, 11})


def changing(a, data):
    """A file that is open for writing is not served, and a changed one is another frame."""
    old = Request(a, "m/f").send()
    with open(f"{a.mnt}/m/f", "r+b", buffering=0) as f:
        assert Request(a, "m/f").send()[0] == 404
        f.write(b"changed")
    wait_for(lambda: Request(a, "m/f").send()[0] == 206)
    assert Request(a, "m/f").send() != old
    os.unlink(f"{a.mnt}/m/f")
    assert Request(a, "m/f").send()[0] == 404


def garbage(a, sealed):
    """What is not HTTP, and requests that never end."""
    for data in (b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/m/f HTTP/1.1\r\n\r\n",
                 b"GET /v1/" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
                 b"GET /v1/m%00/f HTTP/1.1\r\nHost: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", a.port)) as s:
            s.sendall(data)
            if data.endswith(b"\r\n\r\n"):
                got = s.recv(65536)
                assert b"KVCFRAME" not in got and b" 206 " not in got
    if sealed:
        return
    # connections that send nothing keep a node out for a limited time only
    silent = [socket.create_connection(("127.0.0.1", a.port)) for _ in range(200)]

    def served():
        try:
            return Request(a, "m").send()[0] == 206
        except OSError:
            return False
    assert wait_for(served)
    for s in silent:
        s.close()
    assert wait_for(served)


def field(head, offset, size):
    return head[1][offset:offset + size]


def twins():
    """Two contents with the same XXH3. A half of each lane is chosen so that a product in the hash
    is zero; the other half is then free, as long as the sum over two stripes is the same."""
    secret = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1c")
    data = [bytearray(blob(9, MiB)) for _ in range(2)]
    for i, d in enumerate(data):
        d[0:4], d[64:68] = secret[0:4], secret[8:12]
        d[4:8], d[68:72] = (1000 + i).to_bytes(4, "little"), (1000 - i).to_bytes(4, "little")
    return data


def mapped(name, extra):
    """A file that is changed through a mapping may keep its generation and times. Its frame has the
    right checksum, and different bytes are never sealed with the same nonce."""
    a, = nodes.make(f"mapped-{name}", 1)
    a.options = a.options.split(",remote=")[0] + ",disk=off" + extra
    a.mount()

    def change(data):
        with open(f"{a.mnt}/m/f", "r+b") as f, mmap.mmap(f.fileno(), len(data)) as m:
            assert m[:] != data  # a write to pages that were read leaves no trace
            m[:] = bytes(data)
        wait_for(lambda: Request(a, "m/f").send()[0] == 206)
        return Request(a, "m/f").send()
    one, two = twins()
    a.write("m/f", one)
    a.closed()
    first, second, third = Request(a, "m/f").send(), change(two), change(blob(10, MiB))
    if WAY == "fast":  # otherwise the kernel sends the pages as writes
        assert field(first, 40, 8) == field(second, 40, 8) == field(third, 40, 8)
    sums, frame_nonces = [{field(h, at, n) for h in (first, second, third)}
                          for at, n in ((80, 16), (112, 12))]
    if extra:
        assert len(frame_nonces) == 3 and sums == {bytes(16)}
    else:
        assert field(first, 80, 16) == field(second, 80, 16)  # they are twins
        assert len(sums) == 2
    a.umount()


def broken_disk(a, flag):
    """Objects that cannot be loaded are not reported as missing."""
    paths = [f"m/disk{i}" for i in range(9)]
    for path in paths:
        a.write(path, blob(path, 5 * PAGE))
    a.settle()
    for path in paths:
        os.setxattr(f"{a.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    with open(flag, "w"):
        for path in paths[1:]:
            assert Request(a, path, last=9 * PAGE).send()[0] == 503
        # the disk tier is now left alone: it is not asked
        assert Request(a, paths[0]).send()[0] == 503
        assert Request(a, "m/nobody").send()[0] == 404
    os.unlink(flag)
    for path in paths:
        assert wait_for(lambda: Request(a, path, last=9 * PAGE).send()[0] == 206)


def slow_reader():
    """A request for more bytes than a file has gets no more time for it."""
    a, = nodes.make("slow", 1)
    a.options = a.options.split(",remote=")[0] + ",deadline=1s"
    a.mount()
    a.write("m/f", blob(1, 24 * MiB))
    a.closed()
    q, got = Request(a, "m/f", last=10 ** 18 - 1), 0
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        s.connect(("127.0.0.1", a.port))
        s.sendall(q.text())

        def ended():
            nonlocal got
            try:
                data = s.recv(1 << 16)
            except ConnectionResetError:
                return True
            got += len(data)
            return not data
        assert wait_for(ended, every=.2)
    assert got < 24 * MiB
    a.umount()


def ending():
    """An unmount while requests wait for loads, and while new ones arrive."""
    a, = nodes.make("ending", 1)
    a.options = a.options.split(",remote=")[0] + ",shim=delay-get:300+only:disk"
    a.mount()
    paths = [f"m/f{i}" for i in range(200)]
    for path in paths:
        a.write(path, blob(path, 5 * PAGE))
    a.settle()
    for path in paths:
        os.setxattr(f"{a.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    sent = []

    def ask(of_mine):
        for path in of_mine:
            with contextlib.suppress(OSError, http.client.HTTPException):
                sent.append(Request(a, path, last=5 * PAGE).send()[0])
    threads = [threading.Thread(target=ask, args=[paths[n::16]]) for n in range(16)]
    for t in threads:
        t.start()
    wait_for(lambda: len(sent) > 20)
    a.umount()
    for t in threads:
        t.join()
    assert set(sent) <= {206, 503} and a.daemon.returncode == 0, (set(sent), a.log())


for name, extra in ("clear", ""), ("sealed", f",keyfile={nodes.key_file('keys')}"):
    a, = nodes.make(name, 1)
    flag = f"{TMP}/{name}.broken"
    a.options = a.options.split(",remote=")[0] + f",shim=fail-while:{flag}+only:disk" + extra
    a.options += ",peer_name=other:1+other:2"
    a.mount()
    data = blob(1, MiB + 777)
    a.write("m/f", data)
    a.write("m/g", b"")
    a.closed()
    refusals(a)
    whole = ranges(a, data, extra)
    absent(a)
    many(a)
    # from the disk: the frame is the same one
    a.settle()
    os.setxattr(f"{a.mnt}/m/f", "user.kvcachefs.demote", b"cpu")
    assert a.attr("m/f", "tiers") == "disk"
    head = Request(a, "m/f").send()
    assert head == (206, whole[:PAGE])
    if not extra:
        assert a.attr("m/f", "tiers") == "disk"  # the header alone loads nothing
    broken_disk(a, flag)
    assert Request(a, "m/f", last=len(whole) - 1).send() == (206, whole)
    # after a restart, too
    a.umount()
    a.mount()
    assert Request(a, "m/f", last=len(whole) - 1).send() == (206, whole)
    changing(a, data)
    garbage(a, extra)
    a.umount()
    mapped(name, extra)
slow_reader()
ending()
