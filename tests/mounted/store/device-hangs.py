# SPDX-License-Identifier: Apache-2.0
# ways: none
"""One device of two hangs: its reads and writes do not return, and report no error. All files on
the other device are loaded, small and large ones, and new files are copied to it, while at most
half of the threads wait for the device that hangs. When it answers again, all files are there."""
import sqlite3, threading
from faults import FAR, Rules
from kvtest import *

need_mount()
N, SMALL, LARGE = 200000, 60, 6
PARTS = [f"{TMP}/part{i}" for i in range(2)]
BAD = PARTS[1]
THREADS = 1 + 2 * 4  # of the disk tier, with disk_workers=4
s = Store("s", make=False, cpu="160M", options="settle=0,disk_workers=4")
run(binary("mkfs.kvcachefs"), "--size", "256M", *(w for f in PARTS for w in ("--file", f)), s.path,
    ok=True)
s.mount()
files = {f"m/c{i}/l": (i, N) for i in range(SMALL)}
files |= {f"big/c{i}/l": (i, 8 * MiB) for i in range(LARGE)}
for f, (seed, size) in files.items():
    s.write(f, blob(seed, size))
inode = {f: os.stat(f"{s.mnt}/{f}").st_ino for f in files}
s.settle()
s.umount()
s.drop_pool()
with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
    at = {ino: where >> 48 for ino, where in c.execute("SELECT ino, at FROM placements")}
good = {f for f in files if at[inode[f]] == 0}
bad = set(files) - good
assert len(good) >= SMALL // 3 and len(bad) >= SMALL // 3 and any("big" in f for f in bad), good
assert any("big" in f for f in good), good

rules = Rules(f"calls=read,write path={BAD} nth={FAR} count={FAR} do=hold")
rules.mount(s)
rules.begin()
done = {}


def read(f):
    try:
        done[f] = s.read(f) == blob(*files[f])
    except OSError as e:
        done[f] = e


# first all files on the device that hangs are requested, then the others
readers = [threading.Thread(target=read, args=(f,), daemon=True) for f in sorted(bad)]
for t in readers:
    t.start()
wait_for(lambda: rules.fired()[0] >= THREADS // 2)
for f in sorted(good):
    t = threading.Thread(target=read, args=(f,), daemon=True)
    t.start()
    readers.append(t)
wait_for(lambda: good <= done.keys())
assert all(done[f] is True for f in good), {f: done[f] for f in good}
assert not any(done.get(f) is True for f in bad), "the device did not hang"

# new files are copied to the device that answers
before = s.stats()["spills"]
for i in range(40):
    s.write(f"new/c{i}/l", blob(1000 + i, N))
wait_for(lambda: s.stats()["spills"] >= before + 40 - THREADS // 2)
held = rules.fired()[0]
assert held <= THREADS // 2 + 2, held  # and two threads that only help with large files

rules.heal()
for t in readers:
    t.join()
s.settle()
for f in files:
    assert s.read(f) == blob(*files[f]), f
for i in range(40):
    assert s.read(f"new/c{i}/l") == blob(1000 + i, N), i
s.umount()
assert s.fsck(ok=None).returncode == 0
