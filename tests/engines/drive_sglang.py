# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache: the storage backends file, nixl (with the POSIX plugin and O_DIRECT, its
default) and kvcachefs.sglang. The classes Pool and AddressedPool stand in for SGLang's host pool.
The file linker of a third party, sglang-fs-linker, is skipped, and the table gives the reason."""

import os, types

os.environ.update(SGLANG_LOGGING_LEVEL="ERROR", NIXL_LOG_LEVEL="ERROR")
import logging
import numpy
import torch
from client import KiB, MiB, Client, content, digest, serve, version
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

logging.disable(logging.WARNING)
skipped = {}
try:
    from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl
except Exception as e:
    skipped["sglang HiCacheNixl"] = f"{type(e).__name__}: {e}"[:160]
try:
    from sglang_fs_linker.linker import FileSystemLinker

    missing = sorted(getattr(FileSystemLinker, "__abstractmethods__", ()))
    skipped["sglang-fs-linker"] = (
        f"with this sglang it lacks {', '.join(missing)}"
        if missing
        else "needs a GPU's pool and SGLang's runtime"
    )
except Exception as e:
    skipped["sglang-fs-linker"] = f"{type(e).__name__}: {e}"[:160]


def config(**extra):
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="org/Tiny-8B",
        extra_config=extra,
    )


class File(Client):
    name, extra = "sglang HiCacheFile", {}

    def __init__(self, folder):
        super().__init__(folder)
        self.storage = HiCacheFile(config(file_storage_path=folder, **self.extra))

    def prepare(self, numbers):
        self.ready = [torch.from_numpy(content(n, self.size)) for n in numbers]

    def store(self, numbers):
        values, self.ready = (
            getattr(self, "ready", None)
            or [torch.from_numpy(content(n, self.size)) for n in numbers],
            None,
        )
        return [self.storage.set(digest(n).hex(), v) for n, v in zip(numbers, values)]

    def load(self, numbers):
        places = [torch.zeros(self.size, dtype=torch.uint8) for _ in numbers]
        return [
            p.numpy() if self.storage.exists(k) and self.storage.get(k, p) is not None else None
            for k, p in ((digest(n).hex(), p) for n, p in zip(numbers, places))
        ]


class FileCached(File):
    name, extra, depths = (
        "sglang HiCacheFile enable_metadata_cache",
        {"enable_metadata_cache": True},
        (1,),
    )


class Pool:
    """The part of SGLang's HostKVCache that the storage backends call. A page has one token and is
    one flat row of kv_buffer."""

    layout, page_size, pin_memory = "layer_first", 1, False

    def __init__(self, pages, size):
        self.kv_buffer = torch.zeros(pages, size, dtype=torch.uint8)

    def get_dummy_flat_data_page(self):
        return torch.zeros(self.kv_buffer.shape[1], dtype=torch.uint8)

    def get_data_page(self, index, flat=True):
        return self.kv_buffer[index]

    def set_from_flat_data_page(self, index, page):
        self.kv_buffer[index] = page


class Nixl(Client):
    """The backend makes 256 folders once, and writes files in place."""

    name, extra = "sglang HiCacheNixl", {
        "plugin": {"posix": {"active": True}},
        "l3_cleaner_enabled": False,
    }
    own = ("",) + tuple(f"{i:02x}" for i in range(256))

    def __init__(self, folder):
        super().__init__(folder)
        self.storage = HiCacheNixl(config(**self.extra), file_path=folder)
        self.pool = Pool(self.batch, self.size)
        self.storage.register_mem_pool_host(self.pool)

    def keys(self, numbers):
        return [digest(n).hex() for n in numbers], torch.arange(len(numbers))

    def prepare(self, numbers):
        for i, n in enumerate(numbers):
            self.pool.kv_buffer[i] = torch.from_numpy(content(n, self.size))
        self.ready = numbers

    def store(self, numbers):
        if getattr(self, "ready", None) != numbers:
            self.prepare(numbers)
        self.ready = None
        return self.storage.batch_set_v1(*self.keys(numbers))

    def load(self, numbers):
        keys, places = self.keys(numbers)
        have = [i for i, k in enumerate(keys) if self.storage.exists(k)]
        self.pool.kv_buffer.zero_()
        good = set()
        if have:
            done = self.storage.batch_get_v1([keys[i] for i in have], places[have])
            good = {i for i, ok in zip(have, done) if ok}
        for i in set(have) - good:  # a batch fails as a whole, so load each existing page alone
            if self.storage.exists(keys[i]) and all(
                self.storage.batch_get_v1([keys[i]], places[i : i + 1])
            ):
                good.add(i)
        return [self.pool.kv_buffer[i].numpy() if i in good else None for i in range(len(keys))]

    def close(self):
        self.storage.close()


class NixlBuffered(Nixl):
    name, extra, depths = (
        "sglang HiCacheNixl use_direct_io=false",
        dict(Nixl.extra, use_direct_io=False),
        (1,),
    )


class AddressedPool(Pool):
    """K and V of a page have separate addresses, as in a host pool of the layout layer_first."""

    dtype, layer_num, head_num, head_dim = torch.uint8, 1, 1, 1

    def get_page_buffer_meta(self, indices):
        half = self.kv_buffer.shape[1] // 2
        at = [self.kv_buffer[i].data_ptr() for i in indices.tolist()]
        return [p for a in at for p in (a, a + half)], [half] * (2 * len(at))


class Ours(Client):
    """Stores and loads whole pages with batch_set_v1 and batch_get_v1. SGLang's own factory creates
    the backend."""

    name, own, connector, pool_kind = "sglang kvcachefs", (), True, AddressedPool

    def __init__(self, folder):
        super().__init__(folder)
        mount = folder
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
        os.makedirs(folder, exist_ok=True)
        extra = {
            "backend_name": "kvcachefs",
            "module_path": "kvcachefs.sglang",
            "class_name": "HiCacheKvcachefs",
            "interface_v1": 1,
            "mount": mount,
            "folder": os.path.relpath(folder, mount) if folder != mount else "",
        }
        self.pool = self.pool_kind(self.batch, self.size)
        self.storage = StorageBackendFactory.create_backend("dynamic", config(**extra), self.pool)
        self.storage.register_mem_pool_host(self.pool)
        self.ready = None

    def keys(self, numbers):
        return [digest(n).hex() for n in numbers], torch.arange(len(numbers))

    def prepare(self, numbers):
        for i, n in enumerate(numbers):
            self.pool.kv_buffer[i] = torch.from_numpy(content(n, self.size))
        self.ready = numbers

    def store(self, numbers):
        if self.ready != numbers:
            self.prepare(numbers)
        self.ready = None
        return self.storage.batch_set_v1(*self.keys(numbers))

    def load(self, numbers):
        keys, places = self.keys(numbers)
        self.pool.kv_buffer.zero_()
        good = self.storage.batch_get_v1(keys, places)
        return [self.pool.kv_buffer[i].numpy().copy() if ok else None for i, ok in enumerate(good)]

    def close(self):
        self.storage.close()


class OursFlat(Ours):
    """The pool gives no addresses: each page is copied through a flat tensor."""

    name, pool_kind, depths = "sglang kvcachefs, flat pages", Pool, (1,)


kinds = [File, FileCached, Ours, OursFlat]
if "sglang HiCacheNixl" not in skipped:
    kinds += [Nixl, NixlBuffered]
serve(kinds, version("sglang", "sglang-fs-linker"), skipped)
