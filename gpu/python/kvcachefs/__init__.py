# SPDX-License-Identifier: Apache-2.0
"""
kvcachefs: chunk keys, leases and transfers of KV caches for programs that use a kvcachefs mount;
libkvcachefs for Python. kvcachefs-python(7).

    keys.py      chunk keys from tokens, names on disk
    lease.py     objects held in the pool, and their bytes
    buffer.py    a file as memory, to read or new
    cache.py     a paged cache from tensors
    rope.py      cached keys at other positions
    transfer.py  store and load, by asyncio, by polling, layer by layer
    _queue.py    the library's queues, and who hears of their ends
    _threads.py  calls that only a thread can wait for
    _lib.py      the library by ctypes

What the library refuses is an Error, an OSError with its errno and text; what is wrong before it is
asked, a ValueError.
"""
from . import rope
from ._lib import Error, call as _call
from ._queue import workers
from .buffer import Buffer
from .cache import Paged, Tensor, Tokens, formats
from .keys import (Hasher, Mm, Name, Segment, blake3, build, chunk_keys, example_folder,
                   fingerprints, group_key, key_int, namings, parse, schemes)
from .lease import Lease, Object, look, map_cache, prefetch, prefix
from .rope import Rope
from .transfer import GpuStats, Item, Transfer, gpu_stats, layerwise, load, store, warm

__all__ = ["Buffer", "Error", "GpuStats", "Hasher", "Item", "Lease", "Mm", "Name", "Object",
           "Paged", "Rope", "Segment", "Tensor", "Tokens", "Transfer", "blake3", "build",
           "chunk_keys", "example_folder", "fingerprints", "formats", "gpu_stats", "group_key",
           "key_int", "layerwise", "load", "look", "map_cache", "namings", "parse", "prefetch",
           "prefix", "rope", "schemes", "store", "version", "warm", "workers"]


def version() -> str:
    """The library's: "0.1.0" and, where it was built with CUDA, " cuda"."""
    text: bytes = _call("version")
    return text.decode()


__version__ = version().split()[0]
