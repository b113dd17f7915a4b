# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A trace on a real mount, with files: the pool's share of hits is what kvcachectl replay says for
the same policy and as many chunks as the pool held. The chain is told, or learned from calls."""
import random
from kvtest import *
from prompts import *

seed = int(os.environ.get("SEED", 11))
print(f"SEED={seed}")
requests = prompts(random.Random(seed))
TRACE = f"{TMP}/trace.jsonl"
write_trace(TRACE, requests)


def on_mount(policy, told):
    s = Store(f"{policy}-{told}", cpu="16M", size="512M",
              options=f"policy={policy},unit=file,high=99,low=98,settle=0").mount()
    got = play(s, requests, told)
    s.umount()
    return got


for policy, told in (("lru", False), ("prefix", True), ("prefix", False), ("leaf", False)):
    got, chunks = on_mount(policy, told)
    p = run(binary("kvcachectl"), "replay", "--chain", "told" if policy != "lru" else "none",
            "--policy", policy, "--capacity", str(chunks), TRACE, ok=True)
    want = float(p.stdout.splitlines()[2].split()[1])
    print(f"{policy}, {'told' if told else 'learned'}: {got:.4f} on a mount with {chunks} chunks, "
          f"{want:.4f} replayed")
    # what is learned goes by the time between calls, which a busy machine stretches
    assert abs(got - want) <= (0.01 if told or policy == "lru" else 0.04), (policy, told, got, want)
print("ok")
