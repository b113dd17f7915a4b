# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Requests for missing names are counted by the reason for which their chunks were dropped, and by
the bytes that were dropped in the meantime; loads are counted by the bytes that were evicted in the
meantime. Names that were never stored, that a client deleted, or that exist again do not count."""
import os, re, time
from kvtest import *

s = Store("s", size="64M", cpu="32M", options="settle=0,pace=600000,policy=lru").mount()


def after():
    return {k[13:]: v for k, v in s.stats().items() if k.startswith("absent_after_") and v}


def gaps(name):
    """Counted gaps by the limit of their bucket in MiB."""
    return {int(re.match(rf"{name}_(\d+)MiB", k)[1]): v for k, v in s.stats().items()
            if k.startswith(name + "_")}


def ask(*names):
    for name in names:
        assert not os.path.exists(f"{s.mnt}/{name}"), name
    s.stats()


def put(path):
    s.write(path, blob(path, MiB))


assert not after() and not gaps("drop_gap_bytes") and not gaps("evict_gap_bytes")
for i in range(100):  # the disk has space for about 60, the pool for about 28
    put(f"m/c{i}/l")
s.settle()
dropped = -1
while dropped != s.stats()["dropped_chunks"] or dropped < 30:  # until the trimmer is done
    dropped = s.stats()["dropped_chunks"]
    time.sleep(1)
gone = [i for i in range(100) if f"c{i}" not in os.listdir(f"{s.mnt}/m")]
assert len(gone) >= 30 and gone[0] == 0, gone
ask("m/never/l", "m/c0.tmp", "m/c99/no")
put("m/mine/l")
os.unlink(f"{s.mnt}/m/mine/l")
os.rmdir(f"{s.mnt}/m/mine")
ask("m/mine/l")
wait_for(lambda: s.stats()["absent"] == 4)
assert not after(), after()

# a chunk that was dropped first, and one that was dropped last
ask(f"m/c{gone[0]}/l", f"m/c{gone[-1]}/l")
wait_for(lambda: after() == {"tier": 2})
got = gaps("drop_gap_bytes")
assert sum(got.values()) == 2 and min(got) <= 8 and 32 <= max(got) <= 64, (got, gone)

# by a lease too, once per line
with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as lease:
    lease.write(f"m/c{gone[1]}\nm/never\n".encode())
    assert lease.read().count(b"ENOENT") == 2
wait_for(lambda: after() == {"tier": 3})

# a name that is stored again no longer counts as dropped
put(f"m/c{gone[2]}/l")
os.unlink(f"{s.mnt}/m/c{gone[2]}/l")
os.rmdir(f"{s.mnt}/m/c{gone[2]}")
ask(f"m/c{gone[2]}/l")
wait_for(lambda: s.stats()["absent"] >= 9)
assert after() == {"tier": 3}, after()

# single files as chunks; a quota, a ttl, and a request
for i in range(8):
    put(f"q/f{i}")
s.settle()
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"3M")
wait_for(lambda: s.stats()["evicted_for_quota"] >= 5)
lost = sorted(set(f"f{i}" for i in range(8)) - set(os.listdir(f"{s.mnt}/q")))
ask(f"q/{lost[0]}")
put("t/c/l")
os.setxattr(f"{s.mnt}/t/c", "user.kvcachefs.ttl", b"1")
wait_for(lambda: s.stats()["evicted_for_ttl"] == 1)
ask("t/c")
put("d/c/l")
s.settle()
os.setxattr(f"{s.mnt}/d/c", "user.kvcachefs.demote", b"all")
wait_for(lambda: not os.path.exists(f"{s.mnt}/d/c"))
ask("d/c")
wait_for(lambda: {k: v for k, v in after().items() if k != "demote"} ==
         {"tier": 3, "quota": 1, "ttl": 1})
wait_for(lambda: "demote" in after())
assert sum(gaps("drop_gap_bytes").values()) == 3  # for lack of space only
text = open(f"{s.mnt}/.kvcachefs/metrics").read()
assert 'kvcachefs_absent_after_total{reason="quota"} 1\n' in text
assert 'kvcachefs_drop_gap_bytes_count 3\n' in text and 'le="1048576"' in text
total = int(re.search(r"kvcachefs_drop_gap_bytes_sum ([\d]+)", text)[1])
assert 15 * MiB < total < 200 * MiB, total
s.umount()

# opens that load a chunk, after few and after many evictions
s = Store("o", size="256M", cpu="32M", options="settle=0,pace=600000,policy=lru").mount()
for i in range(60):
    put(f"m/c{i}/l")
s.settle()
wait_for(lambda: s.stats()["evicted_for_pool"] >= 30)
s.read("m/c0/l")
got = gaps("evict_gap_bytes")
assert len(got) == 1 and 16 <= max(got) <= 64, got
s.umount()
