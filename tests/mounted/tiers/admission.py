# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Admission to the disk tier: admit=twice selects chunks by their uses, and daily= limits the bytes
written in a day. Some copies are exempt from both. Refused chunks stay in the pool until they are
evicted, and no store fails or waits because of a refusal."""
import os, sqlite3, time
from kvtest import *

N = 90  # chunks: about three times as many as the pool has space for


def put(path, size=MiB, sync=False):
    os.makedirs(os.path.dirname(f"{s.mnt}/{path}"), exist_ok=True)
    with open(f"{s.mnt}/{path}", "wb", buffering=0) as f:
        f.write(blob(path, size))
        if sync:
            os.fsync(f.fileno())


def intact(*paths, size=MiB):
    for path in paths:
        assert s.read(path) == blob(path, size), path


def scan(name, n=N):
    """Stores n chunks, each used once. By default they push all others out of the pool. Returns the
    bytes of the chunks that were stored so slowly that their parts may count as two requests."""
    slow = 0
    for i in range(n):
        began = time.monotonic()
        put(f"m/{name}{i}/l")
        slow += MiB * (time.monotonic() - began >= .3)
    s.settle()
    return slow


def there(*names):
    return [os.path.exists(f"{s.mnt}/m/{n}/l") for n in names]


def tiers(path):
    return s.attr(path, "tiers")


def written():
    return s.stats()["tier_disk_written_bytes"]


def today():
    return s.stats()["tier_disk_today_bytes"]


def pause():
    """A pause that is longer than the limit between two requests."""
    time.sleep(1.5)


def unharmed(copies=False):
    """No store was refused and nothing was lost. Stores may have waited for the disk only if there
    were copies to make."""
    st = s.stats()
    assert not st["room_refusals"] and not st["behind_drops"] and (copies or not st["paced"]), st


def refused(why):
    st = s.stats()
    return st[f"refused_{why}_chunks"], st[f"refused_{why}_bytes"]


def agree():
    """Each refused chunk was dropped because of the refusal."""
    def same():
        st = s.stats()
        return st["evicted_for_refused"] == st["refused_twice_chunks"] + st["refused_daily_chunks"]
    wait_for(same)


def next_day():
    """Sets the counted day in the catalog to the day before."""
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    day, *rest = db.execute("SELECT value FROM meta WHERE key='written:0'").fetchone()[0].split()
    db.execute("UPDATE meta SET value=? WHERE key='written:0'", (" ".join([str(int(day) - 1)]
                                                                         + rest),))
    db.commit()
    db.close()


def metrics_say_so():
    with open(f"{s.mnt}/.kvcachefs/metrics") as f:
        text = f.read()
    st = s.stats()
    assert 'kvcachefs_evictions_by_reason_total{reason="refused"}' in text
    return all(f'kvcachefs_refused_{x}_total{{reason="{w}"}} {st[f"refused_{w}_{x}"]}\n' in text
               for x in ("chunks", "bytes") for w in ("twice", "daily"))


# chunks that were used once stay in the pool; all files of a chunk in one request are one access
def twice():
    global s
    s = Store("twice", cpu="32M", options="settle=0,admit=twice,pace=600000").mount()
    assert s.config()["admit"] == "twice" and s.config()["daily"] == "0"
    # a pause of a second ends a request; after a shorter pause the rest may count as another
    # request
    for name in "uvwxy":
        USED = [f"m/{name}{i}/l{j}" for i in range(3) for j in range(2)]
        began, before = time.monotonic(), written()
        for path in USED:
            put(path)
        intact(*USED)  # accesses of the request that created them
        took = time.monotonic() - began
        s.settle()
        if took < .3 or took < 1 and written() == before:
            break
    else:
        skip("the machine pauses all the time")
    assert all(tiers(p) == "cpu" for p in USED) and (written() == 0 or name != "u")

    # a chunk that is requested again is copied, without waiting for its eviction
    pause()
    intact(*USED[:4])
    wait_for(lambda: all(tiers(p) == "cpu,disk" for p in USED[:4]))
    assert all(tiers(p) == "cpu" for p in USED[4:])

    # fsync and a pin copy all files of a chunk to the disk, because a chunk is dropped as a whole,
    # and a synced file must not be lost
    put("m/synced/l0")
    put("m/synced/l1", sync=True)
    put("m/late/l")
    s.settle()
    assert tiers("m/late/l") == "cpu"
    with open(f"{s.mnt}/m/late/l", "rb") as f:
        os.fsync(f.fileno())
    put("m/pinned/l")
    os.setxattr(f"{s.mnt}/m/pinned", "user.kvcachefs.pin", b"1")
    wait_for(lambda: tiers("m/pinned/l") == "cpu,disk")
    assert tiers("m/synced/l1") == tiers("m/late/l") == "cpu,disk"

    # a scan is not written to the disk, and evicts chunks that were used once, not the valuable
    # ones
    s.settle()
    before = written()
    slow = scan("once")
    KEPT = USED[:4] + ["m/synced/l0", "m/synced/l1", "m/late/l", "m/pinned/l"]
    wait_for(lambda: tiers(USED[0]) == "disk" and tiers("m/synced/l0") == "disk")
    assert before <= written() <= before + MiB + slow  # synced/l0
    intact(*KEPT)
    assert there(f"{name}2", "once0", f"once{N - 1}") == [False, False, True]
    chunks, size = refused("twice")
    assert chunks >= N - 40 and size >= chunks * MiB and refused("daily") == (0, 0)
    agree()
    unharmed()
    wait_for(metrics_say_so)  # the metrics of an idle pool

    # a chunk that was dropped and is created again under its name counts as requested twice
    put("m/once0/l")
    # parents of a chunk that was requested twice count as requested twice, because an engine has
    # the beginning of the prompt on its device
    PROMPT = [f"m/prompt{i}/l" for i in range(3)]
    for i, path in enumerate(PROMPT):
        put(path)
        os.setxattr(f"{s.mnt}/m/prompt{i}", "user.kvcachefs.parent", f"prompt{i - 1}".encode() if i
                    else b"")
    pause()
    intact(PROMPT[-1])
    wait_for(lambda: tiers(PROMPT[-1]) == "cpu,disk")
    scan("more")
    wait_for(lambda: tiers("m/once0/l") == "disk")
    intact("m/once0/l")
    assert there("prompt0", "prompt1", "prompt2") == [True] * 3
    intact(*PROMPT)
    assert there("more0") == [False]

    # an unmount copies chunks that are only in the pool, because the pool ends with it
    last = f"m/more{N - 1}/l"
    assert tiers(last) == "cpu"
    s.umount()
    s.mount()
    assert tiers(last) == "disk"
    intact(last, *KEPT)

    # also after a kill and a reboot
    put("m/lost/l")
    put("m/saved/l", sync=True)
    pause()
    pool = s.config()["pool"]
    s.kill()
    run("umount", "-l", s.mnt)
    s.drop_pool(pool)
    s.mount()
    intact("m/saved/l", last, *KEPT)
    assert not os.path.exists(f"{s.mnt}/m/lost/l")
    s.umount()
    s.fsck("-n")


# with write=back a chunk that was requested again is copied when it is evicted
def back():
    global s
    s = Store("back", cpu="32M", options="settle=0,admit=twice,write=back,pace=600000").mount()
    put("m/a/l")
    put("m/b/l")
    pause()
    intact("m/a/l")
    s.settle()
    assert tiers("m/a/l") == "cpu"
    slow = scan("once")
    wait_for(lambda: tiers("m/a/l") == "disk")
    intact("m/a/l")
    assert there("b", "once0") == [False, False] and written() < 2 * MiB + slow
    assert refused("twice")[0] > 40
    unharmed()
    s.umount()


# a remote takes everything; the disk takes chunks that are requested again, even after they left
# the pool
def remote():
    global s
    os.makedirs(f"{TMP}/remote")
    s = Store("remote", cpu="32M",
              options=f"settle=0,admit=twice,pace=600000,remote=dir://{TMP}/remote").mount()
    put("m/a/l")
    s.settle()
    assert tiers("m/a/l") == "cpu,dir"
    slow = scan("once")
    wait_for(lambda: tiers("m/a/l") == "dir")
    assert all(there(*[f"once{i}" for i in range(N)])) and written() <= slow
    assert refused("twice")[0] > 40 and s.stats()["evicted_for_refused"] == 0
    pause()
    intact("m/a/l")
    wait_for(lambda: "disk" in tiers("m/a/l"))
    s.umount()


DAILY = 20 * MiB


# copies stop at the daily limit
def daily():
    global s
    within_a_day()
    s = Store("daily", cpu="32M", options="settle=0,daily=20M,pace=600000").mount()
    scan("a", 19)
    assert 19 * MiB <= today() <= DAILY
    scan("b")
    full = today()
    assert 19 * MiB <= full <= DAILY, full
    wait_for(lambda: refused("daily")[0] * MiB == refused("daily")[1])
    assert refused("daily")[0] >= N - 40 and refused("twice") == (0, 0)
    agree()
    assert all(tiers(f"m/a{i}/l") == "disk" for i in range(10))
    intact("m/a0/l")
    last = f"m/b{N - 1}/l"
    pause()
    intact(last)
    s.settle()
    assert tiers(last) == "cpu" and there("b20") == [False] and today() == full
    unharmed(copies=True)

    # copies on request are exempt
    put("m/synced/l", sync=True)
    put("m/pinned/l")
    os.setxattr(f"{s.mnt}/m/pinned", "user.kvcachefs.pin", b"1")
    wait_for(lambda: tiers("m/pinned/l") == "cpu,disk")
    os.setxattr(f"{s.mnt}/m/b{N - 2}", "user.kvcachefs.demote", b"cpu")
    assert tiers("m/synced/l") == "cpu,disk" and tiers(f"m/b{N - 2}/l") == "disk"
    assert full + 3 * MiB <= today() < full + 4 * MiB
    full = today()

    # a remount does not begin a new day; the pool is kept because it has the only copies
    s.umount()
    assert "could not be copied to a tier" in s.log()
    s.mount()
    assert today() == full and tiers(last) == "cpu"
    intact(last, "m/synced/l", "m/pinned/l", "m/a0/l")
    scan("c")
    assert today() == full and refused("daily")[0] >= N - 40
    intact("m/synced/l", "m/pinned/l", "m/a0/l", f"m/b{N - 2}/l")
    unharmed(copies=True)

    # on the next day the refused chunks are copied
    s.umount()
    next_day()
    s.mount()
    s.settle()
    c = [tiers(f"m/c{i}/l") for i in range(N) if there(f"c{i}")[0]]
    assert c.count("cpu,disk") >= 10 and c.count("cpu,disk") * MiB <= today() <= DAILY, c
    scan("d")
    assert 19 * MiB <= today() <= DAILY and refused("daily")[0] > 0
    unharmed(copies=True)
    s.umount()
    s.fsck("-n")


# both limits, with many files, which must be dropped without being written
def both():
    global s
    s = Store("both", cpu="32M", options="settle=0,admit=twice,daily=5M").mount()
    for i in range(12):
        put(f"m/u{i}/l")
    pause()
    for i in range(12):
        intact(f"m/u{i}/l")
    s.settle()
    assert 4 * MiB <= today() <= 5 * MiB and written() == today()
    for i in range(1500):
        put(f"m/x{i // 10}/{i % 10}", 64 * KiB)
    s.settle()
    assert written() <= 5 * MiB and refused("twice")[0] and refused("daily")[0]
    agree()
    unharmed()
    s.umount()


beside([(twice,), (daily,), (back,), (remote,), (both,)], most=3)
