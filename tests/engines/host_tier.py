# SPDX-License-Identifier: Apache-2.0
"""vLLM's OffloadingConnector with its file tier, on a machine without a GPU. vLLM 0.32 has a worker
for GPUs only, which copies chunks between the KV cache and the host memory from which the tier
writes its files. HostTieringSpec adds a worker that makes the same copies in host memory. The
scheduler's part, the lookups, the tier, its threads and its files are vLLM's own. Use it with

    "kv_connector_extra_config": {"spec_name": "HostTieringSpec", "spec_module_path": "host_tier",
        "cpu_bytes_to_use": ..., "secondary_tiers": [{"type": "fs", "root_dir": ...}]}
"""

import ctypes, time

import numpy
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import compute_sub_block_ptrs
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker


class HostWorker(OffloadingWorker):
    """A copy has ended when submit_store() or submit_load() returns."""

    def __init__(self, kv_caches, slots, region):
        self.slots, self.region, self.done = slots, region, []
        self.cache = [
            t.tensor.view(torch.int8).view(-1, t.page_size_bytes) for t in kv_caches.tensors
        ]
        self.host = [
            region.create_next_worker_view(slots * t.page_size_bytes) for t in kv_caches.tensors
        ]
        self.groups = kv_caches.group_data_refs

    def copy(self, job, blocks, chunks, load):
        start, moved, block, chunk = time.perf_counter(), 0, 0, 0
        for refs, count, index in zip(self.groups, blocks.group_sizes, blocks.block_indices):
            if not count:
                continue
            skip = index % self.slots
            used = -(-(skip + count) // self.slots)
            ids = blocks.block_ids[block : block + count], chunks.block_ids[chunk : chunk + used]
            block, chunk = block + count, chunk + used
            pages, slots = numpy.empty(count, numpy.uint64), numpy.empty(count, numpy.uint64)
            for ref in refs:
                size = ref.page_size_bytes
                compute_sub_block_ptrs(ids[0], 1, pages, self.cache[ref.tensor_idx])
                compute_sub_block_ptrs(
                    ids[1], self.slots, slots, self.host[ref.tensor_idx], skip_count=skip
                )
                target, source = (pages, slots) if load else (slots, pages)
                for to, of in zip(target.tolist(), source.tolist()):
                    ctypes.memmove(to, of, size)
                moved += count * size
        self.done.append(TransferResult(job, True, moved, time.perf_counter() - start))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, src_spec, dst_spec, False)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, dst_spec, src_spec, True)

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.cache.clear()
        self.host.clear()
        self.region.cleanup()
