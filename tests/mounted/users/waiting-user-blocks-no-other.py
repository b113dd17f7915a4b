# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Requests of one user that wait for loads and for a remote's lookups do not delay other users, on
the same CPU too: another user's stat, load from the pool, store and query of the mount take as long
as without them. If more of them wait than one user may have, the rest get a miss or an error at
once."""
import os, time
from kvtest import *

DELAY = 2  # seconds that a tier takes for each answer
CPU = min(os.sched_getaffinity(0))
CROWD, VICTIM = 20001, 20002
os.makedirs(f"{TMP}/remote")
for path in (TMP, f"{TMP}/s.mnt"):
    os.makedirs(path, exist_ok=True)
s = Store(cpu="64M", options="settle=0,unit=dir").mount()
for i in range(100):
    s.write(f"m/c0/{i}", blob(i, 4 * KiB))
s.settle()
run(binary("kvcachectl"), "evict", f"{s.mnt}/m/c0", ok=True)
s.umount()
s.mount(f"settle=0,allow_other,mode=1777,remote=dir://{TMP}/remote,shim=delay-get:{DELAY * 1000}")
# A folder of its own, since the kernel keeps a folder locked while it looks names up there; and of
# names that no remote is asked for.
os.mkdir(f"{s.mnt}/v.tmp")
os.chown(f"{s.mnt}/v.tmp", VICTIM, VICTIM)
uring = s.config()["requests_by"] == "io_uring"


def crowd(threads, seconds, files):
    return subprocess.Popen([binary("test-crowd"), s.mnt, str(CROWD), str(CPU), str(threads),
                             str(seconds), str(files)], stdout=subprocess.PIPE, text=True)


def victim(seconds):
    """Runs in its own process: the longest time of each kind of call, and the failures."""
    p = subprocess.run([sys.executable, "-c", f"""
import os, time
os.sched_setaffinity(0, [{CPU}])
os.chdir({s.mnt!r}); os.setgroups([]); os.setgid({VICTIM}); os.setuid({VICTIM})
def put(i):
    with open(f"v.tmp/{{i}}.tmp", "wb") as f: f.write(b"x" * 4096)
put("hot")
longest, i, end = [0] * 4, 0, time.monotonic() + {seconds}
while time.monotonic() < end:
    for n, call in enumerate((lambda: os.stat("v.tmp"), lambda: open("v.tmp/hot.tmp", "rb").read(),
                              lambda: put(i), lambda: os.statvfs("."))):
        began = time.monotonic()
        call()
        longest[n] = max(longest[n], time.monotonic() - began)
    i += 1
    time.sleep(0.02)
print(*longest)
"""], stdout=subprocess.PIPE, text=True, timeout=seconds + 120)
    assert p.returncode == 0
    return [float(x) for x in p.stdout.split()]


def waiting():
    return int(s.config()["ring_waiting"]) if uring else 0


# ---- a crowd that all can wait ----

c = crowd(300, 5, 10)
if uring:
    wait_for(lambda: waiting() >= 100)
else:
    time.sleep(1)
longest = victim(3)
assert max(longest) < DELAY / 2, f"they waited for the crowd: {longest}"
n, succeeded, failed, early = map(int, c.communicate(timeout=60)[0].split())
assert c.returncode == 0 and n == 300 and failed, (n, succeeded, failed, early)
print(f"beside 300 that wait: {longest}")

# ---- more than one user may have waiting on one CPU ----

if uring:
    may = int(s.config()["ring_depth"]) * 9 // 16
    c = crowd(may + 200, 6, 0)
    wait_for(lambda: s.stats()["waits_refused"] > 0 or c.poll() is not None)
    longest = victim(2)
    assert max(longest) < DELAY / 2, f"they waited for the crowd: {longest}"
    out = c.communicate(timeout=60)[0]
    if c.returncode == 0:  # otherwise this machine does not allow that many threads
        assert s.stats()["waits_refused"] > 0 and int(out.split()[3]) > 0, (s.stats(), out)
    print(f"beside {out.split()[0]}, of whom {may} may wait: {longest}")
    wait_for(lambda: waiting() == 0)
s.kill()  # copies would take their time
