# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
# level: check
"""prefault= touches the pool's memory. Callers that need this memory get it at once, and none of it
stays allocated after the daemon's end."""
import os
from kvtest import *

need_mount()


def pool_holds(s):
    """The bytes in the pool's tmpfs, as the kernel counts them, without the pool's mark."""
    pool = s.config()["pool"]
    v = os.statvfs(pool)
    mark = sum(os.stat(f"{pool}/{n}").st_blocks for n in os.listdir(pool) if n.startswith("."))
    return (v.f_blocks - v.f_bfree) * v.f_bsize - mark * 512


def bound(s):
    return s.stats()["pool_bytes"]


def ended(s):
    return s.config()["prefault_is"].endswith("; done")


# on: all memory is touched and freed again, and stores meanwhile neither wait nor fail
s = Store(cpu="512M", size="512M", options="prefault=on").mount()
n = 0
while not ended(s) or n < 40:
    s.write(f"m/f{n % 100}", blob(n, MiB))
    n += 1
st = s.stats()
assert s.config()["prefault_is"].startswith("on"), s.config()
assert st["prefault_bytes"] == st["prefault_total"] > 0 and st["prefault_held"] == 0, st
assert st["prefault_bytes"] + 100 * MiB > 0.6 * bound(s), st
assert not (st["room_waits"] or st["room_refusals"] or st["evictions"] or st["drops"]), st
s.settle()
assert s.stats()["pool_used_bytes"] == pool_holds(s) <= 101 * MiB
for i in range(max(0, n - 100), n):
    assert s.read(f"m/f{i % 100}") == blob(i, MiB)
s.umount()

# an unmount or a kill at any moment of the prefault
for moment in (0, 0.02, 0.1):
    s.mount()
    time.sleep(moment)
    s.umount()
    assert not os.listdir(f"{TMP}/run")
s.mount("prefault=off")
s.write("m/k", blob(7, MiB))
s.umount()
for moment in (0, 0.02, 0.1):
    s.mount("prefault=on")
    time.sleep(moment)
    s.kill()
    s.mount("prefault=off")
    assert s.read("m/k") == blob(7, MiB)
    s.settle()
    assert s.stats()["pool_used_bytes"] == pool_holds(s) <= 2 * MiB, (s.stats(), pool_holds(s))
    s.umount()

# hold: the memory is kept until writers take it
s.mount("prefault=hold", cpu="256M")
wait_for(lambda: "held until" in s.config()["prefault_is"])
st = s.stats()
held = st["prefault_held"]
assert held == st["prefault_bytes"] == st["prefault_total"] > 0.6 * bound(s), st
assert pool_holds(s) >= held and st["pool_used_bytes"] < 0.1 * bound(s), (pool_holds(s), st)
for i in range(64):
    s.write(f"h/{i}", blob(i, MiB))
wait_for(lambda: s.stats()["prefault_held"] <= held - 50 * MiB)
st = s.stats()
assert st["prefault_held"] > 0 and not (st["room_waits"] or st["room_refusals"]
                                        or st["evictions"]), st
for i in range(64, 160):
    s.write(f"h/{i}", blob(i, MiB))
assert s.stats()["room_refusals"] == 0 and s.stats()["drops"] == 0
for i in range(160):
    assert s.read(f"h/{i}") == blob(i, MiB)
s.umount()

# a file that needs more memory than there is outside the held part
s.mount("prefault=hold,passthrough=off", cpu="64M")
wait_for(lambda: "held until" in s.config()["prefault_is"])
with open(f"{s.mnt}/large", "wb") as f:
    os.posix_fallocate(f.fileno(), 0, 52 * MiB)
    assert s.stats()["room_refusals"] == 0
    wait_for(lambda: s.stats()["prefault_held"] == 0)
s.umount()

# killed while memory is held: the next mount can use it
s.mount("prefault=hold", cpu="256M")
wait_for(lambda: s.stats()["prefault_held"] > 0)
s.kill()
s.mount("prefault=off", cpu="256M")
s.settle()
assert s.stats()["pool_used_bytes"] == pool_holds(s) < 64 * MiB
s.umount()

# existing pages need no touch
s.mount("keep_pool,prefault=off", cpu="256M")
for i in range(96):
    s.write(f"w/{i}", blob(i, MiB))
s.settle()
s.umount()
s.mount("prefault=on", cpu="256M")
assert s.config()["pool_warm"] == "yes"
wait_for(lambda: ended(s))
st = s.stats()
assert st["prefault_bytes"] + 96 * MiB <= 0.8 * bound(s) and not st["evictions"], st
s.umount()

# config shows off and auto
s.mount("prefault=off")
assert s.config()["prefault_is"] == "off" and s.stats()["prefault_total"] == 0
s.umount()
s.mount("")
assert s.config()["prefault"] == "auto"
wait_for(lambda: s.config()["prefault_is"].startswith(("on: ", "off: ")))
if s.config()["prefault_is"].startswith("on: "):
    wait_for(lambda: ended(s))
else:
    assert s.stats()["prefault_total"] == 0
assert s.stats()["prefault_held"] == 0
s.umount()
