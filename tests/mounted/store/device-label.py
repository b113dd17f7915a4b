# SPDX-License-Identifier: Apache-2.0
# ways: none
"""A block device is identified by its label. If device names were exchanged, or another filesystem
was made on the device, the mount and fsck -y are refused and write nothing. mkfs keeps the device
name as given and refuses a device that is in use without --force. A crafted superblock has no
effect elsewhere."""
import os, shutil
from frames import sum128
from kvtest import *

need_mount()
MKFS, FSCK, KV = (binary(n) for n in ("mkfs.kvcachefs", "fsck.kvcachefs", "kvcachefs"))
loops = []


def loop(name):
    with open(f"{TMP}/{name}", "wb") as f:
        f.truncate(64 * MiB)
    p = run("losetup", "--find", "--show", f"{TMP}/{name}")
    if p.returncode:
        skip(f"needs loop devices: {p.stdout.strip()}")
    loops.append(p.stdout.strip())
    return loops[-1]


def digest(dev):
    with open(dev, "rb") as f:
        return hashlib.md5(f.read()).hexdigest()


try:
    a, b = loop("a"), loop("b")
    name, store = f"{TMP}/byid", f"{TMP}/s"
    os.symlink(a, name)
    run("mkfs.ext4", "-q", a, ok=True)
    run("mkfs.ext4", "-q", b, ok=True)
    before = digest(a)
    r = run(MKFS, "--device", name, store)
    assert r.returncode == 1 and "ext4" in r.stdout and "--force" in r.stdout, r
    assert digest(a) == before and not os.path.exists(store)
    run(MKFS, "--force", "--device", name, store, ok=True)
    assert name.encode() in open(f"{store}/superblock", "rb").read()
    assert run("blkid", "-p", a).returncode == 2
    s = Store("s", make=False).mount()
    s.write("m/c/l", blob(1, 4 * MiB))
    s.settle()
    s.umount()
    s.fsck("-n", "--data")

    def refused(dev, *says):
        before = digest(dev)
        for command in ([KV, store, s.mnt, "-o", f"cpu=32M,run={TMP}/run"], [FSCK, "-y", store]):
            r = run(*command)
            assert r.returncode and any(w in r.stdout for w in says), (command, r)
            assert digest(dev) == before, command
    # the device name now leads to another disk
    os.unlink(name)
    os.symlink(b, name)
    refused(b, "does not have this store's label")
    run(MKFS, "--force", "--device", b, f"{TMP}/other", ok=True)
    refused(b, "another kvcachefs store")
    r = run(MKFS, "--device", b, f"{TMP}/third")
    assert r.returncode == 1 and "--force" in r.stdout, r
    # a damaged label is repaired from its copy
    os.unlink(name)
    os.symlink(a, name)
    with open(a, "r+b") as f:
        f.seek(20)
        f.write(b"\xff\xfe")
    r = run(KV, store, s.mnt, "-o", f"cpu=32M,run={TMP}/run")
    assert r.returncode and "fsck.kvcachefs -y" in r.stdout, r
    assert s.fsck("-y", ok=None).returncode == 1
    s.mount()
    assert s.read("m/c/l") == blob(1, 4 * MiB)
    s.umount()
    # a device that has grown, one that is added while the store is in use, and its removal
    s.mount()
    CTL = binary("kvcachectl")
    os.truncate(f"{TMP}/a", 96 * MiB)
    run("losetup", "--set-capacity", a, ok=True)
    run(CTL, "grow", s.mnt, ok=True)
    p = run(CTL, "devices", s.mnt, ok=True)
    assert "94.0 MiB" in p.stdout and p.stdout.rstrip().endswith(name), p
    run("mkfs.ext4", "-q", b, ok=True)
    before = digest(b)
    r = run(CTL, "add", b, s.mnt)
    assert r.returncode == 1 and "ext4" in r.stdout and "--force" in r.stdout, r
    assert digest(b) == before
    run(CTL, "add", "--force", b, s.mnt, ok=True)
    r = run(CTL, "add", b, s.mnt)
    assert r.returncode == 1 and "in use" in r.stdout, r
    for i in range(20):
        s.write(f"m/more{i}/l", blob(i, MiB))
    s.settle()
    s.umount()
    s.drop_pool()
    s.fsck("-n", "--data")
    s.mount()
    run(CTL, "remove", "0", s.mnt, ok=True)
    assert s.read("m/c/l") == blob(1, 4 * MiB)
    s.umount()
    assert run("blkid", "-p", a).returncode == 2 and digest(a) != digest(b)
    with open(a, "rb") as f:
        assert f.read(4096) == bytes(4096)
    s.drop_pool()
    s.mount()
    assert all(s.read(f"m/more{i}/l") == blob(i, MiB) for i in range(20))
    run(CTL, "add", a, s.mnt, ok=True)
    run(CTL, "remove", b, s.mnt, ok=True)
    s.umount()
    s.drop_pool()
    s.fsck("-n", "--data")
    # a new store replaces the old one on the same device
    run(MKFS, "--force", "--device", name, store, ok=True)
    s.mount()
    s.write("m/c/l", blob(2, MiB))
    s.settle()
    s.umount()
    s.fsck("-n", "--data")
finally:
    for dev in loops:
        run("losetup", "-d", dev)

# a superblock that names another user's file as the data device
victim = f"{TMP}/victim"
with open(victim, "wb") as f:
    f.write(b"V" * (32 * MiB))
before = digest(victim)
c = Store("c", size="16M")
for n in ("superblock", "superblock.copy"):
    with open(f"{c.path}/{n}", "r+b") as f:
        page = bytearray(f.read())
        page[12:16] = (1).to_bytes(4, "little")
        page[48:48 + 1024] = victim.encode().ljust(1024, b"\0")
        page[4080:] = sum128(bytes(page[:4080]))
        f.seek(0)
        f.write(page)
for command in ([KV, c.path, c.mnt, "-o", f"cpu=32M,run={TMP}/run"], [FSCK, "-y", c.path]):
    r = run(*command)
    assert r.returncode and "not a block device" in r.stdout, (command, r)
assert digest(victim) == before
