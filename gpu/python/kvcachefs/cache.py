# SPDX-License-Identifier: Apache-2.0
"""
A paged KV cache from the engine's own tensors: the tensors give pointers, strides and sizes, and
tensors that do not match a format are refused.

A tensor is any object with data_ptr(), stride() (in elements), element_size(), shape and device,
like torch's; numpy arrays (anything with __array_interface__) are accepted as well. Nothing is
copied, and neither torch nor numpy is imported. The Paged keeps the tensors alive.

Each format is a row of _FORMATS: the dimensions (layer, component, plane) that select the tensor,
and the dimensions of one tensor in the order of memory. The letters: L layer, K key or value, B
block, S slot in a block, H head, E element of a head, C a head's K then its V (2 E), T slots of
all blocks (B S), P plane, 1 a dimension of 1.
"""
from __future__ import annotations

import array
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from . import _lib

__all__ = ["Paged", "Tensor", "Tokens", "formats"]


class Tensor(Protocol):
    """The interface of a tensor."""
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def device(self) -> Any: ...
    def data_ptr(self) -> int: ...
    def stride(self) -> Sequence[int]: ...
    def element_size(self) -> int: ...


class _Format(NamedTuple):
    pointers: str
    dims: str
    guess: bool = True  # whether the shape alone may determine the format


_FORMATS = {
    "NB_NL_TWO_BS_NH_HS": _Format("", "BLKSHE"),
    "NL_X_TWO_NB_BS_NH_HS": _Format("L", "KBSHE"),
    "NL_X_NB_TWO_BS_NH_HS": _Format("L", "BKSHE"),
    "NL_X_NB_BS_HS": _Format("L", "BSE"),
    "TWO_X_NL_X_NBBS_NH_HS": _Format("KL", "THE", False),
    "NL_X_NBBS_ONE_HS": _Format("L", "T1E", False),
    "NL_X_TWO_NB_NH_BS_HS": _Format("L", "KBHSE"),
    "NL_X_NB_TWO_NH_BS_HS": _Format("L", "BKHSE"),
    "NB_NL_TWO_NH_BS_HS": _Format("", "BLKHSE"),
    "TWO_X_NL_X_NB_BS_NH_HS": _Format("KL", "BSHE", False),
    "NL_X_NB_NH_BS_TWO_HS": _Format("L", "BHSKE"),
    "NL_X_NB_BS_NH_TWO_HS": _Format("L", "BSHKE"),
    "NL_X_NB_NH_BS_CS": _Format("L", "BHSC", False),
    "NL_X_NB_BS_NH_CS": _Format("L", "BSHC", False),
    "NL_X_NB_BSV_BSS": _Format("L", "BSE", False),
    "NL_X_TWO_NB_NH_ONE_BS_HS": _Format("L", "KBH1SE", False),
    "NL_X_TWO_X_NB_BS_NH_HS": _Format("LK", "BSHE", False),
    "NL_X_NP_X_NB_BS_ONE_HS": _Format("LP", "BS1E", False),
    "NL_X_NB_BS_NH_HS": _Format("L", "BSHE", False),
    "NB_NL_NH_BS_CS": _Format("", "BLHSC", False),
    "NB_NL_BS_NH_CS": _Format("", "BLSHC", False),
    "NL_X_NH_NB_BS_CS": _Format("L", "HBSC", False),
    "NB_NH_NL_BS_CS": _Format("", "BHLSC", False),
}


def formats() -> list[str]:
    """Returns the names of all formats (kvcachefs-gpu(7))."""
    return _lib.names("format")


class _Array:
    """A numpy array as a tensor."""
    device = "cpu"

    def __init__(self, of: Any) -> None:
        about = of.__array_interface__
        if about["typestr"][1] == "O" or getattr(getattr(of, "dtype", None), "hasobject", False):
            raise TypeError("an array of Python objects has no bytes that a file can hold")
        self._of, self.shape = of, tuple(about["shape"])
        self._size = int(about["typestr"][2:])
        self._at, self.readonly = about["data"]
        strides = about.get("strides")
        if strides is None:
            strides, step = [], self._size
            for n in reversed(self.shape):
                strides.insert(0, step)
                step *= n
        if any(s % self._size for s in strides):
            raise ValueError("the array's strides are not of whole elements")
        self._stride = tuple(s // self._size for s in strides)

    def data_ptr(self) -> int:
        return int(self._at)

    def stride(self) -> Sequence[int]:
        return self._stride

    def element_size(self) -> int:
        return self._size


def _device(tensor: Tensor) -> int:
    """-1: host memory; else the number of a CUDA device."""
    kind, _, number = str(tensor.device).partition(":")
    if kind == "cpu":
        return -1
    if kind == "cuda":
        return int(number or 0)
    raise ValueError(f"the tensors are on {tensor.device}: kvcachefs supports cpu and cuda")


def _flat(tensors: Any) -> Iterator[Tensor]:
    if hasattr(tensors, "data_ptr"):
        yield tensors
    elif hasattr(tensors, "__array_interface__"):
        yield _Array(tensors)
    elif isinstance(tensors, (str, bytes)) or not hasattr(tensors, "__iter__"):
        raise TypeError(f"{type(tensors).__name__} is not a tensor: it has no data_ptr()")
    else:
        for t in tensors:
            yield from _flat(t)


class _Seen(NamedTuple):
    """The sizes of the cache according to one tensor, by letters."""
    sizes: dict[str, int]
    block_stride: int  # 0: dense


def _see(t: Tensor, dims: str, block_size: int, heads: int) -> _Seen:
    """The sizes of a tensor. ValueError describes the first mismatch."""
    shape, strides = tuple(t.shape), tuple(t.stride())
    if len(shape) != len(dims):
        raise ValueError(f"it has {len(shape)} dimensions, not {len(dims)}")
    sizes = {d: n for d, n in zip(dims, shape) if d != "1"}
    given = {"1": 1, "K": 2, "S": block_size, "H": heads}
    for i, (d, n) in enumerate(zip(dims, shape)):
        if given.get(d) and n != given[d]:
            raise ValueError(f"dimension {i} ({_MEANING[d]}) must be {given[d]}, not {n}")
    if "C" in sizes:
        if sizes["C"] % 2:
            raise ValueError(f"K and V of a head have an even number of elements, not {sizes['C']}")
        sizes["E"] = sizes.pop("C") // 2
    if "T" in sizes:
        if not block_size or sizes["T"] % block_size:
            raise ValueError(f"its {sizes['T']} slots are not whole blocks: give block_size")
        sizes["S"], sizes["B"] = block_size, sizes.pop("T") // block_size
    if 0 in shape:
        raise ValueError("it is empty")
    want, padded = 1, 0
    for i in reversed(range(len(dims))):
        if dims[i] == "B" and strides[i] > want and shape[i] > 1:
            padded = want = strides[i]
        elif shape[i] > 1 and strides[i] != want:
            raise ValueError(f"dimension {i} ({_MEANING[dims[i]]}) has stride {strides[i]}, but "
                             f"that format has {want}: strides {strides}, shape {shape}; "
                             f"for a permuted view give dims")
        want *= shape[i]
    return _Seen(sizes, padded)


_MEANING = {"L": "layers", "K": "K and V", "B": "blocks", "S": "slots of a block", "H": "heads",
            "E": "elements", "C": "K and V of a head", "T": "slots", "1": "one"}


def _in_memory(t: Tensor, dims: str) -> str:
    """The dimensions of a tensor in the order of memory. Dimensions of size 1 are inside those
    with the same stride."""
    order = sorted(range(len(dims)), key=lambda i: (-t.stride()[i], -t.shape[i], i))
    return "".join(dims[i] for i in order)


class _View:
    """A tensor with its dimensions in another order."""

    def __init__(self, t: Tensor, dims: str, wanted: str) -> None:
        self._of, order = t, [dims.index(d) for d in wanted]
        self.shape = [t.shape[i] for i in order]
        self._stride = [t.stride()[i] for i in order]
        self.device, self.data_ptr, self.element_size = t.device, t.data_ptr, t.element_size

    def stride(self) -> Sequence[int]:
        return self._stride


class Tokens:
    """The tokens of a cache, given by slots (block * block_size + offset; negative slots are
    skipped) or by block ids (all slots of each block). The first `skip` tokens are not read or
    written. Slots and block ids are sequences of numbers, or arrays or tensors of one dimension."""

    def __init__(self, *, blocks: Iterable[int] | None = None,
                 slots: Iterable[int] | None = None, skip: int = 0) -> None:
        given = slots if slots is not None else blocks
        if given is None or (slots is not None and blocks is not None):
            raise ValueError("tokens must be given by blocks or by slots")
        _lib.number(skip, _lib.SIZE_MOST, "skip")
        numbers = array.array("q", given.tolist() if hasattr(given, "tolist") else given)
        # never empty: one of the two pointers must be set
        kept = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
        self.struct = _lib.Tokens(n=len(numbers), skip=skip)
        setattr(self.struct, "block_ids" if slots is None else "slots", kept)


class Paged:
    """
    tensors: as in the format: one tensor for each layer; one for all layers (NB_NL_...); lists of
    all K and all V (TWO_X_NL_...); pairs of K and V, or planes, of each layer (NL_X_TWO_X,
    NL_X_NP). Nested lists are read in order, so [k_buffers, v_buffers] is correct.
    format: a name of formats(). The tensors' dimensions, and their order in memory, must be those
    of the format.
    dims: instead of a format, the letters of the tensors' own dimensions, such as "KBSHE" for the
    shape [2, blocks, slots, heads, head size]. The format is derived from the strides, so permuted
    views are correct as well.
    Without format and dims the format is guessed from shape, block_size and heads, if only one
    format is possible.
    block_size, heads: the numbers of tokens of a block and of heads; checked if the shape has them.
    block_size is required if the shape does not have it (TWO_X_NL_X_NBBS..., NL_X_NBBS_ONE_HS).
    fused: files hold K and V of a head together (kvcachefs-gpu(7)).

    ValueError: the tensors do not match the format, differ from each other, or match several
    formats. Error with EINVAL: the library refuses the shape.
    """

    def __init__(self, tensors: Any, format: str | None = None, *, dims: str | None = None,
                 block_size: int = 0, heads: int = 0, fused: bool = False) -> None:
        self.tensors = list(_flat(tensors))
        if not self.tensors:
            raise ValueError("a cache has at least one tensor")
        if format is not None and format not in _FORMATS:
            _lib.find("format", format)  # raises the library's error
            raise ValueError(f"this package does not know the format {format}")
        seen = self.tensors
        if dims is not None and format is None:
            format, memory = _by_dims(seen, dims)
            seen = [_View(t, dims, memory) for t in seen]
        self.format = format or _guess(seen, block_size, heads)
        row = _FORMATS[self.format]
        looks = []
        for i, t in enumerate(seen):
            try:
                looks.append(_see(t, row.dims, block_size, heads))
            except ValueError as e:
                raise ValueError(f"tensor {i} is not of the format {self.format} "
                                 f"({' '.join(row.dims)} in memory): {e}") from None
        planes = _planes(tensors, len(seen)) if "P" in row.pointers else 0
        self._alike(looks, planes)
        self.struct = _fill(self.format, looks, self.tensors, planes, fused)
        self.layers: int = self.struct.layers
        self.block_size: int = self.struct.block_size
        self.blocks: int = self.struct.blocks
        self.device: int = self.struct.device  # -1: host memory
        self.readonly = any(getattr(t, "readonly", False) for t in self.tensors)
        if not self.file_size(Tokens(blocks=[0])):
            raise _lib.Error(22, _lib.error())

    def _alike(self, looks: list[_Seen], planes: int) -> None:
        first = self.tensors[0]
        for i, t in enumerate(self.tensors):
            same = t.element_size() == first.element_size() and _device(t) == _device(first)
            if not same or looks[i] != looks[i % planes if planes else 0]:
                raise ValueError(f"tensor {i} is not like the first: {tuple(t.shape)} by "
                                 f"{tuple(t.stride())}, {t.element_size()} bytes, {t.device}; "
                                 f"{tuple(first.shape)} by {tuple(first.stride())}, "
                                 f"{first.element_size()} bytes, {first.device}")
            if not t.data_ptr():
                raise ValueError(f"tensor {i} has no memory")

    def file_size(self, tokens: Tokens, layers: int | None = None) -> int:
        """Returns the size in bytes of a file with these tokens and this number of layers (None:
        all layers), or 0 if the size is too large."""
        n = _lib.number(self.layers if layers is None else layers, _lib.UINT_MOST, "layers")
        size: int = _lib.call("file_size", ctypes.byref(self.struct), n,
                              ctypes.byref(tokens.struct))
        return size

    def gather(self, tokens: Tokens, layer: int = 0, layers: int | None = None) -> bytearray:
        """Returns a copy of the contents of a file with these tokens and layers [layer, layer +
        layers). For caches in host memory only. Raises Error with ERANGE if a slot, block or layer
        is out of range."""
        n = self.layers - layer if layers is None else layers
        out = bytearray(self.file_size(tokens, max(n, 0)))
        self._move("gather", layer, n, tokens, out)
        return out

    def scatter(self, tokens: Tokens, data: bytes | bytearray | memoryview, layer: int = 0,
                layers: int | None = None) -> None:
        """Writes a copy that gather() made to the cache. Raises ValueError if the length is wrong,
        and Error with ERANGE as gather() does. After an error nothing was written."""
        n = self.layers - layer if layers is None else layers
        size = self.file_size(tokens, max(n, 0))
        copy = bytearray(memoryview(data))  # len(data) may count elements instead of bytes
        if len(copy) != size:
            raise ValueError(f"these tokens have {size} bytes, not {len(copy)}")
        if self.readonly:
            raise ValueError("the cache is read-only")
        self._move("scatter", layer, n, tokens, copy)

    def _move(self, how: str, layer: int, n: int, tokens: Tokens, memory: bytearray) -> None:
        if not 0 <= layer < 1 << 31 or not 0 <= n < 1 << 31:
            raise ValueError(f"layers {layer} to {layer + n} do not exist")
        there = (ctypes.c_ubyte * max(len(memory), 1)).from_buffer(memory) if memory else None
        _lib.check(how, ctypes.byref(self.struct), layer, n, ctypes.byref(tokens.struct), there)


def _by_dims(tensors: list[Tensor], dims: str) -> tuple[str, str]:
    """The format of tensors with these dimensions, and the dimensions in the order of memory."""
    if len(set(dims.replace("1", ""))) != len(dims.replace("1", "")) or dims.count("1") > 1 or \
            any(d not in _MEANING for d in dims):
        raise ValueError(f"dims must be letters of {''.join(_MEANING)}, each once, not {dims}")
    for i, t in enumerate(tensors):
        if len(t.shape) != len(dims):
            raise ValueError(f"tensor {i} has {len(t.shape)} dimensions: dims names {len(dims)}")
    memory = _in_memory(tensors[0], dims)
    found = [name for name, row in _FORMATS.items() if row.dims == memory]
    if len(found) != 1:
        raise ValueError(f"tensors of {' '.join(memory)} in memory match " +
                         (" or ".join(found) + ": name one" if found else "no format"))
    return found[0], memory


def _guess(tensors: list[Tensor], block_size: int, heads: int) -> str:
    found = []
    for name, row in _FORMATS.items():
        if (row.pointers == "" and len(tensors) > 1) or (len(row.pointers) > 1 and
                                                         len(tensors) < 2):
            continue
        if name == "NL_X_NB_BSV_BSS" and tensors[0].element_size() > 1:
            continue
        try:
            _see(tensors[0], row.dims, block_size, heads)
            found.append(name)
        except ValueError:
            pass
    if len(found) == 1 and _FORMATS[found[0]].guess:
        return found[0]
    about = f"{len(tensors)} tensors of {tuple(tensors[0].shape)}"
    if not found:
        raise ValueError(f"{about} by {tuple(tensors[0].stride())} match no format: for a "
                         f"permuted view give dims")
    raise ValueError(f"{about} match {' or '.join(found)}: name the format, or give "
                     f"block_size and heads")


def _planes(tensors: Any, n: int) -> int:
    """Number of planes of a layer: [[a, b, c], [a, b, c], ...]"""
    first = next(iter(tensors)) if hasattr(tensors, "__iter__") else None
    planes = 1 if first is None or hasattr(first, "data_ptr") else len(list(_flat(first)))
    if not 0 < planes <= _lib.PLANES or n % planes:
        raise ValueError(f"a layer has 1 to {_lib.PLANES} planes, the same number in each layer: "
                         f"give a list for each layer")
    return planes


def _fill(format: str, looks: list[_Seen], tensors: list[Tensor], planes: int,
          fused: bool) -> _lib.PagedStruct:
    row, n, sizes = _FORMATS[format], len(tensors), looks[0].sizes
    each = {"": n, "L": 1, "KL": 2, "LK": 2, "LP": planes}[row.pointers]
    if n % each or (row.pointers == "" and n != 1):
        wanted = "one tensor" if row.pointers == "" else "two tensors for each layer, K and V"
        raise ValueError(f"{format} has {wanted}, and {n} are given")
    for letter in "LHES":
        _lib.number(sizes.get(letter, 1), _lib.UINT_MOST, f"the number of {_MEANING[letter]}")
    struct = _lib.PagedStruct(
        format=_lib.find("format", format), layers=sizes.get("L", n // each),
        heads=sizes.get("H", 1), head_size=sizes["E"], block_size=sizes["S"], blocks=sizes["B"],
        elem=tensors[0].element_size(), block_stride=0 if planes else looks[0].block_stride,
        device=_device(tensors[0]), fused=fused, planes=planes)
    if planes:
        struct.head_size = sum(s.sizes["E"] for s in looks[:planes])
        for i, s in enumerate(looks[:planes]):
            struct.plane_width[i], struct.plane_stride[i] = s.sizes["E"], s.block_stride
    struct.pointers = (ctypes.c_void_p * n)(*[t.data_ptr() for t in tensors])
    return struct
