# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A killed daemon finds the state that its policy learned, as of the last save, in the next mount:
the weights, and the histories and the two shadow caches."""
import itertools, json, re
import curves
from kvtest import *
from prompts import *

N = 80
OPTIONS = "policy=prefix,unit=file,high=99,low=98,settle=0,write=back,save="
with open(curves.unpack(TMP)["agents"]) as f:
    requests = [json.loads(l)["hash_ids"] for l in itertools.islice(f, N)]


def state(s):
    """The weights of ages, and the numbers of chunks in the shadow caches."""
    with open(f"{s.mnt}/.kvcachefs/policies") as f:
        text = f.read()
    weights = re.search(r"weights_age(.*)", text)[1].split()
    return ([float(w.split(":")[1]) for w in weights],
            [int(n) for n in re.search(r"shadow_chunks (\d+) (\d+)", text).groups()])


s = Store(cpu="16M", size="1G", options=OPTIONS + "1").mount()
play(s, requests, True)
path = f"{s.path}/policies"
ids = itertools.cycle(requests[-1])


def saved_since(before):
    """Nothing is saved without a new access, so each look is one."""
    s.read(name(next(ids)))
    return os.stat(path).st_mtime_ns != before


for _ in range(2):  # the second save from now on began after the requests
    before = os.stat(path).st_mtime_ns
    wait_for(lambda: saved_since(before))
had, chunks = state(s)
s.kill()
run("umount", "-l", s.mnt)
s.mount(OPTIONS + "0")
found, kept = state(s)
s.umount()
print(had, chunks, found, kept, sep="\n")
# the request of a read may have ended after the save, which changes a weight a little; before a
# policy has learned, all are -4 and the shadow caches are empty
assert max(abs(w + 4) for w in had) > .5 and min(chunks) > 100, (had, chunks)
assert len(had) == len(found) and all(abs(a - b) < .1 for a, b in zip(had, found)), (had, found)
assert all(abs(a - b) < 5 for a, b in zip(chunks, kept)), (chunks, kept)
