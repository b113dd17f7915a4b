# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A lossy codec on several tiers and nodes, clear and sealed, with each kind of remote. Tiers with
the same codec decode to the same bytes. Copies of decoded bytes have the coded blocks of another
copy: on another node, under another name, with another key. A node whose codec loses nothing keeps
the same bytes, and passes them on. Decoding again, on any node, changes nothing more. If one tier
loses nothing and cannot be read, the decoded bytes from the other tier stay, and replace its copy.
KIND selects some of dir, redis, s3, ext, peers, and the part mixed; LEVEL=quick has no servers."""
import contextlib, os, sqlite3
from kvdata import *
from kvtest import *
import nodes, s3, servers

need_mount()
CTL = binary("kvcachectl")
N = MiB + 3 * PAGE


def evict(s, *paths):
    """Stores other files until these have left the pool."""
    for i in range(400):
        if all(s.attr(p, "state") == "lower" for p in paths):
            break
        s.write(f"fill{os.path.basename(s.path)}/{i % 100}/x", bytes(MiB))
    wait_for(lambda: all(s.attr(p, "state") == "lower" for p in paths))


def later(s, path):
    """A miss is remembered for a moment, by the daemon and by the kernel."""
    wait_for(lambda: os.path.exists(f"{s.mnt}/{path}"), every=0.2)
    return s.read(path)


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


def coded(s, path, *codecs):
    """The copies of a file have these codecs, one for each tier."""
    found = copies(s, path)
    assert [c[1] for c in found] == [*codecs], (s.path, path, found)


def story(name, url, key):
    """Four nodes, a rename, a new key. The codecs of c and d lose nothing."""
    options = f"settle=0,remote={url}{key}"
    a, b, c, d = (Store(f"{name}.{n}", options=f"{options},compress={codec}", cpu="24M",
                        size="512M")
                  for n, codec in zip("abcd", ("kvq-mid", "kvq-mid", "zstd", "none")))
    for s in (a, b, c, d):
        s.mount()
    for s in (a, b):
        model(s, "m")
    data, want = kv(name, N), Decodings()

    def same(s, path, got, written=False):
        """The node got the decoded bytes, or may also get those that were written."""
        assert want.holds(name, data, got, (s, path)), (s.path, path)
        assert written or got != data, (s.path, path)

    a.write("m/c/l", data)
    two = copies(a, "m/c/l")
    assert [c[:2] for c in two] == [(0, 17), (1, 17)] and two[0][2] == two[1][2], two
    same(a, "m/c/l", a.read("m/c/l"), written=True)

    # other nodes read the copy; two of them before its writer does
    same(b, "m/c/l", later(b, "m/c/l"))
    same(c, "m/c/l", later(c, "m/c/l"))
    evict(a, "m/c/l")
    decoded = a.read("m/c/l")
    same(a, "m/c/l", decoded)
    told = a.attr("m/c/l", "error")
    assert want.within(data, decoded, told), told
    same(d, "m/c/l", later(d, "m/c/l"))

    # they keep its blocks on their disks if their codec is lossy, too
    coded(a, "m/c/l", 17, 17)
    coded(b, "m/c/l", 17, 17)
    assert b.stats()["lossy_moved"] == 1 and not b.stats()["lossy_copies"], b.stats()
    coded(c, "m/c/l", 1, 17)
    coded(d, "m/c/l", 0, 17)
    for s, codec in (a, "kvq-mid"), (b, "kvq-mid"), (c, "zstd"), (d, "none"):
        tiers = dict(w.split("=") for w in s.attr("m/c/l", "codec").split(","))
        assert tiers.pop("disk") == codec and [*tiers.values()] == ["kvq-mid"], (s.path, tiers)
        assert s.attr("m/c/l", "error") == told, s.path
        for _ in range(2):
            evict(s, "m/c/l")
            same(s, "m/c/l", s.read("m/c/l"))
        assert s.stats()["loads_decoded"] <= 1, s.stats()
    remount(b)
    same(b, "m/c/l", b.read("m/c/l"))

    # another name; the frame in the shared tier is stored again
    before = a.stats()
    os.rename(f"{a.mnt}/m/c/l", f"{a.mnt}/m/c/n")
    same(a, "m/c/n", a.read("m/c/n"))
    coded(a, "m/c/n", 17, 17)
    t = a.stats()
    assert t["lossy_moved"] > before["lossy_moved"], (before, t)
    assert t["lossy_copies"] == before["lossy_copies"], (before, t)
    evict(a, "m/c/n")
    same(a, "m/c/n", a.read("m/c/n"))
    same(d, "m/c/n", later(d, "m/c/n"))
    same(b, "m/c/n", later(b, "m/c/n"))
    coded(b, "m/c/n", 17, 17)

    # and from nodes whose codec loses nothing: neither do the copies of other nodes
    for s, to, codec in (c, "m/c/o", 1), (d, "m/c/p", 0):
        os.rename(f"{s.mnt}/m/c/l", f"{s.mnt}/{to}")
        coded(s, to, codec, codec)
        for reader in a, b:
            same(reader, to, later(reader, to))
            coded(reader, to, 2, codec)
            assert reader.attr(to, "error") == told
            evict(reader, to)
            same(reader, to, reader.read(to))

    # another key
    if key:
        run(CTL, "newkey", key.split("=")[1], ok=True)
        run(CTL, "rekey", a.mnt, ok=True)
        coded(a, "m/c/n", 17, 17)
        evict(a, "m/c/n")
        same(a, "m/c/n", a.read("m/c/n"))
        assert a.stats()["rekeyed"] >= 1
    assert a.stats()["lossy_copies"] == 2, a.stats()
    for s in (a, b, c, d):
        run(CTL, "verify", s.mnt, ok=True)
        assert not s.stats()["corrupt"], s.stats()
        assert s is a or not s.stats()["lossy_copies"], s.stats()
    for s in (a, b, c, d):
        if s is a and not key:
            remount(a, lambda: a.fsck("--rebuild", "-y"))
        else:
            remount(s, s.fsck)
        same(s, "m/c/n", later(s, "m/c/n"))
        s.umount()
        s.fsck()


def remount(s, between=lambda: None):
    """Mounts the store again with an empty pool."""
    pool = s.config()["pool"]
    s.umount()
    s.drop_pool(pool)
    between()
    s.mount()


def peers(name, key):
    """Nodes that read the pools and disks of other nodes, and never their copies."""
    a, b, c = nodes.make(f"peers-{name}", 3, key)
    for s, codec in (a, "kvq-mid"), (b, "kvq-mid"), (c, "zstd"):
        s.options += f",compress={codec}"
        s.mount()
        model(s, "m")
    files, want = {f"m/c/{i}": kv(f"peers{i}", N) for i in range(3)}, Decodings()

    def same(s, path, written=False):
        got = later(s, path)
        assert want.holds(path, files[path], got, (s, path)), (s.path, path)
        assert written or got != files[path], (s.path, path)
        return got

    for path, data in files.items():
        a.write(path, data)
        coded(a, path, 17)
    written, evicted, loaded = files
    # written bytes from the pool of a: b codes them by itself, and gets what a gets
    same(b, written, written=True)
    evict(a, *files)
    same(b, evicted)
    told = a.attr(evicted, "error")
    assert b.attr(evicted, "error") == told
    assert want.within(files[evicted], same(a, evicted), told), told
    same(a, loaded)
    same(b, loaded)
    coded(b, written, 17)
    evict(b, *files)
    for s in (b, a, c, b):
        for path in files:
            same(s, path)
            assert s.attr(path, "error") == a.attr(path, "error"), (s.path, path)
    for path in files:
        coded(c, path, 1)
    print({s.path: {path: s.attr(path, "codec") for path in files} for s in (a, b, c)})
    for s in (a, b, c):
        run(CTL, "verify", s.mnt, ok=True)
        assert not s.stats()["corrupt"], s.stats()
    for s in (a, b, c):
        remount(s, s.fsck)
        for path in files:
            same(s, path)
        s.umount()
        s.fsck()


def mixed():
    """The disk loses nothing, the remote does; the disk cannot be read for some time."""
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
    remount(s)
    assert s.read("m/c/l") == decoded
    s.umount()
    s.fsck()


def dir_url(name):
    os.makedirs(f"{TMP}/shared/{name}")
    return f"dir://{TMP}/shared/{name}"


def started(kind):
    """Starts its server; None if it is not available here."""
    try:
        return {"redis": servers.Redis, "s3": s3.Bucket, "ext": servers.Program}[kind]()
    except SystemExit:
        return None


os.environ.update(AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="secret")
parts = {"dir": [(story, "clear", dir_url("clear"), ""),
                 (story, "sealed", dir_url("sealed"), key_file("key"))],
         "mixed": [(mixed,)],
         "peers": [(peers, "clear", ""), (peers, "sealed", key_file("peers-key"))]}
QUICK = os.environ.get("LEVEL") == "quick"
KINDS = os.environ.get("KIND", "dir mixed peers" + " s3 redis ext" * (not QUICK)).split()
running = {k: started(k) for k in ("s3", "redis", "ext") if k in KINDS}
for kind, server in running.items():
    parts[kind] = [(story, kind, server.url(), key_file(f"{kind}-key"))] if server else []
beside([part for kind in KINDS for part in parts[kind]])
if running.get("redis"):
    running["redis"].stop()
