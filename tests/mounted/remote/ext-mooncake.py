# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The program mooncake_store.py with a stand-in for Mooncake's client: it is refused without keys,
two nodes share and replace files, and a client that fails or hangs makes the tier fail, and
neither the program nor a read. The tier works again when the client does."""
import os
from kvtest import (KiB, MiB, SLOW, Store, TMP, beside, binary, blob, need_mount, run, wait_for)
import servers
from servers import in_ext, read_or_miss

need_mount()
DEADLINE = 1000 * SLOW
with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as keys:
    keys.write("1 " + "5a" * 32 + "\n")


def refusals():
    p = servers.StandIn("refusals")
    s = Store("refusals", options="disk=off")
    for more, key, word in (
            ("", "", "mount with keyfile=, or give insecure=1"),
            ("&insecure=0", "", "mount with keyfile=, or give insecure=1"),
            ("&insecure=1&speed=9", "", "the option speed= is unknown"),
            ("&replicas=0", f",keyfile={TMP}/keys", "replicas=0"),
            ("&segment=1Q", f",keyfile={TMP}/keys", "segment=1Q is not a size")):
        why = servers.refusal(s, p.url(more=more) + key)
        assert word in why, (more, why)
    got = run(binary("kvcachectl"), "tier-test", p.url(more="")[6:])
    assert got.returncode and "insecure=1" in got.stdout, got.stdout
    p.url()
    s.mount(options=f"disk=off,keyfile={TMP}/keys,remote={p.url(more='')}")
    s.umount()


def conforms():
    p = servers.StandIn("conforms")
    got = run(binary("kvcachectl"), "tier-test", p.url()[6:])
    assert got.returncode == 0 and "FAIL" not in got.stdout, got.stdout
    got = run(f"{os.path.dirname(binary('x'))}/test-remote", p.url("faults"), "faults")
    assert got.returncode == 0, got.stdout


def nodes(name, program):
    options = (f"settle=0,disk=off,deadline={DEADLINE},keyfile={TMP}/keys,"
               f"remote={program.url(more='')}")
    return [Store(f"{name}.{n}", options=options).mount() for n in "ab"]


def shared():
    """A file that one node stores, and stores again, is the same on the other node."""
    p = servers.StandIn("shared")
    a, b = nodes("shared", p)
    for n, size in enumerate((0, 100, 60 * KiB, 300 * KiB, 9 * MiB + 5)):
        a.write(f"m/{n}/f", blob(n, size))
        wait_for(lambda: in_ext(a, f"m/{n}/f"))
        assert b.read(f"m/{n}/f") == blob(n, size)
    for turn in range(3):  # b has not read it
        a.write("m/again/f", blob(turn, 40 * KiB + turn))
        wait_for(lambda: in_ext(a, "m/again/f"))
    assert b.read("m/again/f") == blob(2, 40 * KiB + 2)
    # encrypted: no part of a file is in any object
    part = blob(3, 300 * KiB)[5000:5100]
    for name in os.listdir(f"{p.dir}/objects"):
        with open(f"{p.dir}/objects/{name}", "rb") as f:
            assert part not in f.read()
    for s in (a, b):
        assert s.stats()["corrupt"] == 0
        s.umount()


def pid_of(s):
    children = run("pgrep", "-P", str(s.daemon.pid), ok=True).stdout.split()
    assert len(children) == 1, children
    return children[0]


def fails_and_works_again(mood):
    """No read returns a wrong byte or takes long, and the program lives on. While all calls hang,
    the tier fails for more than the ten deadlines after which a silent program is killed."""
    p = servers.StandIn(mood)
    a, b = nodes(mood, p)
    data = {f"m/{n}/f": blob(n, size) for n, size in enumerate((300 * KiB, 5 * MiB, 20 * KiB))}
    for path, d in list(data.items())[:2]:
        a.write(path, d)
        wait_for(lambda: in_ext(a, path))
    pids = pid_of(a), pid_of(b)
    p.mood(mood)
    for path, d in data.items():
        assert read_or_miss(b, path) in (None, d), path
    a.write("m/2/f", data["m/2/f"])
    # five failures suspend the tier, and probes follow after .5, 1, 2 and 4 seconds
    tries = 9 if mood == "hang" else 5
    wait_for(lambda: [read_or_miss(b, f"m/none/{n}") for n in range(9)]
             and b.stats()["tier_errors"] >= tries)
    assert b.stats()["breaker_opened"] and not in_ext(a, "m/2/f")
    p.mood("")
    wait_for(lambda: in_ext(a, "m/2/f"))
    for path, d in data.items():
        wait_for(lambda: read_or_miss(b, path) == d)
    assert (pid_of(a), pid_of(b)) == pids and "unanswered" not in a.log()
    for s in (a, b):
        s.umount()


def dead_at_the_mount():
    """A mount without the master succeeds; later the program is started again and works."""
    p = servers.StandIn("start")
    p.mood("dead")
    s, = nodes("start", p)[:1]
    assert "cannot be set up with the master" in s.log()
    s.write("m/f", b"f" * 5000)
    p.mood("")
    wait_for(lambda: in_ext(s, "m/f"))
    s.umount()


beside([(refusals,), (conforms,), (shared,), (fails_and_works_again, "dead"),
        (fails_and_works_again, "hang"), (dead_at_the_mount,)])
