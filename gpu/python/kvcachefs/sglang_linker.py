# SPDX-License-Identifier: Apache-2.0
"""
SGLang: a cache linker, which moves pages between the device pools of the unified radix cache and
files of a kvcachefs mount, layer by layer, without SGLang's host pool.

    python -m sglang.launch_server --enable-unified-cache-external-linker \\
        --unified-cache-external-linker-backend dynamic \\
        --unified-cache-external-linker-config '{
            "linker": "KvcachefsLinker", "linker_module_path": "kvcachefs.sglang_linker",
            "linker_extra_config": {"mount": "/mnt/kv"}}'

Options in linker_extra_config:

    mount              the folder where kvcachefs is mounted (required)
    folder             the folder below it for SGLang's files (sglang)
    threads            threads that copy, for each rank (4)
    lookup_timeout_ms  how long a lookup may wait for pages from the tiers below the pool (200)
    layer_group        layers that are copied together (8)
    push               a node, or a list of nodes, that stored pages are offered to (none)

A page of a device pool is one file, folder/MODEL_LAYOUT/HASH.POOL_RANKS.bin, with all layers.
LAYOUT is a hash of everything that the bytes depend on, so servers with another layout do not read
the file.

SGLang aborts the requests of a load that fails. So a lookup leases the pages that it reports: they
are in the mount's pool and stay there until they are loaded, and a page that did not arrive within
lookup_timeout_ms is a miss (the mount continues to load it for the next lookup). The lease of a
request ends with its load. SGLang does not report that a waiting request was cancelled. So each
lookup also ends leases whose requests SGLang has not looked up for KEEP_S seconds, and the oldest
leases if there are more than LEASES, or if they hold more than half of the pool.
"""
from __future__ import annotations

import collections
import hashlib
import json
import logging
import queue
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker
from sglang.srt.utils import get_device_module

import kvcachefs

from . import _layouts, _push
from ._lookups import pool_bytes
from ._sglang import Options, Reporter, open_queue, restorable, safe_name, values

__all__ = ["KvcachefsLinker"]

LAYOUT_VERSION = 1  # changes with the order of the bytes in a file
LEASES, KEEP_S = 128, 60.0

logger = logging.getLogger(__name__)


class _Pool:
    """The files of one device pool: for each layer, where its bytes are in memory, relative to a
    row of the pool, and in a file."""

    def __init__(self, entry: Any, num_layers: int, prefix: str, suffix: str) -> None:
        self.entry, self.suffix = entry, suffix
        self.device = -1
        first = entry.kv_buffer[0].device
        if first.type == "cuda":
            self.device = first.index or 0
        elif first.type != "cpu":
            raise ValueError(f"kvcachefs: the pool {entry.name} is on {first}: cpu and cuda are "
                             "supported")
        offsets: list[list[int]] = []
        self.size = 0
        for component in entry.buffer_meta:
            offsets.append([])
            for _, _, size in component:
                offsets[-1].append(self.size)
                self.size += size
        # for each layer: base, stride, length, offset in the file
        self.layers: list[Any] = []
        for layer in range(num_layers):
            mapped = entry.layer_mapping.get(layer)
            which = [] if mapped is None else [mapped] if isinstance(mapped, int) else list(mapped)
            rows = [(*component[i], offsets[c][i]) for c, component in
                    enumerate(entry.buffer_meta) for i in which]
            self.layers.append(numpy.array(rows, dtype=numpy.uint64) if rows else None)
        said = [LAYOUT_VERSION, str(entry.name), entry.page_size, self.size,
                [[(stride, size) for _, stride, size in c] for c in entry.buffer_meta],
                sorted((k, v if isinstance(v, int) else list(v))
                       for k, v in entry.layer_mapping.items()),
                [str(b.dtype) for b in entry.kv_buffer], values(),
                *(str(getattr(entry.device_pool, n, "")) for n in ("dtype", "start_layer"))]
        self.folder = prefix + "_" + hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]

    def axes(self) -> str | None:
        """The layout of a page's file (_layouts.py): keys and values, or the latent vectors of MLA,
        each of all layers."""
        buffers, parts = self.entry.kv_buffer, [len(c) for c in self.entry.buffer_meta]
        shapes = {(tuple(b.shape[1:]), b.dtype) for b in buffers}
        if len(shapes) != 1 or len(set(parts)) != 1 or len(parts) > 2:
            return None
        (shape, dtype), = shapes
        if len(shape) != 2 or (len(parts) == 1 and shape[0] != 1):
            return None
        return _layouts.text(dtype, [("k", len(parts)), ("l", parts[0]),
                                     ("t", self.entry.page_size), ("h", shape[0]),
                                     ("d", shape[1])], self.size)

    def paths(self, keys: list[str]) -> list[str]:
        return [f"{self.folder}/{safe_name(k)}.{self.entry.name}_{self.suffix}.bin" for k in keys]

    def parts(self, row: int, layers: range) -> kvcachefs.Parts | None:
        """The parts of these layers of one page; None: the pool has none of them."""
        rows = [r for r in (self.layers[i] for i in layers) if r is not None]
        if not rows:
            return None
        table = numpy.concatenate(rows)
        out = numpy.empty((len(table), 3), dtype=numpy.uint64)
        out[:, 0] = table[:, 0] + table[:, 1] * numpy.uint64(row)
        out[:, 1], out[:, 2] = table[:, 2], table[:, 3]
        return kvcachefs.Parts.raw(out, self.device)


class _Held:
    """A lease of a waiting request: the keys of its lookup, the lengths that it holds, its bytes,
    and when SGLang asked for them last."""

    def __init__(self, keys: list[str], lengths: list[int], lease: Any, size: int) -> None:
        self.keys, self.lengths, self.lease, self.size = keys, lengths, lease, size
        self.asked = 0.0


class _Load:
    """One batch of loads: its transfer when it was submitted, or None if that failed, and the
    leases that it needs."""

    def __init__(self, leases: list[Any]) -> None:
        self.submitted: Future[Any] = Future()
        self.leases = leases


class LayerCounter:
    """The object on which SGLang's pools wait before they read a layer. A layer that failed does
    not raise into the forward pass; KvcachefsLinker.finish_layer_wise_loading() reports it
    afterwards."""

    def __init__(self, group: int, num_layers: int, device: Any) -> None:
        self.group, self.num_layers, self.device = group, num_layers, device
        self.producer_index = self.consumer_index = -1
        self.loads: dict[int, _Load] = {}

    def update_producer(self, load: _Load) -> int:
        self.producer_index += 1
        self.loads[self.producer_index] = load
        return self.producer_index

    def set_consumer(self, index: int) -> None:
        self.consumer_index = index

    def wait_until(self, threshold: int) -> None:
        load = self.loads.get(self.consumer_index)
        transfer = load.submitted.result() if load else None
        if transfer is None:
            return
        last = min(threshold // self.group * self.group, self.num_layers - 1)
        stream = self.device.current_stream() if self.device.__name__ == "torch.cuda" else None
        try:
            transfer.wait_layer(last, stream=stream)
        except kvcachefs.Error:  # the load failed, or only this thread can wait, not the stream
            transfer.join()

    def finish(self, index: int) -> bool:
        load = self.loads.pop(index, None)
        if load is None:
            return True
        transfer = load.submitted.result()
        good = False
        if transfer is not None:
            transfer.join()
            good = transfer.error is None
        for lease in load.leases:
            lease.close()
        return good


class KvcachefsLinker(UnifiedCacheLinker):
    """The linker. SGLang makes one for each rank. Lookups and loads come from its scheduler
    thread; two threads of the linker submit the copies, which the library's threads perform."""

    def __init__(self, server_args: Any, params: Any, *, components: Any,
                 extra_config: dict[str, Any] | None = None, forward_stream: Any = None,
                 pool_group: Any = None, model: str | None = None) -> None:
        self.options = Options(extra_config, "--unified-cache-external-linker-config",
                               lookup_timeout_ms=200, layer_group=8)
        self.forward_stream, self.reporter = forward_stream, Reporter(logger)
        self.page_size = params.page_size
        self.device = get_device_module()
        self.pool_group = pool_group or self._resolve(params, components)
        self.pools, self.num_layers = self.pool_group.entry_map, self.pool_group.num_layers
        self._queue = open_queue(self.options)
        self._push = _push.Pusher(self.options.mount, self.options.folder, self.options.push,
                                  logger)
        self._held_most = pool_bytes(self.options.mount) // 2
        tp_rank, tp_size = self._tp(params)
        self.offload_owner = not self.pool_group.rank_replicated or tp_rank == 0
        # the suffix has the numbers of ranks too, because a rank's heads depend on them
        suffix = (f"cp{params.attn_cp_rank}_{params.attn_cp_size}"
                  f"_pp{params.pp_rank}_{params.pp_size}")
        if not self.pool_group.rank_replicated:
            suffix = f"tp{tp_rank}_{tp_size}_{suffix}"
        prefix = self.options.below(safe_name(model or self._model()))
        self._files = {name: _Pool(entry, self.num_layers, prefix, suffix)
                       for name, entry in self.pools.items()}
        for files in self._files.values():
            if layout := files.axes():
                _layouts.tell(self.options.mount, files.folder, layout, logger)
        self.layer_done_counter = LayerCounter(self.options.layer_group, self.num_layers,
                                               self.device)
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._start_empty()
        self._tasks: queue.Queue[Any] = queue.Queue()
        self._offload_tasks: queue.Queue[Any] = queue.Queue()
        self._threads = [threading.Thread(target=self._run, args=(tasks,), daemon=True,
                                          name=f"kvcachefs-{what}")
                         for what, tasks in (("load", self._tasks),
                                             ("offload", self._offload_tasks))]
        for thread in self._threads:
            thread.start()

    def _start_empty(self) -> None:
        self._pending: dict[str, list[PoolTransfer]] = {}
        # in the order of their last lookups, the latest last
        self._leases: collections.OrderedDict[str, _Held] = collections.OrderedDict()
        self._offloads: collections.deque[Future[bool]] = collections.deque()

    def _resolve(self, params: Any, components: Any) -> Any:
        from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
            resolve_hybrid_device_pool_group)
        return resolve_hybrid_device_pool_group(
            kvcache=params.token_to_kv_pool_allocator.get_kvcache(), page_size=self.page_size,
            params=params, components=components)

    def _model(self) -> str:
        from sglang.srt.runtime_context import get_model
        return str(get_model().model_path)

    def _tp(self, params: Any) -> tuple[int, int]:
        """The rank among those that share the attention's heads, and their number."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        group = params.attn_tp_cache_group or params.tp_cache_group
        return int(distributed.get_rank(group=group)), int(distributed.get_world_size(group=group))

    # ---- Lookups ----

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        expanded = self.pool_group.resolve_transfers(transfers)
        keys: list[str] = next((list(t.keys) for t in transfers if t.name == PoolName.KV), [])
        if not expanded or not keys:
            return []
        held = self._leases.pop(rid, None)
        if held and held.keys != keys:
            held.lease.close()
            held = None
        if not held:  # otherwise SGLang asks again while the request waits
            try:
                lengths = self._present(expanded, keys)
                held = self._hold(expanded, keys, lengths) if lengths else None
            except (kvcachefs.Error, ValueError) as e:
                self.reporter.report("lookup", e)
        if held:
            held.asked = time.monotonic()
            self._leases[rid] = held
        self._end_leases()
        return held.lengths if held else []

    def _end_leases(self) -> None:
        """Ends leases that no request seems to wait for, and the oldest if there are too many."""
        size, old = sum(h.size for h in self._leases.values()), time.monotonic() - KEEP_S
        while self._leases:
            rid, first = next(iter(self._leases.items()))
            if first.asked > old and (len(self._leases) == 1 or (
                    len(self._leases) <= LEASES and size <= self._held_most)):
                break
            size -= first.size
            self._release(rid)

    def _present(self, expanded: list[PoolTransfer], keys: list[str]) -> list[int]:
        """The prefix lengths for which every pool has its files, in the pool or any tier."""
        lengths = list(range(1, len(keys) + 1))
        for t in expanded:
            paths = self._files[t.name].paths(keys[:lengths[-1]])
            if t.hit_policy == PoolHitPolicy.ALL_PAGES:
                good = set(range(1, kvcachefs.prefix(self.options.mount, paths) + 1))
            else:
                good = restorable(kvcachefs.exists(self.options.mount, paths), t)
            lengths = [n for n in lengths if n in good]
            if not lengths:
                break
        return lengths

    def _hold(self, expanded: list[PoolTransfer], keys: list[str],
              lengths: list[int]) -> _Held | None:
        """Takes a lease on the files of the longest prefix. None: no length is fully leased."""
        end, places = lengths[-1], []
        paths: list[str] = []
        for t in expanded:
            first = 0 if t.hit_policy == PoolHitPolicy.ALL_PAGES else \
                max(0, end - max(1, len(t.keys or ())))
            places.append((t, first, len(paths)))
            paths += self._files[t.name].paths(keys[first:end])
        request = self._queue.lease(paths, prefix=False)
        if not request.join(self.options.lookup_timeout_ms / 1000):
            request.cancel()
            return None
        self._queue.take()
        lease = request.lease
        if lease is None or request.error:
            if request.error:
                self.reporter.report("lookup", request.error)
            return None
        for t, first, at in places:
            size = self._files[t.name].size
            bits = [False] * first + [not o.errno and o.size == size
                                      for o in lease.objects[at:at + end - first]]
            if t.hit_policy == PoolHitPolicy.ALL_PAGES:
                good = set(range(1, (bits.index(False) if False in bits else end) + 1))
            else:
                good = {end} if all(bits[first:]) else set()
            lengths = [n for n in lengths if n in good]
        if not lengths:
            lease.close()
            return None
        return _Held(keys, lengths, lease, request.bytes)

    def _release(self, rid: str) -> None:
        held = self._leases.pop(rid, None)
        if held:
            held.lease.close()

    # ---- Loads ----

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        expanded = self.pool_group.resolve_transfers(transfers, allow_partial=True,
                                                     allow_missing_kv=True)
        if not expanded:
            return False
        if rid in self._pending:
            raise RuntimeError(f"a load for the request {rid} is already queued")
        self._pending[rid] = expanded
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        self._release(rid)
        return self._pending.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        if not self._pending:
            return -1
        pending, self._pending = self._pending, {}
        leases = [self._leases.pop(rid).lease for rid in pending if rid in self._leases]
        load = _Load(leases)
        index = self.layer_done_counter.update_producer(load)
        ready = self.device.Event()
        ready.record()
        self._tasks.put((self._submit_load, load, list(pending.values()), ready))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return self.layer_done_counter.finish(counter_index)

    def _submit_load(self, load: _Load, batches: list[list[PoolTransfer]], ready: Any) -> None:
        transfer = None
        try:
            with self._after([ready]) as stream:
                items = self._items(batches, self.options.layer_group)
                transfer = self._queue.load(items, stream=stream)
        except BaseException as e:
            self.reporter.report("load", e)
        load.submitted.set_result(transfer)

    def _items(self, batches: list[list[PoolTransfer]], group: int) -> list[Any]:
        """An item for each page and group of layers; the lowest layers come first."""
        pages = []
        for transfers in batches:
            for t in transfers:
                pool = self._files[t.name]
                rows = pool.entry.prepare_locations(t.host_indices)
                keys = list(t.keys or ())
                if len(rows) != len(keys):
                    raise ValueError(f"the pool {t.name} has {len(rows)} pages for {len(keys)} "
                                     "keys")
                pages += [(pool, path, row) for path, row in zip(pool.paths(keys), rows)]
        items = []
        for first in range(0, self.num_layers, group):
            layers = range(first, min(first + group, self.num_layers))
            for pool, path, row in pages:
                parts = pool.parts(row, layers)
                if parts is not None:
                    items.append(kvcachefs.Item(path, parts=parts, size=pool.size, layer=first))
        return items

    # ---- Offloads ----

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        expanded = self.pool_group.resolve_transfers(transfers, allow_partial=True)
        if not expanded:
            return False
        done: Future[bool] = Future()
        self._offloads.append(done)
        if self.offload_owner:
            self._offload_tasks.put((self._submit_offload, done, expanded,
                                     self.record_offload_ready()))
        else:  # rank 0 stores the pages that all ranks share
            done.set_result(True)
        return True

    def _submit_offload(self, done: Future[bool], transfers: list[PoolTransfer],
                        ready: list[Any]) -> None:
        good = False
        try:
            with self._after(ready) as stream:
                items = self._items([transfers], self.num_layers)
                for item in items:
                    item.skip_existing = True
                transfer = self._queue.store(items, stream=stream)
            transfer.join()
            good = transfer.error is None
            self._push.add(item.path for item in transfer.items if not item.error)
            if transfer.error:
                self.reporter.report("store", transfer.error)
        except BaseException as e:
            self.reporter.report("store", e)
        done.set_result(good)

    def num_completed_offloads(self) -> int:
        n = 0
        for done in self._offloads:
            if not done.done():
                break
            n += 1
        return n

    def pop_completed_offload(self) -> bool:
        return self._offloads.popleft().result()

    # ---- Threads and the end ----

    def _after(self, events: list[Any]) -> Any:
        """A context with a stream that waits for these events."""
        return _Stream(self.device, events)

    def _run(self, tasks: queue.Queue[Any]) -> None:
        while True:
            task = tasks.get()
            try:
                if task is None:
                    return
                task[0](*task[1:])
                self._queue.take()
            finally:
                tasks.task_done()

    def reset(self) -> None:
        self._tasks.join()
        self._offload_tasks.join()
        for index in list(self.layer_done_counter.loads):
            self.layer_done_counter.finish(index)
        self.layer_done_counter.producer_index = self.layer_done_counter.consumer_index = -1
        for rid in list(self._leases):
            self._release(rid)
        self._start_empty()

    def close(self) -> None:
        self.reset()
        for tasks in (self._tasks, self._offload_tasks):
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._queue.close()
        self._push.close()


class _Stream:
    """Makes a stream current that waits for events; on the CPU, waits for them at once."""

    def __init__(self, device: Any, events: list[Any]) -> None:
        self.device, self.events = device, events
        self.context: Any = None

    def __enter__(self) -> Any:
        if self.device.__name__ != "torch.cuda":
            for event in self.events:
                event.synchronize()
            return None
        stream = self.device.Stream()
        for event in self.events:
            stream.wait_event(event)
        self.context = self.device.stream(stream)
        self.context.__enter__()
        return stream

    def __exit__(self, *error: Any) -> None:
        if self.context is not None:
            self.context.__exit__(*error)
