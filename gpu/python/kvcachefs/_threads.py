# SPDX-License-Identifier: Apache-2.0
"""
The package's threads: at most workers() of them (8 at first), shared by all that waits for the
mount in the background. A process that was forked makes new ones.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

_most = 8
_lock = threading.Lock()
_pool: concurrent.futures.ThreadPoolExecutor | None = None


def workers(most: int) -> None:
    """How many threads there may be, from the next transfer on; at least 1."""
    global _most, _pool
    if most < 1:
        raise ValueError(f"{most} threads move nothing")
    with _lock:
        was, _pool, _most = _pool, None, most
    if was:
        was.shutdown(wait=False)  # what it has begun it ends


def submit(function: Callable[..., Result],
           *arguments: Any) -> concurrent.futures.Future[Result]:
    global _pool
    with _lock:
        if not _pool:
            _pool = concurrent.futures.ThreadPoolExecutor(_most, "kvcachefs")
        return _pool.submit(function, *arguments)


async def run(function: Callable[..., Result], *arguments: Any) -> Result:
    """In one of the threads. Where the task is cancelled the call ends by itself, and its result is
    dropped."""
    return await asyncio.wrap_future(submit(function, *arguments))


def _forked() -> None:
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)
