# SPDX-License-Identifier: Apache-2.0
"""
SGLang: a storage backend of HiCache that keeps its pages as files of a kvcachefs mount.

    python -m sglang.launch_server --enable-hierarchical-cache \\
        --hicache-storage-backend dynamic \\
        --hicache-storage-backend-extra-config '{
            "backend_name": "kvcachefs", "module_path": "kvcachefs.sglang",
            "class_name": "HiCacheKvcachefs", "interface_v1": 1, "mount": "/mnt/kv"}'

A page is one file. It is copied between SGLang's host pool and the file's pages in the mount's
pool, without a buffer in between. Options of the backend in the same JSON object:

    mount     the folder where kvcachefs is mounted (required)
    folder    the folder below it for SGLang's files (sglang)
    threads   threads that copy, for each rank (4)
    push      a node, or a list of nodes, that stored pages are offered to (none)

Files are named folder/MODEL_LAYOUT/NAME.bin. NAME is the name that SGLang's own file backend gives
to the page: its hash, the pool of a hybrid model, and the ranks. LAYOUT is a hash of everything
that the bytes depend on: the pool's layout, element type, page size, the sizes of a page's parts,
and the model's revision and quantization. Servers that differ in one of these do not read each
other's files.

To SGLang, a failed load is a miss, and after a failed store the page is not stored. Calls fail if
the daemon was stopped, or if a file was evicted between the lookup and the load, has another size,
or cannot be read. Errors are logged, at most one message of a kind in ten seconds.
"""
from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, HiCacheStorageConfig,
                                                  HiCacheStorageExtraInfo, PoolHitPolicy, PoolName,
                                                  PoolTransfer, PoolTransferResult)

import kvcachefs

from . import _layouts, _push, admin
from ._sglang import Options, Reporter, open_queue, restorable, safe_name, values

__all__ = ["HiCacheKvcachefs"]

LAYOUT_VERSION = 1  # changes with the order of the bytes in a file
SGLANG = ("backend_name", "module_path", "class_name", "interface_v1")  # SGLang's own options

logger = logging.getLogger(__name__)


class _Pool:
    """The pages of one host pool: where the parts of a page are in memory, and the folder of its
    files. `sizes` is None if the pool cannot give addresses; its pages are then copied once more,
    through a flat tensor."""

    def __init__(self, name: str, host_pool: Any, prefix: str) -> None:
        self.name, self.host_pool = name, host_pool
        self.page = int(getattr(host_pool, "logical_page_size", 0) or
                        getattr(host_pool, "page_size", 1) or 1)
        self.sizes = self._part_sizes()
        self.folder = prefix + "_" + self._layout()

    def _part_sizes(self) -> list[int] | None:
        try:
            pointers, sizes = self.host_pool.get_page_buffer_meta(torch.arange(self.page))
        except (AttributeError, NotImplementedError, ValueError, AssertionError):
            return None
        return [int(s) for s in sizes] if pointers and len(pointers) == len(sizes) else None

    def _layout(self) -> str:
        pool = self.host_pool
        size = self.sizes or int(pool.get_dummy_flat_data_page().nbytes)
        said = [LAYOUT_VERSION, self.name, str(getattr(pool, "layout", "")), self.page, size,
                values(), *(str(getattr(pool, n, "")) for n in (
                    "dtype", "temporal_dtype", "conv_dtype", "layer_num", "start_layer", "head_num",
                    "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim"))]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]

    def axes(self) -> str | None:
        """The layout of a page's file (_layouts.py)."""
        pool, of = self.host_pool, {"t": self.page}
        for name, attr in (("l", "layer_num"), ("h", "head_num"), ("d", "head_dim")):
            of[name] = int(getattr(pool, attr, 0) or 0)
        order = {"layer_first": "lkthd", "page_first": "ktlhd", "page_first_direct": "klthd",
                 "page_head": "khtld"}.get(str(getattr(pool, "layout", "")))
        if getattr(pool, "kv_lora_rank", 0):  # MLA
            of["d"], of["h"] = int(getattr(pool, "kv_cache_dim", 0) or 0), 1
            order = order.replace("k", "").replace("h", "") if order else None
        elif getattr(pool, "v_head_dim", of["d"]) not in (None, of["d"]):
            return None
        if order is None or self.sizes is None or not all(of.values()):
            return None
        of["k"] = 2
        return _layouts.text(getattr(pool, "dtype", None), [(a, of[a]) for a in order],
                             sum(self.sizes))

    def places(self, indices: torch.Tensor, n: int) -> list[kvcachefs.Parts]:
        """The parts of n pages. ValueError: these are not the addresses of n pages."""
        if indices is None or indices.numel() != n * self.page:
            raise ValueError(f"{n} pages of the pool {self.name} have {n * self.page} indices, "
                             f"not {0 if indices is None else indices.numel()}")
        pointers, sizes = self.host_pool.get_page_buffer_meta(indices)
        each = len(self.sizes or ())
        if len(pointers) != n * each or list(sizes) != list(self.sizes or ()) * n:
            raise ValueError(f"the pool {self.name} changed the layout of its pages")
        offsets = [sum(sizes[:i]) for i in range(each)]
        return [kvcachefs.Parts.raw([(p, s, o) for p, s, o in zip(
            pointers[i * each:(i + 1) * each], sizes[:each], offsets)]) for i in range(n)]

    def first(self, indices: torch.Tensor, n: int) -> list[int]:
        """The index of the first token of each of n pages."""
        if indices is None or indices.numel() != n * self.page:
            raise ValueError(f"{n} pages of the pool {self.name} have {n * self.page} indices, "
                             f"not {0 if indices is None else indices.numel()}")
        return [int(i) for i in indices[::self.page].tolist()]


class HiCacheKvcachefs(HiCacheStorage):
    """The backend. SGLang makes one for each rank and calls it from its storage threads."""

    def __init__(self, storage_config: HiCacheStorageConfig,
                 kwargs: dict[str, Any] | None = None) -> None:
        flag = "--hicache-storage-backend-extra-config"
        given = dict(storage_config.extra_config or {})
        if not given.get("interface_v1"):
            raise ValueError(f"kvcachefs: add \"interface_v1\": 1 to {flag}")
        self.options = Options({k: v for k, v in given.items() if k not in SGLANG}, flag)
        self.reporter = Reporter(logger)
        self.registered_pools: dict[Any, Any] = {}
        self._pools: dict[str, _Pool] = {}
        self._suffixes(storage_config)
        self._queue = open_queue(self.options)
        self._push = _push.Pusher(self.options.mount, self.options.folder, self.options.push,
                                  logger)

    def _suffixes(self, c: HiCacheStorageConfig) -> None:
        """As HiCacheFile of SGLang 0.5.23 makes them."""
        self._model = (c.model_name or "").replace("/", "-")
        shard = f"_{c.pp_size}_{c.pp_rank}" if c.pp_size > 1 else ""
        if c.attn_cp_size > 1:
            shard += f"_cp{c.attn_cp_rank}_{c.attn_cp_size}"
        self._tp_suffix = f"_{self._model}_{c.tp_rank}_{c.tp_size}{shard}"
        self._suffix = f"_{self._model}{shard}" if c.is_mla_model else self._tp_suffix
        if c.dcp_size > 1:
            dcp = (f"_tp{c.tp_size}_dcp{c.dcp_rank}_{c.dcp_size}_page{c.logical_page_size}")
            self._suffix, self._tp_suffix = self._suffix + dcp, self._tp_suffix + dcp

    # ---- Names ----

    def _pool(self, name: Any = PoolName.KV) -> _Pool:
        text = str(name)
        pool = self._pools.get(text)
        host_pool = self.registered_pools.get(name)
        if host_pool is None and text == str(PoolName.KV):
            host_pool = getattr(self, "mem_pool_host", None)
        if host_pool is None:
            raise ValueError(f"the pool {text} is not registered")
        if pool is None or pool.host_pool is not host_pool:
            prefix = self.options.below(safe_name(self._model))
            pool = self._pools[text] = _Pool(text, host_pool, prefix)
            if layout := pool.axes():
                _layouts.tell(self.options.mount, pool.folder, layout, logger)
        return pool

    def _paths(self, folder: str, keys: Sequence[str], pool: str = str(PoolName.KV)) -> list[str]:
        tail = "" if pool == str(PoolName.KV) else "." + pool
        suffix = self._tp_suffix if pool == str(PoolName.MAMBA) else self._suffix
        return [f"{folder}/{safe_name(key)}{tail}{suffix}.bin" for key in keys]

    # ---- Stores and loads ----

    def _move(self, stores: bool, paths: list[str], parts: list[Any]) -> list[bool]:
        """Copies pages. Returns which ones succeeded. Never raises for the mount's errors."""
        items = [kvcachefs.Item(path, parts=p, skip_existing=stores) for path, p in
                 zip(paths, parts)]
        each = max(1, -(-len(items) // self.options.threads))
        moves = []
        try:
            for i in range(0, len(items), each):
                call = self._queue.store if stores else self._queue.load
                moves.append(call(items[i:i + each]))
        except (kvcachefs.Error, ValueError) as e:
            self.reporter.report("store" if stores else "load", e)
        started = sum(len(m.items) for m in moves)
        for move in moves:
            move.join()  # SGLang owns the memory again when this call returns
        self._queue.take()
        good = [i < started and item.error is None for i, item in enumerate(items)]
        if stores:
            self._push.add(path for path, ok in zip(paths, good) if ok)
        for item in items:
            if item.error and (stores or item.error.errno != errno.ENOENT):
                self.reporter.report("store" if stores else "load", item.error)
                break
        return good

    def _move_pool(self, stores: bool, name: Any, keys: Sequence[str], indices: Any) -> list[bool]:
        if not keys:
            return []
        try:
            pool = self._pool(name)
            paths = self._paths(pool.folder, keys, pool.name)
            if pool.sizes is not None:
                return self._move(stores, paths, pool.places(indices, len(keys)))
            return self._move_flat(stores, pool, paths, pool.first(indices, len(keys)))
        except ValueError as e:  # SGLang passed something unexpected
            self.reporter.report("store" if stores else "load", e)
            return [False] * len(keys)

    def _move_flat(self, stores: bool, pool: _Pool, paths: list[str],
                   first: list[int]) -> list[bool]:
        if stores:
            pages = [pool.host_pool.get_data_page(i, flat=True).contiguous() for i in first]
        else:
            pages = [pool.host_pool.get_dummy_flat_data_page() for _ in first]
        good = self._move(stores, paths, [kvcachefs.Parts([(p, 0)]) for p in pages])
        for ok, at, page in zip(good, first, pages):
            if ok and not stores:
                pool.host_pool.set_from_flat_data_page(at, page)
        return good

    # ---- SGLang's interface: whole pages of the host pool ----

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return self._move_pool(False, PoolName.KV, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return self._move_pool(True, PoolName.KV, keys, host_indices)

    def batch_get_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[str, list[bool]]:
        return {t.name: self._move_pool(False, t.name, t.keys or [], t.host_indices)
                for t in transfers}

    def batch_set_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[str, list[bool]]:
        return {t.name: self._move_pool(True, t.name, t.keys or [], t.host_indices)
                for t in transfers}

    # ---- Lookups ----

    def _ask(self, ask: Callable[[], Any], nothing: Any) -> Any:
        try:
            return ask()
        except (kvcachefs.Error, ValueError) as e:
            self.reporter.report("lookup", e)
            return nothing

    def batch_exists(self, keys: list[str],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        if not keys:
            return 0
        return int(self._ask(lambda: kvcachefs.prefix(
            self.options.mount, self._paths(self._pool().folder, keys)), 0))

    def batch_exists_v2(self, keys: list[str],
                        pool_transfers: list[PoolTransfer] | None = None,
                        extra_info: HiCacheStorageExtraInfo | None = None) -> PoolTransferResult:
        kv_pages = self.batch_exists(keys, extra_info)
        hits: dict[str, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        lengths = list(range(1, kv_pages + 1))  # prefixes that every pool so far can restore
        for t in pool_transfers or []:
            if not lengths or t.hit_policy not in (PoolHitPolicy.ALL_PAGES,
                                                   PoolHitPolicy.TRAILING_PAGES):
                continue  # other policies report pages of their own, and never shorten the prefix
            bits = self._bits(t.name, keys[:kv_pages])
            good = restorable(bits, t)
            if good:
                hits[t.name] = max(good)
            lengths = [n for n in lengths if n in good]
        return PoolTransferResult(lengths[-1] if lengths else 0, hits, lengths)

    def _bits(self, name: Any, keys: list[str]) -> list[bool]:
        def ask() -> list[bool]:
            pool = self._pool(name)
            return kvcachefs.exists(self.options.mount, self._paths(pool.folder, keys, pool.name))

        found: list[bool] = self._ask(ask, [False] * len(keys))
        return found

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    # ---- SGLang's older interface: one flat tensor for each page ----
    #
    # SGLang does not call it with "interface_v1": 1, which the backend requires.

    def get(self, key: str, target_location: Any = None,
            target_sizes: Any = None) -> torch.Tensor | None:
        return None

    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[torch.Tensor | None]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return False

    # ---- The rest ----

    def clear(self) -> bool:
        """Removes the files of this model and layout, those of all ranks."""
        good = True
        for pool in list(self._pools.values()):
            try:
                admin.remove(self.options.mount, pool.folder)
            except FileNotFoundError:
                pass
            except OSError as e:
                self.reporter.report("clear", e)
                good = False
        return good

    def close(self) -> None:
        self._queue.close()
        self._push.close()
