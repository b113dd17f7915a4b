# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""kvcachectl doctor names each limit that refuses something and each tier that lags, refuses or
loses data, on mounts that are misconfigured in that way, and the option to change."""
import contextlib, errno, json, os, random
from kvtest import *
from findings import doctor, points

need_mount()
for p in (TMP, os.path.dirname(TMP)):
    os.chmod(p, 0o755)
CTL = binary("kvcachectl")


def put(s, path, size=MiB):
    s.write(path, blob(path, size))


def asks(s, *names):
    return [os.path.exists(f"{s.mnt}/{n}") for n in names]


def remedy(finding):
    return finding["option"], finding["value"]


def evict(s, path):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")


# a full model, and a full tenant
def quotas():
    s = Store("quotas", options="settle=0,policy=lru").mount()
    os.mkdir(f"{s.mnt}/q")
    os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"1M")
    with fails(errno.EDQUOT):
        put(s, "q/large", 2 * MiB)
    found, j = doctor(s)
    assert set(found) == {"quota-refuses"}, j
    assert "writes were refused with EDQUOT" in found["quota-refuses"]["text"], j
    assert remedy(found["quota-refuses"]) == ("quota", None), j
    run(CTL, "tenant", "--quota", "4M", "acme", s.mnt, ok=True)
    os.makedirs(f"{s.mnt}/m/sub")  # so that each file is a chunk
    run(CTL, "tenant", "--folder", f"{s.mnt}/m", "acme", ok=True)
    for i in range(20):
        put(s, f"m/{i}")
    wait_for(lambda: s.stats()["evicted_for_tenant"] >= 16)
    asks(s, *(f"m/{i}" for i in range(20)), *(f"m/no{i}" for i in range(100)))
    found, j = doctor(s)
    assert set(found) == {"quota-refuses", "tenant-quota-small"}, j
    assert "because their tenant had reached its quota." in found["tenant-quota-small"]["text"], j
    assert "kvcachectl tenant --quota" in found["tenant-quota-small"]["remedy"], j
    s.umount()


# a user with more open files than its share
def share():
    s = Store("share", cpu="32M", options="settle=0,share=10,allow_other,mode=0755").mount()
    for i in range(8):
        put(s, f"m/{i}")
    s.settle()
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(1001), os.setuid(1001)
        try:
            kept = [open(f"{s.mnt}/m/{i}", "rb") for i in range(8)]
            os._exit(len(kept))
        except OSError as e:
            os._exit(e.errno)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EDQUOT
    found, j = doctor(s)
    assert set(found) == {"share-refuses"}, j
    assert remedy(found["share-refuses"]) == ("share", "20"), j
    s.umount()


# A disk that takes no copy for some time: stores are delayed, and then chunks without a copy are
# dropped. Open files leave no space at all.
def lagging():
    slow = f"{TMP}/slow"
    open(slow, "w").close()
    s = Store("lagging", cpu="32M", options="settle=0,policy=lru,pace=20,deadline=600000,"
              f"shim=delay-put:600000+delay-while:{slow}+only:disk").mount()
    for i in range(250):
        put(s, f"m/{i}", 200 * KiB)
    wait_for(lambda: s.stats()["behind_drops"] >= 50)
    for i, here in enumerate(asks(s, *(f"m/{i}" for i in range(250)))):
        if here:
            s.read(f"m/{i}")
    found, j = doctor(s)
    assert set(found) == {"stores-throttled", "copies-behind", "faults-injected"}, j
    assert remedy(found["stores-throttled"]) == ("admit", "twice"), j
    assert remedy(found["copies-behind"]) == ("pace", "100"), j
    os.remove(slow)
    s.settle()
    s.umount()


def no_space():
    s = Store("no-space", cpu="32M", options="settle=0,disk=off,deadline=100").mount()
    with contextlib.ExitStack() as kept, fails(errno.ENOSPC):
        for i in range(40):
            f = kept.enter_context(open(f"{s.mnt}/{i}", "wb", buffering=0))
            f.write(bytes(MiB))
    found, j = doctor(s)
    assert set(found) == {"pool-no-space"}, j
    assert remedy(found["pool-no-space"]) == ("cpu", "64M"), j
    s.umount()


# texts of .kvcachefs that a client keeps open
def memory():
    s = Store("memory", cpu="32M", size="64M", options="memory=128M").mount()
    with contextlib.ExitStack() as kept, fails(errno.EDQUOT):
        while True:
            f = kept.enter_context(open(f"{s.mnt}/.kvcachefs/metrics", "rb", buffering=0))
            f.read(100)
    found, j = doctor(s)
    assert set(found) == {"memory-limit"}, j
    assert remedy(found["memory-limit"]) == ("memory", "256M"), j
    s.umount()


# a remote that disappears, and one that refuses writes
def remote():
    shared = f"{TMP}/shared"
    os.mkdir(shared)
    run("mount", "-t", "tmpfs", "none", shared, ok=True)
    s = Store("remote", options=f"settle=0,deadline=2000,disk=off,remote=dir://{shared}").mount()
    for i in range(10):
        put(s, f"m/{i}", 20 * KiB)
    s.settle()
    run("mount", "-o", "remount,ro", shared, ok=True)

    def refuses():
        put(s, "m/new", 20 * KiB)
        return "tier-refuses" in doctor(s)[0]
    wait_for(refuses, every=0.1)
    found, j = doctor(s)
    assert set(found) == {"tier-refuses"}, j
    assert "is not used for write calls (refused: read-only), so it gets no copies" in \
        found["tier-refuses"]["text"], j
    assert remedy(found["tier-refuses"]) == ("remote", None), j
    run("mount", "-o", "remount,rw", shared, ok=True)
    wait_for(lambda: "dir" in s.attr("m/new", "tiers"))
    for i in range(10):
        evict(s, f"m/{i}")
    run("umount", "-l", shared, ok=True)
    for i in range(10):
        with fails(errno.ENOENT):
            s.read(f"m/{i}")
    found, j = doctor(s)
    assert "loads-time-out" in found and set(found) <= {"loads-time-out", "tier-out"}, j
    assert remedy(found["loads-time-out"]) == ("deadline", "4000"), j
    s.umount()


# copies that have changed on the disk
def damaged():
    s = Store("damaged", options="settle=0,shim=flip-get:1+only:disk").mount()
    put(s, "m/0")
    s.settle()
    evict(s, "m/0")
    with fails(errno.ENOENT, errno.EIO, errno.ESTALE):
        s.read("m/0")
    found, j = doctor(s)
    assert set(found) == {"damaged-copies", "faults-injected"}, j
    assert remedy(found["damaged-copies"]) == ("verify", None), j
    assert found["damaged-copies"]["text"].startswith("1 damaged copies"), j
    s.umount()


# a key that is not in the key file any more
def keys():
    file = f"{TMP}/keyfile"
    run(CTL, "newkey", file, ok=True)
    run(CTL, "newkey", file, "m", ok=True)
    s = Store("keys", options=f"settle=0,keyfile={file}").mount()
    put(s, "m/0")
    s.settle()
    s.umount()
    with open(file) as f:
        lines = [l for l in f if "m" not in l.split()[1:]]
    with open(file, "w") as f:
        f.writelines(lines)
    s.drop_pool()
    s.mount()
    with fails(errno.ENOKEY, errno.EIO):
        s.read("m/0")
    found, j = doctor(s)
    assert set(found) == {"key-missing"}, j
    assert remedy(found["key-missing"]) == ("keyfile", None), j
    s.umount()


# a full filesystem below the store
def catalog():
    at = f"{TMP}/full"
    os.mkdir(at)
    run("mount", "-t", "tmpfs", "-o", "size=100M", "none", at, ok=True)
    s = Store("catalog", options="log=1M,settle=0", make=False)
    s.path = f"{at}/s"
    run(binary("mkfs.kvcachefs"), "--size", "64M", s.path, ok=True)
    s.mount()
    with contextlib.suppress(OSError), open(f"{at}/fill", "wb", buffering=0) as f:
        while True:
            f.write(bytes(4096))
    with fails(errno.ENOSPC):
        for i in range(100000):
            os.mkdir(f"{s.mnt}/{i}")
    found, j = doctor(s)
    assert set(found) == {"catalog-stuck", "store-on-tmpfs"}, j
    assert list(found)[0] == "catalog-stuck" and not found["catalog-stuck"]["option"], j
    os.unlink(f"{at}/fill")
    wait_for(lambda: s.stats()["catalog_ok"])
    found, j = doctor(s)
    assert set(found) == {"store-on-tmpfs"}, j
    s.umount()


# a trace with more chunks than the disk tier holds
def replayed():
    s = Store("replayed", size="96M", cpu="32M", options="settle=0,policy=lru").mount()
    r = random.Random(5)
    trace = f"{TMP}/trace"
    with open(trace, "w") as f:
        for i in range(6000):
            n = min(int(r.paretovariate(0.5)), 400)
            f.write(json.dumps({"timestamp": i, "hash_ids": [n], "bytes": [MiB]}) + "\n")
    found, j = doctor(s, "--trace", trace)
    assert "replay-disk-size" in found, j
    disk = found["replay-disk-size"]
    assert remedy(disk) == ("grow", "144M") and points(disk["text"]) >= 3, j
    s.umount()


only = os.environ.get("PARTS", "").split()
beside([(f,) for f in (quotas, share, lagging, no_space, memory, remote, damaged, keys, catalog,
                       replayed) if not only or f.__name__ in only])
