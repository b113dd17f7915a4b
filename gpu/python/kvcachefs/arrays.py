# SPDX-License-Identifier: Apache-2.0
"""
Cache: numpy arrays and torch tensors under keys in the folder of a model.

The value of a key is one file in the format safetensors: eight bytes with the length of the header,
the header (JSON: the type, shape and place of each array), and the bytes of the arrays. Other
programs can read the file with the package safetensors. The header ends at a multiple of ALIGN
bytes, and larger elements come first, so each array is aligned in memory. The file appears under
its name when it is complete.

Neither numpy nor torch is imported before the first array of its kind.
"""
from __future__ import annotations

import ctypes
import errno
import importlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import _lib, admin
from .buffer import Buffer
from .lease import exists, prefix

__all__ = ["Cache"]

ALIGN = 64
HEADER_MOST = 100 << 20  # as the package safetensors
DIMS_MOST = 64  # of numpy
# the name of the type in a file: its name in numpy and torch, bytes of an element
TYPES = {"BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "U16": ("uint16", 2),
         "I16": ("int16", 2), "U32": ("uint32", 4), "I32": ("int32", 4), "U64": ("uint64", 8),
         "I64": ("int64", 8), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
         "F32": ("float32", 4), "F64": ("float64", 8), "F8_E4M3": ("float8_e4m3fn", 1),
         "F8_E5M2": ("float8_e5m2", 1)}
NAMES = {name: kind for kind, (name, _) in TYPES.items()}
FRAMEWORKS = {"np": "numpy", "pt": "torch"}
ONE = "array"  # the name of an array that was stored without a name


class _Array(NamedTuple):
    """An array in host memory whose bytes are contiguous. `of` keeps the memory."""
    of: Any
    kind: str
    shape: tuple[int, ...]
    at: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * TYPES[self.kind][1]


def _framework(value: Any) -> str:
    """"np" or "pt"."""
    if hasattr(value, "__array_interface__"):
        return "np"
    if hasattr(value, "data_ptr") and hasattr(value, "detach"):
        return "pt"
    raise TypeError(f"{type(value).__name__} is neither a numpy array nor a torch tensor")


def _array(value: Any) -> _Array:
    if _framework(value) == "pt":
        name = str(value.dtype).rpartition(".")[2]
        if str(value.layout) != "torch.strided" or value.is_meta:
            raise TypeError("a sparse, nested or meta tensor cannot be stored: its elements are "
                            "not in one place in memory")
        if value.dim() > DIMS_MOST:
            raise ValueError(f"a tensor of {value.dim()} dimensions cannot be stored: "
                             f"{DIMS_MOST} are possible")
        if name in NAMES:
            value = value.detach().resolve_neg().to("cpu").contiguous()
            return _Array(value, NAMES[name], tuple(value.shape), value.data_ptr())
    else:
        numpy = importlib.import_module("numpy")
        if isinstance(value, numpy.ma.MaskedArray):
            raise TypeError("a masked array cannot be stored, because its mask would be lost: use "
                            "filled()")
        value = numpy.asanyarray(value)
        name, order = value.dtype.name, value.dtype.byteorder
        if name in NAMES:
            if order == ">" or (order == "=" and sys.byteorder == "big"):
                value = value.astype(value.dtype.newbyteorder("<"))
            value = numpy.asarray(value, order="C")
            return _Array(value, NAMES[name], tuple(value.shape), value.ctypes.data)
    raise TypeError(f"elements of the type {name} cannot be stored; possible are "
                    f"{', '.join(NAMES)}")


def _pack(value: Any) -> tuple[bytes, list[_Array]]:
    """The header of the file, and the arrays in the order of the file."""
    if isinstance(value, Mapping):
        arrays, metadata = dict(value), {}
        kinds = {_framework(v) for v in arrays.values()} or {"np"}
        if len(kinds) > 1:
            raise TypeError("the arrays of one key must be all of numpy or all of torch")
        metadata["format"] = kinds.pop()
    else:
        arrays, metadata = {ONE: value}, {"format": _framework(value), "kvcachefs": ONE}
    for name in arrays:
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"an array cannot have the name {name!r}")
    packed = sorted(((name, _array(v)) for name, v in arrays.items()),
                    key=lambda p: -TYPES[p[1].kind][1])
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, a in packed:
        header[name] = {"dtype": a.kind, "shape": a.shape, "data_offsets": [end, end + a.size]}
        end += a.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    if len(text) > HEADER_MOST:
        raise ValueError(f"the names and shapes need {len(text)} bytes, and {HEADER_MOST} are "
                         "possible")
    return len(text).to_bytes(8, "little") + text, [a for _, a in packed]


class _Place(NamedTuple):
    """An array of a file."""
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _refusal(path: str) -> ValueError:
    """The error for a file of another format. It is made here, because an exception in a local
    variable of _parse() would keep its own traceback alive, and with it the file."""
    return ValueError(f"{path} does not hold arrays: it is not a safetensors file")


def _parse(data: memoryview, path: str) -> tuple[dict[str, str], dict[str, _Place]]:
    """The metadata and the arrays of a file. ValueError: it is another format."""
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else HEADER_MOST + 1
    if size > HEADER_MOST or size > len(data) - 8:
        raise _refusal(path)
    try:
        header = json.loads(bytes(data[8:8 + size]))
        metadata = header.pop("__metadata__", {})
        places = {name: _Place(e["dtype"], tuple(e["shape"]), *e["data_offsets"])
                  for name, e in header.items()}
        # numpy and torch refuse shapes whose product is too large, even if one of the numbers is 0
        good = isinstance(metadata, dict) and all(
            type(n) is int and n >= 0 for p in places.values()
            for n in (*p.shape, p.begin, p.end)) and all(
            len(p.shape) <= DIMS_MOST and math.prod(n or 1 for n in p.shape) < 1 << 60 and
            p.kind in TYPES and p.end <= len(data) - 8 - size and
            p.end - p.begin == math.prod(p.shape) * TYPES[p.kind][1] for p in places.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _refusal(path) from None
    if not good:
        raise _refusal(path)
    return metadata, {name: p._replace(begin=p.begin + 8 + size, end=p.end + 8 + size)
                      for name, p in places.items()}


def _to_numpy(data: memoryview, place: _Place, copy: bool) -> Any:
    numpy = importlib.import_module("numpy")
    name = TYPES[place.kind][0]
    try:
        dtype = numpy.dtype(name)  # the package ml_dtypes adds bfloat16 and the float8 types
    except TypeError:
        raise ValueError(f"numpy has no type {name}: import ml_dtypes first, or use "
                         "framework='torch'") from None
    if dtype.itemsize > 1:
        dtype = dtype.newbyteorder("<") if sys.byteorder == "big" else dtype
    count = math.prod(place.shape)
    if not count:
        return numpy.empty(place.shape, dtype)
    array = numpy.frombuffer(data, dtype, count, place.begin).reshape(place.shape)
    return array.copy() if copy else array


def _to_torch(address: int, place: _Place) -> Any:
    torch = importlib.import_module("torch")
    name = TYPES[place.kind][0]
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise ValueError(f"this version of torch has no type {name}")
    tensor = torch.empty(place.shape, dtype=dtype)
    ctypes.memmove(tensor.data_ptr(), address + place.begin, place.end - place.begin)
    return tensor


class Cache:
    """
    Arrays under keys, in the folder of a model. mount: the path of the mount. model: the name of
    the folder. A key is a path in that folder, such as a chunk's hash, or "hash/layer"; the
    absolute path of the same file is a key, too. Raises FileNotFoundError if no kvcachefs is
    mounted there.

    Objects may be used by several threads. Calls wait for the mount and release the GIL; in a task
    use asyncio.to_thread().
    """

    def __init__(self, mount: str | os.PathLike[str], model: str | os.PathLike[str]) -> None:
        self.mount = os.path.abspath(os.fsdecode(mount))
        self.model = self._inside(os.fspath(model), "the model", self.mount)
        if "/" in self.model:
            raise ValueError(f"the model {self.model!r} is not one folder; write "
                             f"{self.model.replace('/', '--')!r}")
        admin.check(self.mount)

    @staticmethod
    def _inside(name: str, what: str, top: str) -> str:
        """The name relative to `top`."""
        path = os.fsdecode(_lib.below(top, name, what))
        parts = path.split("/")
        if "\n" in path or any(p in ("", ".", "..") for p in parts):
            raise ValueError(f"{what} {name!r} must be a path without newlines, '.', '..' and "
                             "empty parts")
        return path

    def path(self, key: str) -> str:
        """Returns the path of a key, relative to the mount."""
        return f"{self.model}/{self._inside(key, 'the key', f'{self.mount}/{self.model}')}"

    def put(self, key: str, value: Any) -> None:
        """Stores a numpy array or a torch tensor, or a dict of names and arrays of one kind. The
        key gets this value when the call returns; before, and after an error, it has its old value.
        Tensors of a GPU are copied to the host first. Raises Error with ENOSPC if the value does
        not fit, and TypeError for elements that the format does not have, such as complex ones."""
        header, arrays = _pack(value)
        with Buffer.new(self.mount, self.path(key), len(header) + sum(a.size for a in arrays)) as b:
            at = b.address
            ctypes.memmove(at, header, len(header))
            at += len(header)
            for a in arrays:
                ctypes.memmove(at, a.at, a.size)
                at += a.size
            b.publish()

    def get(self, key: str, *, framework: str | None = None, copy: bool = True) -> Any:
        """Returns the value of a key, loaded from a tier if necessary. Raises FileNotFoundError if
        the cache does not have it, Error with EISDIR for a folder, and ValueError if another
        program wrote a file of another format there.

        framework: "numpy" or "torch"; None: as it was stored. Tensors are in host memory. With
        copy=False, numpy arrays are read-only and share the pool's memory, and the value stays in
        the pool as long as one of them exists; torch has no read-only tensors."""
        if framework not in (None, *FRAMEWORKS.values()):
            raise ValueError(f"framework must be numpy or torch, not {framework!r}")
        path = self.path(key)
        with Buffer.open(self.mount, path) as b:
            data = b.data
            metadata, places = _parse(data, path)
            kind = framework or FRAMEWORKS.get(str(metadata.get("format")), "numpy")
            if kind == "torch" and not copy:
                raise ValueError("torch has no read-only tensors: use copy=True or "
                                 "framework='numpy'")
            got = {name: _to_torch(b.address, p) if kind == "torch" else _to_numpy(data, p, copy)
                   for name, p in places.items()}
        return got[ONE] if metadata.get("kvcachefs") == ONE and ONE in got else got

    def has(self, key: str) -> bool:
        """Whether the cache has the key, in the pool or in a tier. Loads nothing."""
        return exists(self.mount, [self.path(key)])[0]

    def prefix(self, keys: Sequence[str]) -> int:
        """Counts the keys at the beginning of the list that the cache has, such as the chunks of a
        prompt. Makes one call to the mount and loads nothing."""
        if isinstance(keys, (str, bytes)):
            raise TypeError("keys must be a list, even for one key")
        return prefix(self.mount, [self.path(k) for k in keys])

    def delete(self, key: str) -> None:
        """Deletes the value from the pool and all tiers. A key that is a folder is deleted with its
        files. Raises FileNotFoundError if the cache does not have it."""
        path = self.path(key)
        try:
            admin.remove(self.mount, path)
        except NotADirectoryError:  # a part of the path is a file
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT),
                                    f"{self.mount}/{path}") from None

    # ---- Administration: see admin.py ------------------------------------------------------------

    def status(self) -> admin.Status:
        """Returns the counters and options of the mount, and the size and quota of the model."""
        return admin.status(self.mount, self.model)

    def pin(self, key: str, seconds: int | None = None) -> None:
        """Protects the chunk of the key from eviction, for this time or without a limit. Raises
        FileNotFoundError if the cache does not have the key, and OSError with EDQUOT or ENOSPC if
        the limits of pins= are reached."""
        admin.pin(self.mount, self.path(key), seconds)

    def unpin(self, key: str) -> None:
        """Ends the protection from eviction."""
        admin.unpin(self.mount, self.path(key))

    def quota(self, size: int | str | None) -> None:
        """Limits the space of the model: bytes, or text such as "200G"; None or 0 removes the
        limit. If the model is larger, chunks are dropped. Only root and the owner of the model's
        folder may do this."""
        admin.quota(self.mount, self.model, size)

    def events(self) -> admin.Events:
        """Returns the events of this model's files from now on. Only root and the user of the
        daemon may read them."""
        return admin.Events(self.mount, self.model)
