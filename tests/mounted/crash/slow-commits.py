# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Commits are slow, the pool is full, and the daemon is killed: files that were committed before
are there. No object leaves the pool because of a placement that is not committed yet."""
import os, random, subprocess, threading, time
from kvtest import *
import faults

seed = int(os.environ.get("SEED", time.time_ns() % 10**6))
print("seed", seed)
rng = random.Random(seed)
OLD, NEW = 11, 10
for turn in range(6):
    s = Store(f"s{turn}", size="64M", cpu="16M", options="write=back,pace=60000,deadline=60000")
    rule = f"calls=write path={s.path}/catalog.sqlite-wal count=0 nth=1 do=delay:30"
    with open(f"{TMP}/log", "ab") as log:
        s.daemon = subprocess.Popen([binary("kvcachefs"), s.path, s.mnt, "-f", "-o",
                                     f"cpu={s.cpu},run={TMP}/run,{WAYS[WAY]},{s.options}"],
                                    env=faults.environment(rule), stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log)
    wait_for(lambda: os.path.ismount(s.mnt))
    for i in range(OLD):
        s.write(f"old{i}", blob(i, MiB))
    s.committed()

    def press():
        with contextlib.suppress(OSError):
            for i in range(NEW):
                s.write(f"new{i}", bytes(MiB))

    t = threading.Thread(target=press)
    t.start()
    wait_for(lambda: s.stats()["spills"] > 0)
    time.sleep(rng.uniform(0, 0.4))
    s.kill()
    t.join()
    run("umount", "-l", s.mnt)
    s.fsck("-n")
    s.mount()
    for i in range(OLD):
        assert s.read(f"old{i}") == blob(i, MiB), (turn, i)
    s.umount()
    s.fsck("-n")
    run("rm", "-rf", s.path)
