# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The syncs of one device of two hang, while its reads and writes work. An fsync of a file whose
copy is on the other device succeeds, and so does one of a folder, however many fsyncs wait for the
device that hangs. Copies of files that are open are synced, and the space of deleted files is used
again. When the device answers, all fsyncs succeed."""
import json, sqlite3, threading
from faults import FAR, Rules
from kvtest import *

need_mount()
CTL = binary("kvcachectl")
N, FILES = 200000, 40
PARTS = [f"{TMP}/part{i}" for i in range(2)]
BAD = PARTS[1]
THREADS = 1 + 2 * 4  # of the disk tier, with disk_workers=4
s = Store("s", make=False, cpu="96M", options="settle=0,disk_workers=4,deadline=600000")
run(binary("mkfs.kvcachefs"), "--size", "64M", *(w for f in PARTS for w in ("--file", f)), s.path,
    ok=True)
s.mount()
files = {f"m/c{i}/l": i for i in range(FILES)}
for f, seed in files.items():
    s.write(f, blob(seed, N))
inode = {f: os.stat(f"{s.mnt}/{f}").st_ino for f in files}
s.settle()
s.umount()
s.drop_pool()
with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
    at = {ino: where >> 48 for ino, where in c.execute("SELECT ino, at FROM placements")}
good = sorted(f for f in files if at[inode[f]] == 0)
bad = sorted(set(files) - set(good))
assert len(good) >= FILES // 4 and len(bad) >= FILES // 4, (good, bad)

rules = Rules(f"calls=sync path={BAD} nth={FAR} count={FAR} do=hold")
rules.mount(s)
rules.begin()
done = {}


def fsync(path, flags=os.O_RDONLY, data=None):
    fd = os.open(f"{s.mnt}/{path}", flags)
    try:
        if data:
            os.pwrite(fd, data, 0)
        os.fsync(fd)
        done[path] = True
    except OSError as e:
        done[path] = e
    finally:
        os.close(fd)


def start(*a):
    t = threading.Thread(target=fsync, args=a, daemon=True)
    t.start()
    threads.append(t)


threads = []
for f in bad:
    start(f)
wait_for(lambda: rules.fired()[0])
for f in good + ["m", "m/c0"]:
    start(f)
wait_for(lambda: done.keys() >= {*good, "m", "m/c0"})
assert all(done[f] is True for f in done), done
assert not done.keys() & set(bad), "the device did not hang"

# open files whose copies are replaced: a new copy is synced before it counts. At most half of the
# tier's threads wait for such a sync; the other copies are made on the other device.
new = {f: f"new {f}" for f in good[5:]}
for f in new:
    del done[f]
for f, seed in new.items():
    start(f, os.O_RDWR, blob(seed, N))
wait_for(lambda: len(done.keys() & new.keys()) >= len(new) - THREADS // 2)
# the extents of deleted files are freed
used = lambda: json.loads(run(CTL, "devices", "--json", s.mnt, ok=True).stdout)["devices"][0][
    "used_bytes"]
before = used()
for f in good[:5]:
    os.unlink(f"{s.mnt}/{f}")
wait_for(lambda: used() <= before - 3 * N)
assert not done.keys() & set(bad), done

rules.heal()
for t in threads:
    t.join()
assert all(done[f] is True for f in [*bad, *new]), done
for f, seed in ({f: files[f] for f in bad} | new).items():
    assert s.read(f) == blob(seed, N), f
s.umount()
s.drop_pool()
assert s.fsck("-n", "--data", ok=None).returncode == 0
