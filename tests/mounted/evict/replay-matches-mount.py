# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A trace is run with files on a real mount. The pool's hit rate is the one that kvcachectl replay
prints for the same policy and as many chunks as the pool held. The chain is reported or learned
from calls; the rates agree within a point unless the machine pauses between two calls. The rates of
two models, each with its own policy, agree as well."""
import json, random
import faults
from kvtest import *
from prompts import *

seed = int(os.environ.get("SEED", 11))
print(f"SEED={seed}")
requests = prompts(random.Random(seed))
TRACE = f"{TMP}/trace.jsonl"
write_trace(TRACE, requests)


STILL = 0.7  # seconds without a call; after one second the daemon ends the request


def on_mount(policy, told):
    """Returns the hit rate, the number of chunks in the pool, and whether the machine paused in
    the middle of a request."""
    gaps = []
    s = Store(f"memory/{policy}-{told}", cpu="16M", size="512M",
              options=f"policy={policy},unit=file,high=99,low=98,settle=0").mount()
    got, chunks = play(s, requests, told, gaps=gaps)
    s.umount()
    return got, chunks, max(gaps) > STILL


faults.in_memory("memory")  # the stores
for policy, told in (("lru", False), ("prefix", True), ("prefix", False),
                     *[("leaf", False)] * LONG):
    got, chunks, still = on_mount(policy, told)
    p = run(binary("kvcachectl"), "replay", "--chain", "told" if policy != "lru" else "none",
            "--policy", policy, "--capacity", str(chunks), TRACE, ok=True)
    want = float(p.stdout.splitlines()[2].split()[1])
    print(f"{policy}, {'told' if told else 'learned'}: {got:.4f} on a mount with {chunks} chunks, "
          f"{want:.4f} replayed")
    # learning depends on the time between calls: if the machine paused, the result is not compared
    learned = policy != "lru" and not told
    assert learned and still or abs(got - want) <= 0.01, (policy, told, got, want)

# two models, one with its own policy: without that policy the hit rate would be 0.025 lower
write_trace(TRACE, requests, of_two)
s = Store("memory/two", cpu="16M", size="512M",
          options="policy=prefix,unit=file,high=99,low=98,settle=0").mount()
parts = {}
got, chunks = play(s, requests, True, name=of_two, parts=parts, before={
    0: lambda: os.setxattr(f"{s.mnt}/s", "user.kvcachefs.policy", b"fifo")})
s.umount()
p = run(binary("kvcachectl"), "replay", "--json", "--policy", "prefix", "--model", "s=fifo",
        "--capacity", str(chunks), TRACE, ok=True)
row, = json.loads(p.stdout)["traces"][0]["shares"]
shares = [(got, row["policies"])] + [(parts[m["model"]], m["policies"]) for m in row["models"]]
for got, of in shares:
    want = of["prefix"]["pool"]
    print(f"prefix, and of the sessions fifo: {got:.4f} on a mount, {want:.4f} replayed")
    assert abs(got - want) <= 0.01, shares
print("ok")
