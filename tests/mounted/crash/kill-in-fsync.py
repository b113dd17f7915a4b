# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""SIGKILL during an fsync of a file that is changed in place and has an older copy in the disk
tier. The kill happens at the Nth call that changes the store or the pool, for the first KILLS (20)
values of N, with the pool kept and with the pool lost. Either the old or the new content is there,
complete; if the fsync had returned, it is the new content. SEED repeats a run."""
import os, random, struct, threading, time
from kvtest import *
import faults

KILLS = int(os.environ.get("KILLS", 20))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"KILLS={KILLS} SEED={SEED}")
rng = random.Random(SEED)
TOP = faults.in_memory("memory")  # a sync takes no time there
s = faults.store_in_memory(TOP, size="64M", cpu="32M", options="settle=0,unit=file")
RULES = [f"calls=change path={where}/* nth={faults.FAR} count=1 do=kill"
         for where in (s.path, f"{TMP}/run")]


def sync(fd, done):
    try:
        os.fsync(fd)
        done.append(0)
    except OSError as e:
        done.append(e.errno)


def one(nth, rule, lose, content):
    """Changes and syncs the file, and is killed during that or a moment later. Returns the possible
    contents."""
    r = faults.Rules(*RULES)
    assert r.mount(s)
    assert s.read("m/f") == content
    new = blob(f"{SEED}.{nth}.{rule}", rng.choice((len(content), 200000, 300000)))
    fd = os.open(f"{s.mnt}/m/f", os.O_RDWR)
    assert os.pwrite(fd, new, 0) == len(new)
    os.ftruncate(fd, len(new))
    r.map[rule * 16:rule * 16 + 8] = struct.pack("<Q", faults.FAR - nth)
    done = []
    t = threading.Thread(target=sync, args=(fd, done))
    t.start()
    t.join(HANG)
    assert not t.is_alive(), "the fsync hangs"
    fired = sum(r.fired())
    s.kill()
    os.close(fd)
    run("umount", "-l", s.mnt)
    assert done[0] == 0 or fired, done
    if lose:
        s.drop_pool()
    return ([] if done[0] == 0 else [content]) + [new], fired


s.mount()
s.write("m/f", blob(SEED, 250000))
s.settle()
s.umount()
content, caught, newer = blob(SEED, 250000), 0, 0
for i in range(KILLS):
    may, fired = one(i // 2 + 1, i // 2 % 2, i % 2, content)
    s.fsck("-n", ok=None)
    s.mount()
    got = s.read("m/f")
    assert got in may, (f"kill {i}: the file has {len(got)} bytes, and not one of the contents "
                        f"of {[len(m) for m in may]} bytes; as before: {got == content}")
    caught += fired
    newer += got == may[-1]
    content = got
    s.settle()
    assert s.attr("m/f", "tiers") == "cpu,disk"
    s.umount()
    s.fsck("-n", "--data")
print(f"{caught} of {KILLS} kills were in the fsync; the newer content was there after {newer}")
assert caught > KILLS // 3
