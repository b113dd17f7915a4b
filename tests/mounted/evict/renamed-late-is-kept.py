# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A file that an engine has written under a temporary name and closed is still there at its later
rename, under every policy, even if the engine's thread pauses while others fill a pool without
lower tiers. If no other victim exists, the file is dropped, so that stores continue. The daemon
keeps such a file for ten seconds. A round that took nearly as long proves nothing and is
repeated."""
import os, time
from concurrent.futures import ThreadPoolExecutor
from kvtest import *

LATE, KEPT = 3, 9  # files; seconds
OTHER = blob(100, MiB)


def temporaries(s):
    for i in range(LATE):
        s.write(f"m/late{i}/0.tmp", blob(i, MiB))


def others(s, drops):
    """Stores chunks, and requests the last few again after each store, so that this is not a
    scan."""
    most, i = s.stats()["drops"] + drops, 0
    while s.stats()["drops"] < most:
        s.write(f"m/other{i}/0", OTHER)
        for j in range(max(0, i - 3), i):
            if os.path.exists(f"{s.mnt}/m/other{j}/0"):
                s.read(f"m/other{j}/0")
        i += 1


def round_(policy, number):
    """Returns whether it was quick enough."""
    s = Store(f"{policy}{number}", cpu="16M", options=f"disk=off,policy={policy}").mount()
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(1) as other:
        began = time.monotonic()
        engine.submit(temporaries, s).result()
        time.sleep(2.2)  # the request of that thread is over, and nothing is young
        other.submit(others, s, 8).result()
        try:
            for i in range(LATE):
                os.rename(f"{s.mnt}/m/late{i}/0.tmp", f"{s.mnt}/m/late{i}/0")
                assert s.read(f"m/late{i}/0") == blob(i, MiB), (policy, i)
        except FileNotFoundError:
            took = time.monotonic() - began
            assert took > KEPT, (policy, i, took)
            s.umount()
            return False
        other.submit(others, s, 40).result()
    left = [i for i in range(LATE) if os.path.exists(f"{s.mnt}/m/late{i}/0")]
    assert policy != "fifo" or not left, left  # after the rename it is an ordinary chunk
    s.umount()
    return True


def late(policy):
    if not any(round_(policy, number) for number in range(30)):
        skip("the machine is too busy to tell")


def full():
    s = Store("full", cpu="32M", options="disk=off,policy=prefix").mount()
    for i in range(60):
        s.write(f"m/late{i}/0.tmp", blob(i, MiB))
    assert s.stats()["drops"] >= 28, s.stats()["drops"]
    assert os.path.exists(f"{s.mnt}/m/late59/0.tmp")
    s.umount()


beside([*((late, p) for p in ("lru", "prefix", "fifo")), (full,)])
