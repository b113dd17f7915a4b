# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl flush copies objects that only the pool has to their tiers, so that they survive the
loss of the pool. Failed copies are retried at once and reported by tier. Interrupting the command
does not stop the copies."""
import json, os, signal
from kvtest import *

CTL = binary("kvcachectl")
N = 300000
BAD, SLOW_PUTS = f"{TMP}/bad", f"{TMP}/slow"


def flush(*words, ok=True):
    p = run(CTL, "flush", "--json", *words, ok=ok)
    return json.loads(p.stdout.splitlines()[0]), p.stdout


os.mkdir(f"{TMP}/r")
s = Store(cpu="64M", options=f"write=back,settle=3600000,remote=dir://{TMP}/r,"
          f"shim=fail-while:{BAD}+delay-put:2000+delay-while:{SLOW_PUTS}+only:disk").mount()
j, _ = flush(s.mnt)
assert (j["what"], j["seen"], j["changed"], j["failed"]) == ("flush", 0, 0, 0), j

# write=back: no object has a copy before, and all have one after, except an open file
for i in range(6):
    s.write(f"m/c{i}/l", blob(i, N))
being = open(f"{s.mnt}/m/being", "wb")
being.write(blob("being", N))
assert all(s.attr(f"m/c{i}/l", "tiers") == "cpu" for i in range(6))
p = run(CTL, "flush", f"{s.mnt}/m/c0", ok=True)
assert p.stdout == "flush done: 6 to copy, 6 copied, 0 failed\n", p
assert all(s.attr(f"m/c{i}/l", "tiers") == "cpu,disk,dir" for i in range(6))
being.close()
j, _ = flush(s.mnt)
assert (j["seen"], j["changed"], j["bytes"]) == (1, 1, N), j
s.kill()
s.drop_pool()
run("umount", "-l", s.mnt)
s.mount()
assert all(s.read(f"m/c{i}/l") == blob(i, N) for i in range(6))
assert s.read("m/being") == blob("being", N)

# the tier that fails and its failed copies are reported; after the repair, flush succeeds
open(BAD, "w").close()
for i in range(3):
    s.write(f"m/d{i}/l", blob(10 + i, N))
j, text = flush(s.mnt, ok=False)
assert j["failed"] == 3 and j["changed"] == 0 and j["failed_in"] == {"disk": 3}, j
assert "kvcachectl: 3 files failed, by tier: disk 3;" in text and text.count("\n") == 2, text
assert all(s.attr(f"m/d{i}/l", "tiers") == "cpu,dir" for i in range(3))
os.remove(BAD)
wait_for(lambda: run(CTL, "flush", s.mnt).returncode == 0)
assert all(s.attr(f"m/d{i}/l", "tiers") == "cpu,disk,dir" for i in range(3))

# an interrupted command says that the copies continue; only one flush runs at a time
open(SLOW_PUTS, "w").close()
for i in range(40):
    s.write(f"m/e{i}/l", blob(20 + i, 5000))
p = subprocess.Popen([CTL, "flush", s.mnt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                     text=True)
wait_for(lambda: "running" in open(f"{s.mnt}/.kvcachefs/control").read())
q = run(CTL, "verify", s.mnt)
assert q.returncode == 1 and "verify: kvcachectl flush is running" in q.stdout, q
q = run(CTL, "verify", "--stop", s.mnt)
assert q.returncode == 1 and "verify --stop: verify is not running" in q.stdout, q
p.send_signal(signal.SIGINT)
out = p.communicate()[0]
assert p.returncode == 1 and out == "kvcachectl: flush continues in the daemon\n", out
os.remove(SLOW_PUTS)
wait_for(lambda: "done" in open(f"{s.mnt}/.kvcachefs/control").read())
assert all(s.attr(f"m/e{i}/l", "tiers") == "cpu,disk,dir" for i in range(40))
s.umount()
