# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""A mount and fsck refuse a catalog of an older, a newer or an unknown format with one line, which
says what to do, and change nothing. A new store in its place works."""
import os, sqlite3
from kvtest import *

need_mount()
s = Store("store", cpu="32M").mount()
s.write("m/chunk", blob(1, 100 * KiB))
s.settle()
s.umount()
os.makedirs(f"{TMP}/mnt", exist_ok=True)
OLDER = "create a new store with mkfs.kvcachefs --force"


def catalog(sql):
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    found = db.execute(sql).fetchall()
    db.commit()
    db.close()
    return found


def shown(value):
    return value.replace("\n", "?")


def set_format(value):
    catalog(f"UPDATE meta SET value = '{value}' WHERE key = 'format'")


def contents():
    """The bytes of all files of the store."""
    return {f: open(f"{s.path}/{f}", "rb").read() for f in os.listdir(s.path)
            if not f.endswith(("-shm", "-wal"))}


(known,), = catalog("SELECT value FROM meta WHERE key = 'format'")
# format 1 had other definitions of its tables, too
CASES = (("1", OLDER, "ALTER TABLE chunks DROP COLUMN bytes"), ("3", OLDER, None),
         ("0", OLDER, None), ("", OLDER, None), ("x", OLDER, None), ("x\ny", OLDER, None),
         (str(int(known) + 1), "use a newer kvcachefs", None),
         ("99", "use a newer kvcachefs", None))
for value, advice, change in CASES:
    good = contents()
    set_format(value)
    if change:
        catalog(change)
    before = contents()
    p = run("timeout", str(HANG), binary("kvcachefs"), s.path, f"{TMP}/mnt", "-o",
            f"cpu=32M,run={TMP}/run")
    assert p.returncode not in (0, 124) and p.stdout.count("\n") == 1, p
    assert f"has format {shown(value)}," in p.stdout and advice in p.stdout, p
    assert not os.path.ismount(f"{TMP}/mnt")
    for flag in "-n", "-y":
        p = s.fsck(flag, ok=None)
        assert p.returncode == 8 and p.stdout.count("\n") == 1, (flag, p)
        assert f"has format {shown(value)}," in p.stdout and advice in p.stdout, (flag, p)
    assert contents() == before, [f for f in before if contents().get(f) != before[f]]
    with open(f"{s.path}/catalog.sqlite", "wb") as f:
        f.write(good["catalog.sqlite"])
s.fsck("-n")
set_format("3")
run(binary("mkfs.kvcachefs"), "--size", "64M", "--force", s.path, ok=True)
s.mount()
assert os.listdir(s.mnt) == []
s.write("m/chunk", blob(2, 100 * KiB))
s.umount()
s.fsck("-n")
