# SPDX-License-Identifier: Apache-2.0
"""
A native_plugin client for the second level (L2) of LMCache's multiprocess server: chunks go
straight between the server's memory and files of a kvcachefs mount.

    lmcache server --l1-size-gb 20 --eviction-policy LRU --l2-adapter '{"type": "native_plugin",
        "module_path": "kvcachefs.lmcache", "class_name": "Client",
        "adapter_params": {"mount": "/mnt/kv"}}'

See kvcachefs-engines(7) for the options. LMCache 0.5.6 makes a Client from adapter_params and
calls it from its NativeConnectorL2Adapter (lmcache/v1/distributed/l2_adapters): submit_batch_*()
start a task and return its number, event_fd() tells that tasks have ended, and drain_completions()
returns them. No call waits for the mount except close().

A chunk is one file, with the name and the bytes of LMCache's own adapters fs and fs_native. A task
that fails is a miss, or a chunk that is not stored.
"""
from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import errno
import itertools
import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _lib, _push, _queue, admin
from ._chunkfiles import BROKEN
from ._lookups import Reports, check_mount
from .lease import exists

__all__ = ["Client"]

logger = logging.getLogger("lmcache.kvcachefs")

THREADS = 2      # for lookups, and as many for removals, for which no lookup waits
TODO_MOST = 256  # lookups or removals that wait for these threads

_HOST = _lib.PagedStruct(device=-1)
Completion = tuple[int, bool, str, list[bool]]

# The structs of a transfer as arrays of words, in which a column is set with one assignment:
# setting the members of one struct after another took a quarter of the time of a small load.
_WORD = 8
_ITEM, _PART = (ctypes.sizeof(t) // _WORD for t in (_lib.ItemStruct, _lib.Part))
_ERR, _INTS = (n // ctypes.sizeof(ctypes.c_int) for n in (_lib.ItemStruct.err.offset,
                                                          ctypes.sizeof(_lib.ItemStruct)))


def _words(structs: Any) -> array.array[int]:
    return array.array("Q", bytes(structs))


class _Task(_queue.Job):
    """A store or load of whole chunks, each one part; LMCache keeps their memory until it ends.
    ValueError: a name has a NUL in it, or a chunk has no bytes."""

    def __init__(self, number: int, stores: bool, paths: Sequence[str],
                 views: Sequence[memoryview]) -> None:
        super().__init__()
        self.number, self.stores, self.paths, self.views = number, stores, paths, views
        self.error, n = "", len(paths)
        self._text = os.fsencode("\0".join([*paths, ""]))
        if self._text.count(b"\0") != n:
            raise ValueError("a key has a NUL in it")
        sizes = array.array("Q", [v.nbytes for v in views])
        self._parts = _words(_lib.Part()) * n
        self._parts[_lib.Part.at.offset // _WORD::_PART] = array.array(
            "Q", [ctypes.addressof(ctypes.c_char.from_buffer(v)) for v in views])
        self._parts[_lib.Part.len.offset // _WORD::_PART] = sizes
        self._words = _words(_lib.ItemStruct(nparts=1, skip_existing=stores)) * n
        at = ctypes.cast(ctypes.c_char_p(self._text), ctypes.c_void_p).value or 0
        lengths = [len(p) + 1 for p in self._text.split(b"\0")[:-2]]
        self._set("path", list(itertools.accumulate(lengths, initial=at))[:n])
        at, _ = self._parts.buffer_info()
        self._set("parts", range(at, at + n * _PART * _WORD, _PART * _WORD))
        self._set("size", sizes)
        self.items = (_lib.ItemStruct * n).from_buffer(self._words)

    def _set(self, name: str, values: Iterable[int]) -> None:
        at = getattr(_lib.ItemStruct, name).offset // _WORD
        self._words[at::_ITEM] = array.array("Q", values)

    def errors(self) -> list[int]:
        """For each chunk 0 or a negative errno."""
        found: list[int] = memoryview(self._words).cast("B").cast("i")[_ERR::_INTS].tolist()
        return found

    def end(self, err: int, said: str) -> None:
        self.error = said or (os.strerror(-err) if err else "")
        if err and not any(self.errors()):
            for item in self.items:  # the error concerns the whole transfer
                item.err = err
        self.views = ()

    def completion(self) -> Completion:
        good = [not err for err in self.errors()]
        return self.number, all(good), self.error, good


class Client:
    """
    mount: the mount. folder: the folder of the files, below the mount; "" is the mount itself.
    threads: transfers at the same time. lookup_timeout_ms: a lookup that takes longer is a miss.
    push: a node, or a list of nodes, that stored chunks are offered to. ValueError: a wrong option;
    RuntimeError: the mount cannot be used.
    """

    def __init__(self, mount: str = "", folder: str = "lmcache", threads: int = 4,
                 lookup_timeout_ms: int = 5000, push: str | list[str] = "",
                 **unknown: Any) -> None:
        for name in unknown:
            raise ValueError(f"kvcachefs: adapter_params has no option '{name}'; there are mount, "
                             f"folder, threads, lookup_timeout_ms, push")
        if not isinstance(mount, str) or not mount:
            raise ValueError("kvcachefs: give the folder of the mount, for example "
                             "\"adapter_params\": {\"mount\": \"/mnt/kv\"}")
        if not isinstance(folder, str) or any(p in (".", "..") for p in folder.split("/")):
            raise ValueError("kvcachefs: folder must be a path below the mount, such as lmcache")
        for name, value, most in (("threads", threads, 64),
                                  ("lookup_timeout_ms", lookup_timeout_ms, 1 << 20)):
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"kvcachefs: {name} must be 1 to {most}, not {value!r}")
        to = _push.nodes(push)
        self._mount = os.path.abspath(mount)
        check_mount(self._mount, folder.strip("/"), "adapter_params", "LMCache")
        self._prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        self._timeout = lookup_timeout_ms / 1000
        self._reports = Reports(logger)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._lookups: collections.OrderedDict[int, tuple[float, int]] = collections.OrderedDict()
        self._ended: list[Completion] = []  # with _marked, guarded by _lock
        self._marked = False  # _more is readable
        self._over = False  # the descriptors are closed
        self._closed = threading.Event()
        self._asked = threading.Event()  # there are lookups
        self._looks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._removals: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._queue = _queue.Queue(os.fsencode(self._mount), threads)
        self._queue.collect()
        self._push = _push.Pusher(self._mount, folder, to, logger)
        self._more, self._mark = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # _ended is not empty
        self._both = select.epoll()
        self._both.register(self._queue.fileno(), select.EPOLLIN)
        self._both.register(self._more, select.EPOLLIN)
        for calls in (self._looks, self._removals) * THREADS:
            threading.Thread(target=self._work, args=(calls,), name="kvcachefs-lmcache",
                             daemon=True).start()
        threading.Thread(target=self._watch, name="kvcachefs-lmcache", daemon=True).start()

    # ---- LMCache's interface ----

    def event_fd(self) -> int:
        """Readable while drain_completions() returns something."""
        return self._both.fileno()

    def submit_batch_set(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Starts to store chunks; existing files are not written again."""
        return self._move(True, keys, views)

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Starts to load chunks; a file of another length is a miss."""
        return self._move(False, keys, views)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Starts to look up chunks, in the pool and in all tiers."""
        number, paths = next(self._numbers), [self._path(k) for k in keys]

        def look() -> None:
            if number not in self._lookups:
                return  # overdue
            try:
                self._answer(number, exists(self._mount, paths))
            except (_lib.Error, ValueError) as e:
                self._reports.warn("lookup", f"a lookup failed, which is a miss: {_text(e)}")
                self._answer(number, [False] * len(paths), _text(e))

        with self._lock:
            self._lookups[number] = time.monotonic() + self._timeout, len(keys)
        self._asked.set()
        if not self._later(self._looks, look):
            self._answer(number, [False] * len(paths), self._refusal())
        return number

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Starts to remove chunks; a chunk that does not exist counts as removed."""
        number, paths = next(self._numbers), [self._path(k) for k in keys]

        def remove() -> None:
            gone = self._remove(paths)
            self._end((number, all(gone), "" if all(gone) else "not removed", gone))

        if not self._later(self._removals, remove):
            self._end((number, False, self._refusal(), [False] * len(paths)))
        return number

    def drain_completions(self) -> list[Completion]:
        """The tasks that ended since the last call: (number, whether all of it succeeded, the
        first error, for each chunk whether it succeeded or exists)."""
        out: list[Completion] = []
        with self._lock:
            out.extend(self._ended)
            self._ended.clear()
            if self._marked:
                os.read(self._more, 1)
                self._marked = False
        for task in self._queue.collected():
            self._report(task)
            out.append(task.completion())
        return out

    def close(self) -> None:
        """Cancels the transfers and waits for their ends: then nothing uses the memory.
        drain_completions() still returns them, and tasks that are submitted later fail."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._asked.set()
        for calls in (self._looks, self._removals) * THREADS:
            calls.put(None)
        self._queue.stop()
        self._push.close()
        self._both.close()
        with self._lock:
            self._over, self._marked = True, False
            os.close(self._more)
            os.close(self._mark)

    # ---- Names ----

    def _path(self, key: str) -> str:
        """The file of a key of LMCache, MODEL@RANK@GROUP@HASH[@SALT], named as in
        lmcache/v1/distributed/l2_adapters/fs_key_codec.py."""
        model, rank, rest = key.split("@", 2)
        return f"{self._prefix}{model.replace('/', '-SEP-')}@0x{rank}@{rest}.data"

    # ---- Transfers ----

    def _move(self, stores: bool, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        task = _Task(next(self._numbers), stores, [self._path(k) for k in keys], views)
        if not keys:  # the library refuses an empty transfer
            self._end(task.completion())
            return task.number
        try:
            if self._closed.is_set():
                raise _lib.Error(errno.ESHUTDOWN, "the client is closed")
            self._queue.submit(task, _HOST, task.items, None)
        except _lib.Error as e:
            task.end(-(e.errno or errno.EIO), e.strerror or "")
            self._report(task)
            self._end(task.completion())
        return task.number

    def _report(self, task: _Task) -> None:
        """Offers stored chunks to other nodes. Removes files that are not chunks, and warns."""
        if task.stores:
            self._push.add(p for p, err in zip(task.paths, task.errors()) if not err)
        errors = set(task.errors()) - {0}
        if not errors:
            return  # the usual case
        broken = [path for path, err in zip(task.paths, task.errors()) if -err in BROKEN]
        if broken and not task.stores:
            self._later(self._removals, lambda: self._remove(broken))
        if errors - (set() if task.stores else {-errno.ENOENT}):
            self._reports.warn("store" if task.stores else "load", "chunks could not be " + (
                "stored" if task.stores else "loaded, which is a miss") + f": {task.error}")

    # ---- Calls that wait for the mount ----

    def _later(self, calls: queue.SimpleQueue[Callable[[], object] | None],
               call: Callable[[], object]) -> bool:
        if self._closed.is_set() or calls.qsize() >= TODO_MOST:
            return False
        calls.put(call)
        return True

    def _refusal(self) -> str:
        return "the client is closed" if self._closed.is_set() else "the mount does not answer"

    @staticmethod
    def _work(calls: queue.SimpleQueue[Callable[[], object] | None]) -> None:
        while (call := calls.get()) is not None:
            try:
                call()
            except Exception:  # the lookup is answered by _watch()
                logger.exception("kvcachefs: an unexpected error")

    def _watch(self) -> None:
        """Answers the lookups that are overdue."""
        while self._asked.wait() and not self._closed.is_set():
            with self._lock:
                if not self._lookups:
                    self._asked.clear()
                    continue
                number, (end, n) = next(iter(self._lookups.items()))
            if (left := end - time.monotonic()) > 0:
                self._closed.wait(left)
            elif self._answer(number, [False] * n, "the mount does not answer"):
                self._reports.warn("timeout", f"a lookup took longer than {self._timeout:g} s, "
                                              f"which is a miss")

    def _answer(self, number: int, found: list[bool], error: str = "") -> bool:
        with self._lock:
            if self._lookups.pop(number, None) is None:
                return False  # answered
        self._end((number, not error, error, found))
        return True

    def _end(self, completion: Completion) -> None:
        with self._lock:
            self._ended.append(completion)
            if not self._marked and not self._over:
                os.write(self._mark, b"!")
                self._marked = True

    def _remove(self, paths: list[str]) -> list[bool]:
        gone = []
        for path in paths:
            try:
                admin.remove(self._mount, path)
                gone.append(True)
            except OSError as e:
                gone.append(e.errno == errno.ENOENT)
        return gone


def _text(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
