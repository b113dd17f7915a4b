# SPDX-License-Identifier: Apache-2.0
"""
The library's queues, one for each mount, and the delivery of completions.

The threads of a queue belong to the library and know nothing of Python. Completions are taken from
the queue by the first caller that looks: event loops that wait, through a reader of the queue's
eventfd that calls take(); threads that wait, by polling the eventfd too; and callers that poll or
submit. Because another caller may empty the eventfd first, each waiting caller leaves a waker with
the transfer: a task leaves a waker that calls its loop, a thread leaves a waker that writes to an
eventfd of its own, which the thread polls as well. An interrupt (Ctrl-C) may happen anywhere:
deliveries that it interrupts are repeated.

_flying has the transfers that are not over, so that their memory stays valid. A queue with such
transfers is in _busy: it is freed only when it has no references and no transfers. A forked child
has none of the threads: it does not touch its queues, and in the child their transfers end with
ECANCELED. When the process exits, stores are finished and loads are cancelled, because their
memory is about to disappear.
"""
from __future__ import annotations

import asyncio
import atexit
import collections
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

MOUNTS = 8  # queues kept for later transfers
AT_ONCE = 64
THREADS_MOST = 64

_os: Any = os  # the types of mypy 1.0 lack eventfd
_lock = threading.Lock()
_most = 8
_open: dict[bytes, Queue] = {}  # by mount, the most recently used last
_all: weakref.WeakSet[Queue] = weakref.WeakSet()
_busy: set[Queue] = set()
_hooked = False  # _end() is registered
_ended = False


class Job:
    """The queue's view of a transfer or of a request for a lease."""
    stores = False
    has_memory = True  # that the library reads or writes until the end
    over = False
    given = False  # by collected()
    id = 0

    def __init__(self) -> None:
        self.wakers: list[Callable[[], object]] = []

    def told(self, c: _lib.Completion) -> None:
        """Receives the completion, before end(). May be called again if it was interrupted."""

    def end(self, err: int, said: str) -> None:
        """The transfer is over, with 0 or a negative errno and the library's text. May be called
        again if the first call was interrupted."""
        raise NotImplementedError


class Queue:
    def __init__(self, mount: bytes, threads: int) -> None:
        self._h: ctypes.c_void_p | None = None
        self.stopped = False
        self._ended: collections.deque[Any] | None = None  # jobs for collected()
        h = ctypes.c_void_p()
        _lib.check("queue_new", ctypes.byref(h), mount, threads)
        self._h, self._fd = h, int(_lib.call("queue_fd", h))
        self._tags = itertools.count(1)
        self._flying: dict[int, Job] = {}
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}  # waiting tasks of each loop
        self._fresh()
        _all.add(self)

    def _fresh(self) -> None:
        # reentrant: a signal handler may call these functions
        self._lock, self._taking = threading.RLock(), threading.RLock()
        self._taken, self._found = (_lib.Completion * AT_ONCE)(), 0

    def __del__(self) -> None:
        if _ended is False:  # None: the interpreter has cleared the module
            self._close()
            if self._h:
                _lib.call("queue_free", self._h)

    # ---- A queue with one owner ----

    def collect(self) -> None:
        """Keeps ended jobs for collected()."""
        with _lock:
            _hook_locked()
        self._ended = collections.deque()
        # the library's descriptor, and another for completions that a waiting thread has taken
        self._more = _os.eventfd(0, _os.EFD_NONBLOCK | _os.EFD_CLOEXEC)
        self._both = select.epoll()
        self._both.register(self._fd, select.EPOLLIN)
        self._both.register(self._more, select.EPOLLIN)

    def fileno(self) -> int:
        return self._both.fileno()

    def collected(self) -> list[Any]:
        """The jobs that ended since the last call."""
        self.take()
        found: list[Any] = []
        with self._lock:
            while self._ended:
                self._ended[0].given = True
                found.append(self._ended.popleft())
            if found:
                with contextlib.suppress(OSError):
                    _os.eventfd_read(self._more)
        return found

    def stop(self) -> None:
        """Cancels all jobs and waits for their ends."""
        self.stopped = True
        jobs = list(self._flying.values())
        for job in jobs:
            self.cancel(job)
        for job in jobs:
            self.wait(job)

    def _close(self) -> None:
        if getattr(self, "_ended", None) is not None and self._more >= 0:
            self._both.close()
            os.close(self._more)
            self._more = -1

    # ---- Transfers ----

    def submit(self, job: Job, cache: _lib.PagedStruct, items: Any, stream: int | None) -> None:
        """Sets job.id. Error: the transfer is not in the queue."""
        self._submit(job, "submit_store" if job.stores else "submit_load", ctypes.byref(cache),
                     items, len(items), stream)

    def submit_lease(self, job: Job, paths: Any, n: int, per: int, prefix: bool) -> None:
        self._submit(job, "submit_lease", paths, n, per, prefix)

    def _submit(self, job: Job, call: str, *arguments: Any) -> None:
        for queue in list(_busy):  # its last caller may be gone
            queue.take()
        tag, id_ = next(self._tags), ctypes.c_uint64()
        with self._lock:
            self._flying[tag] = job
            _busy.add(self)
        try:
            _lib.check(call, self._h, *arguments, tag, ctypes.byref(id_))
        except BaseException:
            if not id_.value:  # otherwise an interrupt came after the call
                self._forget(tag)
            raise
        job.id = id_.value

    def layer(self, waits: bool, job: Job, layer: int, stream: int | None) -> tuple[int, str]:
        """0, -EAGAIN or the error of the layers up to this one, and the library's text."""
        err: int = _lib.call("layer_wait" if waits else "layer_poll", self._h, job.id, layer,
                             stream)
        return err, _lib.error() if err else ""

    def cancel(self, job: Job) -> None:
        """Cancels a transfer; a transfer that is over or ending is not changed."""
        if not job.over:
            _lib.call("cancel", self._h, job.id)

    # ---- Completions ----

    def _forget(self, tag: int) -> None:
        with self._lock:
            self._flying.pop(tag, None)
            if not self._flying:
                _busy.discard(self)

    def take(self) -> None:
        """Takes all completions; never waits. Completions that an interrupt left in _taken are
        delivered by the next call."""
        with self._taking:
            last = False
            while self._h:
                for i in range(self._found):
                    self._tell(self._taken[i])
                self._found = 0
                if last:
                    return
                self._found = AT_ONCE  # in case an interrupt loses the result of the call
                self._found = _lib.call("take", self._h, self._taken, AT_ONCE)
                last = self._found < AT_ONCE

    def _tell(self, c: _lib.Completion) -> None:
        if not c.id:
            return
        job = self._flying.get(c.tag)
        if job:
            job.told(c)
            job.end(c.err, c.error.decode(errors="replace") if c.err else "")
            self._over(job)
        self._forget(c.tag)
        c.id = 0

    def _over(self, job: Job) -> None:
        with self._lock:
            if self._ended is not None and not job.given and job not in self._ended:
                if not self._ended:  # otherwise it is readable already
                    with contextlib.suppress(OSError):
                        _os.eventfd_write(self._more, 1)
                self._ended.append(job)
            job.over = True
            for wake in job.wakers:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    wake()

    # ---- Waiting ----

    @contextlib.contextmanager
    def _told(self, job: Job, wake: Callable[[], object]) -> Iterator[None]:
        """wake() is called when the transfer ends, at once if it is over."""
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
        """Waits until the transfer is over, or for `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        self.take()
        if job.over:
            return
        bell = _os.eventfd(0, _os.EFD_CLOEXEC)  # costs less than a pipe
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(bell, select.POLLIN)

        def wake() -> None:
            _os.eventfd_write(bell, 1)

        try:
            with self._told(job, wake):
                while not job.over:
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        return
                    poll.poll(None if left is None else left * 1000)
                    self.take()
        finally:
            if wake not in job.wakers:  # otherwise an interrupt left it, and it will still write
                os.close(bell)

    async def ended(self, job: Job) -> None:
        """Waits until the transfer is over. Cancelling the task does not cancel the transfer."""
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

    # ---- Exit and fork ----

    def finish(self) -> None:
        jobs = list(self._flying.values())
        for job in jobs:
            if not job.stores:
                self.cancel(job)
        for job in jobs:
            if job.has_memory:  # a lease may wait for the mount
                self.wait(job)

    def abandon(self) -> None:
        """In a forked child: the threads belong to the parent, and so does their work."""
        self._h = None
        self._fresh()
        self._close()
        os.close(self._fd)  # the parent's loops keep their copy
        for job in self._flying.values():
            job.end(-errno.ECANCELED, "the process was forked: it is the parent's transfer")
            job.over = True
        self._flying.clear()


def workers(most: int) -> None:
    """Sets the number of threads that perform the transfers of a mount, from the next transfer on;
    each thread handles one transfer at a time. Default 8; 1 to 64."""
    global _most
    if not 1 <= most <= THREADS_MOST:
        raise ValueError(f"a queue has 1 to {THREADS_MOST} threads, not {most}")
    with _lock:
        _most = most
        was = list(_open.values())
        _open.clear()
    del was  # without the lock, because idle queues are freed here


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
    if util:  # its children exit without atexit
        util.Finalize(None, _end, exitpriority=10)


def _end() -> None:
    global _ended
    for queue in list(_busy):
        queue.finish()
    _ended = True


def _forked() -> None:
    global _lock, _hooked
    _lock, _hooked = threading.Lock(), False
    # before _open loses the last reference to an idle queue, whose end waits for the threads
    for queue in list(_all):
        queue.abandon()
    _open.clear()
    _busy.clear()


os.register_at_fork(after_in_child=_forked)
