# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The daemon is killed before each of its changes (make check: every second one) of the superblock,
of the devices and of their labels while a device is added, grown or removed. The store can be
mounted at once, no file is lost, and the same command then completes the change."""
import json, os, random, shutil
from faults import FAR, Rules, in_memory, store_in_memory
from kvtest import *

need_mount()
CTL = binary("kvcachectl")
N = 200000
top = in_memory("m")
s = store_in_memory(top, size="16M", cpu="32M")
PART, MORE = f"{top}/part", f"{top}/more"
FILES = [f"m/c{i}/l" for i in range(8)]
KEEP = f"{TMP}/keep"


def devices():
    p = run(CTL, "devices", "--json", s.mnt, ok=True)
    return [(os.path.basename(d["path"]), d["state"], d["bytes"])
            for d in json.loads(p.stdout)["devices"]]


def change(*words):
    return run(CTL, *words, s.mnt)


s.mount()
run(CTL, "add", "--size", "16M", PART, s.mnt, ok=True)
for f in FILES:
    s.write(f, blob(f, N))
s.settle()
s.umount()
s.drop_pool()
os.mkdir(KEEP)
run("cp", "-a", "--sparse=always", s.path, PART, KEEP, ok=True)
CHANGES = {
    ("add", "--size", "16M", MORE): lambda d: len(d) == 3,
    ("grow", "--device", PART, "--size", "20M"): lambda d: d[1][2] == 18 * MiB,
    ("grow", "--device", "0", "--size", "20M"): lambda d: d[0][2] == 20 * MiB,
    ("remove", PART): lambda d: [x[0] for x in d] == ["data"],
    ("remove", "0"): lambda d: [x[0] for x in d] == ["part"],
}
GLOBS = (f"{top}/s/superblock*", f"{top}/s/data", PART, MORE)
SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}")
rng = random.Random(SEED)
STEP = 1 if LONG else 3
kills = 0
for words, complete in CHANGES.items():
    for rule, glob in enumerate(GLOBS):
        after = rng.randrange(STEP)
        while True:
            for f in (s.path, PART, MORE):
                shutil.rmtree(f) if os.path.isdir(f) else os.path.exists(f) and os.unlink(f)
            run("cp", "-a", "--sparse=always", f"{KEEP}/s", f"{KEEP}/part", top, ok=True)
            rules = Rules(*(f"calls=change path={g} nth={FAR} do=kill" for g in GLOBS))
            assert rules.mount(s)
            rules.begin(rule, after=after)
            change(*words)
            for i in range(len(GLOBS)):
                rules.heal(i)  # extents are freed some time after the command
            killed = rules.fired()[rule] > 0
            if killed:
                s.daemon.wait()
                run("umount", "-l", s.mnt)
                s.drop_pool()
            else:
                assert complete(devices()), (words, glob, after, devices())
                s.umount()
                s.drop_pool()
            s.mount()
            assert all(s.read(f) == blob(f, N) for f in FILES), (words, glob, after)
            if not complete(devices()):
                for name in (MORE,):  # a file that is not part of the store is left to the user
                    if words[0] == "add" and os.path.exists(name):
                        os.unlink(name)
                p = change(*words)
                assert p.returncode == 0, (words, glob, after, p)
                assert complete(devices()), (words, glob, after, devices())
            assert all(s.read(f) == blob(f, N) for f in FILES), (words, glob, after)
            s.umount()
            s.drop_pool()
            s.fsck("-y", ok=None)
            s.fsck("-n", "--data")
            kills += killed
            if not killed:
                break
            after += STEP * (1 if after < 6 else rng.randint(2, 8))
print(f"{kills} kills")
assert kills > 20 // STEP, kills
