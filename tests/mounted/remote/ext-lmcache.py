# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The program lmcache_l2.py with a stand-in for LMCache, whose adapters skip keys that exist or
cannot delete, and report failures as missing objects: it passes the suite of tiers, and a store
that fails or hangs makes the tier fail, forgets no copy, and works again."""
import errno, os
from kvtest import KiB, MiB, SLOW, Store, beside, binary, blob, need_mount, run, wait_for
import servers

need_mount()
MISSED = (errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE)


def there(s, path):
    return "ext" in s.attr(path, "tiers").split(",")


def reads(s, path):
    """The bytes, or None if the file is a miss."""
    try:
        return s.read(path)
    except OSError as e:
        assert e.errno in MISSED, (path, e)
        return None


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
        wait_for(lambda: there(a, path))
    assert b.read("m/0/f") == data["m/0/f"]
    p.mood(mood)
    wait_for(lambda: [reads(b, f"m/none/{n}") for n in range(9)] and b.stats()["breaker_opened"])
    a.write("m/2/f", data["m/2/f"])
    assert reads(b, "m/1/f") in (None, data["m/1/f"])
    p.mood("")
    wait_for(lambda: there(a, "m/2/f"))
    for path, d in data.items():
        wait_for(lambda: reads(b, path) == d)
        assert there(a, path), path
    for s in (a, b):
        assert s.stats()["corrupt"] == 0
        s.umount()


beside([(conforms, "plain"), (conforms, "keeps"), (fails_and_works_again, "dead"),
        (fails_and_works_again, "hang")])
