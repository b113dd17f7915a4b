# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Power is lost before each sync of an unmount that clears the frames of deleted files (without
make check: at each recorded operation), and after its end, whichever of the catalog's log and the
devices reaches the medium first. The catalog says that the unmount was clean only if no frame of a
deleted file is left: otherwise fsck would report frames without placements, and a rebuild would
bring the files back. The store has one data file, or three."""
import os, random, shutil
from faults import in_memory
from kvtest import *
from replay import *

need_mount()
if MODE in ("asan", "tsan"):
    skip("the recorder replaces functions of libc that the sanitizers replace, too")
MEMORY = in_memory("memory")  # a sync takes no time there
TOP, BASE, LOG, STATE = (f"{MEMORY}/{name}" for name in ("top", "base", "record", "state"))
PARTS = [f"{TOP}/part{i}" for i in range(3)]
FILES = 12


def recorded(parts):
    """Records the end of a mount. Returns the last record before the unmount, and the last one."""
    s, state = recorded_store(TOP, BASE, LOG, STATE, "unit=file,settle=0", parts)
    for i in range(FILES):
        s.write(f"m/{i}", blob(i, 50000))
    s.settle()
    for i in range(FILES):
        fd = os.open(f"{s.mnt}/m/{i}", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    for i in range(0, FILES, 2):
        os.unlink(f"{s.mnt}/m/{i}")
    begun = state.seq()
    s.umount()
    s.drop_pool()
    return begun, state.seq()


def points(replay, begun, end):
    if LONG:
        return range(begun, end + 1)
    return [seq - 1 for seq, op in replay.all_records() if op == SYNC and seq > begun] + [end]


def lose_power(begun, end, hows):
    """Returns how many failures were tried, and how many of them left no frames in free space."""
    replay, tried, clean = Replay(LOG, BASE), set(), 0
    os.rename(TOP, f"{MEMORY}/held")
    t = store_at(TOP, "unit=file", f"{TMP}/mnt2")
    for seq in points(replay, begun, end):
        replay.to(seq)
        for how in hows:
            folders, files = replay.left(how, random.Random(seq))
            this = hash(tuple((p, bytes(files[p][:used(files[p])])) for p in sorted(files)))
            if this in tried:
                continue
            tried.add(this)
            make_image(TOP, folders, files)
            where = f"power lost at record {seq} of {begun} to {end} ({how}): "
            p = t.fsck("-n", ok=None)
            assert p.returncode == 0, where + p.stdout
            clean += "of a killed daemon" not in p.stdout
            shutil.rmtree(TOP)
    shutil.rmtree(f"{MEMORY}/held")
    return len(tried), clean


for parts in ([], PARTS):
    hows = ("all", "log", "device" if parts else "rest")
    tried = lose_power(*recorded(parts), hows)
    print(f"data files: {len(parts) or 1}, failures: {tried[0]}, without such frames: {tried[1]}")
    assert all(tried), tried
    shutil.rmtree(BASE)
    os.unlink(LOG)
print("ok")
