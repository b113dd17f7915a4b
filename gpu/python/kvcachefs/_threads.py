# SPDX-License-Identifier: Apache-2.0
"""
Threads for library calls that block and have no descriptor to poll: leases, and layers that are
not done yet. Each call has its own thread, so that no call waits while another waits for a slow
tier. The threads are daemons, because the process does not need their results when it exits.
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
    future.set_running_or_notify_cancel()  # cancelling the future does not stop the call

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
    """Runs a function in a thread. If the task is cancelled, the call still ends by itself and its
    result is dropped."""
    return await asyncio.wrap_future(submit(function, *arguments))
