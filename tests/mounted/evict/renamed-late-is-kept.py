# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A file that an engine has written under a temporary name and closed is still there at its later
rename, under every policy, even if the engine's thread pauses while others fill a pool without
lower tiers. If no other victim exists, the file is dropped, so that stores continue."""
import os, time
from concurrent.futures import ThreadPoolExecutor
from kvtest import *

LATE = 6


def temporaries(s):
    for i in range(LATE):
        s.write(f"m/late{i}/0.tmp", blob(i, MiB))


def others(s, count):
    """A thread's own store, after which its earlier chunks are requested again: this is not a
    scan."""
    for i in range(count):
        s.write(f"m/other{i}/0", blob(100 + i, MiB))
        for j in range(max(0, i - 3), i):
            if os.path.exists(f"{s.mnt}/m/other{j}/0"):
                s.read(f"m/other{j}/0")


def late(policy):
    s = Store(policy, cpu="32M", options=f"disk=off,policy={policy}").mount()
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(1) as other:
        engine.submit(temporaries, s).result()
        time.sleep(2.2)  # the request of that thread is over, and nothing is young
        other.submit(others, s, 60).result()
        assert s.stats()["drops"] > 20, (policy, s.stats()["drops"])
        for i in range(LATE):
            os.rename(f"{s.mnt}/m/late{i}/0.tmp", f"{s.mnt}/m/late{i}/0")
            assert s.read(f"m/late{i}/0") == blob(i, MiB), (policy, i)
        other.submit(others, s, 90).result()
    left = [i for i in range(LATE) if os.path.exists(f"{s.mnt}/m/late{i}/0")]
    assert policy != "fifo" or not left, left  # with its name it is as others are
    s.umount()


def full():
    s = Store("full", cpu="32M", options="disk=off,policy=prefix").mount()
    for i in range(60):
        s.write(f"m/late{i}/0.tmp", blob(i, MiB))
    assert s.stats()["drops"] >= 28, s.stats()["drops"]
    assert os.path.exists(f"{s.mnt}/m/late59/0.tmp")
    s.umount()


beside([*((late, p) for p in ("lru", "prefix", "fifo")), (full,)])
