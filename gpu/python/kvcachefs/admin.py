# SPDX-License-Identifier: Apache-2.0
"""
Administration of a mount through its virtual files and extended attributes: its counters, pins,
quotas and events. kvcachefs-files(5) and kvcachefs-attributes(7) describe them.
"""
from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import shutil
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from . import _lib

__all__ = ["Events", "Status", "pin", "push", "quota", "status", "unpin"]

POLL_S = 0.05  # a read of the events never waits
PIN_MOST = 7000000000
PUSH_MOST, PUSH_BYTES = 512, 60000  # of one offer: paths, and bytes of their text
PATHS = ("path", "before", "chunk", "model")  # members with special characters as %XX


class Status(NamedTuple):
    """counters: .kvcachefs/stats; config: .kvcachefs/config. files and bytes: of the model, None
    while the daemon counts them; tier_bytes: the model's bytes in the pool (cpu) and in each tier;
    quota: its limit in bytes, None if it has none. Without a model, files to quota are None or
    empty."""
    counters: dict[str, int]
    config: dict[str, str]
    files: int | None
    bytes: int | None
    tier_bytes: dict[str, int]
    quota: int | None


def _root(mount: str | os.PathLike[str]) -> int:
    """A descriptor of the root of a mount. FileNotFoundError: no kvcachefs is mounted there.
    Without this check, calls after an unmount would change the folder below the mount."""
    root = -1
    try:
        root = os.open(mount, os.O_PATH | os.O_DIRECTORY)
        os.stat(".kvcachefs/config", dir_fd=root)
        return root
    except (FileNotFoundError, NotADirectoryError):
        error: OSError = _lib.Error(errno.ENOENT, f"no kvcachefs is mounted on {os.fspath(mount)}")
    except OSError as e:
        error = e
    if root >= 0:
        os.close(root)
    raise error


def check(mount: str | os.PathLike[str]) -> None:
    """FileNotFoundError: no kvcachefs is mounted there."""
    os.close(_root(mount))


@contextlib.contextmanager
def opened(mount: str | os.PathLike[str], path: str) -> Iterator[int]:
    """A descriptor (O_PATH) of a file or folder of the mount. FileNotFoundError: it does not
    exist, or no kvcachefs is mounted there; EXDEV: it is outside, for example behind a symbolic
    link."""
    root, fd = _root(mount), -1
    try:
        try:
            fd = os.open(path or ".", os.O_PATH, dir_fd=root)
        except OSError as e:
            raise OSError(e.errno, e.strerror, f"{os.fspath(mount)}/{path}") from None
        if os.fstat(fd).st_dev != os.fstat(root).st_dev:
            raise _lib.Error(errno.EXDEV, f"{os.fspath(mount)}/{path} is not inside the mount")
        yield fd
    finally:
        os.close(root)
        if fd >= 0:
            os.close(fd)


def remove(mount: str | os.PathLike[str], path: str) -> None:
    """Removes a file, or a folder with its files. Errors are those of opened()."""
    folder, _, name = path.rpartition("/")
    with opened(mount, folder) as fd:
        try:
            try:
                os.unlink(name, dir_fd=fd)
            except IsADirectoryError:
                shutil.rmtree(f"/proc/self/fd/{fd}/{name}")
        except OSError as e:
            raise OSError(e.errno, e.strerror, f"{os.fspath(mount)}/{path}") from None


def _set(mount: str | os.PathLike[str], path: str | os.PathLike[str], name: str,
         value: str) -> None:
    """Sets an attribute of a file or folder of the mount."""
    with opened(mount, os.fsdecode(_lib.below(mount, path))) as fd:
        try:
            os.setxattr(f"/proc/self/fd/{fd}", f"user.kvcachefs.{name}", value.encode())
        except OSError as e:
            raise OSError(e.errno, e.strerror, _full(mount, path)) from None


def _full(mount: str | os.PathLike[str], path: str | os.PathLike[str]) -> str:
    return os.path.join(os.fspath(mount), os.fsdecode(_lib.below(mount, path)))


def _attribute(path: str, name: str) -> str:
    """The attribute's text; empty if it is not set, is being counted, or the file is absent."""
    try:
        return os.getxattr(path, f"user.kvcachefs.{name}").decode()
    except OSError as e:
        if e.errno in (errno.ENODATA, errno.ENOENT):
            return ""
        raise


def _bytes(text: str) -> int:
    """A size as the mount writes it: digits, or digits and one of the letters K, M, G, T, P."""
    unit = 1 << 10 * (" KMGTP".find(text[-1]) if not text[-1].isdigit() else 0)
    return int(text.rstrip("KMGTP")) * unit


def status(mount: str | os.PathLike[str], model: str | None = None) -> Status:
    """Returns the state of a mount, and of one of its models. Raises FileNotFoundError if no
    kvcachefs is mounted there."""
    with open(f"{os.fspath(mount)}/.kvcachefs/stats") as f:
        counters = {name: int(value) for name, value in (l.split()[:2] for l in f)}
    with open(f"{os.fspath(mount)}/.kvcachefs/config") as f:
        config = dict(l.rstrip("\n").split("=", 1) for l in f if "=" in l)
    if model is None:
        return Status(counters, config, None, None, {}, None)
    path = _full(mount, model)
    files, size, tiers, limit = (_attribute(path, n)
                                 for n in ("files", "bytes", "tier_bytes", "quota"))
    return Status(counters, config, int(files) if files else None, int(size) if size else None,
                  {tier: int(n) for tier, _, n in (t.partition("=") for t in tiers.split(","))
                   if tier}, _bytes(limit) if limit else None)


def pin(mount: str | os.PathLike[str], path: str | os.PathLike[str],
        seconds: int | None = None) -> None:
    """Protects a chunk from eviction, for this time or without a limit. path: its folder or one of
    its files. Raises FileNotFoundError if it does not exist, PermissionError for chunks of other
    users, and OSError with EDQUOT or ENOSPC if the limits of pins= are reached."""
    if seconds is not None and not 2 <= seconds <= PIN_MOST:
        raise ValueError(f"a pin lasts 2 to {PIN_MOST} seconds, not {seconds}")
    _set(mount, path, "pin", str(seconds or 1))


def unpin(mount: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Ends the protection of a chunk from eviction."""
    _set(mount, path, "pin", "0")


def push(mount: str | os.PathLike[str], node: str, paths: Iterable[str | os.PathLike[str]], *,
         folder: str | os.PathLike[str] = "") -> None:
    """Offers files to another node of the peers:// remote, HOST:PORT, which loads them into its
    pool (kvcachefs-peers(7), PUSH). Returns when the node has answered: it has the files, or has
    begun to load them. Files that do not exist are left out. folder: a folder with all the files,
    which the caller may write to; the paths are relative to the mount all the same. Raises OSError
    for the first offer that fails, with the errors of the attribute user.kvcachefs.push."""
    top = os.fsdecode(_lib.below(mount, folder)).rstrip("/") + "/" if folder else ""
    some: list[str] = []
    size = 0
    for path in paths:
        name = os.fsdecode(_lib.below(mount, path))
        if not name.startswith(top) or "\n" in name:
            raise ValueError(f"{name} is not a file in {top}, or has a newline in its name")
        name = name[len(top):]
        more = len(os.fsencode(name)) + 1
        if some and (len(some) == PUSH_MOST or size + more > PUSH_BYTES):
            _set(mount, top, "push", "\n".join([node, *some]))
            some, size = [], 0
        some.append(name)
        size += more
    if some:
        _set(mount, top, "push", "\n".join([node, *some]))


def quota(mount: str | os.PathLike[str], model: str | os.PathLike[str],
          size: int | str | None) -> None:
    """Limits the space of a model: bytes, or text such as "200G"; None or 0 removes the limit. The
    model's folder is created if it does not exist. If the model is larger, chunks are dropped.
    Raises OSError with EINVAL for a size that the mount does not understand."""
    if not isinstance(size, (int, str, type(None))) or isinstance(size, bool) or size == "":
        raise ValueError(f"a quota is a number of bytes or text such as '200G', not {size!r}")
    name, made = os.fsdecode(_lib.below(mount, model)), False
    if size:
        with opened(mount, "") as root, contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=root)
            made = True
    try:
        _set(mount, model, "quota", str(size or 0))
    except OSError:
        if made:
            with opened(mount, "") as root:
                os.rmdir(name, dir_fd=root)
        raise


class Events:
    """
    The events of the files of a mount since this object was made, or of one model: dicts with the
    members that kvcachefs-files(5) describes, with %XX decoded. Iterating waits for the next event,
    without an end. The event "lost" counts missed events of all models. One thread may use the
    object. Raises PermissionError for users other than root and the user of the daemon.
    """

    def __init__(self, mount: str | os.PathLike[str], model: str | None = None) -> None:
        self._fd, self._model, self._text = -1, model, b""
        self._next: collections.deque[dict[str, Any]] = collections.deque()
        self._fd = os.open(f"{os.fspath(mount)}/.kvcachefs/events", os.O_RDONLY | os.O_CLOEXEC)

    def take(self) -> list[dict[str, Any]]:
        """Returns the events since the last call or step of the iteration; never waits."""
        self._read()
        events = list(self._next)
        self._next.clear()
        return events

    def _read(self) -> None:
        if self._fd < 0:
            raise ValueError("the events are closed")
        while piece := os.read(self._fd, 65536):
            self._text += piece
        lines, _, self._text = self._text.rpartition(b"\n")
        events = [{name: os.fsdecode(urllib.parse.unquote_to_bytes(value)) if name in PATHS else
                   value for name, value in json.loads(l).items()} for l in lines.splitlines()]
        self._next += [e for e in events if self._model in (None, e.get("model", self._model))]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        while not self._next:
            self._read()
            if not self._next:
                time.sleep(POLL_S)
        return self._next.popleft()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
