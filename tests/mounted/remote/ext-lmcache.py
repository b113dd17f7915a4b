# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The program lmcache_l2.py with a stand-in for LMCache, whose adapters skip keys that exist or
cannot delete, and report failures as missing objects: it passes the suite of tiers, and a store
that fails or hangs makes the tier fail, forgets no copy, and works again."""
import os
from kvtest import KiB, MiB, SLOW, Store, beside, binary, blob, need_mount, run, wait_for
import servers
from servers import in_ext, read_or_miss

need_mount()


def conforms(adapter):
    p = servers.StandIn(f"conforms-{adapter}", adapter)
    got = run(binary("kvcachectl"), "tier-test", p.url()[6:])
    assert got.returncode == 0 and "FAIL" not in got.stdout, got.stdout
    got = run(f"{os.path.dirname(binary('x'))}/test-remote", p.url("faults"), "faults")
    assert got.returncode == 0, got.stdout


def fails_and_works_again(mood):
    p = servers.StandIn(mood, "plain")
    a, b = (Store(f"{mood}.{n}", options=f"settle=0,disk=off,deadline={1000 * SLOW},"
                  f"remote={p.url()}").mount() for n in "ab")
    data = {f"m/{n}/f": blob(n, size) for n, size in enumerate((300 * KiB, 5 * MiB, 20 * KiB))}
    for path, d in list(data.items())[:2]:
        a.write(path, d)
        wait_for(lambda: in_ext(a, path))
    assert b.read("m/0/f") == data["m/0/f"]
    p.mood(mood)
    wait_for(lambda: [read_or_miss(b, f"m/none/{n}") for n in range(9)]
             and b.stats()["breaker_opened"])
    a.write("m/2/f", data["m/2/f"])
    assert read_or_miss(b, "m/1/f") in (None, data["m/1/f"])
    p.mood("")
    wait_for(lambda: in_ext(a, "m/2/f"))
    for path, d in data.items():
        wait_for(lambda: read_or_miss(b, path) == d)
        assert in_ext(a, path), path
    for s in (a, b):
        assert s.stats()["corrupt"] == 0
        s.umount()


beside([(conforms, "plain"), (conforms, "keeps"), (fails_and_works_again, "dead"),
        (fails_and_works_again, "hang")])
