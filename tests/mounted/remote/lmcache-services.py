# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The program lmcache_l2.py with LMCache's adapters fs and resp (Redis), on two nodes: files are
shared, replaced and deleted, and no object of a replaced or deleted value stays. A server that is
killed or stopped makes the tier fail, and it works again without a new mount. PART selects the
parts whose names begin with it."""
import os, signal
from kvtest import (KiB, MiB, SLOW, Store, beside, binary, blob, freeze, need_mount, run, wait_for)
import servers
from servers import in_ext, read_or_miss

need_mount()
SIZES = 0, 100, 8 * KiB, 60 * KiB, 300 * KiB, 9 * MiB + 5


def nodes(name, program, deadline=10000):
    options = f"settle=0,disk=off,deadline={deadline * SLOW},remote={program.url()}"
    return [Store(f"{name}.{n}", options=options).mount() for n in "ab"]


def stored(s, folder):
    data = {f"{folder}/{n}/f": blob((folder, n), size) for n, size in enumerate(SIZES)}
    for path, d in data.items():
        s.write(path, d)
    for path in data:
        wait_for(lambda: in_ext(s, path))
    return data


def shared(kind):
    p = servers.LMCache(kind, "shared")
    a, b = nodes(f"shared-{kind}", p)
    os.mkdir(f"{a.mnt}/m")
    os.setxattr(f"{a.mnt}/m", "user.kvcachefs.shared", b"delete")
    for path, d in stored(a, "m/first").items():
        wait_for(lambda: read_or_miss(b, path) == d)
    objects = (lambda: set(os.listdir(f"{p.dir}/values"))) if kind == "fs" else (
        lambda: set(p.redis.command("keys", "*").split()))
    before = objects()
    for turn in range(3):  # of the same size, and of another one
        a.write("m/again/f", blob(turn, 90 * KiB + turn // 2))
        wait_for(lambda: in_ext(a, "m/again/f"))
    wait_for(lambda: read_or_miss(b, "m/again/f") == blob(2, 90 * KiB + 1))
    # the folder, the head, and the piece with the rest of its value
    wait_for(lambda: len(objects() - before) == 4)
    os.unlink(f"{a.mnt}/m/again/f")
    wait_for(lambda: len(objects() - before) == 1)
    for s in (a, b):
        assert s.stats()["corrupt"] == 0
        s.umount()
    p.stop()


def fails_and_works_again(how):
    p = servers.LMCache("resp", how)
    a, b = nodes(how, p, 2000)
    data = stored(a, "m/before")
    wait_for(lambda: read_or_miss(b, "m/before/1/f"))  # its program has imported LMCache
    server = p.redis.process
    if how == "killed":
        p.redis.stop()
    else:
        freeze(server.pid)
    wait_for(lambda: [read_or_miss(b, f"m/none/{n}") for n in range(9)]
             and b.stats()["breaker_opened"])
    for path, d in data.items():
        assert read_or_miss(b, path) in (None, d), path
        assert a.read(path) == d, path
    a.write("new/f", blob("new", 300 * KiB))
    if how == "killed":
        p.redis.start()
    else:
        server.send_signal(signal.SIGCONT)
    wait_for(lambda: in_ext(a, "new/f"))
    wait_for(lambda: read_or_miss(b, "new/f") == blob("new", 300 * KiB))
    if how == "stopped":  # the server has lost nothing, and no miss was taken for a loss
        for path, d in data.items():
            wait_for(lambda: read_or_miss(b, path) == d)
    assert "unanswered" not in a.log()
    for s in (a, b):
        s.umount()
    p.stop()


def refusals():
    p = servers.LMCache("fs", "refusals")
    s = Store("refusals", options="disk=off")

    def refused(word, more="", mode=0o600):
        os.chmod(p.config, mode)
        why = servers.refusal(s, p.url() + more)
        assert word in why, (word, why)

    refused("the option speed= is unknown", "&speed=9")
    refused("can be changed by other users", mode=0o666)
    p.configure({"type": "mooncake_store"})
    refused("mount with keyfile=, or give insecure=1")
    p.configure(["fs"])
    refused('is not an object with a "type"')
    p.configure({"type": "none-such"})  # known only when LMCache is imported
    got = run(binary("kvcachectl"), "tier-test", p.url()[6:])
    assert got.returncode and "none-such" in got.stdout, got.stdout


parts = [(shared, "fs"), (shared, "resp"), (fails_and_works_again, "killed"),
         (fails_and_works_again, "stopped"), (refusals,)]
servers.LMCache("fs")
wanted = os.environ.get("PART", "")
beside([p for p in parts if "-".join((p[0].__name__, *p[1:])).startswith(wanted)], most=2)
