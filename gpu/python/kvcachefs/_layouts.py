# SPDX-License-Identifier: Apache-2.0
"""
Layouts of the keys and values in a connector's files, which lossy codecs need (see
kvcachefs-codecs(7)), and the attribute that tells them to the mount. A layout is a text such as
"bf16 l32 p4 t16 h8 k2 d128". Functions return None for caches that no layout describes; their
copies lose nothing.
"""
from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence

from . import admin

__all__ = ["ATTRIBUTE", "Axis", "axes", "element", "tell", "text"]

ATTRIBUTE = "user.kvcachefs.layout"
Axis = tuple[str, int, int]  # name, size, stride in elements


def element(dtype: object) -> str | None:
    """The name of a torch.dtype in layouts."""
    return {"torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(str(dtype))


def axes(given: Sequence[Axis]) -> list[tuple[str, int]] | None:
    """The axes of an array in the order of its memory, outermost first; None if it has gaps."""
    found: list[tuple[str, int]] = []
    step = 1
    for name, size, stride in sorted((a for a in given if a[1] > 1), key=lambda a: a[2]):
        if stride != step:
            return None
        found.insert(0, (name, size))
        step *= size
    return found


def text(dtype: object, given: Sequence[tuple[str, int]], size: int) -> str | None:
    """A layout with these axes, for files with `size` bytes of keys and values. None: the element
    type, the axes or the size do not fit."""
    kind, bytes_ = element(dtype), 2
    for _, n in given:
        bytes_ *= n
    if kind is None or bytes_ != size or not given or given[-1][0] != "d":
        return None
    used = [(name, n) for name, n in given if n > 1]
    if not any(name in "pt" for name, _ in used):
        used.insert(0, ("t", 1))
    return " ".join([kind, *(f"{name}{n}" for name, n in used)])


def tell(mount: str, folder: str, layout: str, logger: logging.Logger) -> threading.Thread:
    """Sets the layout of the files in a folder below the mount, unless it has one, in a thread,
    because the mount may not answer."""
    def run() -> None:
        try:
            with admin.opened(mount, "") as root:
                path = f"/proc/self/fd/{root}/{folder}"
                os.makedirs(path, exist_ok=True)
                try:
                    os.getxattr(path, ATTRIBUTE)
                except OSError as e:
                    if e.errno != errno.ENODATA:
                        raise
                    os.setxattr(path, ATTRIBUTE, layout.encode())
        except OSError as e:
            logger.warning("kvcachefs: the layout '%s' cannot be set on %s/%s, so lossy codecs are "
                           "not used for it: %s", layout, mount, folder, e.strerror)

    thread = threading.Thread(target=run, name="kvcachefs-layout", daemon=True)
    thread.start()
    return thread
