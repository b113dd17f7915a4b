# SPDX-License-Identifier: Apache-2.0
"""
Leases: objects that are loaded into the pool and stay there, and their bytes.

The library's lease is freed when the Lease is closed and the last view of its bytes is released,
so a view never refers to unmapped memory. A Lease may be used from several threads. Calls that
wait for tiers release the GIL; Lease.take() and take_prefix() wait in a thread of their own.
"""
from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _lib, _threads

__all__ = ["Lease", "Object", "exists", "look", "map_cache", "prefetch", "prefix"]


class Object(NamedTuple):
    """A file of a lease: its path below the mount, its inode, its size in bytes, an errno (0: the
    file is resident; otherwise the reason why it is not), and the state that the mount reports
    ("resident+lower", ...)."""
    path: str
    inode: int
    size: int
    errno: int
    state: str


class _Handle:
    """The library's lease; freed with the last reference."""

    def __init__(self, function: str, mount: str | os.PathLike[str],
                 paths: Sequence[str | os.PathLike[str]], *more: Any) -> None:
        self.h, self.mount = ctypes.c_void_p(), os.fspath(mount)
        _lib.check(function, ctypes.byref(self.h), _lib.path(mount), _paths(mount, paths),
                   len(paths), *more)

    @classmethod
    def adopt(cls, raw: int, mount: str) -> _Handle:
        """The handle of a lease that the library has returned."""
        handle = cls.__new__(cls)
        handle.h, handle.mount = ctypes.c_void_p(raw), mount
        return handle

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


def _paths(mount: str | bytes | os.PathLike[str],
           paths: Sequence[str | os.PathLike[str]]) -> Any:
    if isinstance(paths, (str, bytes)):
        raise TypeError("paths must be a list, even for one path")
    return (ctypes.c_char_p * len(paths))(*[_lib.below(mount, p, "a path") for p in paths])


class Lease:
    """
    Loads objects into the pool and keeps them there until the lease is closed or the process dies.
    Paths are relative to the mount, or absolute and inside it; the path of a folder stands for all
    files in it. The call waits until all objects are loaded or have failed. The lease is valid even
    if some objects failed; these objects have an errno. Raises Error if the mount does not exist or
    refuses the lease. wait: seconds, at most 60, for which the call waits for files that do not
    exist yet or are still being written, here or on another node.
    """

    def __init__(self, mount: str | os.PathLike[str],
                 paths: Sequence[str | os.PathLike[str]], wait: float = 0) -> None:
        self._hold(_Handle("lease_wait", mount, paths, math.ceil(wait * 1000)) if wait
                   else _Handle("lease_new", mount, paths))

    def _hold(self, handle: _Handle) -> None:
        self._handle: _Handle | None = handle
        self._mount = handle.mount
        self._lock = threading.Lock()
        self._objects: list[Object] | None = None

    @property
    def objects(self) -> list[Object]:
        """The objects, in the order of the paths. Read them before the lease is closed."""
        if self._objects is None:
            with self._lock:
                self._objects = self._handle.objects() if self._handle else []
        return self._objects

    @classmethod
    def _of(cls, handle: _Handle) -> Lease:
        lease = cls.__new__(cls)
        lease._hold(handle)
        return lease

    @classmethod
    def prefix(cls, mount: str | os.PathLike[str],
               paths: Sequence[str | os.PathLike[str]]) -> tuple[int, Lease]:
        """Counts the paths at the beginning of the list whose files are cached, and takes a lease
        on exactly these. Returns both. If a path is lost during the call, the prefix ends before
        it."""
        count = ctypes.c_size_t()
        lease = cls._of(_Handle("prefix_lease", mount, paths, ctypes.byref(count)))
        return count.value, lease

    @classmethod
    async def take(cls, mount: str | os.PathLike[str],
                   paths: Sequence[str | os.PathLike[str]], wait: float = 0) -> Lease:
        """Takes a lease without blocking the event loop. If the task is cancelled during the call,
        no lease is left."""
        return await _threads.run(cls, mount, paths, wait)

    @classmethod
    async def take_prefix(cls, mount: str | os.PathLike[str],
                          paths: Sequence[str | os.PathLike[str]]) -> tuple[int, Lease]:
        """Like prefix(), without blocking the event loop."""
        return await _threads.run(cls.prefix, mount, paths)

    def map(self, which: int | str) -> memoryview:
        """Returns a read-only view of the bytes of an object, which is given by its index or path.
        Raises KeyError or IndexError if the lease has no such object, and Error if the object is
        not resident or was replaced (ESTALE)."""
        if isinstance(which, str):
            path = os.fsdecode(_lib.below(self._mount, which))
            found = [i for i, o in enumerate(self.objects) if o.path == path]
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
        memory.lease = handle  # type: ignore[attr-defined]  # for the lifetime of the view
        return memoryview(memory).cast("B").toreadonly()

    def close(self) -> None:
        """Closes the lease. If views still exist, the whole lease stays until they are released."""
        with self._lock:
            self._handle = None

    def __len__(self) -> int:
        return len(self.objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects)

    def check(self) -> None:
        """Raises Error for the first object that is not resident."""
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
    """Returns the objects with their present state. Loads nothing and takes no lease. The errno of
    objects that are not resident is ENODATA."""
    return _Handle("look", mount, paths).objects()


def exists(mount: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]], *,
           per: int = 1, tiers: bool = True) -> list[bool]:
    """Returns for each group of `per` paths whether all files of the group are cached: in the pool
    or in any tier, or with tiers=False in the pool. Makes one call to the mount, loads nothing and
    takes no lease. Raises Error with EINVAL if a path is invalid or a group is incomplete."""
    _lib.number(per, _lib.SIZE_MOST, "per")
    bits = (ctypes.c_ubyte * (len(paths) // max(per, 1) // 8 + 1))()
    _lib.check("exists", _lib.path(mount), _paths(mount, paths), len(paths), per, tiers, bits)
    return [bool(bits[i // 8] >> i % 8 & 1) for i in range(len(paths) // per)]


def prefix(mount: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]]) -> int:
    """Counts the paths at the beginning of the list whose files are cached, in the pool or in any
    tier. Makes one call to the mount, loads nothing and takes no lease. A folder counts if it has
    at least one file and all its files are cached. Raises Error with EINVAL if a path is
    invalid."""
    count = ctypes.c_size_t()
    _lib.check("prefix", _lib.path(mount), _paths(mount, paths), len(paths),
               ctypes.byref(count))
    return count.value


def prefetch(mount: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]]) -> None:
    """Starts to load objects. Does not wait and takes no lease."""
    _lib.check("prefetch", _lib.path(mount), _paths(mount, paths), len(paths))


def hint(mount: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]], *,
         finished: bool = False, superseded_by: str | os.PathLike[str] | None = None,
         priority: str | None = None, pause: int = 0, prefetch: bool = False,
         demote: bool = False, tenant: str | None = None, ended: str | None = None,
         returns: int = 0) -> int:
    """Tells the mount whether the chunks of a prompt will be needed. The paths name the chunks from
    the beginning of the prompt. Returns the number of paths that failed.

    finished and priority "low": the prompt will not be continued, so its chunks are evicted from
    the pool before others, until they are used again. A chunk from which another prompt continues
    stays. superseded_by, the path of the last chunk of a newer prompt of the session, has the same
    effect, except on chunks of the newer prompt. demote has the same effect, and chunks without a
    copy in a tier are copied now. priority "high": the chunks stay in the pool for an hour, as long
    as others can be evicted. pause: the chunks stay in the same way until the session continues, at
    most for that many seconds (up to 3600). priority "normal" ends earlier hints. prefetch starts
    to load the chunks. tenant assigns the chunks to this tenant. ended: how the prompt's request
    ended, "tool" (it calls a tool), "turn" (a person reads the answer) or "closed" (the session
    ended, too). returns: the session's next request is expected after about this many seconds (up
    to 3600); not together with ended. The policy learns from later requests what these two mean.

    Raises ValueError if the hint is empty, contradicts itself or has a wrong value, and
    FileNotFoundError if superseded_by does not exist."""
    names = (None, "low", "normal", "high")
    if priority not in names:
        raise ValueError(f"priority must be low, normal or high, not {priority!r}")
    if not 0 <= pause <= 3600:
        raise ValueError(f"pause must be 0 to 3600 seconds, not {pause}")
    if ended not in (None, "tool", "turn", "closed"):
        raise ValueError(f"ended must be tool, turn or closed, not {ended!r}")
    if not 0 <= returns <= 3600:
        raise ValueError(f"returns must be 0 to 3600 seconds, not {returns}")
    told = _lib.Hint(finished=finished, prefetch=prefetch, demote=demote,
                     priority=names.index(priority), pause_s=pause,
                     superseded_by=None if superseded_by is None else _lib.below(
                         mount, superseded_by, "superseded_by"),
                     tenant=_lib.text(tenant, "the tenant"), ended=_lib.text(ended, "ended"),
                     returns_s=returns)
    errors = ctypes.c_size_t()
    _lib.check("hint", _lib.path(mount), ctypes.byref(told), _paths(mount, paths), len(paths),
               ctypes.byref(errors))
    return errors.value


def map_cache(size: int) -> None:
    """Sets the number of bytes of mappings that are kept for later leases and loads; 0 keeps none.
    By default mappings that were used in the last 5 seconds are kept, up to a sixteenth of the
    pool. Mapped objects stay in the pool and prevent an unmount, so choose only a part of the pool.
    Raises ValueError if the size is negative or above 64 bits."""
    _lib.call("map_cache", _lib.number(size, _lib.SIZE_MOST, "the size of the cache"))
