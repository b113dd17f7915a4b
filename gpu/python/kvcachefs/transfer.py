# SPDX-License-Identifier: Apache-2.0
"""
Stores and loads between the files of a mount and paged caches, in the background.

store() and load() cut their items into parts: those of the same layers, at most PART of them. A
part is one call of the library, in one of the package's threads, in the order of the layers, so
that the first layers are there first. The Transfer is complete when all parts are. One of several
parts asks the mount for all its files before its first part leases its own, so that tiers are read
side by side.

With tensors on a GPU the calls are made by the caller's thread before store() or load() returns,
as the order on the stream is the caller's; they wait for tiers. The threads then wait for the
device alone.

Whoever waits may poll(), wait(), wait_layer(), await, or go `async for layer in t.layers()`. The
memory is the transfer's until it is complete, also where it fails; so a task that is cancelled in
an await begins no more parts, and its CancelledError comes when those that were begun have ended:
then nothing moves any more, no lease is held and no temporary file is left.

All that C reads while a part runs (structs, arrays, paths, the caches and their tensors) hangs on
the part. That a part is a job of a thread is known to _Part.begin() alone.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any

from . import _lib, _threads, lease
from .cache import Paged, Tokens
from .rope import Rope

__all__ = ["Item", "Transfer", "layerwise", "load", "store"]

PART = 16  # enough to make a call worth its lease, few enough for all threads to have some


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


class _Part:
    """One call of the library. Done when `future` is; it never holds an exception: errors are the
    items'."""

    def __init__(self, function: str, mount: bytes, cache: Paged, items: list[Item],
                 stream: int | None) -> None:
        self.function, self.mount, self.cache, self.items = function, mount, cache, items
        self.stream, self.keep = stream, [i.cache for i in items]
        self.structs = (_lib.ItemStruct * len(items))()
        for struct, item in zip(self.structs, items):
            struct.path = _lib.path(item.path)
            struct.layer, struct.nlayers = item.layer, _layers(item, cache)
            struct.tokens = item.tokens.struct
            if item.rope:
                struct.rope = ctypes.pointer(item.rope.struct())
            if item.cache:
                struct.cache = ctypes.pointer(item.cache.struct)
        self.h = ctypes.c_void_p()
        self.future: concurrent.futures.Future[None]

    def begin(self, first: Callable[[], None] | None) -> None:
        if self.cache.device >= 0:
            self._start(first)
            self.future = _threads.submit(self._finish)
        else:
            self.future = _threads.submit(self._run, first)

    def _run(self, first: Callable[[], None] | None) -> None:
        self._start(first)
        self._finish()

    def _start(self, first: Callable[[], None] | None) -> None:
        if first:
            first()
        err = _lib.call(self.function, ctypes.byref(self.h), self.mount,
                        ctypes.byref(self.cache.struct), self.structs, len(self.items),
                        self.stream)
        if err:
            self._note(err, _lib.error())

    def _finish(self) -> None:
        """Waits, publishes what was stored, gives leases up."""
        if self.h and _lib.call("transfer_free", self.h):
            self._note(0, _lib.error())

    def _note(self, err: int, said: str) -> None:
        """The items' errors; err: one of all of them. The library's text is of the last."""
        for struct, item in zip(self.structs, self.items):
            number = -(err or struct.err)
            if number:
                item.error = _lib.Error(number, said if err or item.path in said else
                                        f"{item.path}: {os.strerror(number)}")

    def see(self) -> None:
        """Who cancels a future cannot note the errors before others see it done; so whoever looks
        at the items comes here first."""
        if self.future.cancelled():
            for item in self.items:
                item.error = _lib.Error(errno.ECANCELED, f"{item.path}: cancelled")


def _layers(item: Item, cache: Paged) -> int:
    of = item.cache or cache
    n = of.layers - item.layer if item.layers is None else item.layers
    if not 0 <= item.layer < of.layers or not 0 < n <= of.layers - item.layer:
        raise ValueError(f"{item.path}: layers {item.layer} to {item.layer + n - 1} are outside "
                         f"the cache's {of.layers}")
    return n


class Transfer:
    """
    A store or load under way; store() and load() make it. `items` are its items, each with its
    own error. A transfer that nobody waits for goes on to its end by itself. In a `with` or `async
    with` it is complete at the end, and its first error is raised there.
    """

    def __init__(self, parts: list[_Part], items: list[Item]) -> None:
        self._parts, self.items = parts, items

    def poll(self) -> bool:
        """Whether it is complete; never waits. Raises the first item's Error where it is."""
        if not all(p.future.done() for p in self._parts):
            return False
        self._raise(self.items)
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is complete; the first item's Error. TimeoutError: not within so many
        seconds; it goes on."""
        _wait(self._parts, timeout)
        self._raise(self.items)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until all that there is of this layer is done; its first Error."""
        parts, items = self._of(layer)
        _wait(parts, timeout)
        self._raise(items)

    def cancel(self) -> None:
        """Begins no more parts: their items get ECANCELED. Those begun go on: wait for them."""
        for p in self._parts:
            p.future.cancel()
            p.see()

    def __await__(self) -> Generator[Any, None, None]:
        return self._complete().__await__()

    async def _complete(self) -> None:
        await self._ended(self._parts)
        self._raise(self.items)

    async def layers(self) -> AsyncIterator[int]:
        """The layers that the items name, from the lowest on, each as soon as all of it is done.
        Raises the layer's first Error."""
        named = sorted({layer for i in self._parts for n in i.structs
                        for layer in range(n.layer, n.layer + n.nlayers)})
        for layer in named:
            parts, items = self._of(layer)
            await self._ended(parts)
            self._raise(items)
            yield layer

    def _of(self, layer: int) -> tuple[list[_Part], list[Item]]:
        parts, items = [], []
        for p in self._parts:
            found = [i for s, i in zip(p.structs, p.items)
                     if s.layer <= layer < s.layer + s.nlayers]
            items += found
            parts += [p] * bool(found)
        return parts, items

    def _raise(self, items: list[Item]) -> None:
        for p in self._parts:
            p.see()
        for item in items:
            if item.error:
                raise _lib.Error(*item.error.args)  # each who asks has its own

    async def _ended(self, parts: list[_Part]) -> None:
        try:
            await _asleep(parts)
        except asyncio.CancelledError:
            self.cancel()
            while True:
                try:
                    await _asleep(self._parts)
                    break
                except asyncio.CancelledError:
                    continue  # told twice: the memory is still written to
            raise

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error:
            self.cancel()
            _wait(self._parts, None)
        else:
            self.wait()

    async def __aenter__(self) -> Transfer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if error:
            self.cancel()
            await self._ended(self._parts)
        else:
            await self


def _wait(parts: list[_Part], timeout: float | None) -> None:
    left = concurrent.futures.wait([p.future for p in parts], timeout).not_done
    if left:
        raise TimeoutError(f"{len(left)} of {len(parts)} parts are under way after {timeout} s")


async def _asleep(parts: list[_Part]) -> None:
    """Until they are done; cancelled itself, it leaves them as they are."""
    waiting = [asyncio.wrap_future(p.future) for p in parts if not p.future.done()]
    if waiting:
        await asyncio.wait(waiting)


def _transfer(function: str, mount: str | os.PathLike[str], cache: Paged,
              items: Iterable[Item], stream: Any) -> Transfer:
    items = list(items)
    groups: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        groups.setdefault((item.layer, _layers(item, cache)), []).append(item)
        if function == "load" and (item.cache or cache).readonly:
            raise ValueError("the cache is read-only")
        item.error = None
    place = _lib.path(mount)
    queue = getattr(stream, "cuda_stream", stream)
    parts = [_Part(function, place, cache, group[i:i + PART], queue)
             for _, group in sorted(groups.items(), key=lambda g: g[0])
             for i in range(0, len(group), PART)]
    ask = None
    if function == "load" and len(parts) > 1:
        ask = _once(place, [s.path for p in parts for s in p.structs])
    for p in parts:
        p.begin(ask)
    return Transfer(parts, items)


def _once(mount: bytes, paths: Sequence[bytes]) -> Callable[[], None]:
    """Asks the mount for all of them, the first time that it is called. What goes wrong the loads
    will say."""
    lock, left = threading.Lock(), [paths]

    def ask() -> None:
        with lock:
            if left:
                these = left.pop()
                _lib.call("prefetch", mount, (ctypes.c_char_p * len(these))(*these), len(these))
    return ask


def store(mount: str | os.PathLike[str], cache: Paged, items: Iterable[Item], *,
          stream: Any = None) -> Transfer:
    """
    Begins to store these items of the cache as files. A file appears under its name when it is
    whole, with its layout (user.kvc.layout); one that fails leaves nothing. The cache may be
    changed when the transfer is complete; on a GPU, when `stream` (a torch.cuda.Stream or the
    number of a cudaStream_t; None: the default one) has passed the call.

    ValueError: layers outside the cache. All else are Errors of items: ERANGE for a block or slot
    outside, ENOSPC, EACCES, ENOENT for a mount that is none.
    """
    return _transfer("store", mount, cache, items, stream)


def load(mount: str | os.PathLike[str], cache: Paged, items: Iterable[Item], *,
         stream: Any = None) -> Transfer:
    """
    Begins to load these items into the cache. Errors of items: ENOENT; EPROTOTYPE, the file has
    another layout, and nothing of it was written; ERANGE; EIO from a tier. Where an item fails, its
    tokens hold what was there before. On a GPU, what `stream` is given after the call sees them.
    """
    return _transfer("load", mount, cache, items, stream)
