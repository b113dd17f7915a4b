# SPDX-License-Identifier: Apache-2.0
# ways: plain
"""The catalog use of each user is counted correctly even if the catalog fails. One catalog read
fails at every point of an attribute change, a chown and an unlink. The change is refused or
counted, and a use that could not be determined is counted again at the next start."""
import os, sqlite3
from faults import FAR, Rules
from kvtest import Store

s = Store("s", size="32M", options="settle=0")
MOST = 40


def usage():
    st = s.stats()
    return st["catalog_inode_bytes"], st["catalog_attribute_bytes"]


def anew():
    """Removes the stored sums, so that the next mount counts the use again."""
    with sqlite3.connect(f"{s.path}/catalog.sqlite") as db:
        db.execute("DELETE FROM meta WHERE key = 'usage'")
    db.close()


CHANGES = {
    "attribute": lambda p: os.setxattr(p, "user.a", b"x" * 500),
    "less": lambda p: os.removexattr(p, "user.a"),
    "owner": lambda p: os.chown(p, 4711, 4711),
    "unlink": os.unlink,
}
s.mount()
for what in CHANGES:
    os.mkdir(f"{s.mnt}/{what}")
    for i in range(MOST):
        path = f"{s.mnt}/{what}/{i}"
        with open(path, "xb"):
            pass
        os.setxattr(path, "user.a", b"y" * 100)
        os.setxattr(path, "user.b", b"z" * 1000)
s.settle()
s.umount()
met = 0
for what, change in CHANGES.items():
    for i in range(MOST):
        rules = Rules(f"calls=read path={s.path}/catalog.sqlite* nth={FAR} do=EIO")
        assert rules.mount(s)
        path = f"{s.mnt}/{what}/{i}"
        os.stat(path)
        rules.begin(after=i)
        try:
            change(path)
        except OSError as e:
            print(what, i, e)
        fired = rules.fired()[0]
        rules.heal()
        s.umount()
        s.mount()
        was = usage()
        s.umount()
        anew()
        s.mount()
        assert usage() == was, (what, i, usage(), was)
        s.umount()
        met += fired
        if not fired:
            break
assert met > len(CHANGES), met
s.fsck("-n")
print(met, "reads")
