# SPDX-License-Identifier: Apache-2.0
"""
Leases: objects loaded into the pool and held there, and their bytes.

The library's lease is freed when the Lease is closed and the last view of its bytes is gone: a view
is never of memory that is no longer mapped. A Lease may be used from several threads. What waits
for tiers lets the GIL go; Lease.take() and take_prefix() wait in a thread of their own.
"""
from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _lib, _threads

__all__ = ["Lease", "Object", "look", "map_cache", "prefetch", "prefix"]


class Object(NamedTuple):
    """A file of a lease: its path below the mount, size in bytes, 0 or the errno that says why it
    is not resident, and its state as the mount says it ("resident+lower", ...)."""
    path: str
    inode: int
    size: int
    errno: int
    state: str


class _Handle:
    """The library's lease; freed with the last who holds this."""

    def __init__(self, function: str, mount: str | os.PathLike[str],
                 paths: Sequence[str | os.PathLike[str]], *more: Any) -> None:
        self.h = ctypes.c_void_p()
        _lib.check(function, ctypes.byref(self.h), _lib.path(mount), _paths(paths), len(paths),
                   *more)

    def __del__(self) -> None:
        if self.h:
            _lib.call("lease_free", self.h)
            self.h = ctypes.c_void_p()

    def objects(self) -> list[Object]:
        found = []
        for i in range(_lib.call("lease_count", self.h) if self.h else 0):
            o = _lib.call("lease_object", self.h, i).contents
            found.append(Object(os.fsdecode(o.path), o.ino, o.size, -o.err, o.state.decode()))
        return found


def _paths(paths: Sequence[str | os.PathLike[str]]) -> Any:
    if isinstance(paths, (str, bytes)):
        raise TypeError("paths are a list, also where it is one")
    return _lib.strings([os.fspath(p) for p in paths], "a path")


class Lease:
    """
    Loads these objects into the pool and holds them there until it is closed, or the process dies.
    A path is below the mount, and may be a folder: all files in it. Waits until all are there or
    have failed; single objects that failed have an errno, and the lease stands. Error: the mount
    is none, or refuses the lease.
    """

    def __init__(self, mount: str | os.PathLike[str],
                 paths: Sequence[str | os.PathLike[str]]) -> None:
        self._hold(_Handle("lease_new", mount, paths))

    def _hold(self, handle: _Handle) -> None:
        self._handle: _Handle | None = handle
        self._lock = threading.Lock()
        self.objects: list[Object] = handle.objects()

    @classmethod
    def prefix(cls, mount: str | os.PathLike[str],
               paths: Sequence[str | os.PathLike[str]]) -> tuple[int, Lease]:
        """How many of the leading paths are cached, and a lease of exactly those. A path that is
        lost meanwhile ends the prefix before it."""
        count, lease = ctypes.c_size_t(), cls.__new__(cls)
        lease._hold(_Handle("prefix_lease", mount, paths, ctypes.byref(count)))
        return count.value, lease

    @classmethod
    async def take(cls, mount: str | os.PathLike[str],
                   paths: Sequence[str | os.PathLike[str]]) -> Lease:
        """The same without holding up the event loop. A task that is cancelled meanwhile leaves no
        lease."""
        return await _threads.run(cls, mount, paths)

    @classmethod
    async def take_prefix(cls, mount: str | os.PathLike[str],
                          paths: Sequence[str | os.PathLike[str]]) -> tuple[int, Lease]:
        """prefix(), likewise."""
        return await _threads.run(cls.prefix, mount, paths)

    def map(self, which: int | str) -> memoryview:
        """The bytes of an object, by its number or path; read-only. KeyError, IndexError: there is
        none; Error: it is not resident, or was replaced since (ESTALE)."""
        if isinstance(which, str):
            found = [i for i, o in enumerate(self.objects) if o.path == which]
            if not found:
                raise KeyError(f"the lease has no {which}")
            which = found[0]
        if not 0 <= which < len(self.objects):
            raise IndexError(f"the lease has {len(self.objects)} objects")
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        with self._lock:
            if not self._handle:
                raise ValueError("the lease is closed")
            handle = self._handle
            _lib.check("lease_map", handle.h, which, ctypes.byref(data), ctypes.byref(size))
        if not data.value:
            return memoryview(b"")
        memory = (ctypes.c_ubyte * size.value).from_address(data.value)
        memory.lease = handle  # type: ignore[attr-defined]  # as long as there is a view
        return memoryview(memory).cast("B").toreadonly()

    def close(self) -> None:
        """Gives the lease up; views that are still there hold all of it until they go."""
        with self._lock:
            self._handle = None

    def __len__(self) -> int:
        return len(self.objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects)

    def check(self) -> None:
        """Error for the first object that is not resident."""
        for o in self.objects:
            if o.errno:
                raise _lib.Error(o.errno, f"{o.path}: {o.state}")

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def look(mount: str | os.PathLike[str],
         paths: Sequence[str | os.PathLike[str]]) -> list[Object]:
    """What is resident now: loads nothing and holds nothing. errno is ENODATA for what is not."""
    return _Handle("look", mount, paths).objects()


def prefix(mount: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]]) -> int:
    """How many of the leading paths are cached, in the pool or in any tier: one call to the mount.
    Loads nothing and holds nothing. A folder counts with at least one file in it, and all that are
    in it must be there. Error with EINVAL: a path that is none."""
    count = ctypes.c_size_t()
    _lib.check("prefix", _lib.path(mount), _paths(paths), len(paths), ctypes.byref(count))
    return count.value


def prefetch(mount: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]]) -> None:
    """Asks for objects without waiting and without holding."""
    _lib.check("prefetch", _lib.path(mount), _paths(paths), len(paths))


def map_cache(size: int) -> None:
    """Keeps mappings of up to this many bytes for later leases and loads; 0: none. Without a call
    it is a sixteenth of the pool, for 5 seconds without use. What is mapped stays in the pool, and
    keeps umount waiting: choose a part of it. ValueError: it is negative."""
    if size < 0:
        raise ValueError(f"a cache has no {size} bytes")
    _lib.call("map_cache", size)
