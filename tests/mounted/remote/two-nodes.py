# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""Two daemons on two stores with one remote: a file that one stores opens by its name on the other,
with codecs, sealed, sparse, renamed, deleted and changed. The case also covers import. With a lossy
codec, all nodes get the same decoded bytes. KIND selects one remote of dir, redis, s3, ext."""
import errno, os, secrets, time
import kvdata
from kvtest import (MiB, KiB, Store, TMP, WAY, beside, blob, fails, need_mount, run, binary,
                    wait_for)
import servers

need_mount()


def dir_url(name):
    os.makedirs(f"{TMP}/shared/{name}")
    return f"dir://{TMP}/shared/{name}"


def key_file(name, *lines):
    path = f"{TMP}/{name}"
    with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write("\n".join(lines) + "\n")
    return path


def later(what):
    """A miss is remembered for a moment, by the daemon and by the kernel."""
    def look():
        try:
            return what()
        except FileNotFoundError:
            return None
    return wait_for(look, every=0.2)


def to_remove(s):
    """The pending removals from shared tiers."""
    return int(run("sqlite3", "-readonly", f"{s.path}/catalog.sqlite",
                   "select count(*) from meta where key glob 'unshare:*'", ok=True).stdout)


def story(url, extra, name):
    a, b, c = (Store(f"{name}.{n}", options=f"settle=50,remote={url}{extra}") for n in "abc")
    a.mount()
    b.mount()
    lossy, decodings = "kvq" in extra, kvdata.Decodings()
    content = kvdata.kv if lossy else blob
    one, two = content(1, MiB), content(2, 300 * KiB + 5)
    for folder in ("model", "deep", "after") if lossy else ():
        os.mkdir(f"{a.mnt}/{folder}")
        os.setxattr(f"{a.mnt}/{folder}", "user.kvcachefs.layout", kvdata.LAYOUT.encode())

    def same(s, path, data):
        """Reads a file, as soon as it is there, and checks its bytes."""
        got = later(lambda: s.read(path))
        return decodings.holds(len(data), data, got, (s, path)) if lossy else got == data

    a.write("model/chunk/layer0", one)
    a.write("model/chunk/layer1", two)
    a.write("flat-name@1.data", b"")
    with open(f"{a.mnt}/model/sparse", "wb") as f:
        f.write(b"x" * 5000)
        f.truncate(8 * MiB)
        f.seek(6 * MiB)
        f.write(two)
    a.settle()
    with fails(errno.ENOENT):
        os.stat(f"{b.mnt}/nobody/has/this")
    # by its name alone
    assert same(b, "model/chunk/layer0", one)
    assert same(b, "model/chunk/layer1", two)
    assert b.read("flat-name@1.data") == b""
    s = b.read("model/sparse")
    assert len(s) == 8 * MiB and s[:5000] == b"x" * 5000 and s[6 * MiB:6 * MiB + len(two)] == two \
        and not any(s[5000:6 * MiB])
    assert os.stat(f"{b.mnt}/model/sparse").st_blocks * 512 < 8 * MiB
    assert sorted(os.listdir(f"{b.mnt}/model/chunk")) == ["layer0", "layer1"]
    st = b.stats()
    assert st["ask_hits"] >= 6 and st["corrupt"] == 0, st
    b.settle()
    assert "disk" in b.attr("model/chunk/layer0", "tiers").split(",")  # copied to its own disk
    # a temporary name and a rename: only the last name is shared
    a.write("model/chunk/layer2.tmp.77", two)
    os.rename(f"{a.mnt}/model/chunk/layer2.tmp.77", f"{a.mnt}/model/chunk/layer2")
    a.settle()
    assert same(b, "model/chunk/layer2", two)
    # a rename of a whole folder: the shared tier gets the files under their new names
    os.rename(f"{a.mnt}/model/chunk", f"{a.mnt}/model/moved")
    a.settle()
    assert same(b, "model/moved/layer0", one)
    assert not os.path.exists(f"{a.mnt}/model/chunk"), "a deleted name came back"
    # deleted here: missing here, also after a while; other nodes keep their copies
    os.unlink(f"{a.mnt}/model/moved/layer1")
    time.sleep(1.2)
    assert not os.path.exists(f"{a.mnt}/model/moved/layer1")
    assert same(b, "model/moved/layer1", two)
    # written again here: nodes that have not read it see the new contents
    a.write("model/moved/layer3", one)
    a.settle()
    a.write("model/moved/layer3", two)
    a.settle()
    assert same(b, "model/moved/layer3", two)
    # user.kvcachefs.shared=delete removes it for all nodes without their own copy
    os.setxattr(f"{a.mnt}/model", "user.kvcachefs.shared", b"delete")
    a.write("model/moved/layer4", one)
    a.settle()
    os.unlink(f"{a.mnt}/model/moved/layer4")
    a.committed()
    wait_for(lambda: not to_remove(a))  # a lookup from b would adopt the file
    with fails(errno.ENOENT):
        b.read("model/moved/layer4")
    # after a kill the kernel holds no folder: copies go on all the same
    a.write("deep/er/than/usual/x", one)
    time.sleep(0.1)
    a.kill()
    a.mount()
    for i in range(40):
        a.write(f"after/kill/{i}", two)
    a.settle()
    assert same(b, "after/kill/39", two)
    # a restart on both sides, of b without its disk tier: only the remote has the file
    a.umount()
    b.umount()
    a.fsck()
    b.fsck()
    b.mount(options=b.options + ",disk=off")
    assert same(b, "model/moved/layer0", one)
    b.umount()
    a.mount()
    assert same(a, "model/moved/layer3", two) and a.stats()["corrupt"] == 0
    a.umount()
    # import: a third node takes in the listing
    c.mount()
    p = run(binary("kvcachectl"), "import", c.mnt)
    assert p.returncode == 0, p.stdout
    assert set(os.listdir(f"{c.mnt}/model/moved")) >= {"layer0", "layer2", "layer3"}, \
        os.listdir(f"{c.mnt}/model/moved")
    assert same(c, "model/moved/layer2", two)
    assert not lossy or len(decodings.of) == 2 and c.stats()["lossy_copies"] == 0
    c.umount()
    c.fsck()
    for s in (a, b, c):
        run("rm", "-rf", s.path, s.mnt)


def started(kind):
    """Starts its server; False if it is not available here. A folder needs none."""
    try:
        return {"dir": lambda: None, "redis": servers.Redis, "s3": servers.Ceph,
                "ext": servers.Program}[kind]()
    except SystemExit:
        return False


KEYS = key_file("keys", "1 " + secrets.token_hex(32), f"7 {secrets.token_hex(32)} other-model")
# Codecs and keys work alike for each kind of remote and each serving mode, so none tests all.
EXTRAS = ("", f",compress=zstd,keyfile={KEYS}", ",compress=bf16+zstd", f",keyfile={KEYS}",
          ",compress=kvq-mid", f",compress=kvq-mid,keyfile={KEYS}")
STORIES = {"dir": (0, 1)}
if WAY == "fast":
    STORIES = {"s3": (0, 1, 4), "redis": (0, 1, 4), "ext": (0, 1), "dir": (0, 1, 2, 3, 5)}


def synced(server):
    """fsync waits for the disk, even if a faster tier, which a power cut erases, has the copy."""
    slow = "settle=0,shim=delay-put:400+only:disk"
    s = Store("sync", options=f"{slow},remote={server.url('sync')}").mount()
    os.makedirs(f"{s.mnt}/m/c")
    for keep_open in (True, False):
        path = f"m/c/{keep_open}"
        f = open(f"{s.mnt}/{path}", "wb", buffering=0)
        f.write(blob(9, 50 * KiB))
        if not keep_open:
            f.close()
            wait_for(lambda: "redis" in s.attr(path, "tiers"))
            f = open(f"{s.mnt}/{path}", "rb", buffering=0)
        os.fsync(f.fileno())
        on_disk = run("sqlite3", "-readonly", f"{s.path}/catalog.sqlite",
                      f"select count(*) from placements p join names n on n.ino = p.ino where "
                      f"n.name = '{keep_open}' and p.tier = 0", ok=True).stdout.strip()
        assert on_disk == "1", (keep_open, on_disk)
        f.close()
    s.settle()
    s.umount()
    s.fsck()


running = {k: started(k) for k in STORIES if os.environ.get("KIND", k) == k}
parts = [(story, s.url(f"story{n}") if s else dir_url(f"dir{n}"), EXTRAS[n], f"{k}{n}")
         for k, s in running.items() if s is not False for n in STORIES[k]]
if running.get("redis"):
    parts.append((synced, running["redis"]))
beside(parts)
for s in filter(None, running.values()):
    s.stop()
