# SPDX-License-Identifier: Apache-2.0
"""RoPE: moves cached keys to other positions, during a load (Item.rope) or in memory."""
from __future__ import annotations

import array
import ctypes
import dataclasses
from collections.abc import Iterable
from typing import Any

from . import _lib

__all__ = ["Rope", "llama3", "shift", "yarn"]


@dataclasses.dataclass(frozen=True)
class Rope:
    """
    A rotation that moves each key by delta positions (new - old): it rotates pair i of the rotated
    elements of a head by delta * f_i. Exactly one of three arguments defines f: theta (f_i =
    theta^(-2i / dims)), inv_freq (the dims / 2 values f_i), or cos_sin (the engine's table: one row
    for each position, cos of all pairs, then sin).

    `type` is float32, float16, bfloat16, float8_e4m3fn or float8_e5m2. `first` is the first rotated
    element. `dims` is the number of rotated elements, which is even; 0 means all elements from
    first on. With `interleaved`, pairs are neighbours (GPT-J, DeepSeek); otherwise a pair has one
    element in each half (NeoX, Llama).
    """
    delta: int
    type: str
    theta: float = 0.0
    inv_freq: Iterable[float] | None = None
    cos_sin: Iterable[Iterable[float]] | None = None
    first: int = 0
    dims: int = 0
    interleaved: bool = False

    def struct(self, made: dict[tuple[int, int], Any] | None = None) -> _lib.RopeStruct:
        """The struct for the library; it keeps the tables. `made`: tables that other rotations of
        the call share, so that each table is converted to C once."""
        if self.type not in _lib.FLOATS:
            raise ValueError(f"type {self.type} is not one of {', '.join(_lib.FLOATS)}")
        for name in ("first", "dims"):
            if not 0 <= getattr(self, name) < 1 << 32:
                raise ValueError(f"{name} cannot be {getattr(self, name)}")
        if not -(1 << 63) <= self.delta < 1 << 63:
            raise ValueError(f"delta cannot be {self.delta}")
        out = _lib.RopeStruct(theta=self.theta, first=self.first, dims=self.dims,
                              interleaved=self.interleaved, delta=self.delta,
                              type=_lib.FLOATS[self.type])
        if self.inv_freq is not None:
            turns = _numbers("d", self.inv_freq)
            if self.dims and len(turns) != self.dims // 2:
                raise ValueError(f"{self.dims} rotated elements have {self.dims // 2} "
                                 f"frequencies, not {len(turns)}")
            if not self.dims:
                raise ValueError("inv_freq requires dims, the number of rotated elements")
            out.inv_freq = (ctypes.c_double * max(len(turns), 1))(*turns)
        if self.cos_sin is not None:
            key, made = (id(self.cos_sin), self.dims), {} if made is None else made
            if key not in made:
                made[key] = _table(self.cos_sin, self.dims)
            out.cos_sin, out.rows = made[key]
        return out


def _table(given: Iterable[Iterable[float]], dims: int) -> tuple[Any, int]:
    """The floats of all rows, and the number of rows."""
    flat, rows = array.array("f"), 0
    for row in given:
        numbers = _numbers("f", row)
        if len(numbers) != dims:
            break
        flat.extend(numbers)
        rows += 1
    else:
        if dims:
            return (ctypes.c_float * max(len(flat), 1))(*flat), rows
    raise ValueError(f"cos_sin requires dims, the number of rotated elements, and each row must "
                     f"have dims numbers; dims is {dims}")


def _numbers(kind: str, given: Any) -> array.array[Any]:
    return array.array(kind, given.tolist() if hasattr(given, "tolist") else given)


def _scaled(name: str, theta: float, dims: int, *numbers: float) -> list[float]:
    if not 0 <= dims < 1 << 31:
        raise ValueError(f"dims cannot be {dims}")
    out = (ctypes.c_double * max(dims // 2, 1))()
    _lib.check(name, theta, dims, *numbers, out)
    return list(out)[:dims // 2]


def llama3(theta: float, dims: int, factor: float = 8, low: float = 1, high: float = 4,
           original: float = 8192) -> list[float]:
    """Returns the frequencies of Llama 3.1's scaling, dims / 2 values. Raises Error with EINVAL if
    a number is invalid."""
    return _scaled("rope_llama3", theta, dims, factor, low, high, original)


def yarn(theta: float, dims: int, factor: float, original: float, beta_fast: float = 32,
         beta_slow: float = 1) -> list[float]:
    """Returns the frequencies of YaRN, dims / 2 values. `original` is the number of positions."""
    return _scaled("rope_yarn", theta, dims, factor, beta_fast, beta_slow, original)


def shift(rope: Rope, keys: bytearray | memoryview, heads: int, head_size: int) -> None:
    """Rotates keys in place. `keys` is writable memory, [token][head][element]. Raises Error with
    EINVAL if the rotation is invalid, or with ERANGE if delta is outside the table. Raises
    ValueError if the length is not a multiple of the size of a token."""
    size = {"float32": 4, "float16": 2, "bfloat16": 2}.get(rope.type, 1)
    view = memoryview(keys).cast("B")
    if heads < 1 or head_size < 1 or len(view) % (heads * head_size * size):
        raise ValueError(f"{len(view)} bytes are not whole tokens of {heads} heads of {head_size}")
    if not len(view):
        return
    memory = (ctypes.c_ubyte * len(view)).from_buffer(view)
    _lib.check("rope_shift", ctypes.byref(rope.struct()), memory,
               len(view) // (heads * head_size * size), heads, head_size)
