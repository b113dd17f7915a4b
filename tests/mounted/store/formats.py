# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Stores of every earlier format of catalog, frames and superblock (tests/lib/stores), clean and
after a kill, plain and sealed. fsck -n changes nothing, a mount upgrades them, and every byte, name
and attribute is there."""
import glob, os, sqlite3, subprocess
from kvtest import *
from stores.make import FILES, KEYS, content

here = os.path.join(os.path.dirname(__file__), "../../lib/stores")
names = sorted(os.path.basename(p)[:-len(".tar.xz")] for p in glob.glob(f"{here}/*.tar.xz"))
assert {n[:8] for n in names} == {f"catalog{n}" for n in (1, 2, 3, 4)}
with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write(KEYS)


def format_of(s):
    with sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True) as db:
        return db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()[0]


def versions(s):
    """Of the superblock, and of all frames that the catalog knows."""
    with sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True) as db:
        places = [at for at, in db.execute("SELECT at FROM placements")]
    found = [int.from_bytes(open(f"{s.path}/superblock", "rb").read()[8:12], "little")]
    with open(f"{s.path}/data", "rb") as f:
        for at in places:
            f.seek(at + 8)
            found.append(int.from_bytes(f.read(4), "little"))
    return found


def whole(s, name):
    for path, seed, size in FILES:
        path = path.replace("model/c2", "model/renamed")
        assert s.read(path) == content(seed, size), (name, path)
    assert s.read("flat/link.kv") == s.read("symlink") == content(6, 300)
    assert os.stat(f"{s.mnt}/flat/a.kv").st_nlink == 2
    assert os.getxattr(f"{s.mnt}/flat/a.kv", "user.note") == b"kept"
    st = os.stat(f"{s.mnt}/flat/b.kv")
    assert (st.st_uid, st.st_gid, st.st_mode & 0o7777, st.st_mtime_ns) == \
        (1234, 4321, 0o640, 10**18 + 2), st
    assert sorted(os.listdir(f"{s.mnt}/flat")) == ["a.kv", "b.kv", "link.kv"]
    assert sorted(set(os.listdir(f"{s.mnt}/model")) - {"new"}) == ["c1", "renamed"]
    assert 0 < int(s.attr("model/c1", "ttl")) <= 5000000000


for name in names:
    s = Store(name, make=False, cpu="16M",
              options=f"keyfile={TMP}/keys" if "-sealed" in name else "")
    subprocess.run(["tar", "-xJf", f"{here}/{name}.tar.xz", "--no-same-owner",
                    "--transform", f"s/^store/{name}/"], cwd=TMP, check=True)
    clean = "-killed" not in name
    if clean:
        assert format_of(s) == name[7] and set(versions(s)) == {1}, (name, versions(s))
    p = s.fsck("-n", ok=None)
    if name[7] in "12":
        assert p.returncode == 8 and "which a mount or fsck.kvcachefs -y brings" in p.stdout, \
            p.stdout
    elif clean:
        assert p.returncode == 0, p.stdout
    if not clean:  # the others leave it to the mount
        p = s.fsck("-y", ok=None)
        assert p.returncode in (0, 1) and format_of(s) == "4", p.stdout
    s.mount()
    whole(s, name)
    s.write("model/new/l", blob(1, 100 * KiB))
    s.umount()
    assert format_of(s) == "4" and set(versions(s)) == {2}, (name, versions(s))
    s.fsck("-n")
    s.mount()  # from the disk: the pool went with the mount
    whole(s, name)
    assert s.read("model/new/l") == blob(1, 100 * KiB) and s.stats()["corrupt"] == 0
    s.umount()
