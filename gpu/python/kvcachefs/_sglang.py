# SPDX-License-Identifier: Apache-2.0
"""Code that the two modules for SGLang share: options, names, and messages."""
from __future__ import annotations

import logging
import os
import re
import time
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer
from sglang.srt.runtime_context import get_model

import kvcachefs
from . import _push
from ._lookups import denied

UNSAFE = re.compile("[/\0]")


class Options:
    """The options in a JSON object of `flag`. ValueError names the first wrong one. more: numbers
    that only one of the modules has, with their defaults."""

    def __init__(self, given: dict[str, Any] | None, flag: str, **more: int) -> None:
        given, numbers = dict(given or {}), {"threads": 4, **more}
        names = ("mount", "folder", *numbers, "push")
        self.push = _push.nodes(given.pop("push", ""))
        for name, value in given.items():
            kind = int if name in numbers else str
            if name not in names:
                raise ValueError(f"kvcachefs: unknown option {name} in {flag}; the options are "
                                 f"{', '.join(names)}")
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"kvcachefs: {name} in {flag} must be a "
                                 f"{'number' if kind is int else 'string'}, not {value!r}")
        if not given.get("mount"):
            raise ValueError(f"kvcachefs: name the mount in {flag}: \"mount\": \"/mnt/kv\"")
        self.mount = os.path.abspath(given["mount"])
        self.folder = given.get("folder", "sglang").strip("/")  # "": the mount itself
        if ".." in self.folder.split("/"):
            raise ValueError(f"kvcachefs: the folder {self.folder} is not below the mount")
        self.threads = self.lookup_timeout_ms = self.layer_group = 0
        for name, default in numbers.items():
            value = given.get(name, default)
            most = 64 if name == "threads" else 1 << 20
            if not 1 <= value <= most:
                raise ValueError(f"kvcachefs: {name} must be 1 to {most}, not {value}")
            setattr(self, name, value)

    def below(self, name: str) -> str:
        """The path of `name` in the folder, relative to the mount."""
        return os.path.join(self.folder, name)


def open_queue(options: Options) -> kvcachefs.Queue:
    """The queue of the mount. RuntimeError: there is no mount, or this process may not write to
    its folder."""
    try:
        kvcachefs.prefix(options.mount, ["sglang"])
        if refusal := denied(options.mount, options.folder, "SGLang"):
            raise RuntimeError(refusal)
        return kvcachefs.Queue(options.mount, threads=options.threads)
    except kvcachefs.Error as e:
        raise RuntimeError(f"kvcachefs: cannot use the mount {options.mount}: {e.strerror}. Mount "
                           f"it first (kvcachefs STORE {options.mount}), as a user who may write "
                           "there") from None


def safe_name(text: str) -> str:
    """A file's name for a key or a model, which may have slashes."""
    return UNSAFE.sub("-", text) or "model"


def values() -> list[str]:
    """The options of the server that change the values in a page but not its size: SGLang keeps
    both kinds of fp8 as bytes. An empty list outside of a server."""
    try:
        model = get_model()
    except ValueError:
        return []
    return [str(model.kv_cache_dtype), str(model.quantization), str(model.revision)]


def restorable(present: list[bool], transfer: PoolTransfer) -> set[int]:
    """The prefix lengths, in pages, that a pool can restore if these pages of it are present."""
    n = len(present)
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, (present.index(False) if False in present else n) + 1))
    trailing = max(1, len(transfer.keys or ()))
    return {end for end in range(1, n + 1) if all(present[max(0, end - trailing):end])}


class Reporter:
    """Logs errors, at most one of a kind in ten seconds."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger, self.last = logger, dict[str, float]()

    def report(self, what: str, error: BaseException) -> None:
        kind = f"{what} {type(error).__name__} {getattr(error, 'errno', '')}"
        now = time.monotonic()
        if now - self.last.get(kind, -10.0) >= 10:
            if len(self.last) > 256:
                self.last.clear()
            self.last[kind] = now
            self.logger.warning("kvcachefs: %s: %s", what, error)
