# SPDX-License-Identifier: Apache-2.0
"""requests_lmcache.py PORT: sends requests to LMCache's multiprocess server, through the client of
`lmcache bench server`, which moves data as an engine's worker does. The program reads commands, one
JSON line each:

store  sequences: stores the data of these sequences, if a lookup does not find all of it
load   sequences: answers for each sequence how many of its CHUNKS chunks were found and loaded, and
       how many of these had wrong bytes

The data of a sequence is made from its number, so that each process knows it."""

import json, sys

from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
from lmcache.cli.commands.bench.server_bench.config import BenchConfig

CHUNKS, TOKENS = 4, 256


def main(port):
    import torch

    client = ServerBenchClient(
        BenchConfig(
            rpc_url=f"tcp://localhost:{port}",
            http_url="",
            mode="cpu",
            transfer_mode="engine_driven",
            tp_size=1,
            use_mla=False,
            num_tokens=CHUNKS * TOKENS,
            kvcache_shape_spec="(2,128,16,2,64):float16:4",
            num_blocks=128,
            block_size=16,
        ),
        lambda text: print(text, file=sys.stderr),
    )
    client.start()
    made = iter(range(1 << 30))

    def request(sequence, kind):
        return client.create_request(sequence, f"{kind}-{port}-{next(made)}", kind)

    def fill(r):
        for worker in client._workers:
            for layer, tensor in enumerate(worker.kv_caches.values()):
                random = torch.Generator().manual_seed(1000 * r.sequence_id + layer)
                part = tensor.narrow(1, r.block_offset, r.num_blocks)
                part.copy_(torch.rand(part.shape, generator=random))

    def lookup(r):
        found = client.lookup(r)
        if found.error:
            raise RuntimeError(f"lookup: {found.error}")
        return found.hit_chunks

    def store(sequence):
        r = request(sequence, "store")
        fill(r)
        hits = lookup(r)
        if hits < CHUNKS:
            done = client.store(r, hits * TOKENS, (CHUNKS - hits) * TOKENS)
            if not done.succeeded:
                raise RuntimeError("the server did not store")
        elif hits:
            client.retrieve(r, 0, hits * TOKENS)  # releases the lookup's locks
        client.end_session(r)

    def load(sequence):
        r = request(sequence, "load")
        fill(r)
        hits = lookup(r)
        wanted = client.compute_checksums(r, 0, hits * TOKENS) or []
        client.zero_destination(r, 0, hits * TOKENS)
        done = client.retrieve(r, 0, hits * TOKENS)
        found = client.compute_checksums(r, 0, hits * TOKENS) or []
        client.end_session(r)
        if done is not None and not done.succeeded:
            return [0, 0]
        return [hits, sum(a != b for a, b in zip(wanted, found))]

    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        run = {"store": store, "load": load}[order["do"]]
        try:
            answer = {"is": [run(n) for n in order["sequences"]]}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"[:500]}
        print(json.dumps(answer), flush=True)
    client.close()


main(int(sys.argv[1]))
