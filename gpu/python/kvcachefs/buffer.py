# SPDX-License-Identifier: Apache-2.0
"""
The bytes of one file as memory, for programs that copy data themselves: an existing file for
reading, or a new file that gets its name when it is published.

The library's buffer is freed when the Buffer is closed and its last view is released, so a view
never refers to unmapped memory. Publishing unmaps the memory and is refused while a view exists.
"""
from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from types import TracebackType

from . import _lib

__all__ = ["Buffer"]


class _Handle:
    """The library's buffer. It is freed with the last reference, except in a forked child, where
    freeing it would remove the parent's new file."""

    def __init__(self, mount: str | os.PathLike[str]) -> None:
        self.h, self.of, self.mount = ctypes.c_void_p(), os.getpid(), os.fspath(mount)

    def __del__(self) -> None:
        if self.h and self.of == os.getpid():
            _lib.call("buffer_free", self.h)


def _device(number: int) -> int:
    if not -1 <= number < 1 << 31:
        raise _lib.Error(errno.ENODEV, f"there is no device {number}")
    return number


class _Hold:
    """Keeps the memory of one view."""

    def __init__(self, handle: _Handle) -> None:
        self.handle = handle


class Buffer:
    """
    The memory of a file. Create it with Buffer.open() or Buffer.new(). If `device` is the number of
    a CUDA device, the memory is registered (pinned) for that device; with -1 it is not registered.
    Every call except data may wait for the mount, and releases the GIL; in a task use
    asyncio.to_thread(). The calls raise Error for errors of the file and of the mount, and with
    ENODEV for an invalid device.
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
        """Maps a file for reading. The file stays in the pool until the buffer is closed. Raises
        Error with EISDIR for a folder."""
        handle = _Handle(mount)
        _lib.check("buffer_open", ctypes.byref(handle.h), _lib.path(mount),
                   _lib.below(mount, path), _device(device))
        return cls(handle, True)

    @classmethod
    def new(cls, mount: str | os.PathLike[str], path: str | os.PathLike[str], size: int, *,
            device: int = -1) -> Buffer:
        """Creates a file of `size` zero bytes and maps it. The file appears under its name when
        publish() returns. After an error such as ENOSPC no file is left."""
        if not 0 <= size < 1 << 63:
            raise ValueError(f"the size of a file cannot be {size}")
        handle = _Handle(mount)
        _lib.check("buffer_new", ctypes.byref(handle.h), _lib.path(mount),
                   _lib.below(mount, path), size, _device(device))
        return cls(handle, False)

    @property
    def data(self) -> memoryview:
        """A memoryview of the bytes. Slices and arrays that are made from it are views as well.
        Each access returns a new view."""
        size = ctypes.c_size_t()
        with self._lock:
            if not self._handle:
                raise ValueError("the buffer is closed")
            at = _lib.call("buffer_data", self._handle.h, ctypes.byref(size))
            if not at:
                return memoryview(b"" if self.readonly else bytearray())
            memory = (ctypes.c_ubyte * size.value).from_address(at)
            hold = _Hold(self._handle)
            memory.hold = hold  # type: ignore[attr-defined]  # for the lifetime of the view
            self._views.add(hold)
        view = memoryview(memory).cast("B")
        return view.toreadonly() if self.readonly else view

    @property
    def address(self) -> int:
        """The address of the bytes, for copies by C code; 0 if the file is empty. It is valid until
        the buffer is closed or published."""
        with self._lock:
            if not self._handle:
                raise ValueError("the buffer is closed")
            size = ctypes.c_size_t()
            return _lib.call("buffer_data", self._handle.h, ctypes.byref(size)) or 0

    def publish(self, path: str | os.PathLike[str] | None = None) -> None:
        """Gives the new file its name and replaces an existing file. `path` is a name other than
        that of new(), for callers that learn the name only now. Both names should begin with the
        same folder; otherwise the bytes are copied. The buffer is closed, even after an error. No
        device may use the memory after this call. Raises BufferError if a view still exists (delete
        it, or call its release())."""
        with self._lock:
            if not self._handle:
                raise ValueError("the buffer is closed")
            if self.readonly:
                raise ValueError("the buffer is read-only")
            if len(self._views):
                raise BufferError("a view of the buffer still exists: publishing unmaps the memory")
            handle = self._handle
            name = None if path is None else _lib.below(handle.mount, path)
            self._handle = None
        if name is None:
            _lib.check("buffer_publish", handle.h)
        else:
            _lib.check("buffer_publish_as", handle.h, name)

    def close(self) -> None:
        """Closes the buffer. The memory is freed when its last view is released. A new file that
        was not published is removed."""
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
