# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""The filesystem of a dir:// tier is unmounted, and its bare folder remains. Nothing is written
there and nothing is lost until it is mounted again. The mark identifies the share, also on another
device. An invalid mark proves nothing and has no effect."""
import errno, os, shutil
from kvtest import KiB, Store, TMP, binary, blob, fails, run, wait_for
import frames

MARK = ".kvcachefs-remote"
shared, made = f"{TMP}/shared", iter(range(100))
os.makedirs(shared)


def filesystem():
    """A filesystem of the case, which exists as long as it is mounted anywhere."""
    path = f"{TMP}/fs{next(made)}"
    os.makedirs(path)
    run("mount", "-t", "tmpfs", "-o", "mode=0700", "kvtest", path, ok=True)
    return path


def mount(path):
    run("mount", "--bind", path, shared, ok=True)


def umount():
    def gone():
        return run("umount", shared).returncode == 0
    wait_for(gone)  # a call of the daemon may still use it


def tiers(path):
    return s.attr(path, "tiers").split(",")


def up():
    return s.stats()["tier_dir_up"] == 1


def there(path):
    wait_for(up)
    return s.read(path)


def copied(paths):
    wait_for(lambda: all("dir" in tiers(p) for p in paths))


def refused(path):
    """Its load: a miss to a reader, although the file stays, and an error to a writer."""
    with fails(errno.ENOENT):
        s.read(path)
    with fails(errno.EIO):
        os.close(os.open(f"{s.mnt}/{path}", os.O_RDWR))


def lowered(top, first, n=4):
    """A number of objects that only the folder has."""
    got = {f"m/{top}{i}/l": blob(first + i, 20 * KiB) for i in range(n)}
    for path, d in got.items():
        s.write(path, d)
    copied(got)
    for path in got:
        lower(path)
    return got


def lower(path):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    assert s.attr(path, "state") == "lower"


one = filesystem()
mount(one)
s = Store("s", size="64M", options=f"settle=0,deadline=3000,disk=off,remote=dir://{shared}").mount()
old = lowered("old", 0)
assert run(binary("kvcachectl"), "import", s.mnt).returncode == 0

# The bare folder.
umount()
new = {f"m/new{i}/l": blob(100 + i, 20 * KiB) for i in range(3)}
for path, d in new.items():
    s.write(path, d)
wait_for(lambda: s.stats()["tier_errors"] >= len(new) or os.listdir(shared))
assert not os.listdir(shared), "copies lie in the bare folder"
for path in old:
    refused(path)
assert run(binary("kvcachectl"), "import", s.mnt).returncode != 0
wait_for(lambda: not up())
assert not os.listdir(shared) and "mount the share there" in s.log()
with open(f"{one}/{MARK}") as f:
    mark = f.read()
assert len(mark) == 33, mark

# Invalid marks. A frame of this store does not identify the share either, once the store has seen a
# mark.
path, other = list(old)[:2]
place = frames.name_of(path)
for how in ("empty", "long ago", "another", "link", "folder", "fifo", "frame"):
    mount(one)
    for p in (path, other):
        assert there(p) == old[p]
        lower(p)
    umount()
    at, errors = f"{shared}/{MARK}", s.stats()["tier_errors"]
    if how == "link":
        os.symlink(f"{one}/{MARK}", at)
    elif how == "folder":
        os.mkdir(at)
    elif how == "fifo":
        os.mkfifo(at)
    elif how == "frame":
        at = f"{shared}/{place[:2]}"
        os.mkdir(at)
        shutil.copy(f"{one}/{place[:2]}/{place}", at)
        s.read(path)
    else:
        with open(at, "w") as f:
            f.write({"empty": "", "long ago": mark.upper(), "another": "0" * 32 + "\n"}[how])
    refused(other)
    assert s.stats()["tier_errors"] > errors, how
    assert os.listdir(shared) == [os.path.basename(at)], (how, os.listdir(shared))
    if how in ("folder", "frame"):
        shutil.rmtree(at)
    else:
        os.unlink(at)

# Mounted again, also on another device.
mount(one)
for path, d in old.items():
    assert there(path) == d
copied(new)
again = lowered("again", 200)
umount()
refused("m/again0/l")
two = filesystem()
run("cp", "-a", f"{one}/.", two, ok=True)
mount(two)
for path, d in again.items():
    assert there(path) == d
s.write("m/two", b"z" * 5000)
copied(["m/two"])
place = frames.name_of("m/two")
assert os.path.exists(f"{two}/{place[:2]}/{place}")
assert not os.path.exists(f"{one}/{place[:2]}/{place}")
st = s.stats()
assert st["corrupt"] == 0 and st["copies_failing"] == 0, st

# Another node uses the existing mark.
t = Store("t", size="64M", options=f"settle=0,disk=off,remote=dir://{shared}").mount()
assert t.read("m/two") == b"z" * 5000
with open(f"{shared}/{MARK}") as f:
    assert f.read() == mark
t.umount()
s.umount()
umount()
