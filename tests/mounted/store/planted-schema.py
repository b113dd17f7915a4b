# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""A mount refuses a catalog with a planted trigger, view, index, table, generated column, check or
changed column type. fsck -n reports it; fsck -y removes it and keeps all files. The planted SQL
never runs."""
import os, shutil, sqlite3
from kvtest import *

need_mount()
s = Store("store", cpu="32M").mount()
s.write("m/chunk", blob(1, 100 * KiB))
s.settle()
s.umount()
KV = binary("kvcachefs")
os.makedirs(f"{TMP}/mnt", exist_ok=True)
TABLES = ("meta", "names", "nodes", "targets", "objects", "placements", "gone", "xattrs", "chunks")
GOOD = f"{TMP}/good"
shutil.copytree(s.path, GOOD)
# would fill the catalog, or not end, if it ran
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x FROM c WHERE x<0"
MARK = "INSERT OR REPLACE INTO xattrs VALUES(1, 'user.ran', x'31')"


def altered(table, old, new):
    """SQL that rewrites the definition, as a user with write access to the file can."""
    return ("PRAGMA writable_schema=ON; UPDATE sqlite_schema SET sql = "
            f"replace(sql, '{old}', '{new}') WHERE name = '{table}'; PRAGMA writable_schema=RESET")


PLANTED = [(what, sql, True) for what, sql in (
    ("trigger", f"CREATE TRIGGER planted AFTER INSERT ON names BEGIN {MARK}; "
                f"INSERT INTO gone SELECT abs(x),1,1 FROM ({ENDLESS}); END"),
    ("trigger", f"CREATE TRIGGER planted BEFORE DELETE ON meta BEGIN {MARK}; END"),
    ("trigger", f'CREATE TRIGGER "planted\x1b]0;x\x07\n" AFTER UPDATE ON chunks BEGIN {MARK}; END'),
    ("view", f"CREATE VIEW planted AS {ENDLESS}"),
    ("index", "CREATE INDEX planted ON names(kind)"),
    ("index", "CREATE UNIQUE INDEX planted ON nodes(abs(mtime_ns))"),
    ("table", "CREATE TABLE planted(x INTEGER CHECK(x < 7)); INSERT INTO planted VALUES(1)"),
    ("table", "CREATE VIRTUAL TABLE planted USING fts5(x)"),
    ("index", "DROP INDEX names_ino; CREATE INDEX names_ino ON names(kind)"),
)] + [(what, sql, False) for what, sql in (
    ("nodes", "ALTER TABLE nodes ADD COLUMN planted AS (abs(mode)) VIRTUAL"),
    ("chunks", "ALTER TABLE chunks ADD COLUMN planted TEXT DEFAULT 'x'"),
    ("names", altered("names", "name TEXT NOT NULL", "name BLOB NOT NULL")),
    ("objects", altered("objects", "gen INTEGER NOT NULL", "gen INTEGER NOT NULL CHECK(gen < 2)")),
    ("targets", altered("targets", "target TEXT", "target TEXT COLLATE NOCASE")),
    ("meta", "DROP TABLE meta; CREATE VIEW meta AS SELECT 'format' AS key, '4' AS value"),
)]


def plant(sql):
    shutil.rmtree(s.path)
    shutil.copytree(GOOD, s.path)
    with open(f"{s.path}/catalog.sqlite", "rb") as f:
        assert f.read(6) == b"SQLite"
    db = sqlite3.connect(f"{s.path}/catalog.sqlite")
    db.executescript(sql)
    db.close()


def ran():
    """Has MARK run? The file is read without its schema's triggers."""
    with open(f"{s.path}/catalog.sqlite", "rb") as f:
        return b"user.ran1" in f.read()


for what, sql, mended in PLANTED:
    plant(sql)
    p = run("timeout", str(HANG), KV, s.path, f"{TMP}/mnt", "-o", f"cpu=32M,run={TMP}/run")
    assert p.returncode not in (0, 124) and p.stdout.count("\n") == 1, (sql, p)
    assert "run fsck.kvcachefs -y on the store" in p.stdout and what in p.stdout, (sql, p)
    assert "\x1b" not in p.stdout, p
    assert not os.path.ismount(f"{TMP}/mnt")
    p = s.fsck("-n", ok=None)
    assert p.returncode == 4 and what in p.stdout, (sql, p)
    assert not ran(), sql
    p = s.fsck("-y", ok=None)
    assert p.returncode in (0, 1), (sql, p)
    assert ("a new catalog" in p.stdout) == (not mended), (sql, p)
    with sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True) as db:
        rows = db.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
    db.close()
    assert not any("planted" in (r[1] + (r[2] or "")) for r in rows), (sql, rows)
    assert sorted(r[1] for r in rows if r[0] == "table") == sorted(TABLES), (sql, rows)
    if what in ("trigger", "names"):
        s.mount()
        assert s.read("m/chunk") == blob(1, 100 * KiB), sql
        s.umount()
    else:
        s.fsck("-n")
    assert not ran(), sql

# a mount refuses a catalog without one of its indexes, and fsck -y creates the index
for index in "chunks_pinned", "chunks_rank":
    plant(f"DROP INDEX {index}")
    p = run(KV, s.path, f"{TMP}/mnt", "-o", f"cpu=32M,run={TMP}/run")
    assert p.returncode and "missing" in p.stdout and p.stdout.count("\n") == 1, p
    assert f"the index {index} is missing" in s.fsck("-n", ok=None).stdout
    assert f"the index {index} is missing (repaired)" in s.fsck("-y", ok=None).stdout
    s.fsck("-n")


# a row that is longer than any valid one is damage, and the daemon allocates no memory for it
plant("UPDATE objects SET sum = zeroblob(300000000)")
try:
    s.mount()
except AssertionError:
    assert "fsck" in s.log(), s.log()
else:
    try:
        s.read("m/chunk")
        assert 0
    except OSError as e:
        assert e.errno == errno.EIO, e
    with open(f"/proc/{s.daemon.pid}/status") as f:
        peak = next(int(l.split()[1]) * KiB for l in f if l.startswith("VmHWM"))
    assert peak < 200 * MiB, peak
    s.umount()
assert s.fsck("-n", ok=None).returncode == 4
assert s.fsck("-y", ok=None).returncode == 1
s.mount()
assert s.read("m/chunk") == blob(1, 100 * KiB)
s.umount()
