# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The prefix chain is reported by an attribute or a lease, or learned. Under every policy a chunk
is not evicted before its children unless no other victim exists. The same holds after a restart."""
import contextlib, errno, os, time
from concurrent.futures import ThreadPoolExecutor
from kvtest import *

N = MiB
MADE = 10


def fresh(name, options):
    return Store(name, cpu="16M", size="128M",
                 options=f"keep_pool,settle=0,high=95,low=94,{options}").mount()


def make(s, pause):
    for c in range(MADE):
        s.write(f"m/c{c}/l", blob(c, N))
        time.sleep(pause)
    time.sleep(1.2)  # the request is over
    s.settle()


def tell_one(s, c, parent):
    os.setxattr(f"{s.mnt}/m/c{c}", "user.kvcachefs.parent", parent.encode())


def lease(s, paths):
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write("\n".join(paths).encode())
        return f.read()


def lower(s):
    return {c for c in range(MADE) if s.attr(f"m/c{c}/l", "state") == "lower"}


def gone_in_turn(s, count):
    """Creates files that need space and holds them open. Returns the victims in order."""
    held, gone = [], []
    while len(lower(s)) < count:
        f = open(f"{s.mnt}/x{len(held)}", "wb")
        f.write(bytes(2 * MiB))
        f.flush()
        held.append(f)
        wait_for(lambda: s.stats()["room_waiters"] == 0)
        gone.append(steady(lambda: lower(s)))
        assert len(held) < 12, gone
    [f.close() for f in held]
    return gone


def parents(s, names):
    """{chunk: its parent}, as the mount knows it now. A pause of the machine starts a new
    prompt."""
    known = {}
    for n in names:
        with contextlib.suppress(OSError):
            known[n] = os.path.basename(s.attr(f"m/{n}", "parent"))
    return known


def in_order(gone, known, what):
    """No chunk was evicted before its children."""
    early = [(n, p) for n, p in known.items() if p in gone and n not in gone]
    assert not early, (what, early, gone)


def expect(s, order, what, count=6):
    for g in gone_in_turn(s, count):
        assert g == set(order[:len(g)]), f"{what}: gone {sorted(g)}, expected {order[:len(g)]}"


def done(s):
    s.settle()
    pool = s.config()["pool"]
    s.umount()
    run("umount", "-l", pool)


# Two prompts, 0-1-2-3-4 and 5-6-7-8-9. The first is used again after all chunks were created. By
# last access alone 5 would be the first victim, then 6; by the chain it is 9.
LEAF_FIRST = [9, 8, 7, 6, 5, 4]


def tell(s):
    for c in (1, 2, 3, 4, 6, 7, 8, 9):
        tell_one(s, c, f"c{c - 1}" if c % 2 else f"/m/c{c - 1}")


def told(how):
    s = fresh(f"told-{how}", "policy=lru")
    make(s, 0)
    tell(s)
    assert s.attr("m/c4", "parent") == "/m/c3" and s.attr("m/c4/l", "parent") == "/m/c3"
    assert "user.kvcachefs.parent" not in os.listxattr(f"{s.mnt}/m/c0")
    for c in range(5):
        s.read(f"m/c{c}/l")
    time.sleep(1.2)
    s.again(how)
    assert s.attr("m/c4", "parent") == "/m/c3"
    expect(s, LEAF_FIRST, f"told, {how}")
    done(s)


# By a lease: its paths are a prompt, an empty line begins another.
def leased():
    s = fresh("leased", "policy=lru")
    make(s, 0)
    lease(s, [f"m/c{c}" for c in range(5, 10)] + [""] + [f"m/c{c}/l" for c in range(5)])
    assert s.attr("m/c9", "parent") == "/m/c8" and s.attr("m/c4", "parent") == "/m/c3"
    assert not lower(s)
    for c in (0, 5):
        try:
            s.attr(f"m/c{c}", "parent")
            raise SystemExit("a prompt's first chunk has a parent")
        except OSError as e:
            assert e.errno == errno.ENODATA
    expect(s, LEAF_FIRST, "leased")
    done(s)


# Layer by layer: the prompt starts again with each layer, and its first chunk has no parent.
def leased_layers():
    s = fresh("leased-layers", "policy=lru")
    for c in range(3):
        for l in range(2):
            s.write(f"m/c{c}/{l}", blob(c, 4096))
    s.settle()
    lease(s, [f"m/c{c}/{l}" for l in range(2) for c in range(3)])
    known = parents(s, ["c0", "c1", "c2"])
    assert known == {"c1": "c0", "c2": "c1"}, known
    done(s)


# A folder of several chunks in a lease says nothing about their order.
def leased_folder():
    s = fresh("leased-folder", "policy=lru,unit=file")
    for c in range(4):
        s.write(f"m/f/{c}", blob(c, 4096))
    s.settle()
    lease(s, ["m/f"])
    for c in range(4):
        assert "user.kvcachefs.parent" not in os.listxattr(f"{s.mnt}/m/f/{c}"), c
    done(s)


# The order of a lease's chunks is known, so leases do not count as accesses in unknown order.
def leased_often():
    s = fresh("leased-often", "policy=prefix")
    make(s, 0)
    for _ in range(100):
        lease(s, [f"m/c{c}" for c in range(10)])
    text = open(f"{s.mnt}/.kvcachefs/policies").read()
    loose = float(text.split("loose ")[1].split()[0])
    assert loose < .01 and "guard loose" not in text, text
    done(s)


# Policies that use parents learn them from the order of opens, and a restart keeps them.
def learned(policy, how):
    s = fresh(f"learned-{policy}-{how}", f"policy={policy}")
    make(s, 0)
    assert not parents(s, [f"c{c}" for c in range(MADE)])
    for c in range(MADE):
        s.read(f"m/c{c}/l")
    known = parents(s, [f"c{c}" for c in range(MADE)])
    assert len(known) >= 5 and all(known[n] == f"c{int(n[1:]) - 1}" for n in known), known
    s.again(how)
    assert parents(s, known) == known
    for g in gone_in_turn(s, 6):
        in_order({f"c{c}" for c in g}, known, f"learned by {policy}, {how}")
    done(s)


# The order is learned over all threads of a process. Here each of two threads creates every second
# chunk, and loads one of the two layers of each.
def threads():
    s = fresh("threads", "policy=leaf")
    with ThreadPoolExecutor(1) as a, ThreadPoolExecutor(1) as b:
        for c in range(MADE):
            for l in range(2):
                (a, b)[c % 2].submit(s.write, f"m/c{c}/{l}", blob(c, 4096)).result()
        time.sleep(1.2)
        s.settle()
        for c in range(MADE):
            [t.submit(s.read, f"m/c{c}/{l}").result() for l, t in enumerate((a, b))]
    known = parents(s, [f"c{c}" for c in range(MADE)])
    assert len(known) >= 5 and all(known[n] == f"c{int(n[1:]) - 1}" for n in known), known
    done(s)


# Files that were only created one after another are not taken for a prompt: the oldest is evicted.
def not_learned(policy):
    s = fresh(f"not-learned-{policy}", f"policy={policy}")
    make(s, 0)
    assert "user.kvcachefs.parent" not in os.listxattr(f"{s.mnt}/m/c5")
    expect(s, list(range(MADE)), "not learned")
    done(s)


# a pause begins another prompt
def pause():
    s = fresh("pause", "policy=leaf")
    s.write("m/a/l", blob(1, N))
    time.sleep(1.2)
    s.write("m/b/l", blob(2, N))
    time.sleep(1.2)
    assert "user.kvcachefs.parent" not in os.listxattr(f"{s.mnt}/m/b")
    done(s)


# The end of a prompt is open, so the chunks before it should stay; but no other chunk is left.
def open_end():
    s = fresh("open-end", "policy=lru")
    make(s, 0)
    for c in range(1, MADE):
        tell_one(s, c, f"c{c - 1}")
    last = open(f"{s.mnt}/m/c9/l", "rb")
    gone = gone_in_turn(s, 5)
    assert 9 not in gone[-1] and len(gone[-1]) >= 5, gone
    assert last.read() == blob(9, N)
    last.close()
    done(s)


def quiet(s):
    """Waits until trimming ends. (A lookup of a folder that is about to be dropped would keep
    it.)"""
    s.settle()
    most, size = int(s.config()["high"]) / 100, s.stats()["tier_disk_bytes"]
    wait_for(lambda: s.stats()["tier_disk_used_bytes"] <= most * size)
    before = None
    while (now := s.stats()["trimmed_chunks"]) != before:
        before = now
        time.sleep(0.7)


# The disk tier keeps the beginning of a prompt under every policy, also after a restart.
def prompts(s, first, last, length, tell, known):
    for p in range(first, last):
        for c in range(length):
            s.write(f"m/p{p}-{c}/l", blob(p * 100 + c, N))
            if tell:
                os.setxattr(f"{s.mnt}/m/p{p}-{c}", "user.kvcachefs.parent",
                            f"p{p}-{c - 1}".encode() if c else b"")
        if not tell or p == last - 1:  # learning depends on pauses between calls
            time.sleep(1.2)
        for c in range(0 if tell else length):
            s.read(f"m/p{p}-{c}/l")
        known.update(parents(s, [f"p{p}-{c}" for c in range(length)]))


def pushed_out(s, names, stores=20, least=4):
    """Stores chunks for which the disk tier needs space. Returns which of the named chunks were
    dropped."""
    for i in range(stores):
        s.write(f"m/x{i}/l", blob(i, N))
    wait_for(lambda: s.stats()["trimmed_chunks"] >= least)
    quiet(s)
    return steady(lambda: {n for n in names if not os.path.exists(f"{s.mnt}/m/{n}/l")})


# An engine with the beginning on its device stores only later chunks: the beginning does not become
# older than its children.
def disk_later(how):
    s = Store(f"disk-later-{how}", cpu="16M", size="40M",
              options="policy=lru,settle=0,high=90,low=80").mount()
    known = {}
    for c in range(24):
        if c == 12:
            time.sleep(1.2)  # the request is over
        s.write(f"m/p0-{c}/l", blob(c, N))
        os.setxattr(f"{s.mnt}/m/p0-{c}", "user.kvcachefs.parent", f"p0-{c - 1}".encode()
                    if c else b"")
        known[f"p0-{c}"] = f"p0-{c - 1}" if c else ""
    time.sleep(2.5)
    s.settle()
    s.committed(uses=True)
    s.again(how)
    gone = pushed_out(s, known)
    assert 4 <= len(gone) < 24, gone
    in_order(gone, known, how)
    done(s)


# A parent that is set long after the request counts, too: children are evicted first.
def disk_told_late(how):
    s = Store(f"disk-told-late-{how}", cpu="16M", size="40M",
              options="policy=lru,settle=0,high=90,low=80").mount()
    for name in "ab":
        for c in range(10):
            s.write(f"m/{name}{c}/l", blob(c, N))
        time.sleep(2.5)  # the request is over, and its work is done
    for c in range(10):
        os.setxattr(f"{s.mnt}/m/b{c}", "user.kvcachefs.parent", f"a{c}".encode())
    time.sleep(1)
    s.settle()
    if how != "none":
        s.committed(uses=True)
    s.again(how)
    known = {f"b{c}": f"a{c}" for c in range(10)}
    gone = pushed_out(s, {*known, *known.values()})
    assert 4 <= len(gone) < 20, gone
    in_order(gone, known, how)
    done(s)


# A pinned chunk keeps its ancestors. By the order of use alone, p0-3 would be dropped after p0-4.
def disk_pinned(policy):
    s = Store(f"disk-pinned-{policy}", cpu="16M", size="40M",
              options=f"policy={policy},settle=0,high=90,low=80").mount()
    known = {}
    prompts(s, 0, 3, 8, True, known)
    os.setxattr(f"{s.mnt}/m/p0-4", "user.kvcachefs.pin", b"1")
    s.settle()
    gone = pushed_out(s, known, stores=24, least=8)
    assert {"p0-7", "p0-6", "p0-5"} <= gone, (policy, gone)
    assert not {f"p0-{c}" for c in range(5)} & gone, (policy, gone)
    in_order(gone, known, policy)
    done(s)


# The parent of a pinned chunk is kept, and other chunks are evicted although all were used a moment
# ago.
def disk_patient():
    s = Store("disk-patient", cpu="16M", size="40M",
              options="policy=lru,settle=0,high=30,low=20").mount()
    prompts(s, 0, 1, 5, True, {})
    os.setxattr(f"{s.mnt}/m/p0-4", "user.kvcachefs.pin", b"1")
    for i in range(5):  # so few that all are used again and again
        s.write(f"m/y{i}/l", blob(i, N))
    s.settle()
    rounds, until = [0], [time.monotonic() + 1000]

    def use_all():
        while True:
            for i in range(5):
                if time.monotonic() > until[0]:
                    return
                with contextlib.suppress(OSError), open(f"{s.mnt}/m/y{i}/l", "rb"):
                    pass
            rounds[0] += 1

    with ThreadPoolExecutor(1) as user:
        used = user.submit(use_all)
        wait_for(lambda: rounds[0] >= 3)
        until[0] = time.monotonic() + 0.3  # much shorter than the trimmer's patience
        for i in range(5):
            s.write(f"m/x{i}/l", blob(i, N))
        used.result()
    wait_for(lambda: s.stats()["trimmed_chunks"] >= 4)
    quiet(s)
    assert all(os.path.exists(f"{s.mnt}/m/p0-{c}/l") for c in range(5))
    done(s)


def disk(policy):
    s = Store(f"disk-{policy}", cpu="16M", size="40M",
              options=f"policy={policy},settle=0,high=90,low=80").mount()
    tell = policy not in ("leaf", "prefix")
    known = {}
    prompts(s, 0, 4, 8, tell, known)
    assert len(known) > 14, known
    s.settle()
    s.umount()
    s.mount()
    for i in range(16):
        s.write(f"m/x{i}/l", blob(i, N))
        time.sleep(0.05)
    s.settle()
    wait_for(lambda: s.stats()["trimmed_chunks"] >= 8)
    quiet(s)
    gone = {n for n in [f"p{p}-{c}" for p in range(4) for c in range(8)]
            if not os.path.exists(f"{s.mnt}/m/{n}/l")}
    assert gone or policy not in ("lru", "fifo", "leaf"), policy
    in_order(gone, known, policy)
    text = open(f"{s.mnt}/.kvcachefs/policies").read()
    assert ("disk" in text) == (policy != "lru"), text
    done(s)


# An invalid parent is refused and changes nothing; a cycle does no harm.
def wrong():
    s = fresh("wrong", "policy=lru")
    make(s, 0)
    for value, err in (("c99", errno.ENOENT), ("c1", errno.EINVAL), ("../m/c0", errno.EINVAL),
                       ("/m", errno.EINVAL), ("/", errno.EINVAL)):
        try:
            tell_one(s, 1, value)
            raise SystemExit(f"{value} was accepted")
        except OSError as e:
            assert e.errno == err, (value, e)
    tell_one(s, 1, "c0")
    tell_one(s, 2, "c1")
    tell_one(s, 0, "c2")
    gone_in_turn(s, 7)
    tell_one(s, 2, "")
    assert "user.kvcachefs.parent" not in os.listxattr(f"{s.mnt}/m/c2")
    # a parent that was deleted
    run("rm", "-r", f"{s.mnt}/m/c0")
    assert "user.kvcachefs.parent" not in os.listxattr(f"{s.mnt}/m/c1")
    done(s)


beside([
    *((told, how) for how in ("none", "umount", "kill")),
    (leased,), (leased_layers,), (leased_folder,),
    *((learned, p, how) for p in ("leaf", "prefix", "gdsf") for how in ("none", "kill")),
    (leased_often,), (threads,), (pause,), (open_end,),
    *((not_learned, p) for p in ("lru", "leaf", "prefix")),
    *((disk_later, how) for how in ("umount", "kill")),
    *((disk_told_late, how) for how in ("none", "kill")),
    *((disk_pinned, p) for p in ("lru", "fifo")), (disk_patient,),
    *((disk, p) for p in ("lru", "fifo", "leaf", "prefix", "arc,disk_policy=s3fifo")),
    (wrong,)], most=6)
print("ok")
