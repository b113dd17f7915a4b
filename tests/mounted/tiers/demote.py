# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""user.kvcachefs.demote removes a chunk from the pool (after a copy), from one tier, or from all.
The case covers the refusals, failing and slow tiers, and concurrent readers."""
import errno, mmap, os, threading, time
from kvtest import *

DEMOTE = "user.kvcachefs.demote"


def P(path):
    return f"{s.mnt}/{path}"


def demote(path, where):
    os.setxattr(P(path), DEMOTE, where.encode())


def data(c, i):
    return blob(f"{c} {i}", 300000 + i)


def put(c, n=3):
    for i in range(n):
        s.write(f"{c}/l{i}", data(c, i))


def tiers(path):
    return s.attr(path, "tiers")


def intact(c, n=3):
    assert all(s.read(f"{c}/l{i}") == data(c, i) for i in range(n))


s = Store("disk", cpu="64M", options="settle=0").mount()
# from the pool: the memory is free when the call returns. The path of any file of the chunk works.
# A read loads the chunk again.
put("m/c")
s.settle()
used = s.stats()["pool_used_bytes"]
assert tiers("m/c") == "cpu,disk"
demote("m/c", "cpu")
assert tiers("m/c") == "disk" and s.attr("m/c", "state") == "lower"
assert s.stats()["pool_used_bytes"] <= used - 900000, s.stats()["pool_used_bytes"]
demote("m/c", "cpu")  # nothing is left to do
intact("m/c")
assert tiers("m/c") == "cpu,disk"
s.settle()
demote("m/c/l1", "cpu")
assert tiers("m/c") == "disk" and tiers("m/c/l0") == "disk"

# demote is a request and has no value
assert DEMOTE not in os.listxattr(P("m/c"))
with fails(errno.ENODATA):
    os.getxattr(P("m/c"), DEMOTE)
with fails(errno.EPERM):
    os.removexattr(P("m/c"), DEMOTE)
for bad in ("", "gpu", "dir", "disk ", "1"):
    with fails(errno.EINVAL):
        demote("m/c", bad)
with fails(errno.EINVAL):
    demote("m", "cpu")  # neither a file nor a chunk

# from the disk: only if the pool has the chunk
with fails(errno.EBUSY):
    demote("m/c", "disk")
assert tiers("m/c") == "disk"
intact("m/c")
s.settle()
disk = s.stats()["tier_disk_used_bytes"]
demote("m/c", "disk")
assert tiers("m/c") == "cpu" and s.attr("m/c", "state") == "resident"
wait_for(lambda: s.stats()["tier_disk_used_bytes"] <= disk - 900000)
demote("m/c", "disk")
demote("m/c", "cpu")  # copied first
assert tiers("m/c") == "disk"
intact("m/c")
s.settle()

# chunks in use are refused and stay unchanged
for where in ("cpu", "disk", "all"):
    with open(P("m/c/l0"), "rb"):
        with fails(errno.EBUSY):
            demote("m/c", where)
    s.settle()
    lease = open(P(".kvcachefs/lease"), "r+b", buffering=0)
    lease.write(b"m/c")
    lease.seek(0)
    assert b"resident" in lease.read(9999)
    with fails(errno.EBUSY):
        demote("m/c/l2", where)
    lease.close()
    os.setxattr(P("m/c"), "user.kvcachefs.pin", b"1")
    s.settle()
    with fails(errno.EBUSY):
        demote("m/c", where)
    os.setxattr(P("m/c"), "user.kvcachefs.pin", b"0")
    assert tiers("m/c") == "cpu,disk"
with open(P("m/c/l1"), "rb") as f:
    mapping = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
for where in ("cpu", "all"):
    with fails(errno.EBUSY):
        demote("m/c", where)
assert mapping[:] == data("m/c", 1) and tiers("m/c") == "cpu,disk"
mapping.close()
s.settle()

# a demote directly after a close is not refused, although the kernel reports the close later
def late_close(where):
    """Demotes a file that is closed 0.1 s later. Returns false if the machine delayed the close for
    longer than demote waits (0.3 s)."""
    f = open(P("m/c/l0"), "rb")
    closes = threading.Timer(0.1, f.close)
    closes.start()
    try:
        demote("m/c", where)
        return True
    except OSError as e:
        assert e.errno == errno.EBUSY, e
        return False
    finally:
        closes.join()
        s.settle()


for where in ("cpu", "disk", "all"):
    wait_for(lambda: late_close(where))
    if where == "all":
        put("m/c")
    intact("m/c")
    s.settle()

# from all: a chunk disappears together with its folder, and a single file together with
# its companion a.metadata
demote("m/c", "all")
assert not os.path.exists(P("m/c"))
wait_for(lambda: os.listdir(P("m")) == [])  # the kernel has it cached until it is notified
with fails(errno.ENOENT):
    demote("m/c", "all")
os.mkdir(P("flat"))
os.setxattr(P("flat"), "user.kvcachefs.unit", b"file")
for name in ("a", "a.metadata", "b"):
    s.write(f"flat/{name}", blob(name, 5000))
s.settle()
demote("flat/a", "all")
assert os.listdir(P("flat")) == ["b"] and s.read("flat/b") == blob("b", 5000)
s.settle()
drops = s.stats()["drops"]
assert drops == 8, drops

# readers and demotions in parallel: readers get only the data that was written
for c in range(4):
    put(f"m/r{c}")
s.settle()
stop, wrong, reads, done = threading.Event(), [], [0], []


def reader():
    while not stop.is_set():
        for c in range(4):
            try:
                for i in range(3):
                    if s.read(f"m/r{c}/l{i}") != data(f"m/r{c}", i):
                        wrong.append((c, i))
                    reads[0] += 1
            except OSError as e:
                wrong.append(e)
        time.sleep(0.002)


threads = [threading.Thread(target=reader) for _ in range(2)]
[t.start() for t in threads]


def demoter(c):
    for where in ("cpu", "disk"):
        try:
            done.append(demote(f"m/r{c}", where))
        except OSError as e:
            if e.errno != errno.EBUSY:
                wrong.append(e)


def some_demoted():
    side_by_side = [threading.Thread(target=demoter, args=(c,)) for c in range(4)]
    [t.start() for t in side_by_side]
    [t.join() for t in side_by_side]
    return (len(done) > 20 and reads[0] > 100) or wrong


wait_for(some_demoted)
stop.set()
[t.join() for t in threads]
assert not wrong, wrong[:3]
s.umount()
s.fsck("-n")
s.mount()
for c in range(4):
    intact(f"m/r{c}")
s.umount()

# a failing tier: the call fails at once with the tier's error, and nothing is lost. It succeeds
# when the tier works again.
flag = f"{TMP}/broken"
s = Store("fails", cpu="32M", options=f"settle=60000,shim=fail-while:{flag}").mount()
open(flag, "w").close()
put("m/c")
for _ in range(2):
    with fails(errno.EIO):
        demote("m/c", "cpu")
assert tiers("m/c") == "cpu"
intact("m/c")
with fails(errno.EBUSY):
    with open(P("m/c/l0"), "rb"):
        demote("m/c", "cpu")
os.unlink(flag)


def well():
    try:
        demote("m/c", "cpu")
        return True
    except OSError as e:
        assert e.errno in (errno.EIO, errno.EBUSY, errno.ETIMEDOUT), e


wait_for(well)
assert tiers("m/c") == "disk"
intact("m/c")
s.umount()
s.fsck("-n")

# a slow tier: the call waits for it, at most until deadline=, and other calls do not wait
s = Store("slow", cpu="32M", options="settle=60000,deadline=60000,shim=delay-put:700").mount()
put("m/c", 1)
put("m/d", 1)
late = []
t = threading.Thread(target=lambda: late.append(demote("m/c", "cpu")))
t.start()
for i in range(6):
    s.write(f"other/x{i}", b"y")
    assert s.read(f"other/x{i}") == b"y"
t.join()
assert late == [None] and tiers("m/c") == "disk"
s.umount()
flag = f"{TMP}/slow.flag"
open(flag, "w").close()
s = Store("slower", cpu="32M", options="settle=60000,deadline=700,"
          f"shim=delay-put:60000+delay-while:{flag}").mount()
put("m/c", 1)
with fails(errno.ETIMEDOUT):
    demote("m/c", "cpu")
assert s.read("m/c/l0") == data("m/c", 0)
os.unlink(flag)
wait_for(lambda: tiers("m/c") == "cpu,disk")
wait_for(well)
assert tiers("m/c") == "disk"
s.umount()

# without a tier no copy can be made; with a remote, demote can remove the copy there, for all nodes
s = Store("none", cpu="32M", options="disk=off").mount()
put("m/c")
with fails(errno.ENODEV):
    demote("m/c", "cpu")
assert tiers("m/c") == "cpu"
demote("m/c", "all")
assert not os.path.exists(P("m/c"))
s.umount()
remote = f"{TMP}/remote"
os.mkdir(remote)
s = Store("remote", cpu="32M", options=f"settle=0,remote=dir://{remote}").mount()
put("m/c")
s.settle()
files = lambda: sum(len(f) for _, _, f in os.walk(remote))
assert tiers("m/c") == "cpu,disk,dir" and files() >= 3
demote("m/c", "cpu")
demote("m/c", "disk")
assert tiers("m/c") == "dir"
with fails(errno.EBUSY):
    demote("m/c", "dir")
intact("m/c")
s.settle()
many = files()
demote("m/c", "dir")
wait_for(lambda: files() <= many - 3)
assert "dir" not in tiers("m/c")
intact("m/c")
s.umount()
s.fsck("-n")
