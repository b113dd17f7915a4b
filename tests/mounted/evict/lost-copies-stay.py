# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A sync of the disk tier's data fails once, as Linux reports it: later syncs succeed, and bytes of
the copies that were not synced before may be lost. Such files are copied again before they leave
the pool, by the evictor and by `kvcachectl evict`. Files that were synced before are not."""
import os
from kvtest import *
import faults

SIZE = 1 << 20
s = Store("s", size="128M", cpu="32M", options="settle=0,unit=file,policy=lru,pace=600000")
rules = faults.Rules(f"calls=sync path={s.path}/data nth={faults.FAR} count=1 do=EIO")
assert rules.mount(s)


def store(kind, n):
    names = [f"m/{kind}{i}" for i in range(n)]
    for name in names:
        s.write(name, blob(name, SIZE))
    s.settle()
    return names


def fsync(name):
    fd = os.open(f"{s.mnt}/{name}", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_fails():
    """Returns the number of copies so far."""
    before = rules.fired()[0]
    rules.begin()
    with fails(errno.EIO):
        fsync(store("probe", 1)[0])
    assert rules.fired()[0] == before + 1
    return s.stats()["spills"]


def absent(names):
    return all("cpu" not in s.attr(n, "tiers") for n in names)


synced = store("synced", 8)
fsync(synced[0])
s.settle()

# the evictor
lost = store("lost", 8)
before = sync_fails()
more = store("more", 36)
wait_for(lambda: absent(synced + lost))
s.settle()
copied = s.stats()["spills"] - before - len(more)
assert len(lost) <= copied < len(lost + synced), copied

# a command
fsync(more[0])
named = store("named", 4)
kept = [n for n in more if "cpu" in s.attr(n, "tiers")][-4:]
before = sync_fails()
run(binary("kvcachectl"), "evict", *(f"{s.mnt}/{n}" for n in named + kept), ok=True)
wait_for(lambda: absent(named + kept))
copied = s.stats()["spills"] - before
assert len(named) <= copied < len(named + kept), copied

for name in synced + lost + more + named:
    assert s.read(name) == blob(name, SIZE), name
s.umount()
s.fsck("-n")
