# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A codec with loss, kills at random moments and losses of the pool. Each file has the bytes of one
of its last versions, as they were written or as they return from a tier. Once a reader has seen the
decoded bytes of a version, that version has no other bytes any more: not for another reader, nor
after a kill. A synced version survives the loss of the pool."""
import os, random, time
from kvdata import *
from kvtest import *

ROUNDS = 6 if os.environ.get("LEVEL") == "check" else 40
SEED = int(os.environ.get("SEED", time.time_ns() % 100000))
print("seed", SEED)
r = random.Random(SEED)
SETTLED = 2.0 * SLOW  # seconds after which a kill cannot undo a close
FILES = 32


class File:
    """The versions of a file: (seed, size), when it was closed, and whether it was synced."""
    def __init__(self):
        self.versions, self.decodings = [], Decodings()

    def check(self, data, oldest):
        """The bytes must be those of a version from number `oldest` on."""
        for n in range(len(self.versions) - 1, max(oldest, 0) - 1, -1):
            if self.decodings.holds(self.versions[n][0], kv(*self.versions[n][0]), data):
                return n
        raise AssertionError(f"bytes of no version: {self.versions}, {self.decodings.of.keys()}, "
                             f"oldest {oldest}")


files = {f"m/c{i}/l": File() for i in range(FILES)}
s = Store(cpu="24M", size="512M", options="compress=kvq-mid,settle=0").mount()
os.mkdir(f"{s.mnt}/m")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.layout", LAYOUT.encode())
counts = dict.fromkeys(("writes", "reads", "decoded", "kills", "lost pools"), 0)


def read(path, oldest):
    f = files[path]
    data = s.read(path)
    counts["reads"] += 1
    n = f.check(data, oldest)
    counts["decoded"] += f.versions[n][0] in f.decodings.of
    return n


def write(path):
    f = files[path]
    what = (r.randrange(1 << 30), r.choice((256, 1024, 1536)) * KiB + r.randrange(2) * PAGE)
    sync = r.random() < 0.3
    f.versions.append([what, float("inf"), False])
    os.makedirs(os.path.dirname(f"{s.mnt}/{path}"), exist_ok=True)
    tmp = f"{s.mnt}/{path}.tmp{what[0]}"
    with open(tmp, "wb") as out:
        out.write(kv(*what))
        if sync:
            out.flush()
            os.fsync(out.fileno())
    os.rename(tmp, f"{s.mnt}/{path}")
    if sync:
        fd = os.open(os.path.dirname(tmp), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    f.versions[-1][1:] = time.monotonic(), sync
    counts["writes"] += 1


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path = r.choice([*files])
        f = files[path]
        if not f.versions or r.random() < 0.25:
            write(path)
        else:
            read(path, len(f.versions) - 1)


for n in range(ROUNDS):
    work(1 + r.random())
    now = time.monotonic()
    s.kill()
    run("umount", "-l", s.mnt)
    counts["kills"] += 1
    lost = r.random() < 0.4
    if lost:
        s.drop_pool()
        counts["lost pools"] += 1
    s.mount()
    for path, f in files.items():
        if not f.versions:
            continue
        # versions that a kill cannot undo; without the pool only synced ones are sure
        sure = [i for i, (_, at, sync) in enumerate(f.versions)
                if at < now - SETTLED and (sync or not lost)]
        try:
            got = read(path, max(sure, default=0))
        except FileNotFoundError:
            assert not sure, (path, f.versions, sure, lost)
            got = -1
        # it is the newest version from now on
        f.versions = [[f.versions[got][0], f.versions[got][1], False]] if got >= 0 else []
t = s.stats()
assert not t["corrupt"] and t["loads_decoded"] + counts["decoded"] > 0, (t, counts)
assert counts["decoded"] > 0 and counts["writes"] > FILES / 2, counts
s.umount()
s.fsck()
print(counts)
