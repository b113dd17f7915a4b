# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Policies know the size of a chunk: the sum of all its files, including later ones, in the pool
and on disk, and after a restart. gdsf evicts large chunks first."""
import os, time
from kvtest import *

N = 256 << 10
SMALL, LARGE = [f"s{i}" for i in range(6)], [f"l{i}" for i in range(3)]
FILES = {**{c: 1 for c in SMALL}, **{c: 4 for c in LARGE}}


def prompt(s, c):
    """The chunk begins a prompt."""
    os.setxattr(f"{s.mnt}/m/{c}", "user.kvcachefs.parent", b"")


def make(s):
    """Stores the first file of each chunk, then the others: at first all chunks have one size."""
    for c in FILES:
        s.write(f"m/{c}/0", blob(ord(c[1]), N))
        prompt(s, c)
    s.settle()
    for c in LARGE:
        for l in range(1, FILES[c]):
            s.write(f"m/{c}/{l}", blob(l, N))
    s.settle()


def again(s, how):
    if how == "umount":
        s.umount()
        s.mount()
    elif how == "kill":
        time.sleep(1.2)  # the request is over
        s.committed(uses=True)
        s.kill()
        run("umount", "-l", s.mnt)
        s.mount()


def large_first(gone, what):
    """Large chunks were evicted, and no small chunk before all large ones."""
    assert gone and (set(LARGE) <= gone or not gone & set(SMALL)), (what, gone)


# The pool: a load adds a chunk file by file.
s = Store("pool", cpu="16M", size="128M",
          options="policy=gdsf,keep_pool,settle=0,high=95,low=94").mount()
make(s)
for c in FILES:
    os.setxattr(f"{s.mnt}/m/{c}", "user.kvcachefs.demote", b"cpu")
time.sleep(1.2)
for c in FILES:
    s.read(f"m/{c}/0")
for c in LARGE:
    for l in range(1, FILES[c]):
        s.read(f"m/{c}/{l}")
time.sleep(1.2)
held = []
lower = lambda: {c for c in FILES if s.attr(f"m/{c}/0", "state") == "lower"}
assert not lower()
while not (gone := steady(lower)):
    held.append(open(f"{s.mnt}/x{len(held)}", "wb", buffering=0))
    held[-1].write(bytes(MiB))
    wait_for(lambda: s.stats()["room_waiters"] == 0)
    assert len(held) < 16
large_first(gone, "pool")
[f.close() for f in held]
s.settle()
s.umount()

# The disk: the sizes are those of the pool, and the catalog keeps them.
for how in ("none", "umount", "kill"):
    s = Store(f"disk-{how}", cpu="16M", size="24M",
              options="policy=lru,disk_policy=gdsf,settle=0,high=90,low=85").mount()
    make(s)
    again(s, how)
    there = lambda: {c for c in FILES if os.path.exists(f"{s.mnt}/m/{c}/0")}
    for i in range(96):
        s.write(f"m/x{i}/0", blob(i, N))
        prompt(s, f"x{i}")
        s.settle()
        if s.stats()["trimmed_chunks"]:
            break
    large_first(steady(lambda: set(FILES) - there()), f"disk, {how}")
    s.umount()
    run("sh", "-c", f"umount -l {TMP}/run/*")
print("ok")
