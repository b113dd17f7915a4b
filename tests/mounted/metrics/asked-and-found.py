# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""Requests for names that do not exist are counted, per model and in total. Lookups that are part
of a store are not counted. All files of a chunk count once in a request, also if they are leased
and opened. status, top, the models file and the metrics agree."""
import json
import os
import threading
from kvtest import *

CTL = binary("kvcachectl")
s = Store(options="settle=0", cpu="64M").mount()


def models():
    with open(f"{s.mnt}/.kvcachefs/models") as f:
        head, *lines = [l.split() for l in f]
    return {l[-1]: dict(zip(head[:-1], map(int, l))) for l in lines}


def asked(model):
    m = models()[model]
    return m["found"], m["absent"]


def totals():
    st = s.stats()
    return st["found"], st["absent"]


def status():
    return json.loads(run(CTL, "status", "--json", s.mnt, ok=True).stdout)["hits"]["since_start"]


# stores of every kind: a file that is renamed, folders with layers, links, and names of all kinds
for i in range(20):
    s.write(f"m/t{i}", blob(i, 5000))
    os.rename(f"{s.mnt}/m/t{i}", f"{s.mnt}/m/c{i}")
    for layer in range(3):
        s.write(f"m/d{i}/l{layer}", blob(layer, 3000))
os.makedirs(f"{s.mnt}/m/sub/of/sub")  # asks for each folder before it makes it
os.symlink("c1", f"{s.mnt}/m/sub/link")
os.link(f"{s.mnt}/m/c1", f"{s.mnt}/m/c1b")
os.mkfifo(f"{s.mnt}/m/sub/fifo")
s.settle()
assert totals() == (0, 0), s.stats()
assert status()["found_share"] is None

# absent names of a model, of a chunk, and of the root
for i in range(400):
    assert not os.path.exists(f"{s.mnt}/m/no{i}")
for i in range(30):
    assert not os.path.exists(f"{s.mnt}/m/d1/no{i}")
for i in range(7):
    assert not os.path.exists(f"{s.mnt}/none{i}/c")
wait_for(lambda: totals() == (0, 437))
assert asked("m") == (0, 430) and asked("/") == (0, 7), models()

# a name that is asked for and stored later: the question counts, the store does not
assert not os.path.exists(f"{s.mnt}/m/later")
s.write("m/later-t", b"x")
os.rename(f"{s.mnt}/m/later-t", f"{s.mnt}/m/later")
wait_for(lambda: totals() == (0, 438))

# chunks that are found: each once for its layers
for i in range(20):
    s.read(f"m/c{i}")
    for layer in range(3):
        s.read(f"m/d{i}/l{layer}")
wait_for(lambda: totals() == (40, 438))

# a lease that finds 2 of 3 chunks, whose files are then opened: a chunk counts once
with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as lease:
    lease.write(b"m/d1\nm/d2\nm/gone\n")
    assert lease.read().count(b"\n") == 7
    for i in (1, 2):
        for layer in range(3):
            s.read(f"m/d{i}/l{layer}")
    wait_for(lambda: totals() == (42, 439))
with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as look:
    look.write(b"look\nm/c1\nm/c2\nm/no\nm/nein\n")
    assert look.read().count(b"ENOENT") == 2
st = s.stats()
assert (st["lease_found"], st["lease_absent"]) == (6, 1), st
assert (st["look_found"], st["look_absent"]) == (2, 2), st
assert st["lookups_absent"] == 438 and totals() == (42, 441), st
assert asked("m") == (42, 434), models()

# several threads at once
def ask(t):
    for i in range(200):
        assert not os.path.exists(f"{s.mnt}/m/thread{t}.{i}")
        s.write(f"m/made{t}.{i}", b"x")


threads = [threading.Thread(target=ask, args=(t,)) for t in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
wait_for(lambda: totals() == (42, 1241))
j = status()
assert (j["asked"], j["found"]) == (1283, 42) and abs(j["found_share"] - 42 / 1283) < 1e-5, j
with open(f"{s.mnt}/.kvcachefs/metrics") as f:
    text = f.read()
assert 'kvcachefs_model_asked_total{model="m",result="absent"} 1234\n' in text, text
assert 'kvcachefs_model_asked_total{model="",result="absent"} 7\n' in text, text
assert "kvcachefs_found_total 42\n" in text and "kvcachefs_absent_total 1241\n" in text
assert "1283      3.3%" in run(CTL, "status", s.mnt, ok=True).stdout
s.umount()
