# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""A store on several devices: frames are spread over all of them, and the labels identify them. A
device that is missing, exchanged, given twice, or of another store is one clear error at the mount
and in fsck, and nothing is written. fsck finds the new paths of devices, repairs a label, rebuilds
the catalog from all devices, and removes a lost device: its files alone are lost."""
import contextlib, os, shutil, sqlite3
from kvtest import *

need_mount()
MKFS, KV = binary("mkfs.kvcachefs"), binary("kvcachefs")
N = 700000
FILES = [f"m/c{i}/l{j}" for i in range(15) for j in range(2)]
PARTS = [f"{TMP}/part{i}" for i in range(3)]
s = Store("s", cpu="64M", make=False)
p = run(MKFS, "--size", "32M", *(w for f in PARTS for w in ("--file", f)), s.path, ok=True)
assert "96.0 MiB on 3 devices" in p.stdout and f"device 2: {PARTS[2]}, 32.0 MiB" in p.stdout, p
assert sorted(os.listdir(s.path)) == ["catalog.sqlite", "reserve", "superblock", "superblock.copy"]
s.mount()
for f in FILES:
    s.write(f, blob(f, N))
s.settle()
assert os.statvfs(s.mnt).f_blocks * os.statvfs(s.mnt).f_frsize > 80 * MiB
s.umount()


def placed():
    """The device of each file, by the catalog."""
    catalog = f"file:{s.path}/catalog.sqlite?mode=ro"
    with contextlib.closing(sqlite3.connect(catalog, uri=True)) as c:
        parent = dict(c.execute("SELECT ino, name || '/' FROM names WHERE parent != 1"))
        rows = c.execute("SELECT n.name, u.name, p.at >> 48 FROM placements p JOIN names n "
                         "USING(ino) JOIN names u ON u.ino = n.parent").fetchall()
    return {f"m/{folder}/{name}": device for name, folder, device in rows}


where = placed()
share = [list(where.values()).count(i) for i in range(3)]
assert len(where) == len(FILES) and max(share) - min(share) <= 1, share

KEEP = f"{TMP}/keep"
os.mkdir(KEEP)
for f in (s.path, *PARTS):
    run("cp", "-a", "--sparse=always", f, KEEP, ok=True)
s.drop_pool()


def fresh():
    for f in (s.path, *PARTS):
        shutil.rmtree(f) if os.path.isdir(f) else os.path.lexists(f) and os.unlink(f)
        run("cp", "-a", "--sparse=always", f"{KEEP}/{os.path.basename(f)}", f, ok=True)


def state():
    files = [f"{s.path}/{n}" for n in sorted(os.listdir(s.path)) if "sqlite-" not in n]
    return [hashlib.md5(open(f, "rb").read()).digest() for f in files + PARTS if os.path.exists(f)]


def refused(*says):
    before = state()
    for command in ([KV, s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run"],
                    [binary("fsck.kvcachefs"), "-n", s.path],
                    [binary("fsck.kvcachefs"), "-y", s.path]):
        r = run(*command)
        assert r.returncode and r.stdout.count("\n") == 1, (command, r)
        assert all(w in r.stdout for w in says), (command, r)
        assert state() == before, command


def whole(want=FILES):
    s.mount()
    there = [f for f in FILES if os.path.exists(f"{s.mnt}/{f}")]
    assert there == list(want), set(FILES) ^ set(there)
    for f in want:
        assert s.read(f) == blob(f, N), f
    s.umount()
    s.drop_pool()
    s.fsck("-n", "--data")


whole()
# missing
fresh()
os.rename(PARTS[1], f"{TMP}/away")
refused("device 1 of the store", PARTS[1], "No such file", "--forget")
# moved: fsck finds each device by its label, whatever the order of the arguments
os.rename(PARTS[2], f"{TMP}/away2")
r = s.fsck("-y", "--device", f"{TMP}/away2", "--device", f"{TMP}/away", ok=None)
assert r.returncode == 1, r
assert f"device 1 of the store was {PARTS[1]} and is {TMP}/away" in r.stdout, r
whole()
os.unlink(f"{TMP}/away")
os.unlink(f"{TMP}/away2")
# exchanged
fresh()
os.rename(PARTS[0], f"{TMP}/x")
os.rename(PARTS[1], PARTS[0])
os.rename(f"{TMP}/x", PARTS[1])
refused("has the label of device 1 of this store and not of device 0")
assert s.fsck("-y", "--device", PARTS[1], "--device", PARTS[0], ok=None).returncode == 1
whole()
# one device twice, by its name and as a copy
fresh()
os.unlink(PARTS[1])
os.link(PARTS[0], PARTS[1])
refused("devices 0 and 1 of the store, are one and the same")
os.unlink(PARTS[1])
run("cp", "-a", PARTS[0], PARTS[1], ok=True)
refused("has the label of device 0 of this store and not of device 1")
# of another store, and of none
fresh()
run(MKFS, "--size", "32M", "--file", f"{TMP}/of-another", f"{TMP}/another", ok=True)
os.rename(f"{TMP}/of-another", PARTS[2])
refused(PARTS[2], "another kvcachefs store")
with open(PARTS[2], "wb") as f:
    f.write(bytes(32 * MiB))
refused(PARTS[2], "does not have this store's label")
r = run(MKFS, "--size", "32M", "--file", PARTS[0], f"{TMP}/third")
assert r.returncode == 1 and f"{PARTS[0]} exists and is not changed" in r.stdout, r
assert not os.path.exists(f"{TMP}/third")
# a damaged label
fresh()
with open(PARTS[1], "r+b") as f:
    f.seek(20)
    f.write(b"\xff\xfe")
r = run(KV, s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run")
assert r.returncode and f"label of the device {PARTS[1]} is damaged" in r.stdout, r
assert s.fsck("-y", ok=None).returncode == 1
whole()
# the superblock from its copy, from the catalog, and from the labels
for lost in (["superblock"], ["superblock", "superblock.copy"],
             ["superblock", "superblock.copy", "catalog.sqlite"]):
    fresh()
    for n in lost:
        os.unlink(f"{s.path}/{n}")
    if len(lost) == 3:
        for n in lost[0], "catalog.sqlite":  # damaged, so that the folder looks like a store
            shutil.copy(f"{KEEP}/s/{n}", s.path)
            with open(f"{s.path}/{n}", "r+b") as f:
                f.seek(24)
                f.write(b"\xaa" * 4000)
    r = s.fsck("-y", *(w for f in PARTS[::-1] for w in ("--device", f)), ok=None)
    assert r.returncode in (1, 9), (lost, r)
    whole()
# the catalog from the frames of all devices
fresh()
s.fsck("--rebuild")
whole()
# a file that was cut, and a frame that was damaged: everything else stays
fresh()
os.truncate(PARTS[2], 2 * MiB)
r = s.fsck("-y", ok=None)
assert r.returncode == 1 and f"{PARTS[2]} is shorter" in r.stdout, r
rest = [f for f in FILES if where[f] != 2]
s.mount()
assert all(s.read(f) == blob(f, N) for f in rest)
s.umount()
s.drop_pool()
s.fsck("-n", "--data")
# a lost device costs the files in it, and no others
for name in PARTS[1], "1":
    fresh()
    os.unlink(PARTS[1])
    r = s.fsck("--forget", name, ok=None)
    assert r.returncode == 8 and "give -y" in r.stdout, r
    r = s.fsck("-y", "--forget", "7", ok=None)
    assert r.returncode == 8 and "has no such device" in r.stdout, r
    r = s.fsck("-y", "--forget", name, ok=None)
    assert r.returncode == 1 and f"device 1, {PARTS[1]}, is removed" in r.stdout, r
    whole([f for f in FILES if where[f] != 1])
# the removed device returns with its label: it is refused, because the store no longer has it
shutil.copy(f"{KEEP}/part1", PARTS[1])
r = s.fsck("-y", "--device", PARTS[1], ok=None)
assert r.returncode == 8 and "is not one of this store" in r.stdout, r
# a new store on the same devices, and one on a file alone
fresh()
run(MKFS, "--force", "--size", "24M", *(w for f in PARTS[:2] for w in ("--file", f)), s.path,
    ok=True)
assert not os.path.exists(PARTS[2]) and os.path.getsize(PARTS[1]) == 24 * MiB
whole([])
run(MKFS, "--force", "--size", "64M", s.path, ok=True)
assert not os.path.exists(PARTS[0]) and os.path.getsize(f"{s.path}/data") == 64 * MiB
whole([])
