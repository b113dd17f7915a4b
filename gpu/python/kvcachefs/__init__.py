# SPDX-License-Identifier: Apache-2.0
"""
kvcachefs: chunk keys, leases and transfers of KV caches for programs that use a kvcachefs mount;
libkvcachefs for Python. kvcachefs-python(7).

    keys.py      chunk keys from tokens, names on disk
    lease.py     objects held in the pool, and their bytes
    cache.py     a paged cache from tensors
    rope.py      cached keys at other positions
    transfer.py  store and load, by asyncio, by polling, layer by layer
    _threads.py  who waits for the mount meanwhile
    _lib.py      the library by ctypes

What the library refuses is an Error, an OSError with its errno and text; what is wrong before it is
asked, a ValueError.
"""
from . import rope
from ._lib import Error, call as _call
from ._threads import workers
from .cache import Paged, Tensor, Tokens, formats
from .keys import (Hasher, Mm, Name, Segment, blake3, build, chunk_keys, example_folder,
                   fingerprints, group_key, key_int, namings, parse, schemes)
from .lease import Lease, Object, look, map_cache, prefetch
from .rope import Rope
from .transfer import Item, Transfer, layerwise, load, store

__all__ = ["Error", "Hasher", "Item", "Lease", "Mm", "Name", "Object", "Paged", "Rope", "Segment",
           "Tensor", "Tokens", "Transfer", "blake3", "build", "chunk_keys", "example_folder",
           "fingerprints", "formats", "group_key", "key_int", "layerwise", "load", "look",
           "map_cache", "namings", "parse", "prefetch", "rope", "schemes", "store", "version",
           "workers"]


def version() -> str:
    """The library's: "0.1.0" and, where it was built with CUDA, " cuda"."""
    text: bytes = _call("version")
    return text.decode()


__version__ = version().split()[0]
