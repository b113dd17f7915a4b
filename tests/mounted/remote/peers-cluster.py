# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""kvcachectl cluster: the state of all nodes on one screen, and which of them have a chunk. Nodes
that are dead, stopped, strange or hostile get a line that says so, and delay nobody for long."""
import errno, json, os, signal, socket, subprocess
from kvtest import *
import nodes
from nodes import Have, Hostile, Status, Where, local

need_mount()
CTL = binary("kvcachectl")
VERSION = run(CTL, "--version", ok=True).stdout.split()[1]


def cluster(*words, code=0):
    p = subprocess.run([CTL, "cluster", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=HANG)
    assert p.returncode == code, p
    return p.stdout, p.stderr


def states(s, code=0):
    """The members of each node, by its name; the node itself is None."""
    j = json.loads(cluster("--json", s.mnt, code=code)[0])
    assert j["mount"] == s.mnt and j["nodes"][0]["here"], j
    return {None if n["here"] else n["node"]: n for n in j["nodes"]}


def places(*paths, code=0):
    """For each path, the tiers and the state in each node that has it; and the failed nodes."""
    j = json.loads(cluster("where", "--json", *paths, code=code)[0])
    assert [p["path"] for p in j["paths"]] == list(paths), j
    return [{None if n["here"] else n["node"]: (n["tiers"], n["state"]) for n in p["nodes"]}
            for p in j["paths"]], {n["node"]: n["failed"] for n in j["failed"]}


def counted(s):
    """What a lookup or an access would change."""
    names = ("opens", "found", "absent", "lookups", "loads", "pool_hits", "asks", "ask_batches",
             "peer_haves", "look_found", "look_absent", "nodes_in_memory")
    st = s.stats()
    return {n: st[n] for n in names}


def healthy(a, b, c):
    for i, s in enumerate((a, b, c)):
        for n in range(i + 1):
            s.write(f"m{i}/c{n}/l", blob(n, 100 * KiB))
        s.settle()
    b.read("m1/c0/l")
    got = states(a)
    assert set(got) == {None, local(b.port), local(c.port)}, got
    assert got[None]["node"] == local(a.port)
    for s, name in (a, None), (b, local(b.port)), (c, local(c.port)):
        st, n = s.stats(), got[name]
        assert n["failed"] is None and n["version"] == VERSION, n
        assert n["pool_bytes"] == st["pool_bytes"] and n["disk_bytes"] == st["tier_disk_bytes"], n
        assert n["pool_used_bytes"] == st["pool_used_bytes"], (n, st)
        assert n["disk_used_bytes"] == st["tier_disk_used_bytes"], (n, st)
        assert n["pool_files"] == n["files"] == (a, b, c).index(s) + 1, n
        assert n["bytes"] == n["files"] * 100 * KiB, n
        assert n["asked"] == st["found"] + st["absent"] and n["found"] == st["found"], (n, st)
    assert got[local(b.port)]["opens"] == 1 and got[local(b.port)]["pool_share"] == 1, got
    lines = cluster(a.mnt)[0].splitlines()
    assert [line.split()[0] for line in lines] == ["node", "this", local(b.port), local(c.port)]
    assert all(VERSION in line and "64.0 MiB" in line for line in lines[1:]), lines


def where(a, b, c):
    os.setxattr(f"{b.mnt}/m1/c0", "user.kvcachefs.demote", b"cpu")
    hits = b.attr("m1/c0", "hits"), c.attr("m2/c0", "hits")
    before = [counted(s) for s in (a, b, c)]
    paths = [f"{a.mnt}/{p}" for p in ("m0/c0", "m1/c0", "m1/c1/l", "m2", "none", "m1/c0/none")]
    got, failed = places(*paths)
    assert got == [{None: ("cpu,disk", "resident+lower")},
                   {local(b.port): ("disk", "lower")},
                   {local(b.port): ("cpu,disk", "resident+lower")},
                   {local(c.port): ("-", "folder")}, {}, {}] and not failed, (got, failed)
    # the names of other nodes were not looked up here, and nothing was loaded or used there
    assert [counted(s) for s in (a, b, c)] == before, (before, [counted(s) for s in (a, b, c)])
    assert (b.attr("m1/c0", "hits"), c.attr("m2/c0", "hits")) == hits
    assert b.attr("m1/c0", "tiers") == "disk"
    # other ways to name the same path; the mount itself
    os.symlink(a.mnt, f"{TMP}/link")
    for cwd, path in ((a.mnt, "m1/c0"), (TMP, f"run/../{os.path.basename(a.mnt)}/./m1//c0/"),
                      (TMP, f"{TMP}/link/m1/c0")):
        p = run(CTL, "cluster", "where", path, cwd=cwd, ok=True)
        assert p.stdout == f"{path}: {local(b.port)}: disk, lower\n", p.stdout
    assert places(a.mnt)[0][0][None] == ("-", "folder")
    out, _ = cluster("where", f"{a.mnt}/none")
    assert out == f"{a.mnt}/none: no node that has answered has it\n", out
    for path, says in ((TMP, "not in a kvcachefs mount"), (f"{TMP}/none/x", "No such file"),
                       (f"{a.mnt}/m1/../m1", "without .."), ("", "''")):
        assert says in cluster("where", path, code=1)[1], path
    # another mount has other nodes
    for word in ("where", "pin", "unpin", "evict"):
        out, told = cluster(word, f"{a.mnt}/m1/c0", f"{b.mnt}/m1/c0", code=1)
        assert not out and "give paths of one mount" in told, (word, out, told)
    # more paths than one request may have
    paths = [f"{a.mnt}/{'x' * 200}{i}" for i in range(700)] + [f"{a.mnt}/m1/c0"]
    got, failed = places(*paths)
    assert not any(got[:-1]) and got[-1] and not failed


def protocol(b):
    b.write("m9/f", b"x")
    status, text = Status(b).ask()
    assert status == 200 and text.startswith(f"version {VERSION}\nuptime".encode()), text
    assert b"\npool_used_bytes " in text and len(text) <= 65536
    names = ["m1/c0", "m9/f", "m1", "none", "", "..", "/", ".", ".kvcachefs/stats", "x/" * 1500]
    status, text = Where(b, names).ask()
    lines = text.decode().splitlines()
    assert status == 200 and lines[0] == "disk lower" and lines[1].startswith("cpu"), lines
    assert lines[2:] == ["- folder"] + ["- absent"] * 4 + ["- folder"] + ["- absent"] * 2, lines
    assert len(Where(b, ["m1/c0"] * 512).ask()[1].splitlines()) == 512
    # each request is signed as what it is, and answered once
    for made in Have, Where:
        for place in "/have", "/where", "/status", "/offer":
            q = made(b, [""])
            q.place = place
            assert (q.ask()[0] == 200) == (place == made.place), (made, place)
    q = Status(b)
    assert q.ask()[0] == 200 and q.ask()[0] == 403
    assert Where(b, ["m"] * 513).ask()[0] == 403
    assert Where(b, [], body=b"m").ask()[0] == 403
    assert Status(b, key=b"x" * 32).ask()[0] == 403
    assert Status(b, epoch="1" * 32).ask()[0] == 425
    assert Status(b, node="other:1").ask()[0] == 421


def file(a):
    """The file that kvcachectl uses, and who may use it."""
    path = f"{a.mnt}/.kvcachefs/cluster"
    assert os.stat(path).st_mode & 0o777 == 0o600
    p = subprocess.run(["cat", path], user=65534, group=65534, extra_groups=[],
                       stderr=subprocess.PIPE)
    assert p.returncode and b"denied" in p.stderr, p
    for request in (b"", b"x", b"status", b"where\n", b"where\nm", b"where\n" + b"m\0" * 513,
                    b"where\n" + b"m" * 65536 + b"\0", b"status\nx", b"change\nx\0"):
        fd = os.open(path, os.O_RDWR)
        os.write(fd, request)
        with fails(errno.EINVAL):
            os.pread(fd, 4096, 0)
        os.close(fd)
    fd = os.open(path, os.O_RDWR)
    os.write(fd, b"status\n")
    text = os.pread(fd, 1 << 20, 0)
    assert text.startswith(f"node {local(a.port)} here ".encode()) and b"\nnode " in text, text
    with fails(errno.EBUSY):
        os.write(fd, b"status\n")
    assert os.pread(fd, 10, 5) == text[5:15]
    os.close(fd)


def broken(a, b, c):
    """One node is killed, one is stopped."""
    d = c.daemon.pid
    freeze(d)
    b.kill()
    out = cluster(a.mnt, code=1)[0].splitlines()
    assert len(out) == 4 and VERSION in out[1], out
    assert out[2].split()[0] == local(b.port) and "unreachable: the connection is ref" in out[2]
    assert out[3].split()[0] == local(c.port) and "does not answer in time" in out[3], out
    got = states(a, code=1)
    assert [n["failed"] is None for n in got.values()] == [True, False, False], got
    got, failed = places(f"{a.mnt}/m0/c0", f"{a.mnt}/m1/c0", code=1)
    assert got == [{None: ("cpu,disk", "resident+lower")}, {}], got
    assert set(failed) == {local(b.port), local(c.port)}, failed
    out, err = cluster("where", f"{a.mnt}/m0/c0", code=1)
    assert out.startswith(f"{a.mnt}/m0/c0: this node: ") and err.count("unreachable") == 2, err
    os.kill(d, signal.SIGCONT)
    assert states(a, code=1)[local(c.port)]["failed"] is None
    # the daemon ends although it waits for a node
    freeze(d)
    p = subprocess.Popen([CTL, "cluster", a.mnt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    a.term()
    p.communicate(timeout=HANG)
    os.kill(d, signal.SIGCONT)


GOOD = b"version 1\nuptime_seconds 5\npool_bytes 9\npool_used_bytes 3\n"


def hostile():
    a, stranger = nodes.make("among", 1)[0], nodes.make("stranger", 1)[0]
    answers = {
        "good": ((200, GOOD, True), None),
        "long": ((200, GOOD + b"x" * 65536, True), "its answer is too long"),
        "endless": ((200, b"x" * (20 << 20), True), "its answer is too long"),
        "unsigned": ((200, GOOD, False), "not signed"),
        "nothing": ((200, b"", True), "not understood"),
        "escape": ((200, GOOD.replace(b"1", b"\x1b[2J"), True), "not understood"),
        "zeros": ((200, b"\0" * 1000, True), "not understood"),
        "noise": ((200, os.urandom(60000), True), "not understood"),
        "status": ((500, b"\x1b[2J", True), "failed: "),
        "refusal": ((403, b"\x1b[2Jno\nnode x ok 0 -", True), "refused"),
        "full": ((507, b"", True), "failed: "),
    }
    fakes = {name: Hostile(a.secret, lambda path, what=what: what)
             for name, (what, _) in answers.items()}
    # nodes that accept a connection and never answer, up to the most that a remote may have
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(63 - len(fakes))]
    every = [local(f.port) for f in fakes.values()] + [local(stranger.port)]
    every += [f"127.1:{s.getsockname()[1]}" for s in silent]  # an option has 1023 characters
    assert len(every) == 64
    a.options = a.options.split(",remote=")[0] + ",remote=" + nodes.url(every, a.secret)
    stranger.options = stranger.options.split(",remote=")[0]
    stranger.mount()
    a.mount()
    out, _ = cluster(a.mnt, code=1)
    assert out.isascii() and "\x1b" not in out and out.count("\n") == len(every) + 2, out
    got = states(a, code=1)
    assert len(got) == len(every) + 1 and got[None]["failed"] is None
    for name, (_, why) in answers.items():
        failed = got[local(fakes[name].port)]["failed"]
        assert failed is None if why is None else why in failed, (name, failed)
    assert "the two nodes have different secrets" in got[local(stranger.port)]["failed"], got
    assert got[local(fakes["good"].port)]["uptime_seconds"] == 5
    assert all("in time" in got[n]["failed"] for n in every[len(fakes) + 1:])
    # where: each answer is nonsense
    places_, failed = places(f"{a.mnt}/m/c", code=1)
    assert places_ == [{}] and set(failed) == set(every), failed
    # an answer with fewer lines than names, and one with other words
    answers_ = iter([b"cpu resident\n", b"cpu \x1b[2J\n- absent\n", b"cpu a b\n- absent\n",
                     b"cpu lower\n- absent\n"])
    f = Hostile(a.secret, lambda path: (200, next(answers_) if path == "/where" else GOOD, True))
    b, = nodes.make("one", 1, secret=a.secret)
    b.options = b.options.split(",remote=")[0] + ",remote=" + nodes.url([local(f.port)], a.secret)
    b.mount()
    for good in (False, False, False, True):
        _, failed = places(f"{b.mnt}/x", f"{b.mnt}/y", code=0 if good else 1)
        assert bool(failed) != good, failed
    for s in (a, b, stranger):
        s.umount()
    for s in silent:
        s.close()


def alone():
    """A mount without peers shows itself."""
    s = Store("alone").mount()
    assert list(states(s)) == [None] and states(s)[None]["node"] is None
    assert places(f"{s.mnt}/m")[0] == [{}]
    s.umount()


a, b, c = nodes.mounted("three", 3, ",allow_other")
healthy(a, b, c)
where(a, b, c)
protocol(b)
file(a)
broken(a, b, c)
run("umount", b.mnt, ok=True)
c.umount()
hostile()
alone()
