# SPDX-License-Identifier: Apache-2.0
"""
Stores and loads between the files of a mount and paged caches, in the background.

store() and load() submit a transfer to the library's queue of that mount (_queue.py) and return at
once. A thread of the queue performs the transfer layer by layer, the lowest layer first. Callers
can poll(), wait() or await the transfer or a layer. The transfer owns the memory until it is
complete, even if it fails. A task that is cancelled in an await therefore cancels the transfer,
and CancelledError is raised after the transfer has ended: then nothing accesses the memory, no
lease is held and no temporary file is left.

The queue copies its arguments, except three things that the Transfer keeps and that the queue uses
until the transfer is complete: the structs of the items, to which C writes the errors at the end;
the tables of rotations; and the caches with their tensors.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import errno
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from . import _lib, _queue, _threads
from .cache import Paged, Tokens
from .parts import Parts
from .rope import Rope

__all__ = ["GpuStats", "Item", "Transfer", "gpu_stats", "layerwise", "load", "store", "warm"]


@dataclasses.dataclass
class Item:
    """One file and the part of the cache that it holds: these tokens of the layers [layer, layer +
    layers). If layers is None, these are all layers from `layer` on. rope (loads only) shifts the
    keys during the load. cache is the cache of this item, if it is not the cache of the call
    (hybrid models).

    Instead of tokens, layers, rope and cache, an item can have parts of memory; `layer` then gives
    the order of the steps of the transfer. For a store, size is the length of the file; 0 means
    Parts.size, or the end of the last part. Bytes that are not in a part are zero. For a load, size
    is the length that the file must have; 0 means at least the end of the last part.

    With skip_existing, a store does not replace an existing file. When the transfer is complete,
    error is the error of this item or None, and skipped tells whether the file existed."""
    path: str
    tokens: Tokens | None = None
    layer: int = 0
    layers: int | None = None
    rope: Rope | None = None
    cache: Paged | None = None
    error: _lib.Error | None = None
    parts: Parts | None = None
    size: int = 0
    skip_existing: bool = False
    skipped: bool = False


def layerwise(cache: Paged, path: Callable[[int], str], tokens: Tokens,
              rope: Rope | None = None) -> list[Item]:
    """Returns items of one layer each. path(layer) returns the file of a layer."""
    return [Item(path(layer), tokens, layer, 1, rope) for layer in range(cache.layers)]


def _layers(item: Item, cache: Paged | None) -> int:
    of = item.cache or cache
    if of is None:
        raise ValueError(f"{item.path}: tokens need a cache")
    n = of.layers - item.layer if item.layers is None else item.layers
    if not 0 <= item.layer < of.layers or not 0 < n <= of.layers - item.layer:
        raise ValueError(f"{item.path}: layers {item.layer} to {item.layer + n - 1} are outside "
                         f"the cache's {of.layers}")
    return n


def _parts(item: Item, stores: bool, struct: _lib.ItemStruct) -> None:
    parts = item.parts
    assert parts is not None
    if item.tokens or item.cache or item.rope:
        raise ValueError(f"{item.path}: an item has either parts or tokens")
    if parts.readonly and not stores:
        raise ValueError(f"{item.path}: the memory is read-only")
    struct.parts, struct.nparts = ctypes.addressof(parts.table), parts.count
    size = item.size or (parts.size if stores else 0)
    if size:  # a new struct is zero
        struct.size = _lib.number(size, _lib.SIZE_MOST, f"{item.path}: the size")
    if item.layer:
        struct.layer = _lib.number(item.layer, _lib.UINT_MOST, f"{item.path}: the layer")


def _device(items: list[Item], cache: Paged | None) -> int:
    """The device of all caches and parts. ValueError: there are several."""
    all_of = {i.parts.device for i in items if i.parts}
    all_of |= {i.cache.device for i in items if i.cache} | ({cache.device} if cache else set())
    if len(all_of) > 1:
        raise ValueError(f"the memory of a transfer is on one device, not on {sorted(all_of)}")
    return all_of.pop() if all_of else -1


def _structs(mount: str | bytes | os.PathLike[str], items: list[Item], cache: Paged | None,
             stores: bool) -> Any:
    structs = (_lib.ItemStruct * len(items))()
    tables: dict[tuple[int, int], Any] = {}
    for struct, item in zip(structs, items):
        struct.path = _lib.below(mount, item.path)
        if item.skip_existing:
            struct.skip_existing = True
        if item.parts is not None:
            _parts(item, stores, struct)
            continue
        if item.tokens is None:
            raise ValueError(f"{item.path}: an item has tokens or parts")
        struct.layer, struct.nlayers = item.layer, _layers(item, cache)
        struct.tokens = item.tokens.struct
        if item.rope:
            struct.rope = ctypes.pointer(item.rope.struct(tables))
        if item.cache:
            struct.cache = ctypes.pointer(item.cache.struct)
    return structs


class Transfer(_queue.Job):
    """
    A store or load in progress. store() and load() create it. `items` are its items; each has its
    own error when the transfer is complete. A transfer continues to its end even if no caller waits
    for it. `with` and `async with` wait for its end and raise the first error; an exception in
    their block cancels the transfer.

    If an item has several layers, all of them are done together with the item's first layer. On a
    GPU, waiting for a layer makes `stream` wait on the device (None: the stream of the transfer),
    and the layer counts as done when its work is queued.

    When the transfer is complete, `bytes` is the number of bytes that were moved, `seconds` is the
    time from the submission to the end, and `skipped` is the number of items whose file existed.
    """

    def __init__(self, stores: bool, mount: bytes, cache: Paged | None, items: list[Item],
                 stream: Any, queue: _queue.Queue | None = None) -> None:
        super().__init__()
        self.stores, self.items, self._stream = stores, items, stream
        self.bytes, self.seconds, self.skipped = 0, 0.0, 0
        self._error: _lib.Error | None = None
        self._kept: list[Any] = [cache, *[i.parts or i.cache for i in items]]
        if not stores and any(c.readonly for i in items if (c := i.cache or cache)):
            raise ValueError("the cache is read-only")
        device = _device(items, cache)
        self._structs = _structs(mount, items, cache, stores)
        for item in items:
            item.error, item.skipped = None, False
        self._queue = queue or _queue.of(mount)
        self._queue.submit(self, cache.struct if cache else _lib.PagedStruct(device=device),
                           self._structs, _handle(stream))

    def done(self) -> bool:
        """Returns whether the transfer is complete, with or without errors. Never waits."""
        if not self.over:
            self._queue.take()
        return self.over

    def poll(self) -> bool:
        """Like done(), but if the transfer is complete, raises the Error of the first failed
        item."""
        if not self.done():
            return False
        self._raise(self.items)
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the transfer is complete and raises the Error of the first failed item.
        Raises TimeoutError if the transfer is not complete after `timeout` seconds; the transfer
        then continues."""
        self._until(timeout)
        self._raise(self.items)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the transfer is complete, or for `timeout` seconds. Returns whether it is
        complete. Does not raise the error of the transfer."""
        self._queue.wait(self, timeout)
        return self.over

    @property
    def error(self) -> _lib.Error | None:
        """The Error of the first failed item, or the error of the whole transfer. None if there is
        no error, or if the transfer is not complete."""
        return next((i.error for i in self.items if i.error), self._error)

    def cancel(self) -> None:
        """Cancels the transfer. Work that has not started does not start. Work in progress is
        finished or undone; a cancelled store leaves no file. The memory may be accessed until the
        transfer ends, so wait for its end. Does nothing if the transfer is already ending."""
        self._queue.cancel(self)

    def poll_layer(self, layer: int, *, stream: Any = None) -> bool:
        """Returns whether the layers 0 to `layer` are done: in the cache for a load, copied out of
        the cache for a store. Never waits. Raises the first Error of these layers."""
        if not self.done():
            return self._layer(False, layer, stream)
        self._raise([i for i in self.items if i.layer <= layer])
        return True

    def wait_layer(self, layer: int, timeout: float | None = None, *, stream: Any = None) -> None:
        """Waits until the layers 0 to `layer` are done. Raises TimeoutError as wait() does."""
        if self.poll_layer(layer, stream=stream):
            return
        if timeout is None or timeout > 0:
            there = _threads.submit(self._layer, True, layer, stream)
            if there in concurrent.futures.wait([there], timeout).done:
                there.result()
                return
        raise TimeoutError(f"layer {layer} is not done after {timeout} s")

    async def layer(self, layer: int, *, stream: Any = None) -> None:
        """Like wait_layer(), without blocking the event loop."""
        if self.poll_layer(layer, stream=stream):
            return
        try:
            await _threads.run(self._layer, True, layer, stream)
        except asyncio.CancelledError:
            await self._cancelled()
            raise

    async def layers(self, *, stream: Any = None) -> AsyncIterator[int]:
        """Yields the layers of the items in ascending order. A layer is yielded as soon as this
        layer and all layers below it are done. Raises the first Error of these layers."""
        for layer in sorted({layer for s in self._structs
                             for layer in range(s.layer, s.layer + s.nlayers)}):
            await self.layer(layer, stream=stream)
            yield layer

    def __await__(self) -> Generator[Any, None, None]:
        return self._complete().__await__()

    async def _complete(self) -> None:
        await self._ended()
        self._raise(self.items)

    async def _ended(self) -> None:
        try:
            await self._queue.ended(self)
        except asyncio.CancelledError:
            await self._cancelled()
            raise

    async def _cancelled(self) -> None:
        self.cancel()
        while not self.over:
            try:
                await self._queue.ended(self)
            except asyncio.CancelledError:
                continue  # cancelled again, but the memory is still in use

    def _until(self, timeout: float | None) -> None:
        self._queue.wait(self, timeout)
        if not self.over:
            raise TimeoutError(f"the transfer is not complete after {timeout} s")

    def _layer(self, waits: bool, layer: int, stream: Any) -> bool:
        err, said = self._queue.layer(waits, self, layer,
                                      _handle(self._stream if stream is None else stream))
        if not err or (err == -errno.EAGAIN and not waits):
            return not err
        if self.done():
            self._raise([i for i in self.items if i.layer <= layer])
        raise _lib.Error(-err, f"{said}: {os.strerror(-err)}")

    def told(self, c: _lib.Completion) -> None:
        self.bytes, self.seconds, self.skipped = c.bytes, c.ns / 1e9, c.skipped

    def end(self, err: int, said: str) -> None:
        if not err and not self.skipped:  # the items keep the results that they began with
            self._kept = []
            return
        whole = not any(s.err for s in self._structs)  # the error concerns the whole transfer
        for struct, item in zip(self._structs, self.items):
            number = -(err if whole else struct.err)
            if number:
                item.error = _lib.Error(number, said if whole or item.path in said else
                                        f"{item.path}: {os.strerror(number)}")
            item.skipped = struct.skipped
        if err:
            self._error = _lib.Error(-err, said)
        self._kept = []

    def _raise(self, items: list[Item]) -> None:
        """Raises a new Error object for each caller."""
        for error in [*[i.error for i in items], self._error if items is self.items else None]:
            if error:
                raise _lib.Error(*error.args)

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error:
            self.cancel()
            self._until(None)
        else:
            self.wait()

    async def __aenter__(self) -> Transfer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if error:
            self.cancel()
            await self._ended()
        else:
            await self


def _handle(stream: Any) -> int | None:
    handle: int | None = getattr(stream, "cuda_stream", stream)
    return handle


def store(mount: str | os.PathLike[str], cache: Paged | None, items: Iterable[Item], *,
          stream: Any = None) -> Transfer:
    """
    Starts to store the items of the cache as files. cache is None if all items have parts or their
    own caches. The files appear under their names when the transfer ends, each complete and with
    its layout (user.kvc.layout). A failed item leaves no file. A layer of the cache may be changed
    when the layer is done, and the rest of the cache when the transfer is complete. On a GPU the
    cache is read after the work that `stream` has at the time of the call (a torch.cuda.Stream or
    the number of a cudaStream_t; None: the default stream).

    Raises ValueError if layers are outside the cache. Raises Error if no transfer was started:
    EAGAIN if the mount has 1024 transfers in progress, EBUSY if the stream is being captured,
    ENODEV or EINVAL. All other errors are errors of items: ERANGE for a block or slot out of range,
    ENOSPC, EACCES, or ENOENT if the mount does not exist.
    """
    return Transfer(True, _lib.path(mount), cache, list(items), stream)


def load(mount: str | os.PathLike[str], cache: Paged | None, items: Iterable[Item], *,
         stream: Any = None) -> Transfer:
    """
    Starts to load the items into the cache. Items can have these errors: ENOENT; EPROTOTYPE if the
    file has another layout, in which case nothing of it is written; ERANGE; EIO from a tier. The
    tokens of a failed item keep their old contents. On a GPU the cache is written after the work
    that `stream` has at the time of the call. Work that is added to the stream later must first
    wait with wait_layer() or layer(). Raises ValueError and Error as store() does, and ValueError
    if the cache is read-only.
    """
    return Transfer(False, _lib.path(mount), cache, list(items), stream)


def warm(mount: str | os.PathLike[str], cache: Paged | None, items: Iterable[Item], *,
         transfers: int = 1, files: bool = True, keep_s: int = 0) -> None:
    """
    Allocates the resources of `transfers` simultaneous transfers like this one in advance: memory;
    on a GPU also streams, pinned memory and kernels; and, with `files`, their files, which stay
    prepared for keep_s seconds without a store (at least 5). Of the paths of the items only the
    first folder is used; it is created. The cache is not changed. Waits until everything is
    allocated, and releases the GIL. Raises Error with ENOSPC if the files exceed the limit on
    prepared files, with EINVAL for more than 8 transfers, with ENODEV, and with errors of the
    mount.
    """
    items = list(items)
    how = _lib.WarmStruct(_lib.number(transfers, _lib.UINT_MOST, "transfers"), files,
                          _lib.number(keep_s, _lib.UINT_MOST, "keep_s"))
    struct = cache.struct if cache else _lib.PagedStruct(device=_device(items, cache))
    _lib.check("gpu_warm", _lib.path(mount), ctypes.byref(struct),
               _structs(mount, items, cache, True), len(items), ctypes.byref(how))


class GpuStats(NamedTuple):
    """The bytes that were copied between files and GPUs, in both directions, since the start of the
    process: by the copy engine (pinned), by a kernel (direct, for small files), and through other
    pinned memory (staged). Also the number of failed registrations, and the number of host
    functions that waited because the driver has no better method."""
    pinned_bytes: int
    direct_bytes: int
    staged_bytes: int
    refused: int
    host_functions: int


def gpu_stats() -> GpuStats:
    """Returns the statistics of this process. All are zero if the library was built without
    CUDA."""
    c = _lib.GpuCounts()
    _lib.call("gpu_stats", ctypes.byref(c))
    return GpuStats(c.pinned_bytes, c.direct_bytes, c.staged_bytes, c.refused, c.host_functions)
