# SPDX-License-Identifier: Apache-2.0
"""
Parts of memory that a transfer stores or loads as contiguous bytes of a file, without a paged
layout: (address, length, offset in the file). They are in host memory or on one CUDA device.

A Parts object keeps its memory alive, and so does the transfer that uses it.
"""
from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from . import _lib
from .cache import Tensor, _device, _flat

__all__ = ["Pages", "Parts"]


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the C API."""
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                *((n, ctypes.c_void_p) for n in ("shape", "strides", "suboffsets", "internal"))]


class _View:
    """The memory of an object with the buffer protocol, which is released with this object.
    ctypes alone does not tell the address of read-only memory."""

    def __init__(self, of: Any) -> None:
        self.view = _PyBuffer()
        try:
            ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(of), ctypes.byref(self.view), 0)
        except BufferError as e:
            raise ValueError(f"a part must be contiguous: {e}") from None

    def __del__(self) -> None:
        if self.view.obj:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.view))


def _memory(of: Any) -> tuple[int, int, int, bool, Any]:
    """Address, length, device, whether it is read-only, and the owner of contiguous memory."""
    if isinstance(of, (bytes, bytearray, memoryview)):
        held = _View(of)
        return held.view.buf or 0, held.view.len, -1, bool(held.view.readonly), held
    tensor, *more = _flat(of)
    if more:
        raise TypeError("a part must be one tensor, array or buffer")
    step = 1
    for n, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if n > 1 and stride != step:
            raise ValueError(f"a part must be contiguous: strides {tuple(tensor.stride())}, "
                             f"shape {tuple(tensor.shape)}")
        step *= n
    return (tensor.data_ptr(), step * tensor.element_size(), _device(tensor),
            getattr(tensor, "readonly", False), tensor)


class Parts:
    """
    ranges: pairs of memory and its offset in the file. Memory is a contiguous tensor or array, or
    bytes, a bytearray or a memoryview, and not empty. Read-only memory is for stores only. All must
    be on the same device.
    """

    def __init__(self, ranges: Iterable[tuple[Any, int]]) -> None:
        rows: list[_lib.Part] = []
        self.device, self.readonly = -1, False
        self.kept: Any = []
        for memory, offset in ranges:
            at, size, device, readonly, owner = _memory(memory)
            if rows and device != self.device:
                raise ValueError(f"the parts are on the devices {self.device} and {device}")
            self.device, self.readonly = device, self.readonly or readonly
            self.kept.append(owner)
            rows.append(_lib.Part(at, size, _lib.number(offset, _lib.SIZE_MOST, "an offset")))
        self.table, self.count = (_lib.Part * max(len(rows), 1))(*rows), len(rows)
        self.size = 0

    @classmethod
    def _made(cls, table: Any, count: int, size: int, device: int, readonly: bool,
              kept: Any) -> Parts:
        parts = cls.__new__(cls)
        parts.table, parts.count, parts.size = table, count, size
        parts.device, parts.readonly, parts.kept = device, readonly, kept
        return parts

    @classmethod
    def raw(cls, table: Any, device: int = -1) -> Parts:
        """Rows (address, length, offset) as a list of tuples, or as an array of 64-bit unsigned
        numbers, of the shape [n, 3], with the buffer protocol. The caller keeps the memory alive
        until the transfer is complete."""
        if isinstance(table, (list, tuple)):
            rows = (_lib.Part * max(len(table), 1))(*[_lib.Part(*row) for row in table])
            return cls._made(rows, len(table), 0, device, False, None)
        view = memoryview(table)
        if view.itemsize != 8 or view.nbytes % ctypes.sizeof(_lib.Part):
            raise ValueError("rows have three numbers of 64 bits")
        count = view.nbytes // ctypes.sizeof(_lib.Part)
        there = (_lib.Part * max(count, 1))()
        ctypes.memmove(there, view.tobytes(), view.nbytes)
        return cls._made(there, count, 0, device, False, None)

    def __len__(self) -> int:
        return self.count


class Pages:
    """
    Tensors of pages: page i of a tensor is tensor[i], which must be contiguous; the distance
    between two pages may be larger than a page. All tensors are on one device. page_bytes: the
    bytes of a block, in all tensors.
    """

    def __init__(self, tensors: Any) -> None:
        self.tensors: list[Tensor] = list(_flat(tensors))
        if not self.tensors:
            raise ValueError("pages have at least one tensor")
        self.device = _device(self.tensors[0])
        self.readonly = any(getattr(t, "readonly", False) for t in self.tensors)
        self.blocks = min(int(t.shape[0]) for t in self.tensors)
        self._structs = (_lib.PagesStruct * len(self.tensors))()
        for i, (t, struct) in enumerate(zip(self.tensors, self._structs)):
            self._see(i, t, struct)
        self.page_bytes: int = sum(s.len for s in self._structs)
        self._pages = [(s.at, s.len, s.stride) for s in self._structs]

    def _see(self, i: int, t: Tensor, struct: _lib.PagesStruct) -> None:
        shape, strides = list(t.shape), list(t.stride())
        if _device(t) != self.device:
            raise ValueError(f"tensor {i} is on {t.device}, the first on {self.tensors[0].device}")
        step = 1
        for n, stride in zip(reversed(shape[1:]), reversed(strides[1:])):
            if n > 1 and stride != step:
                raise ValueError(f"the pages of tensor {i} are not contiguous: strides "
                                 f"{tuple(strides)}, shape {tuple(shape)}")
            step *= n
        size = t.element_size()
        struct.at, struct.len = t.data_ptr(), math.prod(shape[1:]) * size
        struct.stride = strides[0] * size if shape[0] > 1 else struct.len
        if not struct.len or not struct.at or struct.stride < struct.len:
            raise ValueError(f"tensor {i} has no pages: strides {tuple(strides)}, shape "
                             f"{tuple(shape)}")

    def parts(self, block_ids: Sequence[int] | Any, by_block: bool = False) -> Parts:
        """The parts of these pages of all tensors. In the file the pages of a tensor are adjacent,
        and tensors follow each other; by_block: the pages of a block are adjacent. Pages that are
        adjacent in memory as well are one part. A negative id is a hole: zeros in a new file, and
        not loaded. Parts.size is the length of the file. IndexError: no such block."""
        numbers = block_ids.tolist() if hasattr(block_ids, "tolist") else block_ids
        n = len(numbers)
        if n and max(numbers) >= self.blocks:
            raise IndexError(f"block {max(numbers)} does not exist: there are {self.blocks}")
        if n == len(self._pages) == 1:
            (number,), (at, size, stride) = numbers, self._pages[0]
            if number >= 0:  # the result of the call below, in half of its time
                table = (_lib.Part * 1)(_lib.Part(at + operator.index(number) * stride, size, 0))
                return Parts._made(table, 1, size, self.device, self.readonly, self)
        table = (_lib.Part * (n * len(self.tensors) or 1))()
        count = _lib.call("pages_parts", self._structs, len(self.tensors),
                          (ctypes.c_int64 * (n or 1))(*numbers), n, by_block, table, None)
        return Parts._made(table, count, n * self.page_bytes, self.device, self.readonly, self)
