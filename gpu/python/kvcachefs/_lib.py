# SPDX-License-Identifier: Apache-2.0
"""
libkvcachefs through ctypes: the contents of its headers in Python. STRUCTS and FUNCTIONS are
tables of everything that the package uses from the headers; LEFT_OUT names the rest. A test
compares them with the header, including sizes and offsets, so that they cannot diverge.

ctypes releases the GIL during each call. kvcachefs_error() belongs to the calling thread, so it
must be called in the thread of the failed call; check() does so.

The library is the file in KVCACHEFS_LIBRARY; otherwise the file beside this module (in a wheel);
otherwise the library that the dynamic linker finds.
"""
from __future__ import annotations

import ctypes
import errno
import os
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float,
                    c_int, c_int64, c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p)
from typing import Any

SONAME = "libkvcachefs.so.0"
KEY_MAX = 32
TEXT_MAX = 2 * KEY_MAX + 1
PATH_MAX = 1024
UNIFIED_DIGEST, UNIFIED_KEY_MAX = 22, 160
PLANES = 4
QUEUE_MOST = 1024
UINT_MOST, SIZE_MOST = (1 << 32) - 1, (1 << 64) - 1
FLOATS = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3fn": 3, "float8_e5m2": 4}


# ---- Structs ------------------------------------------------------------------------------------


class Mm(Structure):
    _fields_ = [("hash", c_char_p), ("start", c_uint64), ("len", c_uint64)]


Embeds = CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_uint8))


class Keys(Structure):
    _fields_ = [("scheme", c_int), ("block_tokens", c_uint), ("seed", c_char_p),
                ("none", c_void_p), ("none_len", c_size_t), ("empty_extra_is_array", c_bool),
                ("tagged_extra", c_bool), ("lora_name", c_char_p), ("lora_path", c_char_p),
                ("mm", POINTER(Mm)), ("nmm", c_size_t), ("cache_salt", c_char_p),
                ("extra_key", c_char_p), ("embeds", Embeds), ("embeds_arg", c_void_p)]


class Segment(Structure):
    _fields_ = [("start", c_size_t), ("end", c_size_t), ("key", c_uint8 * 8)]


class NameStruct(Structure):
    _fields_ = [("model", c_char * 256), ("key", c_char * (TEXT_MAX + 1)),
                ("world_size", c_uint32), ("worker", c_uint32), ("dtype", c_char * 16),
                ("has_layer", c_bool), ("layer", c_uint32), ("tags", c_char * 256),
                ("kv_rank", c_uint32), ("group", c_uint32), ("salt", c_char * 513),
                ("pool", c_char * 32), ("mla", c_bool), ("tp_rank", c_uint32),
                ("tp_size", c_uint32), ("pp_rank", c_uint32), ("pp_size", c_uint32),
                ("cp_rank", c_uint32), ("cp_size", c_uint32), ("dcp_rank", c_uint32),
                ("dcp_size", c_uint32), ("page", c_uint32), ("config", c_char * 13),
                ("rank", c_uint32)]


class UnifiedStruct(Structure):
    _fields_ = [("model", c_char_p), ("dtype", c_char_p), ("page_size", c_uint32),
                ("replicated", c_bool), ("total_kv_heads", c_uint32),
                ("layer_partition", c_uint32), ("head_group", c_uint32),
                ("object_layout", c_char_p)]


class ObjectStruct(Structure):
    _fields_ = [("path", c_char_p), ("ino", c_uint64), ("size", c_uint64), ("err", c_int),
                ("state", c_char_p)]


class Hint(Structure):
    _fields_ = [("finished", c_bool), ("prefetch", c_bool), ("demote", c_bool),
                ("priority", c_int), ("pause_s", c_uint), ("superseded_by", c_char_p),
                ("tenant", c_char_p), ("ended", c_char_p), ("returns_s", c_uint)]


class PagedStruct(Structure):
    _fields_ = [("format", c_int), ("layers", c_uint32), ("heads", c_uint32),
                ("head_size", c_uint32), ("block_size", c_uint32), ("blocks", c_uint64),
                ("elem", c_uint32), ("block_stride", c_uint64), ("pointers", POINTER(c_void_p)),
                ("device", c_int), ("fused", c_bool), ("planes", c_uint32),
                ("plane_width", c_uint32 * PLANES), ("plane_stride", c_uint64 * PLANES)]


class Tokens(Structure):
    _fields_ = [("slots", POINTER(c_int64)), ("block_ids", POINTER(c_int64)), ("n", c_size_t),
                ("skip", c_size_t)]


class RopeStruct(Structure):
    _fields_ = [("theta", c_double), ("inv_freq", POINTER(c_double)),
                ("cos_sin", POINTER(c_float)), ("rows", c_uint64), ("first", c_uint32),
                ("dims", c_uint32), ("interleaved", c_bool), ("delta", c_int64), ("type", c_int)]


class Part(Structure):
    _fields_ = [("at", c_void_p), ("len", c_size_t), ("offset", c_uint64)]


class PagesStruct(Structure):
    _fields_ = [("at", c_void_p), ("stride", c_uint64), ("len", c_size_t)]


class ItemStruct(Structure):  # parts: ctypes takes longer to set a typed pointer
    _fields_ = [("path", c_char_p), ("layer", c_uint32), ("nlayers", c_uint32),
                ("tokens", Tokens), ("rope", POINTER(RopeStruct)),
                ("cache", POINTER(PagedStruct)), ("parts", c_void_p), ("nparts", c_size_t),
                ("size", c_uint64), ("skip_existing", c_bool), ("skipped", c_bool),
                ("err", c_int)]


class Completion(Structure):
    _fields_ = [("tag", c_uint64), ("id", c_uint64), ("err", c_int), ("failed", c_size_t),
                ("error", c_char * 160), ("skipped", c_size_t), ("bytes", c_uint64),
                ("ns", c_uint64), ("lease", c_void_p), ("count", c_size_t)]


class WarmStruct(Structure):
    _fields_ = [("transfers", c_uint), ("files", c_bool), ("keep_s", c_uint)]


class GpuCounts(Structure):
    _fields_ = [("pinned_bytes", c_uint64), ("direct_bytes", c_uint64),
                ("staged_bytes", c_uint64), ("refused", c_uint64),
                ("host_functions", c_uint64)]


# struct kvcachefs_NAME
STRUCTS: dict[str, type[Structure]] = {
    "mm": Mm, "keys": Keys, "segment": Segment, "name": NameStruct,
    "unified": UnifiedStruct, "object": ObjectStruct,
    "paged": PagedStruct, "tokens": Tokens, "rope": RopeStruct, "item": ItemStruct,
    "part": Part, "pages": PagesStruct, "completion": Completion, "warm": WarmStruct,
    "gpu_counts": GpuCounts, "hint": Hint,
}

_paths = POINTER(c_char_p)
_tokens = POINTER(c_uint32)
_out = POINTER(c_void_p)  # of an opaque struct
_number = POINTER(c_int)  # an enum
_size = POINTER(c_size_t)
_submit = (c_int, [c_void_p, POINTER(PagedStruct), POINTER(ItemStruct), c_size_t, c_void_p,
                   c_uint64, POINTER(c_uint64)])

# kvcachefs_NAME: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "error": (c_char_p, []),
    "version": (c_char_p, []),
    "scheme_name": (c_char_p, [c_int]),
    "scheme_find": (c_int, [c_char_p, _number]),
    "hasher_new": (c_int, [_out, POINTER(Keys)]),
    "hasher_free": (None, [c_void_p]),
    "hasher_feed": (c_int, [c_void_p, _tokens, c_size_t, c_void_p, c_size_t, _size]),
    "hasher_rest": (c_int, [c_void_p, c_void_p]),
    "hasher_key_len": (c_size_t, [c_void_p]),
    "hasher_block": (c_uint, [c_void_p]),
    "hasher_none": (c_void_p, [c_void_p]),
    "hasher_text": (None, [c_void_p, c_void_p, c_char_p]),
    "group_key": (None, [c_void_p, c_size_t, c_uint32, c_void_p]),
    "key_int": (c_uint64, [c_void_p, c_size_t]),
    "example_folder": (c_int, [_tokens, c_size_t, c_uint, _paths, c_size_t, c_char_p]),
    "blake3": (None, [c_void_p, c_size_t, c_void_p]),
    "segments": (c_int, [c_void_p, _tokens, c_size_t, _tokens, c_size_t, POINTER(Segment),
                         c_size_t, _size]),
    "fingerprints": (c_int, [_tokens, c_size_t, c_size_t, POINTER(c_uint64)]),
    "naming_name": (c_char_p, [c_int]),
    "naming_find": (c_int, [c_char_p, _number]),
    "name_build": (c_int, [c_int, POINTER(NameStruct), c_char_p]),
    "name_parse": (c_int, [c_int, c_char_p, POINTER(NameStruct)]),
    "unified_digest": (c_int, [POINTER(UnifiedStruct), c_char_p]),
    "unified_key": (c_int, [c_char_p, c_char_p, c_uint32, c_uint32, c_int64, c_char_p]),
    "lease_new": (c_int, [_out, c_char_p, _paths, c_size_t]),
    "lease_wait": (c_int, [_out, c_char_p, _paths, c_size_t, c_uint]),
    "lease_free": (None, [c_void_p]),
    "lease_count": (c_size_t, [c_void_p]),
    "lease_object": (POINTER(ObjectStruct), [c_void_p, c_size_t]),
    "lease_map": (c_int, [c_void_p, c_size_t, _out, _size]),
    "map_cache": (None, [c_size_t]),
    "prefetch": (c_int, [c_char_p, _paths, c_size_t]),
    "hint": (c_int, [c_char_p, POINTER(Hint), _paths, c_size_t, _size]),
    "look": (c_int, [_out, c_char_p, _paths, c_size_t]),
    "exists": (c_int, [c_char_p, _paths, c_size_t, c_size_t, c_bool, c_void_p]),
    "prefix": (c_int, [c_char_p, _paths, c_size_t, _size]),
    "prefix_lease": (c_int, [_out, c_char_p, _paths, c_size_t, _size]),
    "buffer_open": (c_int, [_out, c_char_p, c_char_p, c_int]),
    "buffer_new": (c_int, [_out, c_char_p, c_char_p, c_size_t, c_int]),
    "buffer_data": (c_void_p, [c_void_p, _size]),
    "buffer_pinned": (c_bool, [c_void_p]),
    "buffer_publish": (c_int, [c_void_p]),
    "buffer_publish_as": (c_int, [c_void_p, c_char_p]),
    "buffer_free": (None, [c_void_p]),
    "format_name": (c_char_p, [c_int]),
    "format_find": (c_int, [c_char_p, _number]),
    "file_size": (c_uint64, [POINTER(PagedStruct), c_uint32, POINTER(Tokens)]),
    "gather": (c_int, [POINTER(PagedStruct), c_uint32, c_uint32, POINTER(Tokens), c_void_p]),
    "scatter": (c_int, [POINTER(PagedStruct), c_uint32, c_uint32, POINTER(Tokens), c_void_p]),
    "rope_llama3": (c_int, [c_double, c_uint32, c_double, c_double, c_double, c_double,
                            POINTER(c_double)]),
    "rope_yarn": (c_int, [c_double, c_uint32, c_double, c_double, c_double, c_double,
                          POINTER(c_double)]),
    "rope_shift": (c_int, [POINTER(RopeStruct), c_void_p, c_size_t, c_uint32, c_uint32]),
    "gpu_warm": (c_int, [c_char_p, POINTER(PagedStruct), POINTER(ItemStruct), c_size_t,
                         POINTER(WarmStruct)]),
    "gpu_stats": (None, [POINTER(GpuCounts)]),
    "queue_new": (c_int, [_out, c_char_p, c_uint]),
    "queue_free": (None, [c_void_p]),
    "queue_fd": (c_int, [c_void_p]),
    "submit_store": _submit,
    "submit_load": _submit,
    "submit_lease": (c_int, [c_void_p, _paths, c_size_t, c_size_t, c_bool, c_uint64,
                             POINTER(c_uint64)]),
    "pages_parts": (c_size_t, [POINTER(PagesStruct), c_size_t, POINTER(c_int64), c_size_t, c_bool,
                               POINTER(Part), POINTER(c_uint64)]),
    "take": (c_size_t, [c_void_p, POINTER(Completion), c_size_t]),
    "layer_wait": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "layer_poll": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "cancel": (c_int, [c_void_p, c_uint64]),
}

# Functions and structs of the header that Python does not need, without the prefix kvcachefs_;
# patterns of fnmatch.
LEFT_OUT = {
    "hex": "bytes.hex()",
    "name_set": "the members of kvcachefs.Name",
    **dict.fromkeys(("store", "load", "transfer_*"), "they wait in the caller's thread: submit_*"),
}


class Error(OSError):
    """An error of the library: errno (positive, as in the module errno) and strerror, one line of
    text from the library. If something does not exist (ENOENT), the error is a FileNotFoundError
    too."""

    def __new__(cls, *arguments: Any) -> Error:
        if cls is Error and arguments[:1] == (errno.ENOENT,):
            return OSError.__new__(_Absent, *arguments)
        return OSError.__new__(cls, *arguments)


class _Absent(Error, FileNotFoundError):
    pass


_Absent.__name__ = _Absent.__qualname__ = "Error"


def _open() -> dict[str, Any]:
    named = os.environ.get("KVCACHEFS_LIBRARY")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
    path = named or (beside if os.path.exists(beside) else SONAME)
    functions: dict[str, Any] = {}
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            functions[name] = library[f"kvcachefs_{name}"]
            functions[name].restype, functions[name].argtypes = result, arguments
    except (OSError, AttributeError) as e:
        raise ImportError(f"libkvcachefs cannot be used ({e}): install it or the wheel that has "
                          f"it, or name the file in KVCACHEFS_LIBRARY") from None
    return functions


_functions = _open()


def call(name: str, *arguments: Any) -> Any:
    """Calls kvcachefs_NAME(arguments) and returns its result."""
    return _functions[name](*arguments)


def error() -> str:
    """The message of this thread's last failed call."""
    text: bytes = call("error")
    return text.decode(errors="replace")


def check(name: str, *arguments: Any) -> None:
    """Calls a function that may fail; a negative errno becomes an Error."""
    err: int = call(name, *arguments)
    if err:
        raise Error(-err, error())


def find(kind: str, name: str) -> int:
    """The number of a scheme, naming or format."""
    number = c_int()
    check(f"{kind}_find", name.encode(), ctypes.byref(number))
    return number.value


def names(kind: str) -> list[str]:
    """The names of all schemes, namings or formats."""
    found: list[str] = []
    while text := call(f"{kind}_name", len(found)):
        found.append(text.decode())
    return found


_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


def text(value: str | None, what: str) -> bytes | None:
    """A string for the library. ValueError: it contains a NUL, which would truncate it."""
    if value is None:
        return None
    if "\0" in value:
        raise ValueError(f"{what} has a NUL in it")
    return value.encode(_ENCODING, _ERRORS)


def number(value: int, most: int, what: str) -> int:
    """A number from 0 to `most` for the library. ctypes would silently drop the bits that do not
    fit. ValueError: it is outside."""
    if not 0 <= value <= most:
        raise ValueError(f"{what} must be 0 to {most}, not {value}")
    return value


def strings(values: list[str], what: str) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(values))(*[text(v, what) for v in values])


def path(value: str | os.PathLike[str]) -> bytes:
    return text(os.fspath(value), "the path") or b""


def below(mount: str | bytes | os.PathLike[str], value: str | os.PathLike[str],
          what: str = "the path") -> bytes:
    """A path below the mount, for the library. An absolute path must be inside the mount, and loses
    that part. ValueError: it is outside."""
    given = os.fspath(value)
    if not isinstance(given, str):
        raise TypeError(f"{what} must be a str or a path of str, not {given!r}")
    if given.startswith("/"):
        top, full = os.path.abspath(os.fsdecode(mount)), os.path.abspath(given)
        if full != top and not full.startswith(top.rstrip("/") + "/"):
            raise ValueError(f"{what} {given!r} is not inside the mount {top!r}")
        given = os.path.relpath(full, top)
    return text(given, what) or b""
