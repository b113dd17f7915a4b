# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Reads of the catalog fail while names are looked up, with a remote and without one: names that
exist, names that were deleted, and names that never existed. A lookup that needs such a read fails
with EIO, and not with ENOENT; none hangs; and all are right when the fault is gone."""
import errno, os, threading
from kvtest import *
import faults

# in the root, whose path needs no read
FOUND, DELETED, NEVER = ([f"{kind}{i}" for i in range(20)] for kind in ("f", "d", "n"))


def answer(s, path):
    try:
        os.stat(f"{s.mnt}/{path}")
        return 0
    except OSError as e:
        return e.errno


def answers(s, paths):
    """The result of a stat of each path. A lookup that hangs would stop this process from ending,
    so the daemon ends then."""
    out = []
    t = threading.Thread(target=lambda: out.extend(answer(s, p) for p in paths), daemon=True)
    t.start()
    t.join(HANG)
    if t.is_alive():
        s.kill()
        raise AssertionError(f"the lookup of {paths[len(out)]} hangs")
    return out


def lookups(name, options):
    s = Store(name, options=options).mount()
    for path in FOUND + DELETED:
        s.write(path, path.encode())
    s.settle()
    for path in DELETED:
        os.unlink(f"{s.mnt}/{path}")
    for i in range(3000):  # so many names that SQLite reads another page for each lookup
        os.link(f"{s.mnt}/{FOUND[0]}", f"{s.mnt}/x{i}")
    s.umount()
    r = faults.Rules(f"calls=read path={s.path}/catalog.sqlite* nth={faults.FAR} "
                     f"count={faults.FAR} do=EIO")
    assert r.mount(s)
    unused = iter(range(10**6))

    def known():
        """After a commit SQLite's readers read all pages again. As soon as the daemon has read all
        names, lookups of absent ones read no page of the names."""
        s.write(f"new{next(unused)}", b"new")
        s.committed()
        before = r.met()[0]
        assert set(answers(s, [f"never{next(unused)}" for _ in range(20)])) == {errno.ENOENT}
        return r.met()[0] - before < 10
    wait_for(known)
    s.write("last", b"last")
    s.committed()
    r.begin()
    got = answers(s, FOUND + DELETED + NEVER)
    failed = {what: got[at * 20:at * 20 + 20].count(errno.EIO)
              for at, what in enumerate(("found", "deleted", "never"))}
    assert set(got[:20]) <= {0, errno.EIO} and set(got[20:]) <= {errno.ENOENT, errno.EIO}, got
    assert r.fired()[0] and failed["found"], failed
    if "remote" in options:
        assert failed["deleted"] and failed["never"], failed
    r.heal()
    print(name, failed)
    for path, want in [(FOUND, 0), (DELETED, errno.ENOENT), (NEVER, errno.ENOENT)]:
        assert set(answers(s, path)) == {want}, (path[0], set(answers(s, path)))
    s.umount()
    s.fsck("-n")


lookups("alone", "")
os.mkdir(f"{TMP}/remote")
lookups("remote", f"remote=dir://{TMP}/remote")
