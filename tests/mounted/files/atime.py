# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""An open for reading updates the access time, and the time persists. noatime disables that;
relatime updates only a time that is not later than the last change, or is a day old. Times that a
caller sets are always kept, O_NOATIME is honoured, and suppressed updates do not reach the catalog.
"""
import os, sqlite3, time
from kvtest import *

S, DAY = 10**9, 86400
FILES = ("old", "mid", "new", "quiet")
s = Store(size="64M", cpu="32M")


def at(path):
    return os.stat(f"{s.mnt}/m/{path}").st_atime_ns


def kept():
    """The access times in the catalog of an unmounted store."""
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    rows = dict(db.execute("SELECT m.name, n.atime_ns FROM names m JOIN nodes n ON n.ino = m.ino"))
    db.close()
    return {f: rows[f] for f in FILES}


def read(path, flags=0):
    fd = os.open(f"{s.mnt}/m/{path}", os.O_RDONLY | flags)
    assert os.read(fd, 100) == path.encode()
    os.close(fd)


s.mount()
for f in FILES:
    s.write(f"m/{f}", f.encode())
s.umount()
for option, moved in (("", {"old", "mid", "new"}), ("atime", {"old", "mid", "new"}),
                      ("noatime", set()), ("relatime", {"old", "mid"}),
                      ("noatime,relatime", {"old", "mid"}), ("relatime,noatime", set()),
                      ("noatime,strictatime", {"old", "mid", "new"})):
    s.mount(options=option)
    now = time.time_ns()
    for f, mtime, atime in (("old", now - 9 * DAY * S, now - 2 * DAY * S),
                            ("mid", now - 3600 * S, now - 3600 * S - 1),
                            ("new", now - 9 * DAY * S, now + 3600 * S),
                            ("quiet", now - 9 * DAY * S, now - 2 * DAY * S)):
        os.utime(f"{s.mnt}/m/{f}", ns=(atime, mtime))
    before = {f: at(f) for f in FILES}
    assert before["old"] == now - 2 * DAY * S and before["new"] == now + 3600 * S, option
    for f in FILES:
        read(f, os.O_NOATIME if f == "quiet" else 0)
    s.umount()  # until now the kernel has cached the earlier times
    after = kept()
    assert {f for f in FILES if after[f] != before[f]} == moved, (option, before, after)
    assert all(now <= after[f] <= time.time_ns() for f in moved), option
    s.mount(options=option)
    assert {f: at(f) for f in FILES} == after, option
    s.umount()
s.fsck("-n")
