# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Settings of a model: its quota is never exceeded and does not slow down other models, and its
policy orders its own chunks, also after restarts."""
import ctypes, errno, os, random, threading, time
from kvtest import *

N = MiB


def put(path, name, value):
    os.setxattr(path, f"user.kvcachefs.{name}", value.encode())


def du(path):
    total = 0
    for folder, _, files in os.walk(path):
        for f in files:
            with contextlib.suppress(FileNotFoundError):
                total += stored(f"{folder}/{f}")
    return total


def used(s, model="q"):
    return int(s.attr(model, "used"))


def at_rest(s, quota):
    """The pool is not above high=, and nothing is evicted any more."""
    before = used(s)
    time.sleep(0.5)
    return before == used(s) <= 0.9 * quota


# the attributes themselves
def attributes():
    s = Store("a").mount()
    s.write("q/c/l", b"x" * 5000)
    m = f"{s.mnt}/q"
    for name, good, bad in (("quota", "2G", ("-1", "x", "", "1000", "1Q")),
                            ("policy", "mru", ("MRU", "", "best")), ("unit", "file", ("files", "")),
                            ("codec", "zstd", ("gzip", "")), ("shared", "delete", ("yes", ""))):
        with fails(errno.ENODATA):
            s.attr("q", name)
        with fails(errno.ENODATA):
            os.removexattr(m, f"user.kvcachefs.{name}")
        for value in bad:
            with fails(errno.EINVAL):
                put(m, name, value)
        for other in (f"{m}/c/l",) if name == "unit" else (f"{m}/c", f"{m}/c/l"):
            # the codec of a file can be read only
            with fails(errno.EOPNOTSUPP if (name, other) == ("codec", f"{m}/c/l")
                       else errno.EINVAL):
                put(other, name, good)
        put(m, name, good)
        assert s.attr("q", name) == ("2147483648" if name == "quota" else good)
    assert used(s) == 8192 == du(m)
    with fails(errno.EOPNOTSUPP):
        put(m, "used", "1")
    assert {f"user.kvcachefs.{n}"
            for n in ("quota", "policy", "unit", "codec", "shared")} <= set(os.listxattr(m))
    s.umount()
    s.mount()
    assert (s.attr("q", "quota"), s.attr("q", "policy"), used(s)) == ("2147483648", "mru", 8192)
    for name in ("quota", "policy", "unit", "codec", "shared"):
        os.removexattr(m, f"user.kvcachefs.{name}")
        with fails(errno.ENODATA):
            s.attr("q", name)
    put(m, "quota", "3M")
    put(m, "quota", "0")
    with fails(errno.ENODATA):
        s.attr("q", "quota")
    put(m, "quota", "3M")
    os.unlink(f"{m}/c/l")
    os.rmdir(f"{m}/c")
    os.rmdir(m)
    os.mkdir(m)
    with fails(errno.ENODATA):
        s.attr("q", "quota")
    s.umount()
    s.fsck("-n")


# eight writers write ten times the quota, and more than the pool has, and see no error; the model
# is never above its quota; other models lose nothing
def quotas():
    QUOTA = 48 * MiB
    s = Store("w", size="512M", cpu="96M", options="settle=5").mount()
    for c in range(20):
        s.write(f"other/{c}/l", blob(c, N))
    os.mkdir(f"{s.mnt}/q")
    put(f"{s.mnt}/q", "quota", "48M")
    errors, most, stop = [], [0], threading.Event()

    def writer(w):
        try:
            for c in range(30):
                for l in range(2):
                    s.write(f"q/{w}-{c}/{l}", blob(w * 1000 + c * 2 + l, N))
        except OSError as e:
            errors.append((w, e))

    def look():
        while not stop.is_set():
            most[0] = max(most[0], used(s))
            time.sleep(0.003)

    threads = [threading.Thread(target=writer, args=(w,)) for w in range(8)]
    watch = threading.Thread(target=look)
    watch.start()
    [t.start() for t in threads]
    [t.join() for t in threads]
    stop.set()
    watch.join()
    assert not errors, errors
    assert 30 * MiB < most[0] <= QUOTA, most
    s.settle()
    wait_for(lambda: at_rest(s, QUOTA))
    assert s.stats()["quota_drops"] > 50 and s.stats()["quota_refusals"] == 0
    chunks = os.listdir(f"{s.mnt}/q")
    assert len(chunks) >= 10 and all(len(os.listdir(f"{s.mnt}/q/{c}")) == 2 for c in chunks), \
        "a chunk was dropped in part"
    assert du(f"{s.mnt}/q") == used(s)
    for c in range(20):
        assert s.read(f"other/{c}/l") == blob(c, N)
    for end in ("umount", "kill", "reboot"):
        before, pool = used(s), s.config()["pool"]
        if end == "umount":
            s.umount()
        else:
            s.committed()
            s.kill()
            run("umount", "-l", s.mnt)
            if end == "reboot":
                s.drop_pool(pool)
        s.mount()
        assert used(s) == du(f"{s.mnt}/q") == before, (end, used(s), du(f"{s.mnt}/q"), before)
    for c in chunks:
        w, n = map(int, c.split("-"))
        for l in range(2):
            assert s.read(f"q/{c}/{l}") == blob(w * 1000 + n * 2 + l, N)
    assert used(s) == before  # it does not depend on the tiers that have the files

    # drops reach a smaller quota; the newest chunks are kept
    put(f"{s.mnt}/q", "quota", "16M")
    wait_for(lambda: at_rest(s, 16 * MiB))
    assert used(s) == du(f"{s.mnt}/q") > 8 * MiB

    # open files fill the quota: a write or a create fails with EDQUOT until they are closed
    held = []
    with fails(errno.EDQUOT):
        for i in range(40):
            held.append(open(f"{s.mnt}/q/open{i}", "wb", buffering=0))
            held[-1].write(bytes(N))
    assert 12 <= len(held) <= 17 and used(s) <= 16 * MiB, (len(held), used(s))
    assert s.stats()["quota_refusals"] > 0
    s.write("other/new/l", b"y" * N)
    [f.close() for f in held]
    s.settle(still_open=1)
    s.write("q/after/l", blob(5, N))
    assert s.read("q/after/l") == blob(5, N)
    # pinned chunks precede all victims in the order and never cause a refusal, even if they fill
    # two turns (evict/trimmer.c)
    PINNED = 130
    os.mkdir(f"{s.mnt}/p")
    put(f"{s.mnt}/p", "quota", "8M")
    for c in range(PINNED):
        s.write(f"p/pinned{c}/l", blob(c, 20000))
        put(f"{s.mnt}/p/pinned{c}", "pin", "1")
    refused = s.stats()["quota_refusals"]
    for c in range(12):
        s.write(f"p/{c}/l", blob(c, N))
    assert used(s, "p") <= 8 * MiB and s.stats()["quota_refusals"] == refused
    for c in range(PINNED):
        assert s.read(f"p/pinned{c}/l") == blob(c, 20000)
        put(f"{s.mnt}/p/pinned{c}", "pin", "0")
    assert s.read("p/11/l") == blob(11, N) and not os.path.exists(f"{s.mnt}/p/0")
    # a file that can never fit
    with fails(errno.EDQUOT):
        with open(f"{s.mnt}/q/large", "wb", buffering=0) as f:
            for _ in range(20):
                f.write(bytes(N))
    assert used(s) <= 16 * MiB
    with open(f"{s.mnt}/q/room", "wb") as f, fails(errno.EDQUOT):
        os.posix_fallocate(f.fileno(), 0, 20 * MiB)

    # each way into a model and out of it is counted; folders and hard links cannot move to another
    # model
    put(f"{s.mnt}/q", "quota", "64M")
    q, other = f"{s.mnt}/q", f"{s.mnt}/other"
    s.write("q/after/l", blob(5, N))
    s.settle()
    before = used(s)
    s.write("other/f", bytes(N))
    s.settle()
    os.rename(f"{other}/f", f"{q}/f")
    assert used(s) == before + N
    os.truncate(f"{q}/f", 4096)
    assert used(s) == before + 4096
    os.rename(f"{q}/f", f"{other}/f")
    assert used(s) == before
    for a, b in ((f"{q}/after", f"{other}/after"), (f"{other}/1", f"{q}/1"),
                 (f"{q}/after", f"{s.mnt}/top"), (f"{other}/1", f"{q}/after/in")):
        with fails(errno.EXDEV):
            os.rename(a, b)
    with fails(errno.EXDEV):
        os.link(f"{other}/f", f"{q}/hard")
    # RENAME_EXCHANGE: each file leaves its space to the other; folders cannot move, as with rename
    libc = ctypes.CDLL(None, use_errno=True)

    def exchange(a, b):
        if libc.renameat2(-100, a.encode(), -100, b.encode(), 2):
            raise OSError(ctypes.get_errno(), f"{a} {b}")

    s.write("q/x/one", bytes(N))
    s.write("other/x/same", blob(1, N))
    s.write("other/x/small", b"x" * 4096)
    s.write("other/x/large", bytes(2 * N))
    s.settle()
    exchange(f"{q}/x/one", f"{other}/x/small")
    assert used(s) == before + 4096 and s.read("q/x/one") == b"x" * 4096
    exchange(f"{q}/x/one", f"{other}/x/small")
    assert used(s) == before + N
    for a, b in ((f"{q}/x", f"{other}/x"), (f"{q}/x/one", f"{other}/x"),
                 (f"{q}/x", f"{other}/x/small")):
        with fails(errno.EXDEV):
            exchange(a, b)
    # open files are not dropped
    tight = [open(os.path.join(d, n), "rb") for d, _, names in os.walk(q) for n in names]
    put(q, "quota", str(max(used(s) + 4096, N)))
    with fails(errno.EDQUOT):
        os.rename(f"{other}/x/same", f"{q}/x/in")
    with fails(errno.EDQUOT):
        exchange(f"{q}/x/one", f"{other}/x/large")
    exchange(f"{q}/x/one", f"{other}/x/same")
    assert used(s) == before + N and s.read("q/x/one") == blob(1, N)
    # zeros over data need no space, but zeros over a hole do
    with open(f"{q}/x/one", "r+b") as f:
        assert libc.fallocate(f.fileno(), 16, ctypes.c_long(0), ctypes.c_long(N)) == 0
        os.ftruncate(f.fileno(), 2 * N)
        for mode in (16, 17):
            assert libc.fallocate(f.fileno(), mode, ctypes.c_long(N // 2), ctypes.c_long(N)) == -1 \
                and ctypes.get_errno() == errno.EDQUOT
        assert os.fstat(f.fileno()).st_blocks * 512 == N and used(s) == before + N
    assert s.read("q/x/one") == bytes(2 * N)
    [f.close() for f in tight]
    put(q, "quota", "64M")
    os.unlink(f"{q}/x/one")
    os.rmdir(f"{q}/x")
    wait_for(lambda: used(s) == before)  # the kernel reports a close later
    os.link(f"{q}/after/l", f"{q}/after/again")
    assert used(s) == before
    os.unlink(f"{q}/after/l")
    assert used(s) == before
    with open(f"{q}/after/again", "rb") as f:
        os.unlink(f"{q}/after/again")
        assert used(s) == before - N, (used(s), before)
    s.settle()
    wait_for(lambda: used(s) == du(q))
    os.rename(q, f"{s.mnt}/renamed")  # the model itself
    assert used(s, "renamed") == du(f"{s.mnt}/renamed")
    s.umount()
    s.fsck()


# after a rename of a chunk to another model, the codec of that model applies to its copies
def codec():
    s = Store("codec", options="settle=60000").mount()
    os.mkdir(f"{s.mnt}/b")
    put(f"{s.mnt}/b", "codec", "zstd")
    s.write("a/c/l", b"x" * N)
    os.rename(f"{s.mnt}/a/c", f"{s.mnt}/b/c")
    with open(f"{s.mnt}/b/c/l", "rb") as f:
        os.fsync(f.fileno())  # now it is copied, not before
    s.settle()
    assert s.stats()["coded_bytes"] == N, s.stats()["coded_bytes"]
    s.umount()


# a model's own policy: chunks of a leave newest first (mru), and chunks of b oldest first (lru, the
# policy of the mount); a kill does not change this
def gone(s, model):
    return [c for c in range(8) if s.attr(f"{model}/{c}/l", "state") == "lower"]


def own_policy(end):
    s = Store(f"p-{end}", cpu="24M", size="256M",
              options="policy=lru,settle=0,high=95,low=94,keep_pool").mount()
    os.mkdir(f"{s.mnt}/a")
    if end == "kill":
        put(f"{s.mnt}/a", "policy", "mru")
    for c in range(8):
        for model in "ab":
            s.write(f"{model}/{c}/l", blob(c, N))
            time.sleep(0.005)
    if end == "none":  # a policy that is set later applies to existing chunks
        put(f"{s.mnt}/a", "policy", "mru")
    s.settle()
    if end == "kill":
        s.committed(uses=True)
        s.kill()
        run("umount", "-l", s.mnt)
        s.mount()
        s.let_go()
    held = []
    for i in range(6):
        held.append(open(f"{s.mnt}/x{i}", "wb", buffering=0))
        held[-1].write(bytes(2 * MiB))
        wait_for(lambda: s.stats()["room_waiters"] == 0)
        a, b = steady(lambda: (gone(s, "a"), gone(s, "b")))
        assert a == list(range(8))[8 - len(a):], ("mru", a)
        assert b == list(range(len(b))), ("lru", b)
    assert len(a) >= 2 and len(b) >= 2, (a, b)
    [f.close() for f in held]
    s.settle()
    os.removexattr(f"{s.mnt}/a", "user.kvcachefs.policy")
    pool = s.config()["pool"]
    s.umount()
    run("umount", "-l", pool)


# policies of models that use chains: a's chain is learned, p's chain is reported, and b has the
# policy of the mount (lru), which learns no chain. The same after a kill.
def parents(s, model):
    """The parent of each chunk, as far as the mount knows."""
    known = {}
    for c in range(8):
        with contextlib.suppress(OSError):
            known[c] = int(os.path.basename(s.attr(f"{model}/{c}", "parent")))
    return known


def own_chains(end):
    s = Store(f"chains-{end}", cpu="36M", size="256M",
              options="policy=lru,settle=0,high=95,low=94,keep_pool").mount()
    for model, policy in (("a", "leaf"), ("p", "prefix")):
        os.mkdir(f"{s.mnt}/{model}")
        put(f"{s.mnt}/{model}", "policy", policy)
    for model in "apb":
        for c in range(8):
            s.write(f"{model}/{c}/l", blob(c, N))
            if model == "p":
                put(f"{s.mnt}/p/{c}", "parent", str(c - 1) if c else "")
        time.sleep(1.8)  # ends the request
    for c in range(8):  # in the order of creation, which is that of a prompt
        s.read(f"a/{c}/l")
    time.sleep(1.8)
    s.settle()
    known = {m: parents(s, m) for m in "apb"}
    # a pause of the machine starts a new prompt
    assert len(known["a"]) >= 4 and all(up == c - 1 for c, up in known["a"].items()), known
    assert known["p"] == {c: c - 1 for c in range(1, 8)} and not known["b"], known
    if end == "kill":
        s.committed(uses=True)
        s.kill()
        run("umount", "-l", s.mnt)
        s.mount()
        s.let_go()
        assert {m: parents(s, m) for m in "apb"} == known
        assert [s.attr(m, "policy") for m in "ap"] == ["leaf", "prefix"]
    held = []
    for i in range(8):
        held.append(open(f"{s.mnt}/x{i}", "wb", buffering=0))
        held[-1].write(bytes(2 * MiB))
        wait_for(lambda: s.stats()["room_waiters"] == 0)
        left = steady(lambda: {m: gone(s, m) for m in "apb"})
        for m in "ap":
            early = [c for c, up in known[m].items() if up in left[m] and c not in left[m]]
            assert not early, (end, m, early, left)
        assert left["b"] == list(range(len(left["b"]))), ("lru", left)
    assert all(len(left[m]) >= 2 for m in "apb"), left
    [f.close() for f in held]
    s.settle()
    text = open(f"{s.mnt}/.kvcachefs/policies").read()
    assert all(f"{p} (models of their own)" in text for p in ("pool leaf", "pool prefix")), text
    pool = s.config()["pool"]
    s.umount()
    run("umount", "-l", pool)

def short_trims():
    """Each trim of the disk is small. Its victims come from each model in turn, with any policy."""
    s = Store("turns", cpu="16M", size="64M", options="policy=lru,settle=0,high=95,low=94").mount()
    for model in "ab":
        os.mkdir(f"{s.mnt}/{model}")
    put(f"{s.mnt}/b", "policy", "fifo")
    for i in range(120):
        for model in "ab":
            s.write(f"{model}/{i}/l", blob(i, N))
        s.settle()
    left = [len(os.listdir(f"{s.mnt}/{model}")) for model in "ab"]
    assert min(left) > sum(left) / 4 and sum(left) < 200, left
    s.umount()


beside([(quotas,), (short_trims,), (own_chains, "none"), (own_chains, "kill"), (own_policy, "none"),
        (own_policy, "kill"), (codec,), (attributes,)])
print("ok")
