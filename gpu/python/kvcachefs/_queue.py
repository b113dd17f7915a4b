# SPDX-License-Identifier: Apache-2.0
"""
The library's queues, one a mount, and who is told when a transfer has ended.

A queue's threads are the library's own and know nothing of Python. What has ended is taken from the
queue by whoever looks first: the event loops that wait, whose reader of the queue's eventfd is
take(); threads that wait, by polling that too; who polls; who submits. As any of them may read the
eventfd empty under the others, each who waits leaves a waker with the transfer: a task one that
calls its loop, a thread one that writes to a pipe, which it polls as well. An interrupt (Ctrl-C)
may come anywhere: what it leaves half told is told again.

_flying has what is not over, so that its memory stays, and a queue that has some is in _busy: it is
freed only when nobody has it and nothing is in it. A forked child has none of the threads: it
leaves its queues alone, and all that was in them is over there, with ECANCELED. At the end of the
process stores go on to their end, and loads are cancelled: their memory is about to go.
"""
from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import errno
import itertools
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _lib

MOUNTS = 8  # queues that are kept for the next transfer
AT_ONCE = 64
THREADS_MOST = 64

_lock = threading.Lock()
_most = 8
_open: dict[bytes, Queue] = {}  # by mount, the latest used last
_all: weakref.WeakSet[Queue] = weakref.WeakSet()
_busy: set[Queue] = set()
_hooked = False  # _end() is to be called
_ended = False


class Job:
    """What a queue knows of a transfer."""
    stores = False
    over = False
    id = 0

    def __init__(self) -> None:
        self.wakers: list[Callable[[], object]] = []

    def end(self, err: int, said: str) -> None:
        """It is over, with 0 or a negative errno and the library's text. It may be called again
        where the first call was interrupted."""
        raise NotImplementedError


class Queue:
    def __init__(self, mount: bytes, threads: int) -> None:
        self._h: ctypes.c_void_p | None = None
        h = ctypes.c_void_p()
        _lib.check("queue_new", ctypes.byref(h), mount, threads)
        self._h, self._fd = h, int(_lib.call("queue_fd", h))
        self._tags = itertools.count(1)
        self._flying: dict[int, Job] = {}
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}  # who waits in each
        self._fresh()
        _all.add(self)

    def _fresh(self) -> None:
        # a signal's handler may come here again
        self._lock, self._taking = threading.RLock(), threading.RLock()
        self._taken, self._found = (_lib.Completion * AT_ONCE)(), 0

    def __del__(self) -> None:
        if self._h and not _ended:
            _lib.call("queue_free", self._h)

    # ---- Transfers ----

    def submit(self, job: Job, cache: _lib.PagedStruct, items: Any, stream: int | None) -> None:
        """Sets job.id. Error: it is not in the queue."""
        for queue in list(_busy):  # nobody else may look there any more
            queue.take()
        tag, id_ = next(self._tags), ctypes.c_uint64()
        with self._lock:
            self._flying[tag] = job
            _busy.add(self)
        try:
            _lib.check("submit_store" if job.stores else "submit_load", self._h,
                       ctypes.byref(cache), items, len(items), stream, tag, ctypes.byref(id_))
        except BaseException:
            if not id_.value:  # as it is where an interrupt came after the call
                self._forget(tag)
            raise
        job.id = id_.value

    def layer(self, waits: bool, job: Job, layer: int, stream: int | None) -> tuple[int, str]:
        """0, -EAGAIN or what failed of the layers up to this one, and the library's text."""
        err: int = _lib.call("layer_wait" if waits else "layer_poll", self._h, job.id, layer,
                             stream)
        return err, _lib.error() if err else ""

    def cancel(self, job: Job) -> None:
        """What is over, or about to be, ends as it ends."""
        if not job.over:
            _lib.call("cancel", self._h, job.id)

    # ---- What has ended ----

    def _forget(self, tag: int) -> None:
        with self._lock:
            self._flying.pop(tag, None)
            if not self._flying:
                _busy.discard(self)

    def take(self) -> None:
        """Never waits. What an interrupt left behind the next one finds in _taken."""
        with self._taking:
            while self._h:
                for i in range(self._found):
                    self._tell(self._taken[i])
                self._found = AT_ONCE  # should the call's answer not come to be kept
                self._found = _lib.call("take", self._h, self._taken, AT_ONCE)
                if not self._found:
                    return

    def _tell(self, c: _lib.Completion) -> None:
        if not c.id:
            return
        job = self._flying.get(c.tag)
        if job:
            job.end(c.err, c.error.decode(errors="replace"))
            self._over(job)
        self._forget(c.tag)
        c.id = 0

    def _over(self, job: Job) -> None:
        with self._lock:
            job.over = True
            for wake in job.wakers:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    wake()

    # ---- Who waits ----

    @contextlib.contextmanager
    def _told(self, job: Job, wake: Callable[[], object]) -> Iterator[None]:
        """Meanwhile wake() is called, at once where it is over."""
        with self._lock:
            job.wakers.append(wake)
            if job.over:
                wake()
        try:
            yield
        finally:
            with self._lock:
                job.wakers.remove(wake)

    def wait(self, job: Job, timeout: float | None = None) -> None:
        """Until it is over, or so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        self.take()
        if job.over:
            return
        there, pipe = os.pipe2(os.O_CLOEXEC)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(there, select.POLLIN)

        def wake() -> object:
            return os.write(pipe, b"!")

        try:
            with self._told(job, wake):
                while not job.over:
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        return
                    poll.poll(None if left is None else left * 1000)
                    self.take()
        finally:
            if wake not in job.wakers:  # else interrupted right there, and it is still to write
                os.close(there)
                os.close(pipe)

    async def ended(self, job: Job) -> None:
        """Until it is over. A task that is cancelled leaves it as it is."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def told() -> None:
            if not future.done():
                future.set_result(None)

        with self._told(job, lambda: loop.call_soon_threadsafe(told)), self._reader(loop):
            await future

    @contextlib.contextmanager
    def _reader(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if loop not in self._loops:
            loop.add_reader(self._fd, self.take)
        self._loops[loop] = self._loops.get(loop, 0) + 1
        try:
            yield
        finally:
            self._loops[loop] -= 1
            if not self._loops[loop]:
                del self._loops[loop]
                if self._h:
                    loop.remove_reader(self._fd)

    # ---- Ends of the process ----

    def finish(self) -> None:
        jobs = list(self._flying.values())
        for job in jobs:
            if not job.stores:
                self.cancel(job)
        for job in jobs:
            self.wait(job)

    def abandon(self) -> None:
        """In a child: the threads are the parent's, and so is what they do."""
        self._h = None
        self._fresh()
        os.close(self._fd)  # in the loops of the parent it stays
        for job in self._flying.values():
            job.end(-errno.ECANCELED, "the process was forked: it is the parent's transfer")
            job.over = True
        self._flying.clear()


def workers(most: int) -> None:
    """How many threads carry out the transfers of a mount, from the next transfer on; each has one
    at a time. 8 at first; 1 to 64."""
    global _most
    if not 1 <= most <= THREADS_MOST:
        raise ValueError(f"a queue has 1 to {THREADS_MOST} threads, not {most}")
    with _lock:
        _most = most
        was = list(_open.values())
        _open.clear()
    del was  # not under the lock: what is idle ends here


def of(mount: bytes) -> Queue:
    """The queue of a mount."""
    place = os.path.abspath(mount)
    with _lock:
        queue = _open.pop(place, None) or Queue(place, _most)
        _open[place] = queue
        least = _open.pop(next(iter(_open))) if len(_open) > MOUNTS else None
        _hook_locked()
    del least
    return queue


def _hook_locked() -> None:
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(_end)
    util = sys.modules.get("multiprocessing.util")
    if util:  # whose children end without atexit
        util.Finalize(None, _end, exitpriority=10)


def _end() -> None:
    global _ended
    for queue in list(_busy):
        queue.finish()
    _ended = True


def _forked() -> None:
    global _lock, _hooked
    _lock, _hooked = threading.Lock(), False
    _open.clear()
    for queue in list(_all):
        queue.abandon()
    _busy.clear()


os.register_at_fork(after_in_child=_forked)
