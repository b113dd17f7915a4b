# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Power is lost during two fsyncs of an open file: of a new file, and of the same file after it was
changed in place. At each recorded operation (make check: at one in three, and at the last),
whichever of the catalog's log and the devices reaches the medium first, the new file is complete or
absent, and later it has its old or its new bytes. The second fsync has as many syncs as the first.
The store has one data file, or three."""
import hashlib, os, random, shutil
from faults import in_memory
from kvtest import *
from replay import *

need_mount()
if MODE in ("asan", "tsan"):
    skip("the recorder replaces functions of libc that the sanitizers replace, too")
MEMORY = in_memory("memory")  # a sync takes no time there
TOP, BASE, LOG, STATE = (f"{MEMORY}/{name}" for name in ("top", "base", "record", "state"))
PARTS = [f"{TOP}/part{i}" for i in range(3)]
SIZE = 50000
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}")
STEP = 1 if LONG else 3
FIRST = random.Random(SEED).randrange(STEP)


def recorded(parts):
    """Records two fsyncs of a file. Returns a list of (version, first record, last record)."""
    s, state = recorded_store(TOP, BASE, LOG, STATE, "unit=file,settle=3600000", parts)
    os.mkdir(f"{s.mnt}/m")
    fd = os.open(f"{s.mnt}/m", os.O_RDONLY)
    os.fsync(fd)  # the first one syncs all devices, since an earlier daemon may have been killed
    os.close(fd)
    spans = []
    fd = os.open(f"{s.mnt}/m/file", os.O_RDWR | os.O_CREAT)
    for version in ("old", "new"):
        assert os.pwrite(fd, blob(version, SIZE), 0) == SIZE
        s.committed(still_open=1)
        begun = state.seq()
        os.fsync(fd)
        spans.append((version, begun, state.seq()))
    os.close(fd)
    s.umount()
    s.drop_pool()
    all = Replay(LOG, BASE).all_records()
    syncs = [sum(op == SYNC and a < seq <= b for seq, op in all) // 2 for _, a, b in spans]
    assert syncs == [2, 2], syncs
    return spans


def identity(folders, files):
    h = hashlib.md5(repr(sorted(folders)).encode())
    for path in sorted(files):
        h.update(f"{path} {len(files[path])}".encode() + hashlib.md5(
            files[path][:used(files[path])]).digest())
    return h.digest()


def check(allowed, where):
    """Mounts the store as the failure left it, and checks the contents of the file."""
    t = store_at(TOP, "unit=file,write=back", f"{TMP}/mnt2")
    t.mount()
    found, unreadable = look(t)
    got = found.get("m/file")
    assert got in allowed, (f"power lost at {where}: the file " + (
        unreadable.get("m/file", "is missing") if got is None else "has other bytes") + t.log())
    t.umount()
    t.drop_pool()


def lose_power(spans, hows):
    """Returns the number of failures that were tried."""
    replay, tried, before = Replay(LOG, BASE), set(), [None]
    os.rename(TOP, f"{MEMORY}/held")
    for version, begun, end in spans:
        new = blob(version, SIZE)
        for seq in range(begun, end + 1):
            if seq != end and (seq - begun) % STEP != FIRST:
                continue
            replay.to(seq)
            for how in hows:
                left = replay.left(how, random.Random(seq))
                this = version, seq == end, identity(*left)
                if this in tried:
                    continue
                tried.add(this)
                make_image(TOP, *left)
                check([new] if seq == end else before + [new],
                      f"record {seq} of {begun} to {end} ({how}), {version}")
                shutil.rmtree(TOP)
        before = [new]
    return len(tried)


for parts, hows in (([], ("log", "data")), (PARTS, ("log", "device"))):
    n = lose_power(recorded(parts), hows)
    print(f"{n} failures", flush=True)
    assert n >= 15 // (1 if LONG else 2), n
    run("rm", "-r", f"{MEMORY}/held", BASE, LOG, ok=True)
