# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A node offers chunks to another one (kvcachectl push, user.kvcachefs.push), which loads them into
its pool, and says in one word why it does not."""
import errno, json, os, signal, threading
from kvtest import *
import nodes
from nodes import Have, Offer, local

need_mount()
CTL = binary("kvcachectl")


def push(s, path, node):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.push", local(node.port).encode())


def listing(s, path):
    """The names that the node knows. Unlike a lookup, a listing asks no other node."""
    try:
        return sorted(os.listdir(f"{s.mnt}/{path}"))
    except FileNotFoundError:
        return []


def states(s, paths, command="look\n"):
    fd, lines = nodes.lease(s, command, paths)
    return fd, [words[3] for words in lines]


def pushes(extra=""):
    a, b = nodes.mounted("keys" if extra else "clear", 2, extra)
    paths = [f"m/c/{i}" for i in range(5)]
    data = [blob(i, 100 * KiB + i) for i in range(5)]
    events = os.open(f"{b.mnt}/.kvcachefs/events", os.O_RDONLY)
    for path, d in zip(paths, data):
        a.write(path, d)
        with fails(errno.ENOENT):  # b has just learned that nobody has it
            os.stat(f"{b.mnt}/m/other")
    push(a, "m/c", b)
    assert sorted(listing(b, "m/c")) == [str(i) for i in range(5)]
    wait_for(lambda: b.stats()["loads"] >= 5)
    # the events of the arrivals
    text = b""

    def arrived():
        nonlocal text
        text += os.read(events, 1 << 16)
        got = [json.loads(line) for line in text.splitlines()]
        return {e["path"] for e in got if e["event"] == "loaded" and e["tier"] == "peers"} >= \
            set(paths)
    wait_for(arrived)
    os.close(events)
    for path, d in zip(paths, data):
        assert b.read(path) == d
    st = b.stats()
    assert st["peer_offers"] == 5 and st["peer_offers_refused"] == 0, st
    # a file, and again: it is there
    a.write("m/single", b"1")
    for _ in range(2):
        push(a, "m/single", b)
    assert b.read("m/single") == b"1"
    assert a.stats()["pushes"] == 7 and a.stats()["pushes_refused"] == 0
    # a lease on the other node waits
    got = []

    def wait():
        fd, states_ = states(b, ["n/x", "n/y"], "wait 60000\n")
        got.extend(states_)
        os.close(fd)
    t = threading.Thread(target=wait)
    t.start()
    wait_for(lambda: b.stats()["arrival_waits"] == 1)
    a.write("n/x", data[0])
    a.write("n/y", data[1])
    run(CTL, "push", local(b.port), f"{a.mnt}/n", ok=True)
    t.join()
    assert all(s.startswith("resident") for s in got), got
    # many chunks, by the command
    for i in range(30):
        a.write(f"o/{i}/f", data[i % 5])
    p = run(CTL, "push", "--json", local(b.port), f"{a.mnt}/o", ok=True)
    assert json.loads(p.stdout)["paths"][0]["chunks"] == 30, p.stdout
    assert len(listing(b, "o")) == 30
    # a file that is being written
    with open(f"{a.mnt}/m/open", "wb") as f:
        f.write(b"x")
        f.flush()
        with fails(errno.ETXTBSY):
            push(a, "m/open", b)
    os.unlink(f"{b.mnt}/m/single")  # deleted on b: an offer does not bring it back
    with fails(errno.ENODATA):
        push(a, "m/single", b)
    assert b.stats()["peer_offers_refused"] == 1 and a.stats()["pushes_refused"] == 1
    # a quota of b, which the file does not fit into
    os.mkdir(f"{b.mnt}/q")
    os.setxattr(f"{b.mnt}/q", "user.kvcachefs.quota", b"1M")
    a.write("q/large", bytes(2 * MiB))
    p = run(CTL, "push", local(b.port), f"{a.mnt}/q/large")
    assert p.returncode == 1 and "refused: the node does not find" in p.stdout, p.stdout
    with fails(errno.ENXIO):
        os.setxattr(f"{a.mnt}/m/c", "user.kvcachefs.push", b"nobody:1")
    with fails(errno.EINVAL):
        os.setxattr(f"{a.mnt}/m/c", "user.kvcachefs.push", b"")
    with fails(errno.ENODATA):
        os.getxattr(f"{a.mnt}/m/c", "user.kvcachefs.push")
    protocol(b)
    b.umount()
    p = run(CTL, "push", local(b.port), f"{a.mnt}/m/c")
    assert p.returncode == 1 and "unreachable" in p.stdout, p.stdout
    a.umount()


def lists():
    """Many files, by one call on a folder above them."""
    a, b = nodes.mounted("lists", 2, ",allow_other")
    node = local(b.port)
    paths = [f"m/{i % 7}/f{i}" for i in range(200)]
    for path in paths:
        a.write(path, blob(path, 5000))

    def push_list(folder, *names, node=node):
        os.setxattr(f"{a.mnt}/{folder}", "user.kvcachefs.push", "\n".join([node, *names]).encode())

    push_list("", *paths[:100])
    push_list("m", *(p[2:] for p in paths[100:]), "7/none", "none/x", "")
    assert sorted(listing(b, "m")) == [str(i) for i in range(7)]
    for path in paths:
        assert b.read(path) == blob(path, 5000)
    assert a.stats()["pushes"] == 200 and a.stats()["pushes_refused"] == 0
    for names, error in (((), errno.EINVAL), (("",), errno.ENODATA), (("none",), errno.ENODATA),
                         (("..",), errno.EINVAL), (("m",), errno.EINVAL),
                         (("m/0/f0/x",), errno.ENODATA), (("x" * 256,), errno.EINVAL),
                         (("m/0/f0",) * 9400, errno.E2BIG)):
        try:
            push_list("", *names)
        except OSError as e:
            assert e.errno == error, (names[:2], e)
        else:
            raise AssertionError(names[:2])
    with fails(errno.EINVAL):  # a list is for a folder
        push_list("m/0/f0", "x")
    with fails(errno.ENXIO):
        push_list("", "m/0/f0", node="nobody:1")
    with fails(errno.EPERM):
        os.removexattr(f"{a.mnt}/m", "user.kvcachefs.push")
    with open(f"{a.mnt}/m/open", "wb") as f:
        f.write(b"x")
        f.flush()
        with fails(errno.ETXTBSY):
            push_list("m", "open")
    # a user may offer what he may read, from a folder that he may write to
    os.chmod(f"{a.mnt}/m/1", 0o700)
    os.chmod(f"{a.mnt}/m/2/f2", 0o600)

    def other():
        os.chdir(f"{a.mnt}/m")
        os.setgroups([])
        os.setuid(1234)
        for names, error in (("1/f1", errno.EACCES), ("2/f2", errno.EACCES), ("0/f0", 0)):
            try:
                os.setxattr(".", "user.kvcachefs.push", f"{node}\n{names}".encode())
                got = 0
            except OSError as e:
                got = e.errno
            if got != error:
                print(names, got, flush=True)
                os._exit(1)
        os._exit(0)
    os.chmod(f"{a.mnt}/m", 0o777)
    pid = os.fork()
    if not pid:
        other()
    assert os.waitpid(pid, 0)[1] == 0
    b.umount()
    a.umount()


def protocol(b):
    assert Offer(b, ["m/c/0", "m/none", "m/c/1"]).post() == (200, {0, 2})
    assert Have(b, ["m/c/0"]).post()[0] == 200
    # a request about names is no offer
    h = Have(b, ["m/c/0"])
    h.place = "/offer"
    assert h.post()[0] == 403
    o = Offer(b, ["m/c/0"])
    assert o.post()[0] == 200 and o.post()[0] == 403
    assert Offer(b, [], body=b"m/c/0").post()[0] == 403
    assert Offer(b, ["m"] * 513).post()[0] == 403
    assert Offer(b, ["m/a\nb"]).post()[0] == 503
    assert Offer(b, ["m/c/0"], key=b"x" * 32).post()[0] == 403
    assert Offer(b, ["../x", "/", "m//c", "m/c"]).post()[1] in ({3}, set(), {2, 3})


def others():
    """Nodes that take nothing: without a remote, with another secret, full."""
    names = ("pusher", "bare", "stranger", "full")
    a, bare, stranger, full = (nodes.make(n, 1)[0] for n in names)
    for s in (bare, full):
        s.options = s.options.replace(s.secret, a.secret)
        s.secret = a.secret
    every = [local(s.port) for s in (bare, stranger, full)]
    for s, of in ((a, every), (stranger, [local(a.port)]), (full, [local(a.port)])):
        s.options = s.options.split(",remote=")[0] + ",remote=" + nodes.url(of, s.secret)
    bare.options = bare.options.split(",remote=")[0]
    full.cpu = "16M"
    for s in (bare, stranger, a, full):
        s.mount()
    a.write("m/c", b"x")
    for s, why in ((bare, "no remote"), (stranger, "does not accept")):
        p = run(CTL, "push", local(s.port), f"{a.mnt}/m/c")
        assert p.returncode == 1 and "refused: the node" in p.stdout and why in p.stdout, p.stdout
    assert bare.stats()["peer_offers_refused"] == 1
    # stores wait for space on the node: its pool has only files that are being written
    held = []
    t = threading.Thread(target=lambda: fill(full, held))
    t.start()
    wait_for(lambda: full.stats()["room_waits"] > 0)
    with fails(errno.ENOSPC):
        push(a, "m/c", full)
    for f in list(held):
        f.close()
    t.join()
    full.closed()
    push(a, "m/c", full)
    for s in (a, bare, stranger, full):
        s.umount()


def fill(s, held):
    for i in range(20):
        f = open(f"{s.mnt}/f{i}", "wb", buffering=0)
        held.append(f)
        f.write(bytes(MiB))
    for f in held:
        f.close()


def crowd():
    """More offers than places: the node asks another one, which does not answer."""
    a, b = nodes.mounted("busy", 2)
    nodes.ask_epoch(b)
    with fails(errno.ENOENT):  # the nodes know each other
        os.stat(f"{b.mnt}/m")
    got = []

    def offer(i):
        got.append(Offer(b, [f"m/{i}"]).post())
    threads = [threading.Thread(target=offer, args=(i,)) for i in range(12)]
    freeze(a.daemon.pid)
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.kill(a.daemon.pid, signal.SIGCONT)
    assert (200, set()) in got and (503, set()) in got, got
    st = b.stats()
    assert st["peer_offers"] == st["peer_offers_refused"] == 12, st
    b.umount()
    a.umount()


pushes()
lists()
pushes(f",keyfile={nodes.key_file('key')}")
others()
crowd()
