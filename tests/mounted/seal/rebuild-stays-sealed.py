# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A rebuild remembers that a store is sealed: afterwards the store is not mounted without keys,
with or without the information of the old catalog, and not with a key that the old catalog rejects.
If that catalog cannot be read, nothing is rebuilt."""
import contextlib, glob, os, shutil, sqlite3
from kvtest import *
import faults

keys, other = f"{TMP}/keys", f"{TMP}/other"
for k in (keys, other):
    run(binary("kvcachectl"), "newkey", k, ok=True)
for name, lost in (("with", False), ("without", True)):
    s = Store(name, cpu="32M", size="16M").mount(options=f"keyfile={keys}")
    for i in range(3):
        s.write(f"m/{i}", blob(i, 100000))
    s.settle()
    time.sleep(0.3)
    s.umount()
    if lost:
        os.unlink(f"{s.path}/catalog.sqlite")
    s.fsck("--rebuild", ok=True)
    s.fsck("-n", ok=True)

    def refused(*more):
        o = ",".join([f"cpu=32M,run={TMP}/run", *more])
        p = run(binary("kvcachefs"), s.path, s.mnt, "-o", o)
        assert p.returncode and p.stdout.count("\n") == 1, (name, p.stdout)
        return p.stdout
    assert "encrypted" in refused(), name
    if not lost:
        assert "not the key of this number" in refused(f"keyfile={other}")
    for _ in range(2):
        s.mount(options=f"keyfile={keys}")
        for i in range(3):
            assert s.read(f"m/{i}") == blob(i, 100000), (name, i)
        s.umount()
    assert "not the key of this number" in refused(f"keyfile={other}"), name

# a temporary error must not lose the information that only the old catalog has: then nothing is
# done
s = Store("moment", cpu="32M", size="16M").mount(options=f"keyfile={keys}")
s.write("m/l", blob(1, 100000))
s.settle()
s.umount()
keep, catalog = f"{TMP}/keep", f"path={s.path}/catalog.sqlite*"
shutil.copytree(s.path, keep)


def fresh():
    shutil.rmtree(s.path)
    run("cp", "-a", keep, s.path, ok=True)


def meta():
    db = sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True)
    with contextlib.closing(db):
        return db.execute("SELECT * FROM meta WHERE key GLOB 'key_*' OR key = 'sealed' OR "
                          "key = 'store' ORDER BY 1").fetchall()


fresh()
known = meta()
assert len(known) >= 3, known
told = 0
for how, do, step in (("read", "EIO", 2), ("open", "EIO", 1), ("open", "EMFILE", 1)):
    for n, r in faults.sweep(fresh, [binary("fsck.kvcachefs"), "--rebuild", s.path],
                             f"calls={how} {catalog}", do, step):
        assert r.rc in (0, 8), (how, do, n, r)
        assert meta() == known, (how, do, n, r, meta(), known)
        if r.rc:
            assert not glob.glob(f"{s.path}/catalog.sqlite.old*"), (how, do, n, r)
        told += "the old catalog" in r.out
assert told >= 3, told
# while the error lasts, the catalog can be moved away, as the message says
fresh()
lasts = f"calls=read path={s.path}/catalog.sqlite nth=1 count=0 do=EIO"
r = faults.Run([binary("fsck.kvcachefs"), "--rebuild", s.path], lasts)
assert r.rc == 8 and f"move {s.path}/catalog.sqlite away" in r.out and meta() == known, r
os.rename(f"{s.path}/catalog.sqlite", f"{TMP}/moved")
s.fsck("--rebuild", ok=True)
s.mount(options=f"keyfile={keys}")
assert s.read("m/l") == blob(1, 100000)
s.umount()
