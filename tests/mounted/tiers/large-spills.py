# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Large objects, whose pieces are written to the disk tier by several threads. The write of each
piece fails (EIO, ENOSPC), is short or kills the daemon: a failure concerns one object, its copy is
made again, and a copy is never incomplete. While the pages of a closed file are being written, a
client changes, truncates or deletes the file, or changes it through a mapping: the copy is always
that of the newest content. An fsync beside a mapping that writes all the time makes a copy that can
be read. SEED repeats the kills."""
import mmap, os, random, threading, time
from contextlib import suppress
from kvtest import *
import faults

SIZE = 4 * MiB + 12345
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}")
TOP = faults.in_memory("memory")  # the calls are the subject, not the speed of the disk
s = faults.store_in_memory(TOP, size="256M", cpu="160M")
WRITES = [f"calls=write path={s.path}/data* nth={faults.FAR} count={count} do={do}"
          for do, count in (("EIO", 1), ("ENOSPC", 1), ("short", faults.FAR), ("hold", 1),
                            ("kill", 1), ("delay:20", faults.FAR))]
EIO, NOSPC, SHORT, HOLD, KILL, LATE = range(6)
PIECES = SIZE // MiB + 1


def mount(settle):
    r = faults.Rules(*WRITES)
    assert r.mount(s, options=f"settle={settle},unit=file")
    os.makedirs(f"{s.mnt}/m", exist_ok=True)
    return r


def without_memory(end="umount"):
    if end == "umount":
        s.umount()
    else:
        s.kill()
        run("umount", "-l", s.mnt)
    s.drop_pool()


def check(content, **more):
    """The content of each file, from the disk tier alone; None: it does not exist."""
    without_memory(**more)
    s.fsck("-n", "--data")
    s.mount(options="settle=0,unit=file")
    for name, data in content.items():
        if data is None:
            assert not os.path.exists(f"{s.mnt}/m/{name}"), name
        else:
            assert s.read(f"m/{name}") == data, name
    st = s.stats()
    assert st["corrupt"] == 0 and st["load_failures"] == 0, st
    for name in content:
        if os.path.exists(f"{s.mnt}/m/{name}"):
            os.unlink(f"{s.mnt}/m/{name}")
    s.umount()


# ---- failures of one write ----
r = mount(0)
content, failed = {}, 0
for rule in EIO, NOSPC, SHORT:
    for piece in range(PIECES + 1) if rule == EIO else (PIECES // 2,):
        name = f"closed{rule}.{piece}"
        content[name] = blob(f"{SEED}{name}", SIZE)
        r.begin(rule, after=piece)
        s.write(f"m/{name}", content[name])
        s.settle()
        r.heal(rule)
        assert s.attr(f"m/{name}", "tiers") == "cpu,disk", name
        name = f"synced{rule}.{piece}"
        content[name] = blob(f"{SEED}{name}", SIZE)
        r.begin(rule, after=piece)
        with open(f"{s.mnt}/m/{name}", "wb", buffering=0) as f:
            f.write(content[name])
            try:
                os.fsync(f.fileno())
            except OSError as e:
                assert e.errno == errno.EIO, e
                failed += 1
            r.heal(rule)
            os.fsync(f.fileno())
    s.settle()
    for name in content:
        assert s.attr(f"m/{name}", "tiers") == "cpu,disk", name
    assert r.fired()[rule], "no write failed"
    print(f"rule {rule}: {r.fired()[rule]} calls; {failed} fsyncs returned an error")
    if rule == EIO:  # a place that failed is not used again at once
        check(content)
        r, content = mount(0), {}
assert failed
check(content)

# ---- changes while a piece is being written ----
r = mount(0)
content = {}


def during(change, name):
    """Makes the change while a write of the file's copy is held, and waits for the end of the copy.
    """
    before = r.fired()[HOLD]
    r.begin(HOLD, after=PIECES // 2)
    s.write(f"m/{name}", blob(f"{SEED}{name}", SIZE))
    wait_for(lambda: r.fired()[HOLD] > before)
    content[name] = change(f"{s.mnt}/m/{name}", blob(f"{SEED}{name}", SIZE))
    r.heal(HOLD)
    s.settle()


def overwrite(path, data):
    with open(path, "r+b", buffering=0) as f:
        for at in range(0, SIZE, MiB):
            assert os.pwrite(f.fileno(), b"changed", at + 100) == 7
            data = data[:at + 100] + b"changed" + data[at + 107:]
    return data


def through_mapping(path, data):
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), SIZE) as m:
        f.close()
        m[3 * MiB:3 * MiB + 4] = b"mmap"
    return data[:3 * MiB] + b"mmap" + data[3 * MiB + 4:]


def shorten(path, data):
    os.truncate(path, 4096 + 5)
    return data[:4096 + 5]


def empty(path, data):
    os.truncate(path, 0)
    os.truncate(path, SIZE)
    return bytes(SIZE)


def delete(path, data):
    os.unlink(path)


def replace(path, data):
    s.write("m/other", b"other")
    os.rename(f"{s.mnt}/m/other", path)
    return b"other"


for change in overwrite, through_mapping, shorten, empty, delete, replace:
    during(change, change.__name__)
    print(f"{change.__name__}: {s.stats()['spill_stale']} stale copies so far")
assert r.fired()[HOLD] and s.stats()["spill_stale"]

s.settle()
check(content)

# ---- fsyncs while a mapping writes all the time: each copy is one that can be read ----
SPOTS = range(0, SIZE - 8, 64 * 1024)
for i in range(4):
    r = mount(3600000)
    r.begin(LATE)  # the bytes change between their sum and their write
    data, stop = blob(f"{SEED}mapped", SIZE), threading.Event()
    s.write("m/mapped", data)
    fd = os.open(f"{s.mnt}/m/mapped", os.O_RDWR)
    assert os.pwrite(fd, data[:1], 0) == 1
    m = mmap.mmap(fd, SIZE)

    def toggle():
        while not stop.is_set():
            for at in SPOTS:
                m[at] ^= 1
    t = threading.Thread(target=toggle)
    t.start()
    for _ in range(i + 1):
        os.fsync(fd)
    without_memory("kill")
    stop.set()
    t.join()
    m.close()
    with suppress(OSError):  # ENOTCONN without passthrough
        os.close(fd)
    s.fsck("-n", "--data")
    s.mount()
    got = bytearray(s.read("m/mapped"))
    assert s.stats()["corrupt"] == 0
    for at in SPOTS:
        assert got[at] in (data[at], data[at] ^ 1), at
        got[at] = data[at]
    assert got == data
    os.unlink(f"{s.mnt}/m/mapped")
    s.umount()

# ---- kills ----
rng = random.Random(SEED)
for kill in range(8):
    r = mount(0)
    name, synced = f"kill{kill}", kill % 2
    data = blob(f"{SEED}{name}", SIZE)
    s.write("m/small", data[:5000])
    s.settle()
    s.committed()  # the pool may be lost: then the file is what the catalog says
    r.begin(KILL, after=rng.randrange(PIECES + 2))
    try:
        with open(f"{s.mnt}/m/{name}", "wb", buffering=0) as f:
            f.write(data)
            if synced:
                os.fsync(f.fileno())
        s.daemon.wait(10)
    except (OSError, subprocess.TimeoutExpired):
        pass
    s.kill()
    run("umount", "-l", s.mnt)
    lost = kill % 4 > 1
    if lost:
        s.drop_pool()
    s.fsck("-n", ok=None)
    s.mount(options="settle=0,unit=file")
    there = os.path.exists(f"{s.mnt}/m/{name}")
    print(f"kill {kill}: {r.fired()[KILL]} write, pool {'lost' if lost else 'kept'}, "
          f"{'complete' if there else 'absent'}")
    if there:
        got = s.read(f"m/{name}")
        assert got == data or not lost and data.startswith(got) or not got, (kill, len(got))
    assert s.read("m/small") == data[:5000]
    s.settle()
    s.umount()
    s.fsck("-n", "--data")
