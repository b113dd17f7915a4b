# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""An operator's week: the package is installed, a store formatted, and mounted by the service's
command. Two models are stored, viewed, pinned and limited. The daemon is killed and restarts. A
newer package takes over. All copies are verified, the keys are changed, the store is unmounted and
checked, and the package is purged. No stored file is lost, and nothing is left."""
import errno, json, os, signal, threading
from kvtest import *
from manager import Manager
import debian

need_mount()
root, LAYERS, CHUNKS, N = debian.Root(), 4, 12, 256 << 10
first, newer = debian.build("0.1.0", skip), debian.build("0.1.1", skip)


def tool(name, *words, ok=True):
    p = run(f"{root.path}/usr/sbin/{name}", *words)
    assert not ok or p.returncode == 0, (name, words, p.stdout)
    return p.stdout


def ctl(*words, **more):
    return tool("kvcachectl", *words, **more)


def as_json(*words):
    return [json.loads(l) for l in ctl(*words).splitlines()]


# Monday: the package, a key, a store, the service
root.dpkg("--install", first)
assert {f"/usr/sbin/{t}" for t in ("kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "kvcachectl",
                                   "mount.kvcachefs")} < root.files()
page = run("man", "-M", f"{root.path}/usr/share/man", "-w", "8", "kvcachefs", ok=True).stdout
assert page.strip() == f"{root.path}/usr/share/man/man8/kvcachefs.8", page
store, mnt, keys = f"{TMP}/store", f"{TMP}/mnt", f"{TMP}/keys"
os.mkdir(mnt)
ctl("newkey", keys)
assert "a store with 256 MiB" in tool("mkfs.kvcachefs", "--size", "256M", store)
conf = dict(STORE=store, MOUNTPOINT=mnt,
            OPTIONS=f"cpu=32M,run={TMP}/run,keep_pool,keyfile={keys},settle=50,{PATIENT}")
service = Manager("kv", 2000, root=root.path, **conf)


def log():
    with open(f"{TMP}/log", errors="replace") as f:
        return f.read()


def start():
    service.start()

    def ready():
        assert service.daemon.poll() is None, log()[-3000:]
        return service.told("READY=1")
    wait_for(ready)


def ended(rc=0):
    got = service.daemon.wait(HANG)
    assert got == rc, (got, log()[-3000:])


def stats():
    with open(f"{mnt}/.kvcachefs/stats") as f:
        return {l.split()[0]: int(l.split()[1]) for l in f}


def config():
    with open(f"{mnt}/.kvcachefs/config") as f:
        return dict(l.rstrip("\n").split("=", 1) for l in f if "=" in l)


start()

# Tuesday: two engines store, another loads; somebody looks
kept = {}


def put(path, data):
    """As engines do it: under a temporary name, then its own. Returns after the close has ended."""
    os.makedirs(os.path.dirname(f"{mnt}/{path}"), exist_ok=True)
    with open(f"{mnt}/{path}.tmp", "wb", buffering=0) as f:
        assert f.write(data) == len(data)
    os.rename(f"{mnt}/{path}.tmp", f"{mnt}/{path}")
    kept[path] = data


def engine(model):
    for c in range(CHUNKS):
        for l in range(LAYERS):
            put(f"{model}/{c:04x}/layer_{l}", blob(f"{model}{c}.{l}", N))


def all_there(but=()):
    """Every stored chunk is there, byte for byte, or is missing as a whole."""
    gone = set()
    for path, data in kept.items():
        try:
            with open(f"{mnt}/{path}", "rb", buffering=0) as f:
                assert f.readall() == data, path
        except FileNotFoundError:
            gone.add(path)
    assert {p.split("/")[0] for p in gone} <= set(but), sorted(gone)
    for chunk in {os.path.dirname(p) for p in gone}:
        assert sum(os.path.dirname(p) == chunk for p in gone) == LAYERS, chunk
    for p in gone:
        del kept[p]


engines = [threading.Thread(target=engine, args=(m,)) for m in ("llama", "qwen")]
[e.start() for e in engines]
[e.join() for e in engines]
assert len(kept) == 2 * CHUNKS * LAYERS
ctl("flush", mnt)
all_there()
tiers = {t["tier"]: t for t in as_json("status", "--json", mnt)[0]["tiers"]}
assert tiers["disk"]["up"] and tiers["disk"]["used_bytes"] >= len(kept) * N, tiers
assert ctl("ls", f"{mnt}/llama").count("disk") == CHUNKS
told = os.getxattr(f"{mnt}/qwen/0001/layer_2", "user.kvcachefs.tiers").decode()
assert "disk" in told.split(","), told
assert os.statvfs(mnt).f_blocks and "llama" in ctl("top", "--count", "1", mnt)

# Wednesday: pinned chunks stay, quotas hold, and a pin for a day is shown as such
ctl("pin", f"{mnt}/llama/0000")
ctl("quota", "--yes", str(6 * LAYERS * N + 65536), f"{mnt}/qwen")
ctl("ttl", "1d", f"{mnt}/llama/0001")
wait_for(lambda: sum(len(f) for _, _, f in os.walk(f"{mnt}/qwen")) <= 6 * LAYERS)
all_there(but=["qwen"])
assert sum(p.startswith("qwen") for p in kept) <= 6 * LAYERS
assert 86000 < int(os.getxattr(f"{mnt}/llama/0001", "user.kvcachefs.ttl")) <= 86400

# Thursday: the daemon is killed during stores, and restarts by itself with its pool
put("llama/ffff/layer_0", blob("late", N))
wait_for(lambda: not stats()["catalog_pending_bytes"] and not stats()["files_open"])
with open(f"{mnt}/llama/ffff/unfinished", "wb", buffering=0) as half:
    half.write(b"half")
    service.daemon.send_signal(signal.SIGKILL)
    service.daemon.wait()
with fails(errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED):
    os.statvfs(mnt)
start()
assert "detached the mount that a dead daemon left" in log()
before = stats()
assert before["recovered"] and config()["pool_warm"] == "yes"
with open(f"{mnt}/llama/0000/layer_0", "rb") as f:
    assert f.read() == kept["llama/0000/layer_0"]
assert stats()["loads"] == before["loads"], "a pinned chunk is not in memory"
assert os.getxattr(f"{mnt}/llama/0000", "user.kvcachefs.pin") == b"1"
all_there(but=["qwen"])
wait_for(lambda: service.pings() >= 1)

# Friday: a newer package takes over, while somebody stores
stop = threading.Event()
below = os.stat(os.path.dirname(mnt)).st_dev


def goes_on():
    n = 0
    while not stop.is_set():
        n += 1
        try:
            if os.stat(mnt).st_dev != below:
                put(f"llama/{0x1000 + n:04x}/layer_0", blob(f"on{n}", 4096))
        except OSError:
            pass  # between the two daemons there is no mount
        stop.wait(0.005)


t = threading.Thread(target=goes_on)
t.start()
root.dpkg("--install", newer)
service.daemon.terminate()
ended()
assert service.told("STOPPING=1")
start()
stop.set()
t.join()
for name in os.listdir(mnt):  # files below the mount point are not part of the store
    assert name in ("llama", "qwen"), name
assert config()["pool_warm"] == "yes"
all_there(but=["qwen"])

# Saturday: every copy is verified; a new key, and the copies of the old key
ctl("flush", mnt)
report = as_json("verify", "--json", mnt)[-1]
assert report["good"] >= len(kept) and not report["damaged"] + report["unreadable"], report
ctl("newkey", keys)
service.daemon.terminate()
ended()
start()
ctl("rekey", mnt)
with open(keys) as f:
    last = f.read().splitlines()[-1]
service.daemon.terminate()
ended()
with open(keys, "w") as f:
    f.write(last + "\n")
conf["OPTIONS"] = conf["OPTIONS"].replace("keep_pool,", "")
service = Manager("kv2", 2000, root=root.path, **conf)
start()  # with the new key alone
all_there(but=["qwen"])  # the quota of qwen drops a little more than necessary
assert sum(p.startswith("qwen") for p in kept) >= 3 * LAYERS, kept.keys()

# Sunday: it ends
run("umount", mnt, ok=True)
ended()
assert tool("fsck.kvcachefs", "-n", "--data", store)
root.dpkg("--purge", "kvcachefs")
assert not root.files(), root.files()
assert os.path.exists(f"{store}/catalog.sqlite") and not os.path.ismount(mnt)
