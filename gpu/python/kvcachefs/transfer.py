# SPDX-License-Identifier: Apache-2.0
"""
Stores and loads between the files of a mount and paged caches, in the background.

store() and load() submit a transfer to the library's queue of that mount (_queue.py) and return at
once; a thread of the queue carries it out layer by layer, the lowest first. Whoever waits may
poll(), wait(), await, and the same for a layer. The memory is the transfer's until it is complete,
also where it fails; so a task that is cancelled in an await cancels the transfer, and its
CancelledError comes when that has ended: then nothing moves any more, no lease is held and no
temporary file is left.

The queue copies what it is given, but for three things that hang on the Transfer, which the queue
has until it is complete: the items' structs, whose errors C writes at the end, the tables of
rotations, and the caches with their tensors.
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
from .rope import Rope

__all__ = ["GpuStats", "Item", "Transfer", "gpu_stats", "layerwise", "load", "store", "warm"]


@dataclasses.dataclass
class Item:
    """One file, and what of the cache it holds: these tokens of layers [layer, layer + layers);
    layers None: all from there on. rope (loads): the keys are shifted on the way. cache: where it
    belongs to another one than the call's (hybrid models). error: what became of it, None: nothing
    went wrong."""
    path: str
    tokens: Tokens
    layer: int = 0
    layers: int | None = None
    rope: Rope | None = None
    cache: Paged | None = None
    error: _lib.Error | None = None


def layerwise(cache: Paged, path: Callable[[int], str], tokens: Tokens,
              rope: Rope | None = None) -> list[Item]:
    """Items of one layer each: path(layer) is the file of a layer."""
    return [Item(path(layer), tokens, layer, 1, rope) for layer in range(cache.layers)]


def _layers(item: Item, cache: Paged) -> int:
    of = item.cache or cache
    n = of.layers - item.layer if item.layers is None else item.layers
    if not 0 <= item.layer < of.layers or not 0 < n <= of.layers - item.layer:
        raise ValueError(f"{item.path}: layers {item.layer} to {item.layer + n - 1} are outside "
                         f"the cache's {of.layers}")
    return n


def _structs(items: list[Item], cache: Paged) -> Any:
    structs = (_lib.ItemStruct * len(items))()
    tables: dict[tuple[int, int], Any] = {}
    for struct, item in zip(structs, items):
        struct.path = _lib.path(item.path)
        struct.layer, struct.nlayers = item.layer, _layers(item, cache)
        struct.tokens = item.tokens.struct
        if item.rope:
            struct.rope = ctypes.pointer(item.rope.struct(tables))
        if item.cache:
            struct.cache = ctypes.pointer(item.cache.struct)
    return structs


class Transfer(_queue.Job):
    """
    A store or load under way; store() and load() make it. `items` are its items, each with its own
    error when it is complete. A transfer that nobody waits for goes on to its end by itself. In a
    `with` or `async with` it is complete at the end, and its first error is raised there; what
    leaves them by an exception cancels it.

    The layers are counted by the items' first: those of an item are done with its first one.
    `stream`, where a layer is asked for on a GPU, waits for it on the device; None: the transfer's
    own. Then the layer counts as there when its work is queued.
    """

    def __init__(self, stores: bool, mount: bytes, cache: Paged, items: list[Item],
                 stream: Any) -> None:
        super().__init__()
        self.stores, self.items, self._stream = stores, items, stream
        self._error: _lib.Error | None = None
        self._kept: list[Paged | None] = [cache, *[i.cache for i in items]]
        self._structs = _structs(items, cache)
        for item in items:
            item.error = None
        self._queue = _queue.of(mount)
        self._queue.submit(self, cache.struct, self._structs, _handle(stream))

    def done(self) -> bool:
        """Whether it is complete, whatever its errors; never waits."""
        if not self.over:
            self._queue.take()
        return self.over

    def poll(self) -> bool:
        """The same; raises the first item's Error where it is complete."""
        if not self.done():
            return False
        self._raise(self.items)
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is complete; the first item's Error. TimeoutError: not within so many
        seconds; it goes on."""
        self._until(timeout)
        self._raise(self.items)

    def cancel(self) -> None:
        """What has not begun does not begin; what has is finished, or undone: a cancelled store
        leaves no file. Wait for the end: until then memory may be touched. Nothing where it is
        ending already."""
        self._queue.cancel(self)

    def poll_layer(self, layer: int, *, stream: Any = None) -> bool:
        """Whether all that there is of layers 0 to this one is done: a load's is in the cache, a
        store's is out of it. Never waits. Raises the first Error of them."""
        if not self.done():
            return self._layer(False, layer, stream)
        self._raise([i for i in self.items if i.layer <= layer])
        return True

    def wait_layer(self, layer: int, timeout: float | None = None, *, stream: Any = None) -> None:
        """Waits until it is so; TimeoutError as above."""
        if self.poll_layer(layer, stream=stream):
            return
        if timeout is None or timeout > 0:
            there = _threads.submit(self._layer, True, layer, stream)
            if there in concurrent.futures.wait([there], timeout).done:
                there.result()
                return
        raise TimeoutError(f"layer {layer} is under way after {timeout} s")

    async def layer(self, layer: int, *, stream: Any = None) -> None:
        """The same for a task."""
        if self.poll_layer(layer, stream=stream):
            return
        try:
            await _threads.run(self._layer, True, layer, stream)
        except asyncio.CancelledError:
            await self._cancelled()
            raise

    async def layers(self, *, stream: Any = None) -> AsyncIterator[int]:
        """The layers that the items name, from the lowest on, each as soon as it and those below
        are done. Raises the first Error of these."""
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
                continue  # told twice: the memory is still written to

    def _until(self, timeout: float | None) -> None:
        self._queue.wait(self, timeout)
        if not self.over:
            raise TimeoutError(f"the transfer is under way after {timeout} s")

    def _layer(self, waits: bool, layer: int, stream: Any) -> bool:
        err, said = self._queue.layer(waits, self, layer,
                                      _handle(self._stream if stream is None else stream))
        if not err or (err == -errno.EAGAIN and not waits):
            return not err
        if self.done():
            self._raise([i for i in self.items if i.layer <= layer])
        raise _lib.Error(-err, f"{said}: {os.strerror(-err)}")

    def end(self, err: int, said: str) -> None:
        whole = not any(s.err for s in self._structs)  # it is of no item alone
        for struct, item in zip(self._structs, self.items):
            number = -(err if whole else struct.err)
            if number:
                item.error = _lib.Error(number, said if whole or item.path in said else
                                        f"{item.path}: {os.strerror(number)}")
        if err:
            self._error = _lib.Error(-err, said)
        self._kept = []

    def _raise(self, items: list[Item]) -> None:
        """Each who asks has one of its own."""
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


def store(mount: str | os.PathLike[str], cache: Paged, items: Iterable[Item], *,
          stream: Any = None) -> Transfer:
    """
    Begins to store these items of the cache as files. They appear under their names at the end,
    each whole and with its layout (user.kvc.layout); one that fails leaves nothing. A layer of the
    cache may be changed when it is done, the rest when the transfer is complete; on a GPU it is
    read after what `stream` (a torch.cuda.Stream or the number of a cudaStream_t; None: the default
    one) has at this moment.

    ValueError: layers outside the cache. Error: there is no transfer; EAGAIN, 1024 are under way in
    that mount; EBUSY, the stream is being captured; ENODEV; EINVAL. All else are Errors of items:
    ERANGE for a block or slot outside, ENOSPC, EACCES, ENOENT for a mount that is none.
    """
    return Transfer(True, _lib.path(mount), cache, list(items), stream)


def load(mount: str | os.PathLike[str], cache: Paged, items: Iterable[Item], *,
         stream: Any = None) -> Transfer:
    """
    Begins to load these items into the cache. Errors of items: ENOENT; EPROTOTYPE, the file has
    another layout, and nothing of it was written; ERANGE; EIO from a tier. Where an item fails, its
    tokens hold what was there before. On a GPU the cache is written after what `stream` has at this
    moment; what is given to it later waits by wait_layer() or layer() first. ValueError and Error
    as above, or the cache is read-only.
    """
    items = list(items)
    if any((item.cache or cache).readonly for item in items):
        raise ValueError("the cache is read-only")
    return Transfer(False, _lib.path(mount), cache, items, stream)


def warm(mount: str | os.PathLike[str], cache: Paged, items: Iterable[Item], *,
         transfers: int = 1, files: bool = True, keep_s: int = 0) -> None:
    """
    Brings what transfers like this one will take, so many at once: memory, on a GPU streams, pinned
    memory and kernels, and with `files` their files, which stay ready for keep_s seconds without a
    store (5 at least). Of the items' paths the first folder counts, which is made; nothing of the
    cache is changed. It waits until all is there, without the GIL. Error: ENOSPC, the files are
    more than may be ready; EINVAL, more than 8 transfers; ENODEV; those of the mount.
    """
    items = list(items)
    how = _lib.WarmStruct(transfers, files, keep_s)
    _lib.check("gpu_warm", _lib.path(mount), ctypes.byref(cache.struct), _structs(items, cache),
               len(items), ctypes.byref(how))


class GpuStats(NamedTuple):
    """Bytes that went between files and GPUs, both ways, since the process began: by the copy
    engine, by a kernel (small files), by way of other pinned memory; mappings that could not be
    pinned; and functions of the host that waited, where the driver has nothing better."""
    pinned_bytes: int
    direct_bytes: int
    staged_bytes: int
    refused: int
    host_functions: int


def gpu_stats() -> GpuStats:
    """All zero where the library was built without CUDA."""
    c = _lib.GpuCounts()
    _lib.call("gpu_stats", ctypes.byref(c))
    return GpuStats(c.pinned_bytes, c.direct_bytes, c.staged_bytes, c.refused, c.host_functions)
