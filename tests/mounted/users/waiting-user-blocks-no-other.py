# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Requests of one user that wait for loads and for lookups in a remote do not delay other users,
even on the same CPU: while the tiers do not answer, another user's stat, read from the pool, store
and statvfs are served. If one user has more waiting requests than allowed, the rest get a miss or
an error at once."""
import os, time
from kvtest import *

CALLS = 30  # of each kind
SLOW_GETS = f"{TMP}/slow-gets"  # while it exists, the tiers do not answer
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
s.mount(f"settle=0,allow_other,mode=1777,deadline=1000000,remote=dir://{TMP}/remote,"
        f"shim=delay-get:1000000+delay-while:{SLOW_GETS}")
# The victim has its own folder, because the kernel locks a folder during a lookup, and uses names
# that are not looked up in a remote.
os.mkdir(f"{s.mnt}/v.tmp")
os.chown(f"{s.mnt}/v.tmp", VICTIM, VICTIM)
uring = s.config()["requests_by"] == "io_uring"


def crowd(threads, seconds, files):
    return subprocess.Popen([binary("test-crowd"), s.mnt, str(CROWD), str(CPU), str(threads),
                             str(seconds), str(files)], stdout=subprocess.PIPE, text=True)


def victim():
    """Runs in its own process, so that the case sees a call that is blocked."""
    p = subprocess.run([sys.executable, "-c", f"""
import os, time
os.sched_setaffinity(0, [{CPU}])
os.chdir({s.mnt!r}); os.setgroups([]); os.setgid({VICTIM}); os.setuid({VICTIM})
def put(i):
    with open(f"v.tmp/{{i}}.tmp", "wb") as f: f.write(b"x" * 4096)
put("hot")
for i in range({CALLS}):
    os.stat("v.tmp"), open("v.tmp/hot.tmp", "rb").read(), put(i), os.statvfs(".")
    time.sleep(0.02)
"""], timeout=HANG)
    assert p.returncode == 0


def waiting():
    return int(s.config()["ring_waiting"]) if uring else 0


# ---- as many requests as may wait ----

open(SLOW_GETS, "w").close()
c = crowd(300, 5, 10)
if uring:
    wait_for(lambda: waiting() >= 100)
else:
    time.sleep(1)
victim()
assert not uring or waiting() >= 100, "some requests were answered"
os.unlink(SLOW_GETS)
n, succeeded, failed, early = map(int, c.communicate(timeout=HANG)[0].split())
assert c.returncode == 0 and n == 300 and failed, (n, succeeded, failed, early)

# ---- more requests than one user may have waiting on one CPU ----

if uring:
    may = int(s.config()["ring_depth"]) * 9 // 16
    open(SLOW_GETS, "w").close()
    c = crowd(may + 200, HANG, 0)
    # More refusals than the 200 threads that may not wait: the calls of these threads ended at once
    # and were repeated. (This machine may not allow that many threads.)
    wait_for(lambda: s.stats()["waits_refused"] > 200 or c.poll() is not None)
    victim()
    c.terminate()
    os.unlink(SLOW_GETS)
    out = c.communicate(timeout=HANG)[0]
    print(f"{out.split()[0]} at once, of which {may} may wait")
    wait_for(lambda: waiting() == 0)
s.kill()  # an unmount would wait for copies
