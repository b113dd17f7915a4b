# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import,misc,no-any-return"
"""
A KV connector for vLLM: the blocks of a prompt's KV cache go straight between the GPU and files of
a kvcachefs mount, without a copy in host memory.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvcachefsConnector",
        "kv_connector_module_path": "kvcachefs.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": {"mount": "/mnt/kv"}}'

See kvcachefs-engines(7) for the options. It needs vLLM 0.32 or 0.33 and builds on its
OffloadingConnector, which decides what to store and to load for every kind of model. This module
has

    KvcachefsConnector  options, and the handling of failures, which the OffloadingConnector lacks
    KvcachefsSpec       names and sizes of files
    Manager             in the scheduler: which chunks are cached (_lookups.py)
    Worker              in each worker: transfers of chunks (_chunkfiles.py)

A chunk is blocks_per_chunk blocks of one KV cache group; each worker has a file for it. A lookup
that fails is a miss. If a store fails, the chunk is not stored; if a load fails, the prompt is
computed.
"""
from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

try:
    import torch
    from vllm import envs
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import \
        OffloadingWorkerMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import \
        OffloadingConnectorStats
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import \
        OffloadingConnector
    from vllm.logger import init_logger
    from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
    from vllm.v1.kv_cache_interface import (AttentionSpec, MambaSpec, MLAAttentionSpec,
                                            SlidingWindowSpec, iter_layer_specs)
    from vllm.v1.kv_offload.base import (Locality, LoadStoreSpec, LookupResult, Medium,
                                         OffloadingCounterMetadata, OffloadingEvent,
                                         OffloadingGaugeMetadata, OffloadingManager,
                                         OffloadingSpec, OffloadingWorker, PrepareStoreOutput,
                                         RequestOffloadingContext, TransferResult,
                                         get_offload_group_idx)
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError as e:
    raise ImportError(f"kvcachefs.vllm needs vLLM 0.32 or 0.33 (vllm.v1.kv_offload): {e}") from e

from . import _chunkfiles, _hints, _layouts, _lookups, _push, admin
from .parts import Pages
from .transfer import Item, warm

__all__ = ["KvcachefsConnector", "KvcachefsSpec", "Manager", "Worker"]

logger = init_logger("vllm.kvcachefs")
MiB = 1 << 20
PAGE = 4096
CHUNK_TOKENS_MOST = 256
WARM_CHUNKS, WARM_S = 8, 60
WAIT_MS_MOST = 60000


# ---- Options -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    """The options in kv_connector_extra_config. vLLM's own are not listed: blocks_per_chunk,
    block_size, offload_prompt_only, self_describing_kv_events."""
    mount: str = ""
    folder: str = "vllm"
    threads: int = 4
    lookup_timeout_ms: int = 5000
    on_failure: str = "recompute"
    warm: int = 0
    events: bool = False
    session_pause: int = 60
    wait_ms: int = 0
    push: list[str] = dataclasses.field(default_factory=list)

    VLLM = ("blocks_per_chunk", "block_size", "offload_prompt_only", "self_describing_kv_events",
            "canonical_layout", "spec_name", "spec_module_path")
    INTERLEAVE = "kvcachefs_interleave"  # from KvcachefsConnector to KvcachefsSpec

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Options:
        """ValueError: an unknown option or a wrong value."""
        names = {f.name: f for f in dataclasses.fields(cls)}
        for name in extra:
            if name not in names and name not in (*cls.VLLM, cls.INTERLEAVE):
                raise ValueError(f"kvcachefs: kv_connector_extra_config has no option '{name}'; "
                                 f"there are {', '.join([*names, *cls.VLLM[:4]])}")
        given = cls(**{n: v for n, v in extra.items() if n in names})
        given.push = _push.nodes(given.push)
        for name, field in names.items():
            value = getattr(given, name)
            if type(value).__name__ != str(field.type).split("[")[0]:
                raise ValueError(f"kvcachefs: the option {name} must be of type {field.type}, "
                                 f"not {value!r}")
        if not given.mount:
            raise ValueError("kvcachefs: give the folder of the mount, for example "
                             "\"kv_connector_extra_config\": {\"mount\": \"/mnt/kv\"}")
        if not 1 <= given.threads <= 64:
            raise ValueError(f"kvcachefs: threads must be 1 to 64, not {given.threads}")
        if given.lookup_timeout_ms < 1:
            raise ValueError("kvcachefs: lookup_timeout_ms must be at least 1")
        if given.on_failure not in ("recompute", "fail"):
            raise ValueError(f"kvcachefs: on_failure must be recompute or fail, not "
                             f"'{given.on_failure}'")
        if not 0 <= given.session_pause <= _hints.PAUSE_MOST:
            raise ValueError(f"kvcachefs: session_pause must be 0 to {_hints.PAUSE_MOST} seconds, "
                             f"not {given.session_pause}")
        if not 0 <= given.wait_ms <= WAIT_MS_MOST:
            raise ValueError(f"kvcachefs: wait_ms must be 0 to {WAIT_MS_MOST}, not "
                             f"{given.wait_ms}")
        if not 0 <= given.warm <= 8:
            raise ValueError(f"kvcachefs: warm must be 0 to 8, not {given.warm}")
        given.folder = given.folder.strip("/")
        if not given.folder or any(p in ("", ".", "..") for p in given.folder.split("/")):
            raise ValueError("kvcachefs: folder must be a path below the mount, such as vllm")
        return given


def _block_bytes(kv_cache_config: Any) -> int:
    """Bytes of all layers of a block in this worker; 0: unknown."""
    tensors, blocks = kv_cache_config.kv_cache_tensors, kv_cache_config.num_blocks
    return int(tensors[0].size) // int(blocks) if tensors and blocks else 0


def _chunk_blocks(vllm_config: Any, kv_cache_config: Any) -> int:
    """The default of blocks_per_chunk: the smallest power of 2 with files of at least 1 MiB, but
    no more than 256 tokens or the smallest sliding window, and 1 with recurrent states. The
    scheduler and all workers must get the same number, so sizes that differ between the stages of
    a pipeline are not used."""
    specs = [s for g in kv_cache_config.kv_cache_groups for s in iter_layer_specs(g.kv_cache_spec)]
    if any(isinstance(s, MambaSpec) for s in specs):
        return 1
    dcp = vllm_config.parallel_config.decode_context_parallel_size
    tokens = max(resolve_dcp_kv_block_size(s, dcp) for s in specs)
    most = CHUNK_TOKENS_MOST
    for s in specs:
        if isinstance(s, SlidingWindowSpec):
            most = min(most, s.sliding_window)
    size = _block_bytes(kv_cache_config)
    if vllm_config.parallel_config.pipeline_parallel_size > 1 or not size:
        size = 1
    blocks = 1
    while blocks * size < MiB and 2 * blocks * tokens <= most:
        blocks *= 2
    return blocks


def _complete(vllm_config: Any, kv_cache_config: Any = None) -> Options:
    """Checks the options, and adds those that vLLM reads to its configuration, because vLLM reads
    them from there later in this process."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    options = Options.of(extra)
    extra.setdefault("spec_name", "KvcachefsSpec")
    extra.setdefault("spec_module_path", __name__)
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        # which tokens of a block a worker has; vLLM's spec does not know it
        extra[Options.INTERLEAVE] = vllm_config.parallel_config.cp_kv_cache_interleave_size
    if kv_cache_config is not None and "block_size" not in extra:
        extra.setdefault("blocks_per_chunk", _chunk_blocks(vllm_config, kv_cache_config))
    return options


def _refuse(vllm_config: Any) -> None:
    """ValueError: a configuration whose files would not be right."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    if extra.get("canonical_layout"):
        raise ValueError("kvcachefs: canonical_layout is not supported: several workers would "
                         "write one file. Remove it; each worker then has files of its own")
    if vllm_config.parallel_config.prefill_context_parallel_size > 1:
        raise ValueError("kvcachefs: prefill context parallelism is not supported: vLLM's "
                         "offloading does not tell which tokens the blocks of a worker hold. "
                         "Remove --prefill-context-parallel-size")
    if getattr(vllm_config.attention_config, "hisparse_config", None) is not None:
        raise ValueError("kvcachefs: HiSparse keeps a part of the KV cache in host memory, which "
                         "this connector does not store. Remove hisparse_config, or use vLLM's "
                         "OffloadingConnector with its file tier on the mount")


# ---- Files ---------------------------------------------------------------------------------------


class Files(LoadStoreSpec):
    """From the scheduler to the workers: the keys. Each worker makes the names of its files."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = list(keys)


class KvcachefsSpec(OffloadingSpec):
    """The names of files, in the scheduler and in every worker.

    With one KV cache group, and one worker or workers with equal caches (MLA), names and contents
    are those of vLLM's file tier, so both can use the same folder. Other models have names of
    their own, because the file tier has one file for all workers and gives the file of a group
    space for the layers of all groups."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.options = Options.of(self.extra_config)
        self.replicated_layout = config.replicated_layout
        alone = config.parallel.world_size == 1 or self.replicated_layout
        self.shared_format = alone and len(config.groups) == 1
        mapper = FileMapper.from_offloading_spec(
            root_dir=self.options.folder, offloading_spec=self,
            blocks_per_file=self.blocks_per_chunk, parallel_agnostic=self.shared_format)
        if not self.shared_format:
            if config.parallel.pp_size > 1:
                # The stages of a pipeline differ in their layers, and all must know all names.
                mapper.fields["kv_cache_groups"] = [{"tokens_per_block": g.tokens_per_block}
                                                    for g in config.groups]
                mapper.fields["layers_of_stages"] = envs.VLLM_PP_LAYER_PARTITION
            if Options.INTERLEAVE in self.extra_config:
                mapper.fields["interleave"] = self.extra_config[Options.INTERLEAVE]
            mapper.fields["files"] = "kvcachefs"
            mapper.base_path = mapper._compute_base_path(self.options.folder, mapper.fields)
        self._mapper = mapper
        self.ranks = 1 if alone else config.parallel.world_size
        self.rank = 0 if alone else config.parallel.rank
        self._mappers = []
        for rank in range(self.ranks):
            self._mappers.append(copy.copy(mapper))
            self._mappers[-1].rank = rank
        self.recurrent: set[int] = set()  # positions of groups; set by the connector
        # numbers of groups whose chunks do not form a prefix (sliding windows, recurrent states);
        # set by the connector
        self.windowed: set[int] = set()
        # the layers of this worker, by name; set by the connector
        self.kv_caches: dict[str, Any] = {}
        self.kv_specs: dict[str, Any] = {}

    @classmethod
    def build_metric_definitions(cls, extra_config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: kind(documentation=text) for name, kind, text in METRICS.values()}

    def path(self, key: bytes, rank: int) -> str:
        """The file of a chunk in a worker, below the mount."""
        return str(self._mappers[rank].get_file_name(key))

    def paths(self, key: bytes) -> list[str]:
        return [str(m.get_file_name(key)) for m in self._mappers]

    @property
    def worker_folder(self) -> str:
        """The folder of this worker's files, below the mount."""
        return f"{self._mapper.base_path}_r{self.rank}"

    def describe(self) -> None:
        """Writes the file that tells people the meaning of the folder's name, as vLLM does."""
        name = self._mapper.get_config_file_path()
        try:
            with admin.opened(self.options.mount, "") as root:
                path = f"/proc/self/fd/{root}/{name}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if not os.path.exists(path):
                    with open(path, "w") as f:
                        json.dump(self._mapper.get_run_config(), f, indent=2, sort_keys=True)
        except OSError as e:
            logger.warning("kvcachefs: cannot write %s/%s: %s", self.options.mount, name,
                           e.strerror)

    def get_manager(self) -> OffloadingManager:
        threading.Thread(target=self.describe, name="kvcachefs-start", daemon=True).start()
        return Manager(self)

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        return Worker(self, kv_caches)


METRICS = {
    "lookups": ("vllm:kvcachefs_lookups", OffloadingCounterMetadata,
                "Calls to the mount for the chunks of a request."),
    "hits": ("vllm:kvcachefs_chunk_hits", OffloadingCounterMetadata, "Chunks that were cached."),
    "misses": ("vllm:kvcachefs_chunk_misses", OffloadingCounterMetadata,
               "Chunks that were not cached, and chunks after them."),
    "lookup_failures": ("vllm:kvcachefs_lookup_failures", OffloadingCounterMetadata,
                        "Lookups that failed and were taken for misses."),
    "lookup_timeouts": ("vllm:kvcachefs_lookup_timeouts", OffloadingCounterMetadata,
                        "Lookups that exceeded lookup_timeout_ms and were taken for misses."),
    "load_failures": ("vllm:kvcachefs_load_failures", OffloadingCounterMetadata,
                      "Chunks that could not be loaded in a worker."),
    "store_failures": ("vllm:kvcachefs_store_failures", OffloadingCounterMetadata,
                       "Chunks that could not be stored in a worker."),
    "hints": ("vllm:kvcachefs_hints", OffloadingCounterMetadata,
              "Hints about the chunks of prompts that were told to the mount."),
    "hint_failures": ("vllm:kvcachefs_hint_failures", OffloadingCounterMetadata,
                      "Hints that the mount refused, or that are not valid."),
    "waits": ("vllm:kvcachefs_waits", OffloadingCounterMetadata,
              "Lookups that waited for chunks of another node."),
    "pushes": ("vllm:kvcachefs_pushes", OffloadingCounterMetadata,
               "Files that other nodes took."),
    "push_failures": ("vllm:kvcachefs_push_failures", OffloadingCounterMetadata,
                      "Files that could not be offered to other nodes."),
    "held": ("vllm:kvcachefs_held_bytes", OffloadingGaugeMetadata,
             "Bytes of the pool that are kept for requests that wait to load them."),
}


# ---- Scheduler -----------------------------------------------------------------------------------


class Manager(OffloadingManager):
    """Which chunks are cached, and which must be stored."""

    def __init__(self, spec: KvcachefsSpec) -> None:
        options = spec.options
        self._spec = spec
        self._lookups = _lookups.Lookups(
            options.mount, spec.paths, per=spec.ranks, timeout=options.lookup_timeout_ms / 1000,
            held_most=_lookups.pool_bytes(options.mount) // 4, reports=_lookups.Reports(logger))
        self._hints = _hints.Hints(self._lookups)
        self._push = _push.Pusher(options.mount, options.folder, options.push, logger)
        # of requests that on_new_request() will see
        self._wishes: dict[str, _hints.Wish] = {}
        self._waits: dict[str, int] = {}
        self._bad_wishes = _lookups.Reports(logger)
        self._tokens = {g.group_id: g.tokens_per_block * spec.blocks_per_chunk
                        for g in spec.config.groups}
        self._events: list[OffloadingEvent] | None = None
        if options.events and spec.kv_events_config.enable_kv_cache_events:
            self._events = []
        self._unstored: set[bytes] = set()
        self._told: dict[str, int] = {}
        self._ends: dict[tuple[str, int], tuple[int, bytes]] = {}  # of the prompts' chunks so far
        self._parents: dict[bytes, bytes | None] = {}  # of chunks that are being stored

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._lookups.begin(req_context.req_id, self._waits.pop(req_context.req_id, 0) / 1000)
        wish = self._wishes.pop(req_context.req_id, None)
        if wish:
            self._hints.begin(req_context.req_id, wish)
        return RequestOffloadingContext()

    def wish(self, request: Any) -> None:
        """Reads how long a request waits for its chunks, and its hints, which the mount gets at the
        end of the request. Called before on_new_request()."""
        params = request.kv_transfer_params
        params = params if isinstance(params, dict) else {}
        told = params.get("kvcachefs")
        try:
            if wait_ms := self._wait_ms(params):
                self._waits[request.request_id] = wait_ms
        except ValueError as e:
            self._bad_wishes.warn("wait", f"a request does not wait for its chunks: {e}")
        try:
            if told is not None and not isinstance(told, dict):
                raise ValueError("\"kvcachefs\" in kv_transfer_params must be an object")
            self._wishes[request.request_id] = _hints.Wish.of(
                told, session=request.session_id, priority=request.priority,
                pause=self._spec.options.session_pause)
        except ValueError as e:
            self._lookups.count_hint_failure()
            self._bad_wishes.warn("wish", f"the hints of a request are not used: {e}")

    def _wait_ms(self, params: Mapping[str, Any]) -> int:
        told = params.get("kvcachefs_wait_ms")
        if told is None:
            return self._spec.options.wait_ms if params.get("do_remote_prefill") else 0
        if type(told) is not int or not 0 <= told <= WAIT_MS_MOST:
            raise ValueError(f"kvcachefs_wait_ms in kv_transfer_params must be 0 to "
                             f"{WAIT_MS_MOST}, not {told!r}")
        return told

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.end(req_context.req_id)
        for group in self._tokens:
            self._ends.pop((req_context.req_id, group), None)
        self._hints.end(req_context.req_id)

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        group = self._series(key, req_context)
        answer = self._lookups.ask(req_context.req_id, key, group)
        if answer is None:
            return LookupResult.RETRY
        if answer and group is not None:
            self._follow(key, group, req_context)
        return LookupResult.HIT if answer else LookupResult.MISS

    def _follow(self, key: bytes, group: int, req_context: Any) -> tuple[bool, bytes | None]:
        """Records the next chunk of a prompt. Returns whether its parent is known, and the
        parent."""
        end, tokens = req_context.get_offload_key_position(key), self._tokens[group]
        self._hints.chunk(req_context.req_id, group, end, key)
        last, parent = self._ends.get((req_context.req_id, group), (0, None))
        self._ends[req_context.req_id, group] = end, key
        return end - tokens == last, parent

    def _series(self, key: bytes, req_context: Any) -> int | None:
        """The group, if its chunks form a prefix and the key is that of a whole chunk."""
        group = get_offload_group_idx(key)
        end = req_context.get_offload_key_position(key)
        if group in self._spec.windowed or end is None or end % self._tokens[group]:
            return None
        return group

    def get_load_source(self, key: bytes, req_context: Any) -> CacheHitSource:
        return CacheHitSource.HOST

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.take()
        for name in context.preempted_req_ids:
            self._lookups.forget(name)
        for name in context.new_req_ids:
            self._lookups.running(name)
        self._lookups.flush()

    def has_pending_work(self) -> bool:
        self._lookups.take()
        return self._lookups.pending

    def prepare_load(self, keys: Collection[bytes], req_context: Any) -> Files:
        self._lookups.hold(req_context.req_id, keys)
        return Files(keys)

    def complete_load(self, keys: Collection[bytes], req_context: Any) -> None:
        self._lookups.loaded(req_context.req_id)

    def prepare_store(self, keys: Collection[bytes], req_context: Any) -> PrepareStoreOutput:
        new = self._lookups.known.start(keys)
        stored = set(new)
        for key in keys:
            group = self._series(key, req_context)
            if group is not None:
                known, parent = self._follow(key, group, req_context)
                if known and key in stored:
                    self._parents[key] = parent
        if new:
            self._hints.storing(req_context.req_id)
        return PrepareStoreOutput(keys_to_store=new, store_spec=Files(new), evicted_keys=[])

    def complete_store(self, keys: Collection[bytes], req_context: Any,
                       success: bool = True) -> None:
        failed = set(keys) if not success else self._unstored.intersection(keys)
        self._unstored -= failed
        self._lookups.known.stored(keys, failed)
        stored = [k for k in keys if k not in failed]
        self._push.add(path for key in stored for path in self._spec.paths(key))
        parents = {k: self._parents.pop(k) for k in keys if k in self._parents}
        self._lookups.chain((k, parents[k]) for k in stored if k in parents)
        self._hints.stored(req_context.req_id)
        if self._events is not None and stored:
            self._events.append(OffloadingEvent(keys=stored, medium=Medium.STORAGE, removed=False,
                                                locality=Locality.LOCAL))

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events:
            yield from self._events
            self._events.clear()

    def not_stored(self, keys: Iterable[bytes]) -> None:
        """Chunks that a worker did not store; complete_store() follows."""
        self._unstored.update(keys)

    def not_loaded(self, name: str, keys: Iterable[bytes]) -> None:
        self._lookups.refuse(name, keys)

    def reset_cache(self) -> None:
        self._unstored.clear()
        self._parents.clear()
        self._hints.reset()
        self._lookups.known.clear()

    def get_stats(self) -> OffloadingConnectorStats | None:
        stats = OffloadingConnectorStats()
        for name, count in {**self._lookups.counts, **self._push.counts}.items():
            if more := count - self._told.get(name, 0):
                stats.increase_counter(METRICS[name][0], more)
                self._told[name] = count
        if self._lookups.held_bytes != self._told.get("held", 0):
            self._told["held"] = self._lookups.held_bytes
            stats.set_gauge(METRICS["held"][0], self._lookups.held_bytes)
        return None if stats.is_empty() else stats

    def shutdown(self) -> None:
        self._lookups.close()
        self._push.close()


# ---- Workers -------------------------------------------------------------------------------------


def _groups(spec: KvcachefsSpec, caches: Any) -> list[_chunkfiles.Group]:
    """The pages of each KV cache group: each tensor once, in vLLM's order, in the padded size, as
    in the file tier (vllm/v1/kv_offload/cpu/shared_offload_region.py)."""
    slots, out = spec.blocks_per_chunk, []
    for position, refs in enumerate(caches.group_data_refs):
        tensors = []
        for index in sorted({ref.tensor_idx for ref in refs}):
            cache = caches.tensors[index]
            if cache.tensor.dim() != 2 or cache.tensor.element_size() != 1 or \
                    cache.tensor.shape[1] != cache.page_size_bytes:
                raise ValueError(f"kvcachefs: this vLLM gives its KV cache as tensors of "
                                 f"{tuple(cache.tensor.shape)} {cache.tensor.dtype}, not as pages "
                                 f"of bytes: use vLLM 0.32 or 0.33")
            tensors.append(cache.tensor)
        pages = Pages(tensors)
        size = slots * pages.page_bytes
        if spec.shared_format:
            size = max(size, slots * spec.config.worker_kv_bytes_per_block)
            size = -(-size // PAGE) * PAGE
        out.append(_chunkfiles.Group(pages, slots, size, position in spec.recurrent))
    return out


def _page_axes(cache: Any, spec: Any) -> list[tuple[str, int]] | None:
    """The axes of a page in a layer's cache; None: vLLM arranges it in another way."""
    if not isinstance(cache, torch.Tensor) or not isinstance(spec, AttentionSpec):
        return None
    tokens, heads, d = spec.block_size, spec.num_kv_heads, spec.head_size
    shape, strides = list(cache.shape[1:]), list(cache.stride()[1:])
    if type(spec) is MLAAttentionSpec:  # one latent vector for each token
        if shape[-2:] != [tokens, d] or shape[:-2] not in ([], [1]):
            return None
        return _layouts.axes([("t", tokens, strides[-2]), ("d", d, strides[-1])])
    if shape == [heads, tokens, 2 * d]:  # K and V of a token in a head are adjacent
        return _layouts.axes([("h", heads, strides[0]), ("t", tokens, strides[1]),
                              ("k", 2, d * strides[2]), ("d", d, strides[2])])
    if shape == [2, tokens, heads, d]:
        return _layouts.axes(list(zip("kthd", shape, strides)))
    return None


def _layout(spec: KvcachefsSpec, groups: list[_chunkfiles.Group]) -> str | None:
    """The layout of this worker's files. They are in one folder, so all groups must have it."""
    found: set[str | None] = set()
    for position, group in enumerate(groups):
        names = spec.config.groups[position].layer_names
        layers = [(spec.kv_caches.get(n), spec.kv_specs.get(n)) for n in names]
        pages = [_page_axes(*both) for both in layers]
        kinds = {getattr(cache, "dtype", None) for cache, _ in layers}
        if not pages or pages[0] is None or pages.count(pages[0]) < len(pages) or len(kinds) > 1:
            return None
        shape = [("l", len(group.pages.tensors)), ("p", group.slots), *pages[0]]
        found.add(_layouts.text(kinds.pop(), shape, group.slots * group.pages.page_bytes))
    return found.pop() if len(found) == 1 else None


def _device(caches: Any) -> int:
    """-1: host memory; else the number of the CUDA device."""
    device = caches.tensors[0].tensor.device
    if device.type == "cpu":
        return -1
    if device.type != "cuda" or torch.version.hip:
        raise ValueError(f"kvcachefs: the KV cache is on {device}; this connector supports cuda "
                         f"and cpu. Use vLLM's OffloadingConnector with its file tier on the mount")
    return int(device.index or 0)


class Worker(OffloadingWorker):
    """Transfers between this worker's cache and its files."""

    def __init__(self, spec: KvcachefsSpec, caches: Any) -> None:
        options = spec.options
        self._spec, self._device, self._caches = spec, _device(caches), caches
        groups = _groups(spec, caches)
        self._files = _chunkfiles.ChunkFiles(
            options.mount, groups, threads=options.threads, reports=_lookups.Reports(logger))
        layout = _layout(spec, groups)
        if layout:
            _layouts.tell(options.mount, spec.worker_folder, layout, logger)
        self._numbers = {g.group_id: i for i, g in enumerate(spec.config.groups)}
        self._keys: dict[int, list[bytes]] = {}
        self._blocks: dict[int, list[int]] = {}  # of loads
        self._failed_loads: dict[int, tuple[list[bytes], list[int]]] = {}
        self._unstored: set[bytes] = set()
        self._stats = OffloadingConnectorStats()
        if options.warm:
            threading.Thread(target=self._warm, args=(groups[0],), name="kvcachefs-warm",
                             daemon=True).start()
        logger.info("kvcachefs: %s/%s, %s bytes a file of %d blocks, %s", options.mount,
                    spec._mapper.base_path, "/".join(str(g.size) for g in groups),
                    spec.blocks_per_chunk, layout or "without a layout")

    def _warm(self, group: _chunkfiles.Group) -> None:
        options = self._spec.options
        items = [Item(f"{options.folder}/{i}", parts=group.pages.parts(range(group.slots)),
                      size=group.size) for i in range(WARM_CHUNKS)]
        try:
            warm(options.mount, None, items, transfers=options.warm, keep_s=WARM_S)
        except OSError as e:
            logger.warning("kvcachefs: warm=%d failed: %s", options.warm, e.strerror)

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Files) -> bool:
        return self._submit(job_id, False, src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: Files, dst_spec: Any) -> bool:
        return self._submit(job_id, True, dst_spec, src_spec)

    def _submit(self, job: int, load: bool, blocks: Any, files: Files) -> bool:
        self._keys[job] = files.keys
        chunks = [(self._numbers[get_offload_group_idx(k)], self._spec.path(k, self._spec.rank))
                  for k in files.keys]
        runs, at = [], 0
        for group, (n, index) in enumerate(zip(blocks.group_sizes, blocks.block_indices)):
            if n:
                runs.append((group, index, blocks.block_ids[at:at + n].tolist()))
                at += n
        if load:
            self._blocks[job] = blocks.block_ids.tolist()
        stream = torch.cuda.current_stream(self._device) if self._device >= 0 else None
        self._files.submit(job, load, chunks, runs, stream=stream)
        return True

    def get_finished(self) -> list[TransferResult]:
        out = []
        for done in self._files.finished():
            keys, blocks = self._keys.pop(done.job), self._blocks.pop(done.job, [])
            failed = [keys[i] for i in done.failed]
            if done.load and failed:
                self._failed_loads[done.job] = failed, blocks
            elif failed:
                self._unstored.update(failed)
            if done.error:
                name = "load_failures" if done.load else "store_failures"
                self._stats.increase_counter(METRICS[name][0], len(failed))
            # vLLM 0.32 asserts success; KvcachefsConnector reports the failures
            out.append(TransferResult(done.job, True, done.size, done.seconds))
        return out

    def take_failed_loads(self) -> dict[int, tuple[list[bytes], list[int]]]:
        """The chunks that failed, and all blocks, of each load with a failure."""
        failed, self._failed_loads = self._failed_loads, {}
        return failed

    def take_unstored(self) -> set[bytes]:
        unstored, self._unstored = self._unstored, set()
        return unstored

    def take_stats(self) -> OffloadingConnectorStats | None:
        stats, self._stats = self._stats, OffloadingConnectorStats()
        return None if stats.is_empty() else stats

    def wait(self, job_ids: set[int]) -> None:
        self._files.wait(job_ids)

    def shutdown(self) -> None:
        self._files.close()


# ---- Connector -----------------------------------------------------------------------------------


@dataclasses.dataclass
class WorkerMetadata(OffloadingWorkerMetadata):
    """From the workers to the scheduler, with the chunks that were not stored and the requests and
    chunks that were not loaded."""
    unstored: set[bytes] = dataclasses.field(default_factory=set)
    unloaded: dict[str, set[bytes]] = dataclasses.field(default_factory=dict)

    def aggregate(self, other: Any) -> WorkerMetadata:
        both = super().aggregate(other)
        unloaded = {r: set(k) for r, k in self.unloaded.items()}
        for request, keys in getattr(other, "unloaded", {}).items():
            unloaded.setdefault(request, set()).update(keys)
        return WorkerMetadata(completed_jobs=both.completed_jobs,
                              transfer_stats=both.transfer_stats,
                              unstored=self.unstored | getattr(other, "unstored", set()),
                              unloaded=unloaded)


def _handed_over(request: Any, answer: tuple[bool, dict[str, Any] | None]
                 ) -> tuple[bool, dict[str, Any] | None]:
    """The answer to a request whose decode another node does has the parameters for that node, as
    the proxies of vLLM expect."""
    later, params = answer
    given = request.kv_transfer_params
    if params is None and isinstance(given, dict) and given.get("do_remote_decode"):
        params = {"do_remote_prefill": True, "do_remote_decode": False}
    return later, params


class KvcachefsConnector(OffloadingConnector):
    """vLLM's OffloadingConnector on a kvcachefs mount. RuntimeError at the start: the mount cannot
    be used; ValueError: an option or a configuration that is not supported."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        options = _complete(vllm_config, kv_cache_config)
        _refuse(vllm_config)
        _lookups.check_mount(options.mount, options.folder, "kv_connector_extra_config", "vLLM")
        # vLLM reads the policy after its connector exists
        vllm_config.kv_transfer_config.kv_load_failure_policy = options.on_failure
        super().__init__(vllm_config, role, kv_cache_config)
        self._unloaded: dict[str, set[bytes]] = {}
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()
        if self.connector_scheduler:
            spec = self.connector_scheduler.manager._spec
            spec.windowed = {g.group_idx for g in self.connector_scheduler.config.kv_group_configs
                             if g.sliding_window_size_in_chunks is not None}
        if self.connector_worker:
            spec = self.connector_worker.spec
            groups = [kv_cache_config.kv_cache_groups[g.group_id] for g in spec.config.groups]
            spec.recurrent = {i for i, g in enumerate(groups)
                              if any(isinstance(s, MambaSpec)
                                     for s in iter_layer_specs(g.kv_cache_spec))}
            spec.kv_specs = {n: getattr(g.kv_cache_spec, "kv_cache_specs", {}).get(
                n, g.kv_cache_spec) for g in groups for n in g.layer_names}

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: Any,
                           per_engine_labelvalues: Any) -> Any:
        _complete(vllm_config)  # also in the process of the API server
        return super().build_prom_metrics(vllm_config, metric_types, labelnames,
                                          per_engine_labelvalues)

    # In the workers:

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.connector_worker.spec.kv_caches = kv_caches
        super().register_kv_caches(kv_caches)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        sending, receiving = self.get_finished(finished_req_ids)
        self._bad_blocks.clear()
        failed, self._failed = self._failed, set()
        return KVConnectorTransferResults(sending, receiving, failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """vLLM's MultiConnector calls this directly, without get_transfer_results(), and gets the
        blocks of failed loads from get_block_ids_with_load_errors()."""
        worker = self.connector_worker
        loads = dict(worker._load_jobs)
        finished = super().get_finished(finished_req_ids)
        for job, (keys, blocks) in worker.worker.take_failed_loads().items():
            request = loads.get(job)
            if request is not None:
                self._failed.add(request)
                self._bad_blocks.update(blocks)
                self._unloaded.setdefault(request, set()).update(keys)
        return finished

    def get_block_ids_with_load_errors(self) -> set[int]:
        blocks, self._bad_blocks = self._bad_blocks, set()
        return blocks

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        meta = super().build_connector_worker_meta()
        if meta is None:
            return None
        unloaded, self._unloaded = self._unloaded, {}
        return WorkerMetadata(meta.completed_jobs, meta.transfer_stats,
                              self.connector_worker.worker.take_unstored(), unloaded)

    def get_kv_connector_stats(self) -> Any:
        if self.connector_worker is not None:
            worker = self.connector_worker.worker
            return worker.take_stats() if worker is not None else None
        return super().get_kv_connector_stats()

    # In the scheduler:

    def on_new_request(self, request: Any) -> None:
        self.connector_scheduler.manager.wish(request)
        super().on_new_request(request)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return _handed_over(request, super().request_finished(request, block_ids))

    def request_finished_all_groups(self, request: Any, block_ids: Any
                                    ) -> tuple[bool, dict[str, Any] | None]:
        return _handed_over(request, super().request_finished_all_groups(request, block_ids))

    def update_connector_output(self, connector_output: Any) -> None:
        scheduler = self.connector_scheduler
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, WorkerMetadata):
            scheduler.manager.not_stored(meta.unstored)
            for request, keys in meta.unloaded.items():
                scheduler.manager.not_loaded(request, keys)
                status = scheduler._req_status.get(request)
                for state in status.group_states if status else ():
                    state.next_stored_chunk_idx = 0  # computed again, so stored again
        super().update_connector_output(connector_output)


# vLLM's MultiConnector finds the statistics of its connectors by registered names.
with contextlib.suppress(ValueError):  # it is already registered
    KVConnectorFactory.register_connector("KvcachefsConnector", __name__, "KvcachefsConnector")
