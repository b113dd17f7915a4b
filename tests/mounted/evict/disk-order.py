# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A chunk in the disk tier stays in the eviction order after every kind of change: its folder was
found to be a container or was set to be one; it was renamed, exchanged, linked, written again,
given another policy, or demoted. It is evicted before newer chunks, also under policies that keep
the disk's order in memory. No chunk is forgotten until the next mount."""
import ctypes, os, time
import faults
from kvtest import *

N = 128 * KiB
CHUNKS = 3000
RENAME_EXCHANGE, AT_FDCWD = 2, -100


def make(s, folder, count, first=0):
    os.makedirs(f"{s.mnt}/{folder}", exist_ok=True)
    for i in range(first, first + count):
        s.write(f"{folder}/f{i}", blob(f"{folder}{i}", N))
    return [f"{folder}/f{i}" for i in range(first, first + count)]


def exchange(a, b):
    if ctypes.CDLL(None, use_errno=True).renameat2(AT_FDCWD, a.encode(), AT_FDCWD, b.encode(),
                                                   RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), f"{a} and {b}")


def changes(s):
    """Changes files that are in the disk tier. Returns the paths of all files afterwards."""
    m = s.mnt
    late = make(s, "m/late", 12)
    said = make(s, "m/said", 4)
    chunks = [make(s, f"m/c{i}", 4) for i in range(8)]
    anew = make(s, "m/anew", 4)
    demoted = make(s, "m/demoted", 4)
    gone = make(s, "m/gone", 4)
    other = make(s, "other/c", 4)
    again = make(s, "again/c", 4)
    s.settle()
    time.sleep(5.2)
    late += make(s, "m/late", 1, 12)  # so the folder is a container
    os.setxattr(f"{m}/m/said", "user.kvcachefs.unit", b"file")
    os.rename(f"{m}/m/c0/f0", f"{m}/m/c1/x")
    os.rename(f"{m}/m/c2", f"{m}/m/d2")
    exchange(f"{m}/m/c3/f0", f"{m}/m/c4/f0")
    os.link(f"{m}/m/c5/f0", f"{m}/m/c6/x")
    os.unlink(f"{m}/m/c5/f0")
    os.rename(f"{m}/m/c7", f"{m}/other/c7")
    s.write("m/anew/f0", blob("anew", N))
    os.setxattr(f"{m}/m/demoted", "user.kvcachefs.demote", b"cpu")
    run("rm", "-r", f"{m}/m/gone", ok=True)
    gone = make(s, "m/gone", 4)
    os.setxattr(f"{m}/again", "user.kvcachefs.policy", b"fifo")
    s.settle()
    wait_for(lambda: s.stats()["jobs"] == 0)
    os.removexattr(f"{m}/again", "user.kvcachefs.policy")
    s.settle()
    wait_for(lambda: s.stats()["jobs"] == 0)
    return [f"{top}/{d}/{f}" for top in ("m", "other", "again") for d in os.listdir(f"{m}/{top}")
            for f in os.listdir(f"{m}/{top}/{d}")]


def goes(policy):
    s = Store(f"goes-{policy}", size="40M", cpu="16M",
              options=f"policy={policy},settle=0,high=90,low=80").mount()
    paths = changes(s)
    assert len(paths) == 13 + 4 + 32 + 4 + 4 + 4 + 4 + 4, paths
    for i in range(500):  # one and a half times the capacity
        s.write(f"m/x{i}/f", bytes(N))
        if i % 50 == 49:
            time.sleep(1.2)  # a request is over
    s.settle()
    left = []

    def gone():
        """True if no path exists any more. (Called rarely: a lookup of a chunk that is about to be
        dropped would keep it.)"""
        left[:] = [p for p in paths if os.path.exists(f"{s.mnt}/{p}")]
        return not left

    try:
        wait_for(gone, every=2)
    except AssertionError:
        raise AssertionError((policy, left))
    assert os.path.exists(f"{s.mnt}/m/x499/f"), policy
    s.umount()
    s.fsck("-n")


def soon(policy):
    """A chunk that is evicted while its maker may still use it is in the disk's order."""
    s = Store(f"soon-{policy}", size="256M", cpu="16M",
              options=f"policy={policy},settle=0,pace=60000").mount()
    kids = []
    for who in range(8):
        kids.append(os.fork())
        if not kids[-1]:
            for i in range(6):
                s.write(f"m/{who}-{i}/f", blob((who, i).__repr__(), 2 * MiB))
                time.sleep(0.1 * (who + i) % 0.7)
            os._exit(0)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in kids)
    for _ in range(2):  # a file that is renamed from one chunk to another
        s.write("m/part/a", bytes(N))
        s.write("m/part/b", bytes(N))
        s.settle()
        os.makedirs(f"{s.mnt}/m/whole", exist_ok=True)
        os.rename(f"{s.mnt}/m/part/b", f"{s.mnt}/m/whole/b")
    time.sleep(2.5)
    s.settle()
    wait_for(lambda: s.in_order() == 8 * 6 + 2)
    ordered = s.in_order()
    s.umount()
    assert s.on_disk() == 8 * 6 + 2 == ordered, (policy, ordered, s.on_disk())


def unread():
    """A read of the catalog that fails while the order is filled at a mount leaves nothing out."""
    s = Store("unread", size="64M", cpu="16M", options="policy=leaf,settle=0").mount()
    os.mkdir(f"{s.mnt}/flat")
    os.setxattr(f"{s.mnt}/flat", "user.kvcachefs.unit", b"file")
    for i in range(CHUNKS):
        s.write(f"flat/{i}", b"x")
    s.settle()
    s.umount()
    assert s.on_disk() == CHUNKS
    nth = fired = 0
    while fired == nth:
        rules = faults.Rules(f"calls=read path={s.path}/catalog.sqlite* nth={nth + 1} do=EIO")
        nth += 1
        if rules.mount(s):
            wait_for(lambda: s.in_order() == CHUNKS)
            s.umount()
        fired += rules.fired()[0]
    print(f"{nth} reads")
    assert nth > 20, nth


beside([(unread,), *((soon, p) for p in ("leaf", "prefix")),
        *((goes, p) for p in ("lru", "prefix", *("leaf", "gdsf") * LONG))], most=4)
print("ok")
