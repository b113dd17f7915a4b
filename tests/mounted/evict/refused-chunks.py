# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The policy prefix refuses new chunks of agents' prompts that are worth less than what a full pool
holds. They are counted, their files are written, and the disk tier gets them like other victims, so
that all can still be read. A pool with free space refuses nothing, and neither does another
policy."""
import itertools, json
import curves, faults
from kvtest import *
from prompts import *

with open(curves.unpack(TMP)["agents"]) as f:
    requests = [json.loads(l)["hash_ids"] for l in itertools.islice(f, 130 if LONG else 60)]
full = next(i for i in range(len(requests))
            if len(set(itertools.chain(*requests[:i + 1]))) > 700)
faults.in_memory("memory")  # the stores

for policy in ("prefix", "arc"):
    s = Store(f"memory/{policy}", cpu="16M", size="1G",
              options=f"policy={policy},unit=file,high=99,low=98,settle=0,write=back").mount()
    early = []
    share, chunks = play(s, requests, True,
                         before={full: lambda: early.append(s.stats()["pool_refusals"])})
    refused = s.stats()["pool_refusals"]
    print(f"{policy}: {refused} refusals, {share:.3f} hits with {chunks} chunks")
    assert early == [0], f"{policy} refused {early} chunks while the pool had space"
    assert (refused > 0) == (policy == "prefix"), (policy, refused)
    for i in requests[-1]:
        assert s.read(name(i)) == b"x" * CHUNK, f"chunk {i} of {policy} has other bytes"
    s.umount()
print("ok")
