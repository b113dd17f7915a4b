# SPDX-License-Identifier: Apache-2.0
"""AIBrix: the L2 connectors SHFS (a file per chunk below two levels of folders) and ROCKSDB (a
database)."""

import asyncio, concurrent.futures, logging, os

import torch
from client import KiB, MiB, Client, content, digest, serve, version
from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector
from aibrix_kvcache.l2.connectors.shfs import SHFSConnector
from aibrix_kvcache.memory.external_memory_region import ExternalMemoryRegion

logging.disable(logging.WARNING)


class Aibrix(Client):
    def __init__(self, folder):
        super().__init__(folder)
        os.environ[self.root] = folder
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.connector = self.kind.from_envs("aibrix", self.pool)
        status = self.connector.open()
        assert status.is_ok(), status

    def regions(self, numbers, fill):
        slabs = [
            (
                torch.from_numpy(content(n, self.size))
                if fill
                else torch.zeros(self.size, dtype=torch.uint8)
            )
            for n in numbers
        ]
        return [ExternalMemoryRegion(s, 0, self.size) for s in slabs]

    def prepare(self, numbers):
        self.ready = self.regions(numbers, True)

    def store(self, numbers):
        regions, self.ready = getattr(self, "ready", None) or self.regions(numbers, True), None

        async def put():
            return await asyncio.gather(
                *(self.connector.put(digest(n), r) for n, r in zip(numbers, regions))
            )

        return [s.is_ok() for s in asyncio.run(put())]

    def load(self, numbers):
        regions = self.regions(numbers, False)

        async def get():
            return await asyncio.gather(
                *(self.connector.get(digest(n), r) for n, r in zip(numbers, regions))
            )

        found = []
        for n, r, s in zip(numbers, regions, asyncio.run(get())):
            if not s.is_ok() and not s.is_not_found() and self.there(n):
                raise OSError(f"{self.name}: {s}")
            found.append(r.slab.numpy() if s.is_ok() else None)
        return found

    def there(self, number):
        return asyncio.run(self.connector.exists(digest(number))).is_ok()

    def close(self):
        self.connector.close()


class Shfs(Aibrix):
    name, kind, root, own = (
        "aibrix SHFS",
        SHFSConnector,
        "AIBRIX_KV_CACHE_OL_SHFS_ROOT",
        ("aibrix",),
    )


class RocksDb(Aibrix):
    name, kind, root, own = (
        "aibrix ROCKSDB",
        RocksDBConnector,
        "AIBRIX_KV_CACHE_OL_ROCKSDB_ROOT",
        ("aibrix",),
    )
    database = True


serve([Shfs, RocksDb], version("aibrix-kvcache", "rocksdict"))
