# SPDX-License-Identifier: Apache-2.0
"""
A private queue for one owner, such as the connector of an engine. Transfers and leases are
submitted without waiting. A descriptor becomes readable when they end, and take() returns them.
"""
from __future__ import annotations

import ctypes
import errno
import os
import select
from collections.abc import Generator, Iterable, Sequence
from types import TracebackType
from typing import Any

from . import _lib, _queue
from .cache import Paged
from .lease import Lease, _Handle, _paths
from .transfer import Item, Transfer

__all__ = ["LeaseRequest", "Queue"]


class LeaseRequest(_queue.Job):
    """
    A lease that is being taken, made by Queue.lease(). When it is done: `error`, an Error or None;
    `count`, the number of groups of paths that are held; `bytes` of the objects held; `seconds`
    from the submission to the end; and `lease`.
    """
    has_memory = False

    def __init__(self, queue: _queue.Queue, mount: bytes,
                 paths: Sequence[str | os.PathLike[str]], per: int, prefix: bool) -> None:
        super().__init__()
        self.error: _lib.Error | None = None
        self.count, self.bytes, self.seconds = 0, 0, 0.0
        self._raw: int | None = None
        self._lease: Lease | None = None
        self._queue, self._mount = queue, os.fsdecode(mount)
        queue.submit_lease(self, _paths(mount, paths), len(paths), per, prefix)

    @property
    def lease(self) -> Lease | None:
        """The lease; None: nothing is held, or the request is not done. Close it, or drop it with
        the request."""
        raw, self._raw = self._raw, None
        if raw:
            self._lease = Lease._of(_Handle.adopt(raw, self._mount))
        return self._lease

    def done(self) -> bool:
        """Whether the request is done; never waits."""
        if not self.over:
            self._queue.take()
        return self.over

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the request is done, or for `timeout` seconds. Returns whether it is done.
        Does not raise the error of the request."""
        self._queue.wait(self, timeout)
        return self.over

    def cancel(self) -> None:
        """Cancels the request; does nothing if it is done. A lease that is being taken is released
        when the mount has answered."""
        self._queue.cancel(self)

    def __await__(self) -> Generator[Any, None, tuple[int, Lease | None]]:
        return self._complete().__await__()

    async def _complete(self) -> tuple[int, Lease | None]:
        await self._queue.ended(self)
        if self.error:
            raise _lib.Error(*self.error.args)
        return self.count, self.lease

    def told(self, c: _lib.Completion) -> None:
        self.count, self.bytes, self.seconds = c.count, c.bytes, c.ns / 1e9
        self._raw = c.lease

    def end(self, err: int, said: str) -> None:
        if err:
            self.error = _lib.Error(-err, said)

    def __del__(self) -> None:
        raw, self._raw = getattr(self, "_raw", None), None
        if raw:
            _lib.call("lease_free", raw)


class Queue:
    """
    Transfers and leases of one mount, with `threads` threads (1 to 64), each of which performs one
    transfer at a time. Leases have threads of their own, so no transfer waits while a lease is
    loaded from a tier. The mount is not accessed here. Error: EMFILE, EAGAIN, ENOMEM. All methods
    may be called by several threads.
    """

    def __init__(self, mount: str | os.PathLike[str], threads: int = 4) -> None:
        self._mount = os.path.abspath(_lib.path(mount))
        self._q = _queue.Queue(self._mount, threads)
        self._q.collect()

    def fileno(self) -> int:
        """A descriptor for select and poll: readable while take() returns something."""
        return self._q.fileno()

    def store(self, items: Iterable[Item], *, cache: Paged | None = None,
              stream: Any = None) -> Transfer:
        """Starts a store, as kvcachefs.store(). cache: the cache of items with tokens."""
        return Transfer(True, self._mount, cache, list(items), stream, self._open())

    def load(self, items: Iterable[Item], *, cache: Paged | None = None,
             stream: Any = None) -> Transfer:
        """Starts a load, as kvcachefs.load()."""
        return Transfer(False, self._mount, cache, list(items), stream, self._open())

    def lease(self, paths: Sequence[str | os.PathLike[str]], *, per: int = 1,
              prefix: bool = True) -> LeaseRequest:
        """
        Starts to take a lease on paths, which form groups of `per` paths: a block's files of all
        ranks, for example. prefix: look up the longest prefix of cached groups, load its objects
        into the pool and hold them; count is the number of groups. Otherwise: hold all that exists;
        count is the number of whole groups, and an object's errno tells which are missing. Error
        with EINVAL: an invalid path, or incomplete groups; EAGAIN: the queue is full.
        """
        return LeaseRequest(self._open(), self._mount, paths, per, prefix)

    def take(self) -> list[Transfer | LeaseRequest]:
        """The transfers and leases that ended since the last call, each once. Never waits."""
        return self._q.collected()

    def close(self) -> None:
        """Cancels unfinished transfers and leases and waits until they have ended. take() still
        returns them. Does nothing if the queue is closed."""
        self._q.stop()

    def _open(self) -> _queue.Queue:
        if self._q.stopped:
            raise _lib.Error(errno.ESHUTDOWN, "the queue is closed")
        return self._q

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
