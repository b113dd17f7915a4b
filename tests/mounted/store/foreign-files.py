# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The mount, fsck -y and mkfs --force refuse with one line a store whose files are links, pipes or
another user's, and change nothing outside of it. They also refuse a folder of another user, or one
that others can write to. mkfs does not change the mode of a folder that holds other files."""
import os, shutil
from kvtest import *

need_mount()
MKFS, FSCK, KV = (binary(n) for n in ("mkfs.kvcachefs", "fsck.kvcachefs", "kvcachefs"))
os.chmod(TMP, 0o755)
p, m = f"{TMP}/store", f"{TMP}/mnt"
os.mkdir(m)
VICTIM = f"{TMP}/victim"
with open(VICTIM, "wb") as f:
    f.write(b"keep me\n" * 4096)
os.chmod(VICTIM, 0o644)


def state():
    st = os.stat(VICTIM)
    with open(VICTIM, "rb") as f:
        return st.st_mode, st.st_size, st.st_mtime_ns, hashlib.md5(f.read()).hexdigest()


BEFORE = state()


def refused(what, *says):
    for command in ([KV, p, m, "-o", f"cpu=32M,run={TMP}/run"], [FSCK, "-y", p],
                    [MKFS, "--force", "--size", "16M", p]):
        r = run(*command)
        assert r.returncode and r.stdout.count("\n") == 1, (what, command, r)
        assert any(w in r.stdout for w in says), (what, command, r.stdout)
        assert state() == BEFORE, (what, command, r)
        assert not os.path.ismount(m)


NAMES = ["superblock", "superblock.copy", "catalog.sqlite", "catalog.sqlite-wal",
         "catalog.sqlite-shm", "catalog.sqlite-mark", "catalog.sqlite-journal", "data", "reserve",
         "policies", "policies.new", "superblock.next", "catalog.sqlite.new",
         "catalog.sqlite.next"]


def one(name, target, replace):
    run(MKFS, "--size", "16M", p, ok=True)
    at = f"{p}/{name}"
    if os.path.exists(at):
        os.unlink(at)
    replace(at)
    refused((name, target), name)
    shutil.rmtree(p)


for name in NAMES:
    one(name, "a link", lambda at: os.symlink(VICTIM, at))
    one(name, "a link to nothing", lambda at: os.symlink(f"{TMP}/absent", at))
    assert not os.path.exists(f"{TMP}/absent")
for name in ("superblock", "catalog.sqlite-wal", "data", "policies"):
    one(name, "a pipe", os.mkfifo)
    one(name, "a folder", os.mkdir)

    def theirs(at):
        with open(at, "wb") as f:
            f.write(b"x")
        os.chown(at, 4711, 4711)
    one(name, "another user's", theirs)

# the folder
run(MKFS, "--size", "16M", p, ok=True)
os.chown(p, 4711, 4711)
refused("another user's folder", "4711")
os.chown(p, 0, 0)
for mode in (0o777, 0o770, 0o1777):
    os.chmod(p, mode)
    refused(oct(mode), "chmod go-w")
os.chmod(p, 0o755)
s = Store("store", make=False, cpu="32M").mount()
s.umount()
assert os.stat(p).st_mode & 0o777 == 0o755
s.fsck("-n")
shutil.rmtree(p)

# mkfs on an existing folder
for mode, full, owner, works, after in (
        (0o755, True, 0, True, 0o755), (0o755, False, 0, True, 0o700),
        (0o777, False, 0, True, 0o700),
        (0o777, True, 0, False, 0o777), (0o755, True, 4711, False, 0o755),
        (0o755, False, 4711, False, 0o755)):
    os.mkdir(p)
    if full:
        with open(f"{p}/other", "w") as f:
            f.write("x")
    os.chmod(p, mode)
    os.chown(p, owner, owner)
    r = run(MKFS, "--size", "16M", p)
    assert (r.returncode == 0) == works, (oct(mode), full, owner, r)
    assert r.stdout.count("\n") == 1, r.stdout
    assert os.stat(p).st_mode & 0o7777 == after, (oct(mode), full, owner)
    assert works or os.listdir(p) == ["other"] * full
    shutil.rmtree(p)
os.mkdir(p)
os.chmod(p, 0o750)
assert run(MKFS, "--size", "1K", p).returncode and os.stat(p).st_mode & 0o777 == 0o750
