# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""A waiting call does not block other calls. A lookup is held in a SQLite read of the catalog while
others look up, create, write, read, rename and remove; the same while a commit is held. A lookup of
a name that does not exist waits for no other read. With a remote, such a lookup reads whether the
name was deleted, and is held in that read. The evictor waits for a copy, because the disk
delays each write, while a ttl expires, a quota is enforced, and the disk tier is trimmed. A caller
waits while the kernel clears its pages. In each case the other calls end before the held one."""
import errno, os, threading, time
from kvtest import *
import faults

CPUS = sorted(os.sched_getaffinity(0))
if WAY == "fast" and len(CPUS) < 2:
    skip("needs two CPUs: with io_uring a CPU's requests are served by one thread")
HANG = 120 * SLOW  # limit for a call that is blocked after all


def meanwhile(*calls):
    """Runs the calls in a thread, so that the case notices a blocked call."""
    out = []

    def do():
        os.sched_setaffinity(0, CPUS[1:] or CPUS)
        try:
            for call in calls:
                out.append(call())
        except BaseException as e:
            out.append(e)
    t = threading.Thread(target=do, daemon=True)
    t.start()
    t.join(HANG)
    assert not t.is_alive(), f"it waits, after {len(out)} of {len(calls)}"
    assert not any(isinstance(o, BaseException) for o in out), out
    return out


# ---- a lookup ----

s = Store("a", size="128M", cpu="64M").mount()
for i in range(300):
    s.write(f"m/c{i}/l", blob(i, 3000))
s.settle()
s.umount()
CATALOG = f"{s.path}/catalog.sqlite*"
r = faults.Rules(f"calls=read path={CATALOG} nth={faults.FAR} do=hold")
assert r.mount(s)
s.write("w/x", b"warm")
s.write("w/y", b"warm")
s.committed(uses=True)
os.stat(f"{s.mnt}/m/c0/l")  # the folder m, in which no other name is known


def look():
    os.sched_setaffinity(0, CPUS[:1])
    os.stat(f"{s.mnt}/m/c150/l")


r.begin()
held = threading.Thread(target=look, daemon=True)
held.start()
wait_for(lambda: r.fired()[0] == 1)
try:
    meanwhile(lambda: os.stat(f"{s.mnt}/m/c7/l"),
              lambda: s.write("w/new", b"new"),
              lambda: s.read("w/x"),
              lambda: os.rename(f"{s.mnt}/w/y", f"{s.mnt}/w/z"),
              lambda: os.unlink(f"{s.mnt}/w/x"),
              lambda: os.mkdir(f"{s.mnt}/other"),
              lambda: os.listdir(f"{s.mnt}/w"),
              lambda: s.read("m/c8/l"),
              lambda: s.committed(),
              lambda: s.stats())
    assert held.is_alive(), "the lookup was not the one that is held"
finally:
    r.heal()
held.join(HANG)
assert not held.is_alive()
assert s.read("m/c150/l") == blob(150, 3000) and s.read("w/new") == b"new"
s.umount()
s.fsck("-n")

# ---- a commit, and names that are not there ----

LOG = f"{s.path}/catalog.sqlite-wal"
r = faults.Rules(f"calls=write path={LOG} nth={faults.FAR} do=hold",
                 f"calls=read path={CATALOG} nth={faults.FAR} count={faults.FAR} do=EIO")
assert r.mount(s)
os.stat(f"{s.mnt}/m")


def at_rest():
    time.sleep(0.2)
    return r.met()[1]


steady(at_rest)  # all names have been read once
r.begin(1)
for i in range(200):
    with fails(errno.ENOENT):
        os.stat(f"{s.mnt}/m/none{i}")
with fails(errno.EIO):  # lookups of existing names do read
    for i in range(300):
        os.stat(f"{s.mnt}/m/c{i}/l")
r.heal(1)
r.begin(0)
s.write("w/held", b"held")
wait_for(lambda: r.fired()[0] == 1)
try:
    meanwhile(lambda: [os.stat(f"{s.mnt}/m/c{i}/l") for i in range(150, 300)],
              lambda: os.listdir(f"{s.mnt}/m"),
              lambda: s.write("w/more", b"more"),
              lambda: os.rename(f"{s.mnt}/w/more", f"{s.mnt}/w/moved"),
              lambda: s.read("m/c9/l"),
              lambda: os.setxattr(f"{s.mnt}/m/c9/l", "user.a", b"1"),
              lambda: os.getxattr(f"{s.mnt}/m/c10/l", "user.kvcachefs.checksum"),
              lambda: os.unlink(f"{s.mnt}/m/c11/l"),
              lambda: s.stats())
    assert s.stats()["catalog_pending_bytes"], "the commit was not held"
finally:
    r.heal(0)
s.committed()
assert s.read("w/held") == b"held" and s.read("w/moved") == b"more"
s.umount()
s.fsck("-n")

# ---- a lookup that reads whether a name was deleted ----

os.mkdir(f"{TMP}/shared")
s = Store("shared", size="64M", cpu="32M", options=f"settle=0,remote=dir://{TMP}/shared").mount()
GONE = 1500  # deleted paths fill many pages of the catalog
for i in range(GONE):
    s.write(f"m/d{i}", b"deleted")
s.settle()
for i in range(GONE):
    os.unlink(f"{s.mnt}/m/d{i}")
s.write("w/x", b"warm")
s.committed()
s.umount()
r = faults.Rules(f"calls=read path={s.path}/catalog.sqlite* nth={faults.FAR} do=hold")
assert r.mount(s)
s.write("w/y", b"warm")
s.committed(uses=True)


def missing(name):
    with fails(errno.ENOENT):
        os.stat(f"{s.mnt}/m/{name}")


def look_for_missing():
    os.sched_setaffinity(0, CPUS[:1])
    for i in range(100):
        missing(f"none{i}")


missing("first")  # reads the path of the folder, and one page of deleted paths
r.begin()
held = threading.Thread(target=look_for_missing, daemon=True)
held.start()
wait_for(lambda: r.fired()[0] == 1 or not held.is_alive())
try:
    assert held.is_alive(), "no lookup read the catalog"
    # not in the folder m, which the kernel locks during the lookup
    meanwhile(lambda: s.write("w/new", b"new"),
              lambda: s.read("w/y"),
              lambda: os.rename(f"{s.mnt}/w/new", f"{s.mnt}/w/moved"),
              lambda: s.stats())
    assert held.is_alive(), "the lookup was not the one that is held"
finally:
    r.heal()
held.join(HANG)
assert not held.is_alive()
s.umount()

# ---- an evictor ----

s = Store("b", size="64M", cpu="32M", options="settle=0,pace=60000,high=90,low=80,unit=dir")
r = faults.Rules(f"calls=write path={s.path}/data nth={faults.FAR} count={faults.FAR} do=hold")
assert r.mount(s)
for model, n in (("old", 16), ("q", 6), ("t", 1)):
    for i in range(n):
        s.write(f"{model}/c{i}/l", blob(i, MiB))
s.settle()
s.committed()
r.begin()
stop = []


def fill():
    """Stores twice the size of the pool, of which no copy can be made."""
    try:
        for i in range(64):
            s.write(f"new/c{i}/l", bytes(MiB))
    except OSError as e:
        stop.append(e)


writer = threading.Thread(target=fill, daemon=True)
writer.start()
try:
    wait_for(lambda: r.fired()[0] and s.stats()["room_waiters"])
    # the keeper
    meanwhile(lambda: os.setxattr(f"{s.mnt}/t/c0", "user.kvcachefs.ttl", b"1"),
              lambda: os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"3M"))
    wait_for(lambda: s.stats()["expired_chunks"] and not os.path.exists(f"{s.mnt}/t/c0"))
    wait_for(lambda: s.stats()["quota_drops"] and int(s.attr("q", "used")) <= 3 * MiB)
    # the trimmer of the disk
    assert not s.stats()["trimmed_chunks"]
    run(binary("kvcachectl"), "reload", "-o", "high=20,low=10", s.mnt, ok=True)
    wait_for(lambda: s.stats()["trimmed_chunks"] > 4)
    assert writer.is_alive() and not stop, "no write was held"
finally:
    r.heal()
writer.join(HANG)
assert not writer.is_alive() and not stop, stop
s.settle()
s.umount()
s.fsck("-n")

# ---- pages that are cleared ----

s = Store("c", size="128M", cpu="128M", options="prefault=off")
r = faults.Rules(f"calls=alloc path={TMP}/run/* nth={faults.FAR} do=hold")
assert r.mount(s)
PASSES = s.config()["served_by"] == "passthrough"
USUAL = 12 * MiB  # the preallocation of a new file with passthrough
for i in range(3):
    s.write(f"m/c{i}/l", blob(i, USUAL))
s.settle()
f = open(f"{s.mnt}/m/new", "wb", buffering=0)
f.write(blob(7, 2 * MiB))
r.begin()


def anew():
    os.sched_setaffinity(0, CPUS[:1])
    if PASSES:
        s.write("m/c0/l", blob(3, USUAL))
    else:  # plain writes prepare more at a time as the file grows
        f.write(blob(8, 4 * MiB))


held = threading.Thread(target=anew, daemon=True)
held.start()
wait_for(lambda: r.fired()[0] == 1)
try:
    meanwhile(lambda: s.read("m/c1/l"),
              lambda: os.listdir(f"{s.mnt}/m"),
              lambda: os.stat(f"{s.mnt}/m/c2/l"),
              lambda: os.rename(f"{s.mnt}/m/c2", f"{s.mnt}/m/c3"),
              lambda: s.write("other/x", b"x"),
              lambda: os.unlink(f"{s.mnt}/other/x"),
              lambda: s.stats())
    assert held.is_alive(), "nothing was held"
finally:
    r.heal()
held.join(HANG)
assert not held.is_alive()
f.close()
# unused preallocation is released in steps, too
if PASSES:
    was = r.met()[0]
    s.write("m/short", b"short")
    s.closed()
    assert r.met()[0] - was > 4 and os.stat(f"{s.mnt}/m/short").st_blocks * 512 <= 65536
    assert s.read("m/short") == b"short"
got = blob(7, 2 * MiB) + (b"" if PASSES else blob(8, 4 * MiB))
assert s.read("m/c0/l") == blob(3 if PASSES else 0, USUAL) and s.read("m/new") == got
s.settle()
s.umount()
s.fsck("-n")
