# SPDX-License-Identifier: Apache-2.0
"""
Threads for the calls of the library that wait and have no descriptor to wait by: leases, and layers
that are not there yet. Each has one of its own, so that none waits behind another's tier; they are
daemons, as the process need not stay for what nobody will use.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def submit(function: Callable[..., Result],
           *arguments: Any) -> concurrent.futures.Future[Result]:
    future: concurrent.futures.Future[Result] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # who gives it up leaves the call as it is

    def body() -> None:
        try:
            result = function(*arguments)
        except BaseException as e:
            future.set_exception(e)
        else:
            future.set_result(result)

    threading.Thread(target=body, name="kvcachefs", daemon=True).start()
    return future


async def run(function: Callable[..., Result], *arguments: Any) -> Result:
    """In a thread. Where the task is cancelled the call ends by itself, and its result is
    dropped."""
    return await asyncio.wrap_future(submit(function, *arguments))
