# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A client that stores a frame's header as file data has not made a frame: a frame in free space
must prove that a daemon of this store made it. A rebuild accepts only what the proofs support.
Frames of other format versions are ignored. Losing the superblock loses the owners of files and
nothing else."""
import glob, os, uuid
from kvtest import KiB, Store, blob, wait_for
import frames


def store_uuid(s):
    return uuid.UUID(s.config()["uuid"]).bytes


def write_as(s, path, d, uid, mode):
    os.makedirs(f"{s.mnt}/{os.path.dirname(path)}", exist_ok=True)
    with open(f"{s.mnt}/{path}", "wb") as f:
        os.fchown(f.fileno(), uid, uid)
        os.fchmod(f.fileno(), mode)
        f.write(d)


def headers(s):
    """The place and the page of every frame in the store."""
    with open(f"{s.path}/data", "rb") as f:
        data = f.read()
    at = data.find(b"KVCFRAME")
    while at >= 0:
        if at % frames.PAGE == 0:
            yield at, data[at:at + frames.PAGE]
        at = data.find(b"KVCFRAME", at + 1)


def patch(s, at, page):
    with open(f"{s.path}/data", "r+b") as f:
        f.seek(at)
        f.write(page)


# forged frames of another user, and of root with set-id, in two format versions, in a deleted file
# and in an existing one
s = Store(size="64M", options="settle=0").mount()
real = {f"m/c{i}/l": blob(i, 100 * KiB) for i in range(5)}
for path, d in real.items():
    write_as(s, path, d, 1000 if "c1" in path else 0, 0o640)
store = store_uuid(s)
evil = b"".join(frames.made_up(store, f"m/forged{version}{kind}", b"#!/bin/sh\nid\n" * 100,
                               version=version, ino=(1 << 40) + 2 * version + n, mode=mode, uid=uid)
                for version in (1, 2)
                for n, (kind, mode, uid) in enumerate((("root", 0o104755, 0),
                                                       ("other", 0o100644, 1000))))
# a frame for an existing file, as an older generation of it
evil += frames.made_up(store, "m/c0/l", b"not yours" * 100,
                       ino=os.stat(f"{s.mnt}/m/c0/l").st_ino, gen=99)
s.write("m/mine", b"x" * frames.PAGE + evil)
s.write("m/kept", b"y" * frames.PAGE + evil)
s.settle()
os.unlink(f"{s.mnt}/m/mine")
wait_for(lambda: s.stats()["unsynced_bytes"] == 0 and s.stats()["jobs"] == 0)
s.umount()
assert sum(frames.path_of(p).startswith("m/forged") for _, p in headers(s)) == 8
s.fsck("-n")
s.fsck("--rebuild")
s.mount()
assert sorted(os.listdir(f"{s.mnt}/m")) == ["c0", "c1", "c2", "c3", "c4", "kept"]
for path, d in real.items():
    assert s.read(path) == d
st = os.stat(f"{s.mnt}/m/c1/l")
assert (st.st_uid, st.st_mode & 0o7777) == (1000, 0o640)
s.umount()
s.fsck("-n", "--data")

# if the name part of a frame was exchanged, only the name is lost
at, page = next((at, p) for at, p in headers(s) if frames.path_of(p) == "m/c2/l")
patch(s, at, frames.header(page, path="m/c3/other", mode=0o104755, uid=0))
s.fsck("--rebuild")
s.mount()
found = os.listdir(f"{s.mnt}/lost+found")
assert len(found) == 1 and os.listdir(f"{s.mnt}/m/c3") == ["l"]
assert s.read(f"lost+found/{found[0]}") == real.pop("m/c2/l")
st = os.stat(f"{s.mnt}/lost+found/{found[0]}")
assert (st.st_uid, st.st_mode & 0o7777) == (0, 0o600)
s.umount()

# The superblock, its copy and the catalog are lost, so the makers of frames are unknown: all files,
# including the forged one (as the newest generation), belong to root and stay readable.
del real["m/c0/l"]
for name in ("superblock", "superblock.copy"):
    with open(f"{s.path}/{name}", "r+b") as f:
        f.seek(20)
        f.write(b"\xff" * 1000)
for path in glob.glob(f"{s.path}/catalog.sqlite*"):
    os.unlink(path)
s.fsck("--rebuild")
# the new superblock is lost too, before a mount: its copy already has the new secret
with open(f"{s.path}/superblock", "r+b") as f:
    f.write(bytes(4096))
assert s.fsck("-y", ok=None).returncode == 1
s.fsck("-n", "--data")
for _ in range(2):
    s.mount()
    for path, d in real.items():
        assert s.read(path) == d
        st = os.stat(f"{s.mnt}/{path}")
        assert (st.st_uid, st.st_mode & 0o7777) == (0, 0o600)
    assert s.stats()["corrupt"] == 0
    s.umount()
    s.fsck("-n")
