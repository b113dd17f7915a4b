# SPDX-License-Identifier: Apache-2.0
"""
The bytes of one file as memory, for programs with copies of their own: of a file that is there, to
read, or of a new one, which gets its name when it is published.

The library's buffer is freed when the Buffer is closed and the last view of it is gone, so that a
view never is of memory that was unmapped. Publishing unmaps, and is refused while there is one.
"""
from __future__ import annotations

import ctypes
import os
import threading
import weakref
from types import TracebackType

from . import _lib

__all__ = ["Buffer"]


class _Handle:
    """The library's buffer; freed with the last who holds this, but not in a forked child, where
    that would take the parent's new file away."""

    def __init__(self) -> None:
        self.h, self.of = ctypes.c_void_p(), os.getpid()

    def __del__(self) -> None:
        if self.h and self.of == os.getpid():
            _lib.call("buffer_free", self.h)


class _Hold:
    """Of one view's memory."""

    def __init__(self, handle: _Handle) -> None:
        self.handle = handle


class Buffer:
    """
    Buffer.open() and Buffer.new() make it. device: the memory is registered (pinned) for that CUDA
    device; -1: none. All but data wait for the mount, and let the GIL go: a task calls them by
    asyncio.to_thread(). Error: those of the file and of the mount; ENODEV.
    """

    def __init__(self, handle: _Handle, readonly: bool) -> None:
        self._handle: _Handle | None = handle
        self.readonly = readonly
        self.pinned: bool = _lib.call("buffer_pinned", handle.h)  # a driver may refuse it
        self._lock = threading.Lock()
        self._views: weakref.WeakSet[_Hold] = weakref.WeakSet()

    @classmethod
    def open(cls, mount: str | os.PathLike[str], path: str | os.PathLike[str], *,
             device: int = -1) -> Buffer:
        """A file's bytes, read-only. It is held in the pool meanwhile."""
        handle = _Handle()
        _lib.check("buffer_open", ctypes.byref(handle.h), _lib.path(mount), _lib.path(path),
                   device)
        return cls(handle, True)

    @classmethod
    def new(cls, mount: str | os.PathLike[str], path: str | os.PathLike[str], size: int, *,
            device: int = -1) -> Buffer:
        """`size` bytes, zero at first, of a new file, which is there when publish() returns. ENOSPC
        and the like: nothing is left."""
        if not 0 <= size < 1 << 63:
            raise ValueError(f"a file has no {size} bytes")
        handle = _Handle()
        _lib.check("buffer_new", ctypes.byref(handle.h), _lib.path(mount), _lib.path(path), size,
                   device)
        return cls(handle, False)

    @property
    def data(self) -> memoryview:
        """The bytes; what is made of it (slices, arrays) is a view as well. Each asking makes a
        new one."""
        size = ctypes.c_size_t()
        with self._lock:
            if not self._handle:
                raise ValueError("the buffer is closed")
            at = _lib.call("buffer_data", self._handle.h, ctypes.byref(size))
            if not at:
                return memoryview(b"" if self.readonly else bytearray())
            memory = (ctypes.c_ubyte * size.value).from_address(at)
            hold = _Hold(self._handle)
            memory.hold = hold  # type: ignore[attr-defined]  # as long as there is a view
            self._views.add(hold)
        view = memoryview(memory).cast("B")
        return view.toreadonly() if self.readonly else view

    def publish(self) -> None:
        """Gives the new file its name, replacing what is there; the buffer is closed, also where
        that fails. BufferError: a view of it is left (del it, or release() it); no device may use
        the memory either."""
        with self._lock:
            if not self._handle:
                raise ValueError("the buffer is closed")
            if self.readonly:
                raise ValueError("the buffer is for reading")
            if len(self._views):
                raise BufferError("a view of the buffer is still there: publishing unmaps it")
            handle, self._handle = self._handle, None
        _lib.check("buffer_publish", handle.h)

    def close(self) -> None:
        """Frees it, when the last view is gone. A new file that was not published is no more."""
        with self._lock:
            self._handle = None

    def __len__(self) -> int:
        with self.data as view:
            return len(view)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
