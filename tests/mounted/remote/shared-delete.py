# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""With user.kvcachefs.shared=delete, files that are deleted in the model are also removed from the
shared tier, even after a kill or a failure of the tier: the next start does it. Until then they do
not reappear. A file that was stored again under the name stays, and so do other models' files. If
the catalog cannot be read, nothing is deleted."""
import errno, os, sqlite3
from kvtest import *
import faults, frames

REMOTE = f"{TMP}/remote"
os.mkdir(REMOTE)
s = Store(size="64M", cpu="32M", options=f"settle=0,remote=dir://{REMOTE}")
STUCK = f"calls=unlink path={REMOTE}/* nth={faults.FAR} count={faults.FAR} do=EIO"


def there(path):
    name = frames.name_of(path)
    return os.path.exists(f"{REMOTE}/{name[:2]}/{name}")


def notes():
    """The pending removals of an unmounted store."""
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    n = db.execute("SELECT count(*) FROM meta WHERE key GLOB 'unshare:*'").fetchone()[0]
    db.close()
    return n


def put(path, seed):
    s.write(path, blob(seed, 50000))
    s.settle()
    wait_for(lambda: there(path))


def absent(path):
    with fails(errno.ENOENT):
        os.stat(f"{s.mnt}/{path}")


for way in ("killed", "killed, pool lost", "unmounted"):
    r = faults.Rules(STUCK)
    assert r.mount(s)
    for model in ("gone", "keep"):
        os.makedirs(f"{s.mnt}/{model}", exist_ok=True)
    os.setxattr(f"{s.mnt}/gone", "user.kvcachefs.shared", b"delete")
    paths = [f"gone/{i}" for i in range(4)]
    for i, path in enumerate(paths + ["keep/0"]):
        put(path, i)
    r.begin()  # from here on calls to the tier fail
    for path in paths + ["keep/0"]:
        os.unlink(f"{s.mnt}/{path}")
    s.committed()
    if way == "unmounted":
        s.umount()
    else:
        s.kill()
        run("umount", "-l", s.mnt)
        if "lost" in way:
            s.drop_pool()
    assert all(there(path) for path in paths), "a copy was removed although calls fail"
    r.heal()
    assert notes() == 4, (way, notes())
    s.fsck("-n", ok=None)
    s.mount()
    for path in paths:
        absent(path)
    put(paths[0], 77)  # the same name, another file
    wait_for(lambda: not any(there(path) for path in paths[1:]))
    s.settle()
    for path in paths[1:]:
        absent(path)
    assert there(paths[0]) and there("keep/0"), "the copy of an existing file was removed"
    assert s.read(paths[0]) == blob(77, 50000)
    s.umount()
    assert notes() == 0
    s.fsck("-n")
    # other nodes find the new file
    o = Store(f"o{len(way)}", size="64M", cpu="32M", options=s.options).mount()
    assert o.read(paths[0]) == blob(77, 50000)
    absent_there = [p for p in paths[1:] if os.path.exists(f"{o.mnt}/{p}")]
    assert not absent_there, absent_there
    o.umount()
    s.mount()
    os.unlink(f"{s.mnt}/{paths[0]}")
    wait_for(lambda: not there(paths[0]))
    s.umount()
    assert notes() == 0

# one read of the catalog fails, the first of an unlink, the second, ...
s.mount()
READS = 12
for i in range(READS):
    put(f"gone/e{i}", i)
s.umount()
refused = 0
for i in range(READS):
    path = f"gone/e{i}"
    r = faults.Rules(f"calls=read path={s.path}/catalog.sqlite* nth={faults.FAR} do=EIO")
    assert r.mount(s)
    os.stat(f"{s.mnt}/{path}")
    r.begin(after=i)
    try:
        os.unlink(f"{s.mnt}/{path}")
    except OSError as e:
        assert e.errno == errno.EIO, e
        refused += 1
        assert there(path)
        r.heal()
        os.unlink(f"{s.mnt}/{path}")
    fired = r.fired()[0]
    r.heal()
    wait_for(lambda: not there(path))
    absent(path)
    s.umount()
    if not fired:
        break
assert refused, "no read of the catalog was met"
s.fsck("-n")
