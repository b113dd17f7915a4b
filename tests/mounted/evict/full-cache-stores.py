# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""A full cache continues to accept stores. A disk, a remote and a quota receive several times their
size without an error or refusal, with every codec, key and write mode. Chunks that are read all the
time stay. A disk that is slower than the stores throttles them, then the coldest chunks are
dropped. None of this delays an unmount."""
import errno, os, shutil, threading, time
from kvtest import *
from servers import Redis

SIZE = 256 * KiB
# the most objects that are stored between two reads of all hot objects, so that hot objects are
# used more often than others
LAG = 64
run(binary("kvcachectl"), "newkey", f"{TMP}/keys", ok=True)


def name(i):
    return f"{i:08x}"


class Load:
    """Threads that store new objects under temporary names, and a thread that reads a hot set all
    the time."""

    def __init__(self, s, folder, hot=0, size=SIZE):
        self.s, self.folder, self.size = s, f"{s.mnt}/{folder}", size
        self.errors, self.lost = [], []
        self.lock, self.at, self.stop = threading.Lock(), 0, threading.Event()
        os.makedirs(f"{self.folder}/hot", exist_ok=True)
        for i in range(hot):
            self.put(f"hot/{name(i)}", i)
        self.hot, self.seen = hot, 0

    def put(self, path, seed):
        with open(f"{self.folder}/{path}.tmp", "xb", buffering=0) as f:
            assert f.write(blob(seed, self.size)) == self.size
        os.rename(f"{self.folder}/{path}.tmp", f"{self.folder}/{path}")

    def writer(self, n):
        while not self.stop.is_set():
            if self.hot and self.at - self.seen > LAG:
                time.sleep(0.001)
                continue
            with self.lock:
                i, self.at = self.at, self.at + 1
            if i >= n:
                return
            try:
                self.put(name(i), i)
            except Exception as e:
                self.errors.append((i, e))

    def reader(self):
        while not self.stop.is_set():
            before = self.at
            for i in range(self.hot):
                try:
                    with open(f"{self.folder}/hot/{name(i)}", "rb", buffering=0) as f:
                        if f.read() != blob(i, self.size):
                            self.errors.append((i, "other bytes"))
                except OSError as e:
                    self.lost.append((i, e))
            self.seen = before
            time.sleep(0.01)

    def start(self, n, threads=4):
        """Stores objects until n were stored, including those of earlier calls."""
        self.stop.clear()
        self.threads = [threading.Thread(target=self.writer, args=(n,)) for _ in range(threads)]
        self.reading = threading.Thread(target=self.reader)
        [t.start() for t in self.threads + [self.reading]]
        return self

    def join(self):
        [t.join() for t in self.threads]
        self.stop.set()
        self.reading.join()
        assert not self.errors, (len(self.errors), self.errors[:3])
        assert not self.lost, (len(self.lost), self.lost[:3])
        return self

    def check(self):
        """Remaining files have the right bytes. Returns the number of stored files that remain.
        Reading may itself evict others."""
        # not hot files, nor files that a kill interrupted
        there, gone = [x for x in os.listdir(self.folder) if len(x) == 8], 0
        for x in there[::7]:
            try:
                with open(f"{self.folder}/{x}", "rb", buffering=0) as f:
                    assert f.read() == blob(int(x, 16), self.size), x
            except FileNotFoundError:
                gone += 1
        assert gone <= len(there[::7]) // 2, (gone, len(there))
        return len(there)


def full(kind, options, folder, times=3, disk=96 * MiB):
    # On a busy machine the full disk may make no progress for seconds. An unmount that waited no
    # longer than the usual deadline would leave the pool in memory.
    s = Store(kind, size=str(disk), cpu="32M",
              options=f"pace=100,deadline=60000,{options}".strip(",")).mount()
    n = times * disk // SIZE
    load = Load(s, folder, hot=8).start(n).join()
    # if the disk is slow, more chunks are dropped before they are copied
    while s.stats()["trimmed_chunks"] <= n // 4:
        load.start(load.at + n // 8).join()
    st = s.stats()
    assert st["room_refusals"] == 0 and st["corrupt"] == 0 \
        and st["tier_disk_used_bytes"] <= disk, (kind, st)
    assert st["dropped_chunks"] < load.at, (kind, st)
    s.settle()
    wait_for(lambda: s.stats()["tier_disk_used_bytes"] <= 0.9 * disk)
    kept = load.check()
    assert kept * SIZE > disk // 2, (kind, kept)
    assert os.path.isdir(load.folder) and len(os.listdir(f"{load.folder}/hot")) == 8
    pool = s.config()["pool"]
    s.umount()
    assert not os.path.exists(pool), "the pool of a full tier is kept in memory"
    s.fsck("-n")
    s.mount()
    assert load.check() > kept * 6 // 10
    s.umount()
    os.unlink(f"{s.path}/data")


# a disk that is slower than the stores: stores are throttled, and if that is not enough, the
# coldest chunks without a copy are dropped; no store fails. If stores may wait long enough, nothing
# is dropped early
def slow_disk(pace):
    for delay in (60, 240, 960):  # ms; one of them makes the disk slower than the stores
        delay *= 1 if SLOW == 1 else 3
        s = Store(f"slow{pace}", size="256M", cpu="32M",
                  options=f"shim=delay-put:{delay}+only:disk,pace={pace},settle=0").mount()
        load = Load(s, "a").start(300)
        load.join()
        st = s.stats()
        load.check()
        s.umount()
        os.unlink(f"{s.path}/data")
        shutil.rmtree(s.path)
        assert st["room_refusals"] == 0, (pace, st)
        if st["paced" if pace != "0" else "behind_drops"] > 20:
            break
    if pace == "0":
        assert st["behind_drops"] > 0 and st["paced"] == 0, st
    if pace == "60000":
        assert st["paced"] > 20 and st["behind_drops"] == st["drops"] == 0, st


# a full remote without eviction: stores continue, copies wait for space, and the refusal is not an
# outage
def full_remote():
    r = Redis()
    r.command("config", "set", "maxmemory", "24mb")
    r.command("config", "set", "maxmemory-policy", "noeviction")
    s = Store("remote", cpu="32M", options=f"disk=off,remote={r.url()}").mount()
    load = Load(s, "a").start(500).join()
    st = s.stats()
    assert st["room_refusals"] == 0 and st["tier_refusals"] > 0 and st["spills"] > 10 \
        and st["breaker_opened"] == 0 and st["tier_redis_up"] == 1, st
    load.check()
    # when it has space again, copies are made again
    r.command("flushall")
    before = s.stats()["spills"]
    time.sleep(1.1)
    s.write("b/after", blob(1, SIZE))
    wait_for(lambda: s.stats()["spills"] > before)
    s.umount()
    r.stop()


# a quota and the disk tier are both full: each affects the other only by the space that it uses
def quota():
    s = Store("quota", size="96M", cpu="32M").mount()
    os.mkdir(f"{s.mnt}/q")
    os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"16M")
    a, b = Load(s, "q/flat", hot=4), Load(s, "other")
    a.start(400, 2)
    b.start(1200, 2)
    a.join()
    b.join()
    st = s.stats()
    assert st["quota_refusals"] == 0 and st["room_refusals"] == 0 and st["quota_drops"] > 50, st
    assert int(s.attr("q", "used")) <= 16 * MiB
    a.check(), b.check()
    s.umount()
    s.fsck("-n")


# an unmount, and a kill, in the middle of it all
def ended():
    s = Store("end", size="96M", cpu="32M").mount()
    for end in ("umount", "kill", "umount"):
        load = Load(s, end).start(100000)
        wait_for(lambda: load.at > 900)
        load.stop.set()
        [t.join() for t in load.threads + [load.reading]]
        assert not load.errors, load.errors[:3]
        if end == "kill":
            s.kill()
            run("umount", "-l", s.mnt)
        else:
            s.umount()
        s.fsck("-n" if end == "umount" else "-y", ok=None)
        s.fsck("-n")
        s.mount()
        load.check()
    s.umount()


parts = [(full, "plain", "", "a")]
if WAY == "fast" and LONG:  # tiers do not depend on the serving mode
    parts += [(full, "sealed", f"keyfile={TMP}/keys", "a/b"),
              (full, "coded", "compress=bf16+zstd", "a/b/c"),
              (full, "deep", "", "a/b/c"), (full, "back", "write=back", "a/b")]
parts.append((full, "back-sealed", f"write=back,keyfile={TMP}/keys,compress=zstd", "a"))
beside([(slow_disk, "20"), (slow_disk, "0"), (slow_disk, "60000"), (full_remote,), (quota,),
        (ended,), *parts], most=2)
print("ok")
