# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Power is lost while a file that was fsynced before is changed in place and fsynced again. At each
recorded operation of the second fsync, whichever of the catalog's log and the data reaches the
medium first, the file has its old or its new bytes. The second fsync has as many syncs as the
first."""
import hashlib, os, random
from kvtest import *
from replay import *

need_mount()
if MODE in ("asan", "tsan"):
    skip("the recorder replaces functions of libc that the sanitizers replace, too")
TOP, BASE, LOG, STATE = f"{TMP}/top", f"{TMP}/base", f"{TMP}/record", f"{TMP}/state"
FILES = 2
SIZE = 50000
s = store_at(TOP, "unit=file,settle=3600000", f"{TMP}/mnt")
os.mkdir(TOP)
run(binary("mkfs.kvcachefs"), "--size", "20M", s.path, ok=True)
os.unlink(f"{s.path}/reserve")
run("cp", "-a", TOP, BASE, ok=True)
state = State(STATE)
mount_recorded(s, TOP, LOG, STATE)
os.mkdir(f"{s.mnt}/m")
spans, syncs = [], []  # of the second fsyncs; the records of each fsync
for i in range(FILES):
    fd = os.open(f"{s.mnt}/m/{i}", os.O_RDWR | os.O_CREAT)
    for version in ("old", "new"):
        assert os.pwrite(fd, blob(f"{version} {i}", SIZE), 0) == SIZE
        s.committed(still_open=1)
        begun = state.seq()
        os.fsync(fd)
        syncs.append((version, begun, state.seq()))
    spans.append((i, begun, state.seq()))
    os.close(fd)
s.umount()
s.drop_pool()
replay = Replay(LOG, BASE)
counts = {"old": set(), "new": set()}
for version, begun, end in syncs:
    counts[version].add(sum(op == SYNC and begun < seq <= end
                            for seq, op in Replay(LOG, BASE).all_records()) // 2)
assert counts["old"] == counts["new"] == {2}, counts
os.rename(TOP, f"{TMP}/held")
tried = set()


def image_of(top):
    h = hashlib.md5()
    for folder, _, files in sorted(os.walk(top)):
        for name in sorted(files):
            with open(f"{folder}/{name}", "rb") as f:
                h.update(f"{folder}/{name}".encode() + hashlib.md5(f.read()).digest())
    return h.digest()


for i, begun, end in spans:
    for seq in range(begun, end + 1):
        replay.to(seq)
        for how in ("log", "data", "none"):
            replay.image(TOP, how, random.Random(0))
            this = i, seq == end, image_of(TOP)
            if this in tried:
                run("rm", "-r", TOP, ok=True)
                continue
            tried.add(this)
            t = store_at(TOP, "unit=file,write=back", f"{TMP}/mnt2")
            t.mount()
            found, unreadable = look(t)
            for j in range(i + 1):
                versions = {"old": blob(f"old {j}", SIZE), "new": blob(f"new {j}", SIZE)}
                allowed = [versions["new"]] if j < i or seq == end else list(versions.values())
                got = found.get(f"m/{j}")
                assert got in allowed, (
                    f"power lost at record {seq} of {begun} to {end} ({how}): m/{j} " +
                    (unreadable.get(f"m/{j}", "is missing") if got is None else
                     "has other bytes") + f"\n{t.log()}")
            t.umount()
            t.drop_pool()
            run("rm", "-r", TOP, ok=True)
print(f"{len(tried)} failures")
assert len(tried) > 10
