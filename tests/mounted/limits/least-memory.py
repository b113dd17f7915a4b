# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""memory= includes the buffers of requests and of the tier threads. A memory= that is too small for
them is refused with one line that names the smallest valid value. A mount with that value works:
files are copied, evicted and loaded. A larger memory= gives io_uring more, and the default includes
these buffers."""
import os, re, subprocess
from kvtest import *


def refused(s, memory, remotes):
    o = f"cpu=32M,run={TMP}/run,{WAYS[WAY]},memory={memory}{remotes}"
    p = run(binary("kvcachefs"), s.path, s.mnt, "-f", "-o", o, ok=False)
    said = [l for l in p.stdout.splitlines() if "option memory" in l]
    assert len(said) == 1, p.stdout
    return int(re.search(r"give at least (\d+)M", said[0])[1])


def fixed(s):
    st, config = s.stats(), s.config()
    rings = int(config.get("ring_bytes", 0))
    assert st["memory_fixed_bytes"] > rings and st["memory_peak_bytes"] == 0, (st, config)
    assert st["memory_bytes"] - st["memory_fixed_bytes"] >= 48 * MiB, st
    return st["memory_fixed_bytes"], rings


s = Store("s", size="64M", cpu="32M")
least = 0
for n in range(3):
    for i in range(n):
        os.makedirs(f"{TMP}/remote{i}", exist_ok=True)
    remotes = "".join(f",remote=dir://{TMP}/remote{i}" for i in range(n))
    assert refused(s, "1M", remotes) == 48  # the minimum of every mount
    now = refused(s, "48M", remotes)
    assert now > least and refused(s, f"{now - 1}M", remotes) == now, (least, now)
    least = now
s.options = f"settle=0,unit=dir{remotes}"
s.mount(f"{s.options},memory={least}M")
small, rings = fixed(s)
assert s.stats()["memory_bytes"] == least * MiB
for i in range(6):
    s.write(f"m/c/{i}", blob(i, 2 * MiB))
s.settle()
run(binary("kvcachectl"), "evict", f"{s.mnt}/m/c", ok=True)
for i in range(6):
    assert s.read(f"m/c/{i}") == blob(i, 2 * MiB), i
st = s.stats()
assert st["loads"] == 6 and st["memory_refusals"] == 0, st
s.umount()
s.mount(f"{s.options},memory=512M")
more, more_rings = fixed(s)
assert s.stats()["memory_bytes"] == 512 * MiB and more_rings <= 128 * MiB
assert (more_rings > rings) == (rings > 0) and more - more_rings == small - rings
s.umount()
s.mount()
default, default_rings = fixed(s)
assert s.stats()["memory_bytes"] >= 128 * MiB + default and default_rings >= more_rings
print("least", least, "MiB; fixed", small >> 20, more >> 20, default >> 20, "MiB")
s.umount()
