# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A lossy codec on several tiers and nodes, clear and sealed. Tiers with the same codec decode to
the same bytes. Copies of decoded bytes have the coded blocks of another copy: on another node,
under another name, with another key. If one tier loses nothing and cannot be read, the decoded
bytes from the other tier stay, and replace its copy."""
import contextlib, os, sqlite3
from kvdata import *
from kvtest import *

need_mount()
CTL = binary("kvcachectl")
N = MiB + 3 * PAGE


def evict(s, *paths):
    for i in range(400):
        if all(s.attr(p, "state") == "lower" for p in paths):
            break
        s.write(f"fill/{i % 100}/x", bytes(MiB))
    wait_for(lambda: all(s.attr(p, "state") == "lower" for p in paths))


def copies(s, path, still_open=0):
    """(tier, codec, sum of the decoded bytes) of the copies of a file."""
    s.settle(still_open)
    s.committed(still_open)
    with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
        return c.execute("SELECT tier, codec & 255, hex(raw) FROM placements WHERE ino = ? "
                         "ORDER BY tier", (os.stat(f"{s.mnt}/{path}").st_ino,)).fetchall()


def model(s, name):
    os.makedirs(f"{s.mnt}/{name}", exist_ok=True)
    os.setxattr(f"{s.mnt}/{name}", "user.kvcachefs.layout", LAYOUT.encode())


def key_file(name):
    run(CTL, "newkey", f"{TMP}/{name}", ok=True)
    return f",keyfile={TMP}/{name}"


def story(name, key):
    """Two nodes, a rename, a new key."""
    os.makedirs(f"{TMP}/shared/{name}")
    options = f"settle=0,compress=kvq-mid,remote=dir://{TMP}/shared/{name}{key}"
    a, b = (Store(f"{name}.{n}", options=options, size="512M") for n in "ab")
    a.mount()
    b.mount()
    model(a, "m")
    a.write("m/c/l", kv(1, N))
    two = copies(a, "m/c/l")
    assert [c[:2] for c in two] == [(0, 17), (1, 17)] and two[0][2] == two[1][2], two
    evict(a, "m/c/l")
    decoded = a.read("m/c/l")
    assert decoded != kv(1, N) and error(kv(1, N), decoded) < 0.1

    # another node reads the copy, and keeps its blocks on its own disk
    wait_for(lambda: os.path.exists(f"{b.mnt}/m/c/l"), every=0.2)
    assert b.read("m/c/l") == decoded
    assert [c[1] for c in copies(b, "m/c/l")] == [17, 17], copies(b, "m/c/l")
    assert b.attr("m/c/l", "error") == a.attr("m/c/l", "error") > "0.01"
    assert b.stats()["lossy_moved"] == 1 and not b.stats()["lossy_copies"], b.stats()
    for _ in range(2):
        evict(b, "m/c/l")
        assert b.read("m/c/l") == decoded
    b.umount()
    b.drop_pool()
    b.mount()
    assert b.read("m/c/l") == decoded

    # another name; the frame in the shared tier is stored again
    before = a.stats()
    os.rename(f"{a.mnt}/m/c/l", f"{a.mnt}/m/c/n")
    assert a.read("m/c/n") == decoded
    assert [c[1] for c in copies(a, "m/c/n")] == [17, 17]
    t = a.stats()
    assert t["lossy_moved"] > before["lossy_moved"], (before, t)
    assert t["lossy_copies"] == before["lossy_copies"], (before, t)
    evict(a, "m/c/n")
    assert a.read("m/c/n") == decoded

    # another key
    if key:
        run(CTL, "newkey", key.split("=")[1], ok=True)
        run(CTL, "rekey", a.mnt, ok=True)
        assert [c[1] for c in copies(a, "m/c/n")] == [17, 17]
        evict(a, "m/c/n")
        assert a.read("m/c/n") == decoded and a.stats()["rekeyed"] >= 1
    t = a.stats()
    assert t["lossy_copies"] == 2 and not t["corrupt"], t
    run(CTL, "verify", a.mnt, ok=True)
    assert not a.stats()["corrupt"] and not b.stats()["corrupt"]
    a.umount()
    b.umount()
    a.drop_pool()
    a.fsck("--rebuild", "-y") if not key else a.fsck()
    a.mount()
    assert a.read("m/c/n") == decoded
    a.umount()


story("clear", "")
story("sealed", key_file("key"))

# the disk loses nothing, the remote does; the disk cannot be read for some time
os.makedirs(f"{TMP}/shared/mixed")
flag = f"{TMP}/disk-fails"
url = f"dir://{TMP}/shared/mixed?compress=kvq-low"
s = Store("mixed", size="512M", options=f"settle=0,compress=bf16+zstd,remote={url},"
          f"shim=only:disk+fail-while:{flag}").mount()
model(s, "m")
s.write("m/c/l", kv(2, N))
assert [c[1] for c in copies(s, "m/c/l")] == [2, 18]
evict(s, "m/c/l")
assert s.read("m/c/l") == kv(2, N) and not s.stats()["loads_decoded"]
evict(s, "m/c/l")
with open(flag, "w"):
    pass
reader = open(f"{s.mnt}/m/c/l", "rb")  # so that the pool, which is full, keeps it
decoded = reader.read()
assert decoded != kv(2, N) and s.stats()["loads_decoded"] == 1
os.unlink(flag)


def made_again():
    try:
        c = copies(s, "m/c/l", still_open=1)
    except OSError:
        return False
    return len(c) == 2 and not c[0][2]


# the copy on the disk is made again from the decoded bytes
wait_for(made_again)
reader.close()
assert [c[1] for c in copies(s, "m/c/l")] == [2, 18]
assert s.attr("m/c/l", "codec") == "disk=bf16+zstd,dir=kvq-low"
assert s.attr("m/c/l", "error") > "0.01"
evict(s, "m/c/l")
assert s.read("m/c/l") == decoded and s.stats()["loads_decoded"] == 1
run(CTL, "verify", s.mnt, ok=True)
assert not s.stats()["corrupt"]
s.umount()
s.drop_pool()
s.mount()
assert s.read("m/c/l") == decoded
s.umount()
s.fsck()
