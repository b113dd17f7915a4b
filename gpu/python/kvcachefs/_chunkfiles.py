# SPDX-License-Identifier: Apache-2.0
"""
Chunks of a paged cache as files, for the worker of an engine. A file has the pages of `slots`
consecutive blocks of a prompt: for each tensor of the group the pages of slot 0, slot 1, ..., then
those of the next tensor, then zeros up to the size of the file.

The first blocks of a transfer's first chunk, and the last blocks of its last chunk, may be absent.
A load reads the others. A store writes only chunks without absent blocks: the file would have zeros
in their place, and a later load could not detect that. In a group of recurrent states (`last`) only
the last slot counts: other slots are not stored, and a load of another slot fails.

One thread may use a ChunkFiles. No call waits for the mount, except wait() and close().
"""
from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import _lib, _threads, admin
from ._lookups import Reports
from .parts import Pages
from .queue import Queue
from .transfer import Item, Transfer

__all__ = ["ChunkFiles", "Done", "Group"]

BROKEN = (errno.EPROTOTYPE, errno.ERANGE)  # the file is shorter or longer than a chunk


class Group(NamedTuple):
    """The pages of a KV cache group, the blocks of a chunk, the bytes of a file, and whether only
    the last slot of a chunk counts."""
    pages: Pages
    slots: int
    size: int
    last: bool = False


@dataclasses.dataclass
class Done:
    """A transfer of chunks that ended. failed: the positions of the chunks that were not moved;
    error: the first reason. size: bytes moved. seconds: since it was submitted."""
    job: int
    load: bool
    failed: list[int]
    error: str
    size: int
    seconds: float


class _Job:
    def __init__(self, load: bool) -> None:
        self.load, self.began = load, time.monotonic()
        self.transfers: list[tuple[Transfer, list[int]]] = []
        self.failed: list[int] = []
        self.error = ""

    def fail(self, chunks: Iterable[int], why: object) -> None:
        self.failed += chunks
        self.error = self.error or str(why)


class ChunkFiles:
    """Transfers between files of the mount and the groups of a cache. threads: transfers at the
    same time. ValueError: a file is too small for the pages of a chunk."""

    def __init__(self, mount: str | os.PathLike[str], groups: Sequence[Group], *,
                 threads: int = 4, reports: Reports) -> None:
        for g in groups:
            if g.slots < 1 or g.slots * g.pages.page_bytes > g.size:
                raise ValueError(f"{g.slots} blocks of {g.pages.page_bytes} bytes do not fit in a "
                                 f"file of {g.size} bytes")
        self._mount, self._groups = os.fspath(mount), groups
        self._threads, self._reports = threads, reports
        self._queue = Queue(self._mount, threads=threads)
        self._jobs: dict[int, _Job] = {}

    def submit(self, job: int, load: bool, chunks: Sequence[tuple[int, str]],
               runs: Sequence[tuple[int, int, Sequence[int]]], *, stream: Any = None) -> None:
        """Starts a transfer. chunks: the group and the file of each chunk, ordered by group. runs:
        (group, first slot, blocks): consecutive blocks of consecutive chunks of the group, in the
        same order. The first block is in slot (first slot % slots) of the first chunk of the run.
        finished() reports failures; this call does not raise."""
        this = self._jobs[job] = _Job(load)
        try:
            items, places = self._items(this, load, chunks, runs)
        except (ValueError, IndexError) as e:
            this.failed = []
            this.fail(range(len(chunks)), e)
            return
        each = max(1, -(-len(items) // self._threads))
        begin = self._queue.load if load else self._queue.store
        for i in range(0, len(items), each):
            some = places[i:i + each]
            try:
                this.transfers.append((begin(items[i:i + each], stream=stream), some))
            except (_lib.Error, ValueError) as e:
                this.fail(some, e)

    def _items(self, this: _Job, load: bool, chunks: Sequence[tuple[int, str]],
               runs: Sequence[tuple[int, int, Sequence[int]]]) -> tuple[list[Item], list[int]]:
        items: list[Item] = []
        places: list[int] = []
        at = 0
        for g, first, blocks in runs:
            group = self._groups[g]
            first %= group.slots
            n = -(-(first + len(blocks)) // group.slots)
            if len(chunks) < at + n or any(c[0] != g for c in chunks[at:at + n]):
                raise ValueError(f"{len(blocks)} blocks from slot {first} on are not "
                                 f"{len(chunks) - at} chunks of group {g}")
            ids = [-1] * first + list(blocks)
            ids += [-1] * (n * group.slots - len(ids))
            for i in range(n):
                mine = self._sound(this, load, group, ids[i * group.slots:(i + 1) * group.slots],
                                   at + i)
                if mine:
                    items.append(Item(chunks[at + i][1], parts=group.pages.parts(mine),
                                      size=group.size, skip_existing=not load))
                    places.append(at + i)
            at += n
        if at != len(chunks):
            raise ValueError(f"the blocks are of {at} chunks, not of {len(chunks)}")
        return items, places

    @staticmethod
    def _sound(this: _Job, load: bool, group: Group, ids: list[int], place: int) -> list[int]:
        """The blocks to move; none: the chunk cannot be moved."""
        if group.last:
            if ids[-1] >= 0 and (not load or max(ids[:-1], default=-1) < 0):
                return [-1] * (group.slots - 1) + ids[-1:]
        elif (max(ids) if load else min(ids)) >= 0:
            return ids
        if load:
            this.fail([place], "the engine asks for blocks that the file does not have")
        else:
            this.failed.append(place)  # not an error: blocks left the window of the layer
        return []

    def finished(self) -> list[Done]:
        """The transfers that ended since the last call."""
        self._queue.take()
        out = []
        for number, job in list(self._jobs.items()):
            if all(t.done() for t, _ in job.transfers):
                del self._jobs[number]
                out.append(self._done(number, job))
        return out

    def _done(self, number: int, job: _Job) -> Done:
        seconds = time.monotonic() - job.began
        for transfer, places in job.transfers:
            broken = []
            for item, place in zip(transfer.items, places):
                if item.error:
                    job.fail([place], item.error.strerror)
                    if job.load and item.error.errno in BROKEN:
                        broken.append(item.path)
            if broken:
                _threads.submit(_remove, self._mount, broken)
        if job.error:
            self._reports.warn(
                "load" if job.load else "store",
                f"{len(job.failed)} chunks could not be " +
                ("loaded and are computed" if job.load else "stored") + f": {job.error}")
        return Done(number, job.load, sorted(job.failed), job.error,
                    sum(t.bytes for t, _ in job.transfers), seconds)

    def wait(self, jobs: Iterable[int]) -> None:
        """Waits until these transfers have ended; finished() still reports them."""
        for number in jobs:
            job = self._jobs.get(number)
            for transfer, _ in job.transfers if job else ():
                transfer.join()

    def close(self) -> None:
        self.wait(list(self._jobs))
        self._queue.close()


def _remove(mount: str, paths: list[str]) -> None:
    """Removes files that are not chunks, so that the next store writes them again."""
    for path in paths:
        with contextlib.suppress(OSError):
            admin.remove(mount, path)
