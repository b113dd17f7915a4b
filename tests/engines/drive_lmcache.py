# SPDX-License-Identifier: Apache-2.0
"""LMCache: the L2 adapters fs, fs_native and kvcachefs.lmcache of its server; the FSConnector, the
LocalDiskBackend and the GdsBackend (its POSIX fallback) of its in-process engine. No GPU is
used: GdsBackend's buffers are host memory, and its cudaMemcpy is memmove."""

import argparse, asyncio, ctypes, json, os, select, threading, time

os.environ.update(LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="ERROR")
import torch
from server_lmcache import adapter
from client import KiB, MiB, Client, content, digest, serve, version
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.platform import consume_fd
from lmcache.v1.storage_backend import gds_backend
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
from lmcache.utils import CacheEngineKey

MODEL = "org/Tiny-8B"


def aligned(size):
    whole = torch.empty(size + 4096, dtype=torch.uint8)
    return whole[-whole.data_ptr() % 4096 :][:size]


class Adapter(Client):
    """Calls an L2 adapter as LMCache's server does: it submits tasks, and an eventfd signals their
    completion."""

    spec = {}

    def __init__(self, folder):
        super().__init__(folder)
        config = parse_args_to_l2_adapters_config(
            argparse.Namespace(l2_adapter=[json.dumps(self.options(folder))])
        )
        self.buffers = [aligned(self.size) for _ in range(self.batch)]
        self.adapter = create_l2_adapter(config.adapters[0], l1_memory_desc=None)

    def options(self, folder):
        return dict(self.spec, base_path=folder)

    def objects(self, numbers, fill):
        for n, b in zip(numbers, self.buffers):
            b.copy_(torch.from_numpy(content(n, self.size))) if fill else b.zero_()
        keys = [
            ObjectKey(chunk_hash=digest(n), model_name=MODEL, kv_rank=0x01000100) for n in numbers
        ]
        return keys, [
            TensorMemoryObj(
                raw_data=b,
                parent_allocator=None,
                metadata=MemoryObjMetadata(
                    shape=torch.Size([self.size]),
                    dtype=torch.uint8,
                    address=0,
                    phy_size=self.size,
                    fmt=MemoryFormat.KV_2LTD,
                    ref_count=1,
                ),
            )
            for _, b in zip(numbers, self.buffers)
        ]

    def ended(self, fd, what):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while (got := what()) is None:
            if not poll.poll(60000):
                raise TimeoutError("the adapter did not end its task within a minute")
            consume_fd(fd)
        return got

    def prepare(self, numbers):
        self.ready = numbers, self.objects(numbers, True)

    def store(self, numbers):
        if getattr(self, "ready", (None,))[0] != numbers:
            self.prepare(numbers)
        (_, (keys, objects)), self.ready = self.ready, (None,)
        task = self.adapter.submit_store_task(keys, objects)
        result = self.ended(
            self.adapter.get_store_event_fd(),
            lambda: self.adapter.pop_completed_store_tasks().get(task),
        )
        return [result.is_successful()] * len(numbers)

    def load(self, numbers):
        keys, objects = self.objects(numbers, False)
        task = self.adapter.submit_load_task(keys, objects)
        got = self.ended(
            self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task)
        )
        return [
            b.numpy() if got.test(i) else None
            for i, (_, b) in enumerate(zip(numbers, self.buffers))
        ]

    def close(self):
        self.adapter.close()


class Fs(Adapter):
    name, spec = "lmcache fs", {"type": "fs"}


class FsTmp(Adapter):
    name, spec, own, depths = (
        "lmcache fs relative_tmp_dir",
        {"type": "fs", "relative_tmp_dir": "tmp"},
        ("", "tmp"),
        (1,),
    )


class FsDirect(Adapter):
    name, spec, depths = "lmcache fs O_DIRECT", {"type": "fs", "use_odirect": True}, (1,)


class FsNative(Adapter):
    name, spec = "lmcache fs_native", {"type": "fs_native"}


class FsNativeDirect(Adapter):
    name, spec, depths = (
        "lmcache fs_native O_DIRECT",
        {"type": "fs_native", "use_odirect": True},
        (1,),
    )


class Kvcachefs(Adapter):
    name, connector = "lmcache kvcachefs", True

    def options(self, folder):
        mount = folder
        while not os.path.exists(f"{mount}/.kvcachefs"):
            if mount == "/":  # no folder above is a mount now, because no daemon runs
                raise FileNotFoundError(folder)
            mount = os.path.dirname(mount)
        return adapter("kvcachefs", mount, folder)


class Memory(AdHocMemoryAllocator):
    """Aligned memory like that of the engine's own pool; O_DIRECT on a disk requires it."""

    def allocate(self, *arguments, **more):
        o = super().allocate(*arguments, **more)
        o.raw_data = aligned(o.raw_data.numel())
        return o


class InProcess(Client):
    """The parts of LMCache's in-process engine that its storage backends need: an event loop in a
    thread, and a CPU backend that allocates memory."""

    def __init__(self, folder):
        super().__init__(folder)
        self.layers = self.size // (256 * KiB)
        self.shape = torch.Size([2, self.layers, 256, 256])
        self.meta = LMCacheMetadata(
            model_name=MODEL,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(self.layers, 2, 256, 2, 128),
        )
        self.config = LMCacheEngineConfig.from_defaults(chunk_size=256, **self.settings(folder))
        self.memory = Memory("cpu")
        self.cpu = LocalCPUBackend(self.config, self.meta, memory_allocator=self.memory)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def key(self, number):
        return CacheEngineKey(
            model_name=MODEL,
            world_size=1,
            worker_id=0,
            dtype=torch.bfloat16,
            chunk_hash=int.from_bytes(digest(number)[:8], "big"),
        )

    def object(self, number):
        o = self.memory.allocate([self.shape], [torch.bfloat16], fmt=MemoryFormat.KV_2LTD)
        o.tensor.view(torch.uint8).flatten().copy_(torch.from_numpy(content(number, self.size)))
        return o

    def prepare(self, numbers):
        self.ready = {n: self.object(n) for n in numbers}

    def objects(self, numbers):
        ready, self.ready = getattr(self, "ready", {}), {}
        return [ready.get(n) or self.object(n) for n in numbers]

    def bytes(self, o):
        return None if o is None else o.tensor.contiguous().view(torch.uint8).flatten().numpy()

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


class FsConnector(InProcess):
    name = "lmcache FSConnector"

    def settings(self, folder):
        return {"remote_url": f"fs://host:0{folder}", "remote_serde": "naive"}

    def __init__(self, folder):
        super().__init__(folder)
        self.connector = CreateConnector(
            self.config.remote_url, self.loop, self.cpu, self.config, self.meta
        )

    def store(self, numbers):
        done = []
        for n, o in zip(numbers, self.objects(numbers)):
            try:
                self.wait(self.connector.put(self.key(n), o))
                done.append(True)
            except OSError:
                done.append(False)
        return done

    def load(self, numbers):
        return [self.bytes(self.wait(self.connector.get(self.key(n)))) for n in numbers]


class LocalDisk(InProcess):
    name, remembers = "lmcache LocalDiskBackend", True
    extra = None

    def settings(self, folder):
        return {"local_disk": folder, "max_local_disk_size": 64.0, "extra_config": self.extra}

    def __init__(self, folder):
        super().__init__(folder)
        self.backend = LocalDiskBackend(
            config=self.config,
            loop=self.loop,
            local_cpu_backend=self.cpu,
            dst_device="cpu",
            metadata=self.meta,
        )

    def store(self, numbers):
        keys, objects = [self.key(n) for n in numbers], self.objects(numbers)
        ended = {k: threading.Event() for k in keys}
        self.backend.batched_submit_put_task(
            keys, objects, on_complete_callback=lambda k: ended[k].set()
        )
        # it does not report a failed write, so wait for a limited time
        limit = time.time() + 15
        while not all(e.is_set() for e in ended.values()) and time.time() < limit:
            try:
                os.statvfs(self.folder)
            except OSError:
                break
            time.sleep(0.0005)
        return [ended[k].is_set() and self.backend.contains(k) for k in keys]

    def load(self, numbers):
        keys = [self.key(n) for n in numbers]
        have = [k for k in keys if self.backend.contains(k)]
        try:
            got = dict(zip(have, self.backend.batched_get_blocking(have)))
        except (
            KeyError
        ):  # it drops the entry of a missing file, and then reads the dropped entry
            got = {}
        return [self.bytes(got.get(k)) for k in keys]


class LocalDiskDirect(LocalDisk):
    name, extra, depths = "lmcache LocalDiskBackend O_DIRECT", {"use_odirect": True}, (1,)


class HostGds(gds_backend.GdsBackend):
    def initialize_allocator(self, config, metadata):
        return Memory("cpu")


class Gds(InProcess):
    name = "lmcache GdsBackend"

    def settings(self, folder):
        return {"gds_path": folder, "gds_buffer_size": 64, "use_gds": False}

    def __init__(self, folder):
        super().__init__(folder)

        def memcpy(dst, src, count, kind):
            ctypes.memmove(dst, src, count.value)
            return 0

        gds_backend._load_gpu_memcpy = lambda: memcpy
        self.backend = HostGds(self.config, self.meta, self.loop, dst_device="cuda:0")
        # the backend's scan of the folder fails if a file is removed during the scan; files that
        # the scan did not find are still found by later lookups
        self.backend._scan_metadata_future.exception(60)

    def store(self, numbers):
        keys = [self.key(n) for n in numbers]
        for f in self.backend.batched_submit_put_task(keys, self.objects(numbers)):
            f.result(60)
        return [self.wait(self.saved(k)) for k in keys]

    async def saved(self, key):
        while self.backend.save_metadata_tasks:
            await asyncio.gather(*self.backend.save_metadata_tasks, return_exceptions=True)
            await asyncio.sleep(0)
        return key in self.backend.hot_cache

    def load(self, numbers):
        found = []
        for n in numbers:
            k = self.key(n)
            found.append(
                self.bytes(self.backend.get_blocking(k)) if self.backend.contains(k) else None
            )
        return found

    def close(self):
        self.backend.close()


class GdsBuckets(Gds):
    """Imitates folders after long use: there are 16 folders on the second level, each with many
    chunks."""

    name, depths = "lmcache GdsBackend, many chunks a folder", (1,)

    def key(self, number):
        key = super().key(number)
        key.chunk_hash = int(f"{10 + number % 4}{10 + number // 4 % 4}{key.chunk_hash:020d}"[:19])
        return key


serve(
    [
        Fs,
        FsTmp,
        FsDirect,
        FsNative,
        FsNativeDirect,
        Kvcachefs,
        FsConnector,
        LocalDisk,
        LocalDiskDirect,
        Gds,
        GdsBuckets,
    ],
    version("lmcache"),
)
