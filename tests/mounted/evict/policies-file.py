# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
""".kvcachefs/policies shows the state of each policy for the pool and for the disk. After an
unmount the state is the same, and after a kill it is the last saved state."""
import os, re, time
from kvtest import *

MADE = 20  # chunks that are opened in order: more than are needed to prove the order
OWN = {
    "prefix": r"by (index|use)\n  guard (index|use|loose)\n  loose [0-9.]+\n"
              r"  shadow_hits_index [0-9.]+\n  shadow_hits_use [0-9.]+\n  shadow_chunks \d+ \d+\n"
              r"  sample \d+\n  switches \d+\n  weights_age( \d+:-?\d+\.\d\d)+\n"
              r"  weights_rhythm( \d+:-?\d+\.\d\d)+\n  weights( [a-z_]+:-?\d+\.\d\d)+\n",
    "arc": r"share_once \d+\n  queue_once \d+\n  queue_again \d+\n  remembered_once \d+\n"
           r"  remembered_again \d+\n",
    "s3fifo": r"queue_new \d+\n  queue_used \d+\n  remembered \d+\n",
    "gdsf": r"floor [0-9.e+-]+\n",
}
LEARNED = ("loose", "weights", "share_once", "floor", "switches")


def orders():
    """{'pool prefix': its text}"""
    with open(f"{s.mnt}/.kvcachefs/policies") as f:
        parts = re.split(r"^(?=\S)", f.read(), flags=re.M)
    return {p.split("\n")[0]: p for p in parts if p}


def learned(text):
    return [l for l in text.split("\n") if l.strip().startswith(LEARNED)]


def chunks(text):
    return int(re.search(r"\n  chunks (\d+)\n", text)[1])


def shown(policy, own):
    global s
    s = Store(policy, cpu="16M", options=f"policy={policy},settle=0").mount()
    for i in range(MADE):
        s.write(f"m/c{i}/l", blob(i, MiB // 4))
    for _ in range(3):
        time.sleep(1.3)  # the request is over
        for i in range(MADE):
            s.read(f"m/c{i}/l")
    s.settle()
    time.sleep(1.3)
    s.write("m/last/l", b"x")  # this begins another request
    before = orders()
    for cache in ("pool", "disk"):
        text = before[f"{cache} {policy}"]
        assert re.search(r"\A\S+ \S+\n  chunks \d+\n  memory \d+\n  " + own, text), text
    assert chunks(before[f"pool {policy}"]) == MADE + 1, before
    if policy == "arc":
        assert f"\n  queue_once 1\n  queue_again {MADE}\n" in before["pool arc"], before
    s.umount()
    s.mount()
    after = orders()
    for name, text in before.items():
        if policy == "prefix":  # the last request ended at the unmount
            assert len(learned(after[name])) == len(learned(text)) > 4, (text, after[name])
            continue
        assert learned(after[name]) == learned(text), (text, after[name])
    s.umount()


def when():
    try:
        return os.stat(f"{s.path}/policies").st_mtime_ns
    except FileNotFoundError:
        return 0


def saved():
    """Waits for two saves, because the first may have begun before this call."""
    for name in ("more", "again"):
        before = when()
        s.write(f"m/{name}/l", b"x")
        wait_for(lambda: when() != before)


def killed():
    global s
    s = Store("killed", cpu="16M", options="policy=prefix,settle=0,save=1").mount()
    for i in range(MADE):
        s.write(f"m/c{i}/l", blob(i, MiB // 4))
    for _ in range(3):
        time.sleep(1.3)
        for i in range(MADE):
            s.read(f"m/c{i}/l")
    time.sleep(1.3)
    saved()
    s.committed(uses=True)
    s.kill()
    run("umount", "-l", s.mnt)
    s.mount("policy=prefix,save=0")
    for name, text in orders().items():
        assert re.search(OWN["prefix"], text), (name, text)
    s.umount()


beside([(killed,), *((shown, *p) for p in OWN.items())], most=5)
print("ok")
