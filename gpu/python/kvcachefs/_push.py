# SPDX-License-Identifier: Apache-2.0
"""
Offers of stored files to other nodes, for connectors on nodes that compute prefills: a node that
takes an offer begins to load the files, so that the decode there need not look for them.

add() does not wait. One thread for each node offers the files that were added since its last offer,
many with one call. An offer that fails is counted, and the first one after a success is logged: the
other node can still find the files by itself. If a node does not keep up, files are left out.

Threads may use a Pusher at the same time.
"""
from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from . import admin

__all__ = ["Pusher", "nodes"]

WAITING_MOST = 16384                # files of a node
BUSY_S = (0.02, 0.1, 0.5)           # pauses before a busy node is asked again
WHY = {errno.ENXIO: "it is not in nodes= of a peers:// remote of this mount",
       errno.ENODATA: "it does not take all files",
       errno.EOPNOTSUPP: "it reads from no remote",
       errno.ENOSPC: "it is full",
       errno.EBUSY: "it is busy with other offers",
       errno.EKEYREJECTED: "it refuses this node",
       errno.ETIMEDOUT: "it does not answer in time",
       errno.EIO: "it does not answer"}


def nodes(value: Any) -> list[str]:
    """The nodes of an option: HOST:PORT, or a list of them; "" and [] are none. ValueError: it is
    something else."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(n, str) for n in found):
        raise ValueError(f"kvcachefs: push must be HOST:PORT of a node, or a list of them, not "
                         f"{value!r}")
    found = [n for n in found if n]
    for n in found:
        if ":" not in n or "\n" in n:
            raise ValueError(f"kvcachefs: push must name nodes as HOST:PORT, as in nodes= of the "
                             f"peers:// remote, not '{n}'")
    return found


class _Node:
    def __init__(self, name: str) -> None:
        self.name, self.fails = name, False
        self.files: queue.SimpleQueue[str | None] = queue.SimpleQueue()


class Pusher:
    """mount: the mount. folder: the folder below the mount that has all the files, and that the
    user of this process may write to. counts: "pushes" (files that nodes took) and
    "push_failures" (files that could not be offered, or of offers that failed)."""

    def __init__(self, mount: str, folder: str, to: Iterable[str], logger: logging.Logger) -> None:
        self._mount, self._folder, self._logger = mount, folder.strip("/"), logger
        self._nodes = [_Node(n) for n in to]
        self._counting = threading.Lock()
        self.counts = {"pushes": 0, "push_failures": 0}
        for node in self._nodes:
            threading.Thread(target=self._run, args=(node,), name="kvcachefs-push",
                             daemon=True).start()

    def add(self, paths: Iterable[str]) -> None:
        """Offers files, which are published; their paths are relative to the mount."""
        if not self._nodes:
            return
        some = list(paths)
        for node in self._nodes:
            if node.files.qsize() + len(some) > WAITING_MOST:
                self._failed(node, len(some), "it does not keep up")
                continue
            for path in some:
                node.files.put(path)

    def _count(self, name: str, n: int) -> None:
        with self._counting:
            self.counts[name] += n

    def _failed(self, node: _Node, n: int, why: str) -> None:
        self._count("push_failures", n)
        if not node.fails:
            self._logger.warning("kvcachefs: %d files could not be offered to %s: %s (further "
                                 "failures are only counted)", n, node.name, why)
        node.fails = True

    def _run(self, node: _Node) -> None:
        while (path := node.files.get()) is not None:
            some: list[str] = []
            end = False
            while path is not None:
                some.append(path)
                if len(some) == admin.PUSH_MOST or node.files.empty():
                    break
                path = node.files.get()
            else:
                end = True
            self._offer(node, some)
            if end:
                return

    def _offer(self, node: _Node, paths: list[str]) -> None:
        for pause in (*BUSY_S, None):
            try:
                admin.push(self._mount, node.name, paths, folder=self._folder)
            except OSError as e:
                if e.errno == errno.EBUSY and pause:
                    time.sleep(pause)
                    continue
                self._failed(node, len(paths), WHY.get(e.errno or 0, e.strerror or str(e)))
            except ValueError as e:
                self._failed(node, len(paths), str(e))
            else:
                self._count("pushes", len(paths))
                if node.fails:
                    self._logger.info("kvcachefs: %s takes files again", node.name)
                node.fails = False
            return

    def close(self) -> None:
        """Offers what was added, and ends. Does not wait."""
        for node in self._nodes:
            node.files.put(None)
