# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Eight writers write ten times the size of the pool, without an error and without exceeding the
limit: with a disk that holds everything, with a smaller one, with none, and with write=back. A
create fails with ENOSPC only if everything left in the pool is open."""
import errno, os, time
from kvtest import *

POOL, SIZE, LAYERS = 32 * MiB, 256 * KiB, 8
CHUNKS = 10 * POOL // SIZE // LAYERS // 8  # each of 8 writers


def writer(s, w):
    for c in range(CHUNKS):
        folder = f"{s.mnt}/model/{w}-{c}"
        os.makedirs(folder)
        for l in range(LAYERS):
            with open(f"{folder}/layer{l}", "wb", buffering=0) as f:
                assert f.write(blob(f"{w}/{c}/{l}", SIZE)) == SIZE
    os._exit(0)


def fill(name, size, options, holds_all):
    # (a pause of the machine would turn a folder into a container)
    s = Store(name, size=size, cpu="32M", options=f"unit=dir,{options}").mount()
    kids = []
    for w in range(8):
        pid = os.fork()
        if not pid:
            try:
                writer(s, w)
            except BaseException as e:
                print(f"{name}: writer {w}: {e!r}", flush=True)
            finally:
                os._exit(1)
        kids.append(pid)
    most = 0
    while kids:
        v = os.statvfs(next(f"{TMP}/run/{d}" for d in os.listdir(f"{TMP}/run")
                            if os.path.ismount(f"{TMP}/run/{d}")))
        most = max(most, (v.f_blocks - v.f_bfree) * v.f_frsize)
        for pid in kids[:]:
            got, status = os.waitpid(pid, os.WNOHANG)
            if got:
                assert status == 0, f"{name}: a writer failed: {s.log()[-2000:]}"
                kids.remove(pid)
        time.sleep(0.01)
    assert most <= POOL, most
    s.settle()
    st = s.stats()
    assert st["pool_used_bytes"] <= POOL and st["room_refusals"] == 0, st
    whole = partial = 0
    for w in range(8):
        for c in range(CHUNKS):
            folder = f"model/{w}-{c}"
            try:
                there = os.listdir(f"{s.mnt}/{folder}")
            except FileNotFoundError:
                continue
            whole += len(there) == LAYERS
            partial += len(there) not in (0, LAYERS)
            for n in there[:2] if w % 2 else there:
                try:
                    data = s.read(f"{folder}/{n}")
                except FileNotFoundError:
                    continue  # dropped while other files were loaded
                assert data == blob(f"{w}/{c}/{n[5:]}", SIZE), f"{name}: {folder}/{n}"
    assert not partial, f"{name}: {partial} chunks are there in part"
    assert whole == 8 * CHUNKS if holds_all else 0 < whole < 8 * CHUNKS, whole
    s.umount()
    s.fsck("-n")
    return st


# stores may wait, so no chunk is dropped because it has no copy
st = fill("all", "1G", "pace=600000,deadline=600000", True)
assert st["evictions"] > 0 and st["drops"] == 0
st = fill("part", "128M", "pace=100", False)
assert st["dropped_chunks"] > 0
fill("none", "16M", "disk=off", False)
fill("back", "1G", "write=back,pace=600000,deadline=600000", True)

s = Store("refuse", cpu="32M", options="deadline=2000").mount()
s.write("m/warm", bytes(MiB))
s.settle()
held = []
with fails(errno.ENOSPC):
    for i in range(64):
        fd = os.open(f"{s.mnt}/m/{i}", os.O_CREAT | os.O_WRONLY)
        held.append(fd)
        for _ in range(4):
            at = 0
            while at < 256 * KiB:
                at += os.write(fd, bytes(256 * KiB - at))
assert len(held) >= 24, len(held)
assert os.path.exists(f"{s.mnt}/m/0") and s.stats()["room_refusals"] > 0
[os.close(fd) for fd in held]
s.settle()
s.write("m/after", blob(1, MiB))
assert s.read("m/after") == blob(1, MiB)
s.umount()

# one large file must not prevent many small files of its model from being open together: the
# preallocation is optional
s = Store("outlier", cpu="64M", options="deadline=1000").mount()
s.write("m/large", bytes(7 * MiB))
s.settle()
held = [open(f"{s.mnt}/m/{i}", "wb", buffering=0) for i in range(24)]
for i, f in enumerate(held):
    f.write(blob(i, MiB))
[f.close() for f in held]
for i in range(24):
    assert s.read(f"m/{i}") == blob(i, MiB)
s.umount()
