# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A mount keeps the chunks of agents' prompts that kvcachectl replay keeps: the policy decides when
a chunk enters, however late the evictor works, and no matter whether a client creates the chunk or
the disk tier has it. 260 requests of agents run on a mount with a reported chain, and most of their
chunks are loaded again. The replay gets the times at which the mount got the requests, since the
policy's ages depend on them, so the speed of the machine has no influence. The policy draws its
candidates at random: the mount is compared with the mean of replays of about as many chunks as the
pool held. One run differs from another by .01."""
import itertools, json, statistics
import curves, faults
from kvtest import *
from prompts import *

N = 260
AGREES = .03
PAUSE = 1  # seconds without a call after which a request has ended (access/access.c)
with open(curves.unpack(TMP)["agents"]) as f:
    requests = [json.loads(l)["hash_ids"] for l in itertools.islice(f, N)]

TRACE = f"{TMP}/trace.jsonl"


def difference(label):
    """By how much the mount's share exceeds the replay's, and whether the machine kept up."""
    began, gaps = [], []
    s = Store(f"memory/{label}", cpu="16M", size="1G",
              options="policy=prefix,unit=file,high=99,low=98,settle=0,write=back").mount()
    got, chunks = play(s, requests, True, gaps=gaps,
                       before={i: lambda: began.append(time.monotonic()) for i in range(N)})
    refused = s.stats()["pool_refusals"]
    s.umount()
    with open(TRACE, "w") as f:
        for at, ids in zip(began, requests):
            f.write(json.dumps({"timestamp": round((at - began[0]) * 1000) + 1,
                                "hash_ids": ids}) + "\n")
    sizes = [round(chunks * (1 + i / 100)) for i in range(-4, 5)]
    p = run(binary("kvcachectl"), "replay", "--chain", "told", "--policy", "prefix", "--capacity",
            ",".join(map(str, sizes)), TRACE, ok=True)
    shares = [float(l.split()[1]) for l in p.stdout.splitlines()[2:2 + len(sizes)]]
    want = statistics.mean(shares)
    print(f"{got:.4f} on a mount with {chunks} chunks, {refused} refusals; replayed {want:.4f}, "
          f"{min(shares):.4f} to {max(shares):.4f}")
    assert refused and len(shares) == len(sizes), (refused, p.stdout)
    return got - want, max(gaps) < PAUSE


faults.in_memory("memory")  # the store
# On a machine that stands still for a second within a request, the request ends, which changes what
# is refused. Such a run says nothing, whatever its result. A pause between two requests has no
# influence, because the replay gets their times.
for label in ("agents", "again", "once-more"):
    differs, kept_up = difference(label)
    if kept_up:
        break
assert abs(differs) <= (AGREES if kept_up else 2 * AGREES), (differs, kept_up)
