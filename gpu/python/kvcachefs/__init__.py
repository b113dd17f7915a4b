# SPDX-License-Identifier: Apache-2.0
"""
kvcachefs: arrays, chunk keys, leases and transfers of KV caches for programs that use a kvcachefs
mount. The package wraps libkvcachefs; see kvcachefs-python(7).

    arrays.py    Cache: arrays and tensors under keys; begin here
    admin.py     the counters, pins, quotas and events of a mount
    keys.py      chunk keys from tokens, names on disk
    lease.py     leases on objects in the pool, and their bytes
    buffer.py    an existing or new file as memory
    cache.py     a paged cache from tensors
    rope.py      cached keys at other positions
    parts.py     parts of memory, and pages, instead of a paged cache
    transfer.py  store and load: with asyncio, by polling, layer by layer
    queue.py     a queue with one owner, for connectors; leases without waiting
    vllm.py      the connector for vLLM; imported only by vLLM
    _lookups.py  for connectors: which chunks of a request are cached, asked without waiting
    _hints.py    for connectors: the hints given to the mount's policy when a request ends
    _push.py     for connectors: offers of stored files to other nodes
    _chunkfiles.py  for connectors: chunks of a paged cache as files
    sglang.py, sglang_linker.py  the storage backend and the cache linker for SGLang; imported only
                 by SGLang
    _sglang.py   code that both share
    lmcache.py   the client for LMCache's server; imported only by LMCache
    _queue.py    the library's queues and the delivery of completions
    examples/    programs: python3 -m kvcachefs.examples.cache MOUNT
    _threads.py  threads for blocking calls
    _lib.py      the library through ctypes

If the library refuses a call, it raises Error, an OSError with an errno and a text. Invalid
arguments that the package detects itself raise ValueError.
"""
from . import admin, rope
from ._lib import Error, call as _call
from ._queue import workers
from .arrays import Cache
from .buffer import Buffer
from .cache import Paged, Tensor, Tokens, formats
from .keys import (Hasher, Mm, Name, Segment, blake3, build, chunk_keys, example_folder,
                   fingerprints, group_key, key_int, namings, parse, schemes, unified_digest,
                   unified_key)
from .lease import Lease, Object, exists, hint, look, map_cache, prefetch, prefix
from .parts import Pages, Parts
from .queue import LeaseRequest, Queue
from .rope import Rope
from .transfer import GpuStats, Item, Transfer, gpu_stats, layerwise, load, store, warm

__all__ = ["Buffer", "Cache", "Error", "GpuStats", "Hasher", "Item", "Lease", "LeaseRequest", "Mm",
           "Name", "Object", "Paged", "Pages", "Parts", "Queue", "Rope", "Segment", "Tensor",
           "Tokens", "Transfer", "admin", "blake3", "build", "chunk_keys", "example_folder",
           "exists", "fingerprints", "formats", "gpu_stats", "group_key", "hint", "key_int",
           "layerwise", "load", "look", "map_cache", "namings", "parse", "prefetch", "prefix",
           "rope", "schemes", "store", "unified_digest", "unified_key", "version", "warm",
           "workers"]


def version() -> str:
    """Returns the version of the library: "0.1.0", with " cuda" appended if it was built with
    CUDA."""
    text: bytes = _call("version")
    return text.decode()


__version__ = version().split()[0]
