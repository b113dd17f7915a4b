# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A killed daemon finds the state that its policy learned, as of the last save, in the next mount:
the weights, and the histories and the two shadow caches. A hint without an access is saved, too."""
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


def saved_after(change):
    """Waits for the end of a save that began after the change, which no access accompanies."""
    for _ in range(2):  # the first save from now on may have begun before
        before = os.stat(path).st_mtime_ns
        change()
        wait_for(lambda: os.stat(path).st_mtime_ns != before)


def ended(how):
    os.setxattr(f"{s.mnt}/{name(requests[-1][0])}", "user.kvcachefs.hint", f"ended={how}".encode())


saved_after(lambda: ended("tool"))
wait_for(lambda: state(s) == (saved_after(lambda: ended("turn")), state(s))[1])
had, chunks = state(s)
s.kill()
run("umount", "-l", s.mnt)
s.mount(OPTIONS + "0")
found, kept = state(s)
s.umount()
print(had, chunks, found, kept, sep="\n")
# before a policy has learned, all weights are -4 and the shadow caches are empty
assert max(abs(w + 4) for w in had) > .5 and min(chunks) > 100, (had, chunks)
assert had == found and chunks == kept, (had, found, chunks, kept)
