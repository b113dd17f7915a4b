# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""The files and bytes of each model, and its bytes in each tier, are always the sums over the
attributes of its files: after stores, copies, evictions, loads, overwrites, renames between models
of files and of small and large folders, links, removals, drops by quota, ttl and user, a clean
unmount, and a kill. While the files are counted, the numbers are absent. Evictions by model and
reason add up to those of the mount."""
import ctypes, os, random
from kvtest import *
from prometheus import parse

os.mkdir(f"{TMP}/r")
s = Store(options=f"settle=0,remote=dir://{TMP}/r", cpu="48M", size="256M").mount()
libc = ctypes.CDLL(None, use_errno=True)
rng = random.Random(7)
REASONS = ("pool", "tier", "quota", "tenant", "ttl", "behind", "demote", "refused")


def lines():
    with open(f"{s.mnt}/.kvcachefs/models") as f:
        head, *rest = [l.split() for l in f]
    return {l[-1]: dict(zip(head[:-1], l)) for l in rest}


def stat(path):
    """The inode and the bytes of a file, as the daemon says now: the kernel may have remembered the
    size that was reserved for an open file."""
    b = ctypes.create_string_buffer(256)
    assert libc.statx(-100, path.encode(), 0x2000, 0x7ff, b) == 0  # AT_STATX_FORCE_SYNC
    ino, _, blocks = struct.unpack_from("QQQ", b, 32)
    return ino, blocks * 512


def wanted():
    """What the files' own attributes say: files, bytes, and bytes by tier, of each model."""
    all_, seen = {}, set()
    for top in sorted(os.listdir(s.mnt)):
        for where, _, names in os.walk(f"{s.mnt}/{top}"):
            for n in names:
                ino, size = stat(f"{where}/{n}")
                if ino in seen:
                    continue
                seen.add(ino)
                at = os.getxattr(f"{where}/{n}", "user.kvcachefs.tier_bytes").decode()
                at = {t: int(b) for t, b in (w.split("=") for w in at.split(","))}
                m = all_.setdefault(top, dict.fromkeys(("files", "bytes", "cpu", "disk", "dir"), 0))
                m["files"] += 1
                m["bytes"] += size
                for t, b in at.items():
                    m[t] += b
    return all_


def told():
    """The same from .kvcachefs/models, without models that have no files; None if not known."""
    all_ = lines()
    if any(m["files"] == "-" for m in all_.values()):
        return None
    return {n: {"files": int(m["files"]), "bytes": int(m["bytes"]), "cpu": int(m["pool_bytes"]),
                "disk": int(m["disk_bytes"]), "dir": int(m["remote_bytes"])}
            for n, m in all_.items()
            if any(int(m[c]) for c in ("files", "bytes", "pool_bytes", "disk_bytes",
                                       "remote_bytes"))}


def attributes(model):
    at = f"{s.mnt}/{model}"
    get = lambda n: os.getxattr(at, f"user.kvcachefs.{n}").decode()
    return {"files": int(get("files")), "bytes": int(get("bytes")),
            **{t: int(b) for t, b in (w.split("=") for w in get("tier_bytes").split(","))}}


def metrics():
    with open(f"{s.mnt}/.kvcachefs/metrics") as f:
        return parse(f.read())


def metric(m, model):
    return {"files": m.value("model_files", model=model),
            "bytes": m.value("model_bytes", model=model),
            "cpu": m.value("model_pool_bytes", model=model),
            **{t: m.value("model_tier_bytes", model=model, tier=t) for t in ("disk", "dir")}}


def same(what):
    """All views agree with the files, once the mount is at rest."""
    s.settle()
    s.committed()
    views = {}

    def agree():
        views["wanted"], views["told"] = wanted(), told()
        return views["wanted"] == views["told"]
    try:
        wait_for(agree, every=0.2)
    except AssertionError:
        raise AssertionError(f"after {what}: {views}")
    m, want = metrics(), views["wanted"]
    for model in want:
        assert attributes(model) == want[model], (what, model, attributes(model), want[model])
        assert metric(m, model) == want[model], (what, model, metric(m, model), want[model])
    assert metric(m, "") == dict.fromkeys(("files", "bytes", "cpu", "disk", "dir"), 0), what
    assert m.value("models_counted") == 1
    evictions_add_up()
    return want


def evictions_add_up():
    every, m = lines().values(), metrics()  # the last look noticed removed models
    for r in REASONS:
        of_mount = m.value("evictions_by_reason_total", reason=r)
        assert sum(int(x[f"evicted_{r}"]) for x in every) == of_mount, (r, of_mount)
        assert sum(v for n, l, v in m.samples if n == "kvcachefs_model_evictions_total"
                   and l["reason"] == r) == of_mount, (r, of_mount)


def evicted(model, reason):
    return int(lines()[model][f"evicted_{reason}"])


def fill(model, chunks, layers=4, size=100000, begin=0):
    for c in range(begin, begin + chunks):
        for i in range(layers):
            s.write(f"{model}/c{c}/l{i}", blob(rng.randrange(1 << 30), size + rng.randrange(9999)))


def mounted_again(end):
    if end == "umount":
        s.umount()
    else:
        s.committed()
        s.kill()
        run("umount", "-l", s.mnt)
    s.mount()


# stores and copies
fill("a", 3)
fill("b", 5, layers=2)
s.write("b/flat", blob(1, 5000))
want = same("stores")
assert want["a"]["files"] == 12 and want["b"]["files"] == 11, want
assert all(want[m][t] >= want[m]["bytes"] * 0.9 for m in "ab" for t in ("cpu", "disk", "dir")), want

# evictions by need and by request; loads
fill("big", 20, layers=2, size=2 * MiB)
wait_for(lambda: evicted("big", "pool") + evicted("a", "pool") + evicted("b", "pool") > 0)
same("evictions")
before = evicted("a", "demote")
os.setxattr(f"{s.mnt}/a/c1", "user.kvcachefs.demote", b"cpu")
os.setxattr(f"{s.mnt}/a/c2", "user.kvcachefs.demote", b"disk")
want = same("demotions")
assert evicted("a", "demote") >= before + 1
assert want["a"]["disk"] < want["a"]["dir"], want
s.read("a/c1/l0")
same("a load")

# overwrites, truncations, files without a name
s.write("a/c0/l0", b"short")
s.write("a/c0/l1", blob(5, 700000))
os.truncate(f"{s.mnt}/b/flat", 0)
fd = os.open(f"{s.mnt}/a", os.O_TMPFILE | os.O_RDWR)
os.write(fd, blob(3, 50000))
assert libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, f"{s.mnt}/a/named".encode(),
                   0x400) == 0  # AT_SYMLINK_FOLLOW
os.close(fd)
same("overwrites")

# links and renames between models; a small folder, a model that becomes a folder of another
os.link(f"{s.mnt}/a/named", f"{s.mnt}/b/other")
os.unlink(f"{s.mnt}/a/named")
same("a link to another model")
os.rename(f"{s.mnt}/a/c0/l1", f"{s.mnt}/b/moved")
os.rename(f"{s.mnt}/b/moved", f"{s.mnt}/b/flat")
os.rename(f"{s.mnt}/a/c2", f"{s.mnt}/b/from-a")
want = same("renames")
os.mkdir(f"{s.mnt}/deep")
os.rename(f"{s.mnt}/a", f"{s.mnt}/deep/a")
same("a model below another")
os.rename(f"{s.mnt}/deep/a/c0", f"{s.mnt}/c0")
assert libc.renameat2(-100, f"{s.mnt}/b/from-a".encode(), -100, f"{s.mnt}/deep/a/c1".encode(),
                      2) == 0  # RENAME_EXCHANGE
want = same("an exchange")
assert want["c0"]["files"] and "a" not in want, want

# a folder with more files than one hold of the locks moves: all files are counted again
for i in range(2200):
    s.write(f"many/sub/{i // 100}/f{i}", b"x")
same("many files")
os.rename(f"{s.mnt}/many/sub", f"{s.mnt}/deep/sub")
for i in range(200):  # meanwhile files are made and removed in both models
    s.write(f"many/more/f{i}", b"y")
    os.unlink(f"{s.mnt}/deep/sub/{i // 100}/f{i}")
want = same("a large folder")
assert want["deep"]["files"] >= 2000 and want["many"]["files"] == 200, want

# removals, and drops by quota, by ttl and by a user
for i in range(20):
    if i != 9:
        run("rm", "-r", f"{s.mnt}/deep/sub/{i}", ok=True)
run("rm", "-r", f"{s.mnt}/many/more", ok=True)
same("removals")
os.setxattr(f"{s.mnt}/big", "user.kvcachefs.quota", b"40M")
wait_for(lambda: evicted("big", "quota") > 0)
fill("big", 5, layers=2, size=2 * MiB, begin=50)
want = same("drops by quota")
q = lines()["big"]
assert int(q["quota"]) == 40 * MiB and q["used"] == q["bytes"] and int(q["used"]) <= 40 * MiB, q
m = metrics()
assert m.value("model_quota_bytes", model="big") == 40 * MiB
assert 0 < m.value("model_quota_used_bytes", model="big") <= 40 * MiB
os.setxattr(f"{s.mnt}/b/c1", "user.kvcachefs.ttl", b"1")
wait_for(lambda: evicted("b", "ttl") == 1)
os.setxattr(f"{s.mnt}/b/c2", "user.kvcachefs.demote", b"all")
assert evicted("b", "demote") == 1
same("drops")
text = os.getxattr(f"{s.mnt}/b", "user.kvcachefs.evicted").decode()
assert "ttl=1" in text.split(",") and "demote=1" in text.split(","), text

# the next mounts know the same, whether the store was unmounted or the daemon killed
for end in ("umount", "kill", "umount", "kill"):
    before = same(f"before {end}")
    mounted_again(end)
    after = same(end)
    less = {n: {c: v for c, v in m.items() if c != "cpu"} for n, m in before.items()}
    assert {n: {c: v for c, v in m.items() if c != "cpu"} for n, m in after.items()} == less, end
    os.rename(f"{s.mnt}/deep/sub/9", f"{s.mnt}/b/{end}") if os.path.exists(
        f"{s.mnt}/deep/sub/9") else fill("b", 1, begin=90)
# fsck changes placements: the stored numbers are not used any more
s.umount()
with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
    assert c.execute("SELECT count(*) FROM meta WHERE key GLOB 'model:*'").fetchone()[0] >= 3
    c.execute("DELETE FROM objects WHERE ino IN (SELECT min(ino) FROM placements)")
    c.commit()
assert s.fsck("-y", ok=None).returncode == 1
s.mount()
same("fsck")
s.umount()
