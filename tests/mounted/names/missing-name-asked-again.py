# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Engines delete a file that they could not load. Its name, and that of its folder, is looked up in
the remote again after seconds, because other nodes may have it. A readable file that is deleted,
renamed, replaced or written again is hidden for a day, whatever the state of the tier. A file that
is deleted for all nodes stays hidden until the tier has removed it. The case checks how long each
name is hidden."""
import errno, os, shutil, sqlite3, time
from kvtest import *
import frames

DEADLINE = 4000
shared, away, flag = f"{TMP}/shared", f"{TMP}/away", f"{TMP}/hangs"
os.mkdir(shared)
s = Store(size="64M", options=f"settle=0,deadline={DEADLINE},disk=off,unit=file,"
          f"remote=dir://{shared},shim=delay-get:60000+delay-while:{flag}").mount()
NAMES = ("readable", "unread", "chunk/a", "deep/er/a", "resident", "renamed", "over", "truncated",
         "lived/a", "lived/b")
LOADING = ("loading", "hung/a")
for i, name in enumerate(NAMES + LOADING):
    os.makedirs(os.path.dirname(f"{s.mnt}/m/{name}"), exist_ok=True)
    s.write(f"m/{name}", blob(i, 20 * KiB))
os.mkdir(f"{s.mnt}/all")
os.setxattr(f"{s.mnt}/all", "user.kvcachefs.shared", b"delete")
s.write("all/a", blob("all", 20 * KiB))
s.settle()


def hidden():
    """{path: seconds} of the names that are hidden."""
    s.committed()
    with contextlib.closing(sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro",
                                            uri=True)) as db:
        (clock,), = db.execute("SELECT value FROM meta WHERE key = 'clock'")
        rows = dict(db.execute("SELECT at, until_ns FROM gone"))
    then, boot = map(int, clock.split()[:2])
    now = then + time.clock_gettime_ns(time.CLOCK_BOOTTIME) - boot
    return {at % 2**64: (until - now) / 1e9 for at, until in rows.items()}


def hides(name, seconds):
    got = hidden().get(int(frames.name_of(name)[:16], 16))
    assert got is not None, f"{name} is not hidden"
    assert (got < 60) == (seconds < 60) and got <= seconds, (name, got)


SOON, DAY = 10, 24 * 3600


def lower(name):
    os.setxattr(f"{s.mnt}/{name}", "user.kvcachefs.demote", b"cpu")
    assert s.attr(name, "state") == "lower", name


def misses(name):
    with fails(errno.ENOENT, errno.EIO, errno.ETIMEDOUT):
        s.read(name)


for name in NAMES + LOADING:
    if name not in ("resident", "renamed"):
        lower(f"m/{name}")
lower("all/a")
os.unlink(f"{s.mnt}/m/readable")
hides("m/readable", DAY)
s.read("m/lived/b")

os.rename(shared, away)  # the tier is down
misses("m/unread")
os.unlink(f"{s.mnt}/m/unread")
hides("m/unread", SOON)
for folder, file in ("m/chunk", "a"), ("m/deep", "er/a"):
    misses(f"{folder}/{file}")
    shutil.rmtree(f"{s.mnt}/{folder}")
for name in "m/chunk", "m/chunk/a", "m/deep", "m/deep/er", "m/deep/er/a":
    hides(name, SOON)
os.unlink(f"{s.mnt}/m/resident")
hides("m/resident", DAY)
os.rename(f"{s.mnt}/m/renamed", f"{s.mnt}/m/other")
hides("m/renamed", DAY)
# a new file replaces a file that could not be read
s.write("m/tmp", b"own")
os.rename(f"{s.mnt}/m/tmp", f"{s.mnt}/m/over")
s.write("m/truncated", b"own")
for name in "m/over", "m/truncated":
    assert s.read(name) == b"own"
# deletion for all nodes
os.unlink(f"{s.mnt}/all/a")
hides("all/a", DAY)
# a file that was loaded before the tier failed
os.unlink(f"{s.mnt}/m/lived/b")
hides("m/lived/b", DAY)
os.rename(away, shared)

open(flag, "w").close()  # the tier does not answer
misses("m/loading")
os.unlink(f"{s.mnt}/m/loading")
hides("m/loading", SOON)
misses("m/hung/a")
shutil.rmtree(f"{s.mnt}/m/hung")
hides("m/hung/a", SOON)
hides("m/hung", SOON)
os.unlink(flag)

# the other nodes' files appear again, with their contents
wait_for(lambda: os.path.exists(f"{s.mnt}/m/hung/a"), every=0.5)
wait_for(lambda: os.path.exists(f"{s.mnt}/m/unread"), every=0.5)
assert s.read("m/unread") == blob(NAMES.index("unread"), 20 * KiB)
assert not os.path.exists(f"{s.mnt}/m/resident")
name = frames.name_of("all/a")
wait_for(lambda: not os.path.exists(f"{shared}/{name[:2]}/{name}"))
with fails(errno.ENOENT):
    os.stat(f"{s.mnt}/all/a")
for name in "m/over", "m/truncated":
    os.unlink(f"{s.mnt}/{name}")
s.umount()
s.fsck("-n")
