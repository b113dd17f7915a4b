# SPDX-License-Identifier: Apache-2.0
"""
Chunk keys from tokens, bit-identical to the keys of the engines, and the names of their files.

A Hasher continues where it stopped: a growing prompt costs only the work for its new blocks. A
Hasher is locked during a call, which releases the GIL. Keys are bytes; text() writes a key as the
engine does in names. A Name has the contents of a file's name; build() and parse() are inverse to
each other.
"""
from __future__ import annotations

import array
import ctypes
import dataclasses
import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Union

from . import _lib

__all__ = ["Hasher", "Mm", "Name", "Segment", "blake3", "build", "chunk_keys", "example_folder",
           "fingerprints", "group_key", "key_int", "namings", "parse", "schemes", "unified_digest",
           "unified_key"]

# Token ids: any iterable of numbers from 0 to 2^32 - 1, and arrays and tensors of one dimension.
TokenIds = Iterable[int]
Key = Union[bytes, bytearray, memoryview]


class Mm(NamedTuple):
    """A multimodal item in the prompt: its identifier, and its position and length in tokens."""
    hash: str
    start: int
    length: int


class Segment(NamedTuple):
    """The tokens [start, end) between separators, and their key (8 bytes)."""
    start: int
    end: int
    key: bytes


def _token_array(tokens: Any) -> tuple[Any, int]:
    """The tokens as a C array, and their number."""
    if hasattr(tokens, "tolist"):  # numpy and torch: their elements are not ints
        tokens = tokens.tolist()
    numbers = array.array("I", tokens)
    if not numbers:
        return None, 0
    return (ctypes.c_uint32 * len(numbers)).from_buffer(numbers), len(numbers)


def schemes() -> list[str]:
    """Returns the names of all schemes: "vllm-sha256_cbor", "lmcache-mp-blake3", "sglang", ..."""
    return _lib.names("scheme")


class Hasher:
    """
    The keys of a scheme, for one sequence of tokens.

    block_tokens: tokens of a block; 0: the default of the scheme (vLLM 16, LMCache 256, SGLang 64).
    seed: PYTHONHASHSEED as text; None: not set; default: the environment variable.
    none: NONE_HASH itself, if it is not derived from the seed (older vLLM without a seed).
    empty_extra_is_array: write missing extra keys as an empty array instead of null, for vllm-* and
    lmcache-mp-* schemes with _cbor only.
    lora_name, lora_path, mm, embeds: vLLM's extra keys, for the _cbor schemes only. embeds(block)
    returns the SHA-256 of a block's prompt embeddings, or None.
    tagged_extra: write extra keys as vLLM 0.32 and later do.
    cache_salt: vLLM and SGLang. extra_key: SGLang.

    Error with EINVAL: unknown scheme, or values that the scheme does not support.
    """

    def __init__(self, scheme: str, *, block_tokens: int = 0, seed: Any = ...,
                 none: bytes | None = None, empty_extra_is_array: bool = False,
                 tagged_extra: bool = False, lora_name: str | None = None,
                 lora_path: str | None = None, mm: Sequence[Mm | tuple[str, int, int]] = (),
                 cache_salt: str | None = None, extra_key: str | None = None,
                 embeds: Callable[[int], bytes | None] | None = None) -> None:
        if not 0 <= block_tokens < 1 << 32:
            raise ValueError(f"block_tokens cannot be {block_tokens}")
        how = _lib.Keys(scheme=_lib.find("scheme", scheme), block_tokens=block_tokens)
        how.seed = _lib.text(os.environ.get("PYTHONHASHSEED") if seed is ... else seed, "seed")
        if none is not None:
            how.none = ctypes.cast(ctypes.c_char_p(none), ctypes.c_void_p)
            how.none_len = len(none)
        how.empty_extra_is_array, how.tagged_extra = empty_extra_is_array, tagged_extra
        for name, value in (("lora_name", lora_name), ("lora_path", lora_path),
                            ("cache_salt", cache_salt), ("extra_key", extra_key)):
            setattr(how, name, _lib.text(value, name))
        items = (_lib.Mm * len(mm))(*[_lib.Mm(_lib.text(h, "mm"), at, n) for h, at, n in mm])
        how.mm, how.nmm = items, len(mm)
        self._failure: BaseException | None = None
        if embeds:
            how.embeds = _callback(weakref.ref(self), embeds)
        self._keep = how, none, items  # they must outlive the hasher
        self._lock = threading.Lock()
        h = ctypes.c_void_p()
        _lib.check("hasher_new", ctypes.byref(h), ctypes.byref(how))
        self._h = h
        self._free = weakref.finalize(self, _free, h, self._keep)
        self.scheme = scheme
        self.key_len: int = _lib.call("hasher_key_len", h)
        self.block_tokens: int = _lib.call("hasher_block", h)
        # NONE_HASH, the parent of the first block; SGLang without a namespace: zeros
        self.none: bytes = ctypes.string_at(_lib.call("hasher_none", h), self.key_len)

    def _live(self) -> ctypes.c_void_p:
        if not self._free.alive:
            raise ValueError("the hasher cannot be used after an error")
        return self._h

    def feed(self, tokens: TokenIds) -> list[bytes]:
        """Adds tokens and returns the keys of the blocks that became full. After an Error the
        hasher cannot be used again."""
        numbers, n = _token_array(tokens)
        room = n // self.block_tokens + 1
        out = ctypes.create_string_buffer(room * self.key_len)
        made = ctypes.c_size_t()
        with self._lock:
            h = self._live()
            try:
                _lib.check("hasher_feed", h, numbers, n, out, room, ctypes.byref(made))
            except _lib.Error:
                self._free()
                if self._failure:
                    raise self._failure
                raise
        return [out.raw[i * self.key_len:(i + 1) * self.key_len] for i in range(made.value)]

    def rest(self) -> bytes | None:
        """Returns the key of the last tokens, which do not fill a block yet, as the key of a
        shorter block (LMCache's save_unfull_chunk). Returns None if there are no such tokens. The
        hasher is not changed."""
        out = ctypes.create_string_buffer(self.key_len)
        with self._lock:
            try:
                _lib.check("hasher_rest", self._live(), out)
            except _lib.Error as e:
                if e.errno == errno.ENODATA:
                    return None
                raise
        return out.raw

    def text(self, key: Key) -> str:
        """Returns a key as the engine writes it in names: in hex, or for LMCache in the engine's
        process as a hexadecimal number."""
        if len(key) != self.key_len:
            raise ValueError(f"keys of {self.scheme} have {self.key_len} bytes, not {len(key)}")
        out = ctypes.create_string_buffer(_lib.TEXT_MAX)
        with self._lock:
            _lib.call("hasher_text", self._live(), bytes(key), out)
        return out.value.decode()

    def segments(self, tokens: TokenIds, separator: TokenIds) -> list[Segment]:
        """Returns the tokens between separators, each segment hashed separately, as LMCache's
        blending in the engine's process does. For the schemes lmcache-* only."""
        numbers, n = _token_array(tokens)
        parts, nparts = _token_array(separator)
        room = n + 1  # separators may overlap
        out = (_lib.Segment * room)()
        made = ctypes.c_size_t()
        with self._lock:
            _lib.check("segments", self._live(), numbers, n, parts, nparts, out, room,
                       ctypes.byref(made))
        return [Segment(s.start, s.end, bytes(s.key)) for s in out[:made.value]]


def _free(h: ctypes.c_void_p, keep: Any) -> None:
    _lib.call("hasher_free", h)


def _callback(of: weakref.ref[Hasher], embeds: Callable[[int], bytes | None]) -> Any:
    """A C callback. An exception in it ends feed(), which raises it."""
    def called(_arg: Any, block: int, sha: Any) -> int:
        try:
            value = embeds(block)
            if value is None:
                return 0
            if len(value) != 32:
                raise ValueError(f"a SHA-256 has 32 bytes, not {len(value)}")
            ctypes.memmove(sha, value, 32)
            return 1
        except BaseException as e:  # no exception can pass through C
            hasher = of()
            if hasher:
                hasher._failure = e
            return -errno.EINVAL
    return _lib.Embeds(called)


def chunk_keys(scheme: str, tokens: TokenIds, **how: Any) -> list[str]:
    """Returns the keys of all whole blocks of a prompt as text, like kvcachectl hash. `how` are
    arguments of Hasher."""
    hasher = Hasher(scheme, **how)
    return [hasher.text(key) for key in hasher.feed(tokens)]


def group_key(key: Key, group: int) -> bytes:
    """Returns vLLM's key of a KV cache group: the digest, then the group as 32 bits, big endian."""
    if not 0 <= group < 1 << 32:
        raise ValueError(f"group cannot be {group}")
    out = ctypes.create_string_buffer(len(key) + 4)
    _lib.call("group_key", bytes(key), len(key), group, out)
    return out.raw


def key_int(key: Key) -> int:
    """Returns vLLM's integer form of a key: the last 8 bytes, big endian."""
    if len(key) < 8:
        raise ValueError(f"a key has at least 8 bytes, not {len(key)}")
    number: int = _lib.call("key_int", bytes(key), len(key))
    return number


def example_folder(tokens: TokenIds, block_tokens: int = 16,
                   mm_hashes: Sequence[str] = ()) -> str:
    """Returns the folder that vLLM's ExampleConnector uses. Only whole blocks are included."""
    numbers, n = _token_array(tokens)
    out = ctypes.create_string_buffer(33)
    _lib.check("example_folder", numbers, n, block_tokens, _lib.strings([*mm_hashes], "mm_hashes"),
               len(mm_hashes), out)
    return out.value.decode()


def blake3(data: Key) -> bytes:
    """Returns the BLAKE3 hash of the data, 32 bytes."""
    out = ctypes.create_string_buffer(32)
    _lib.call("blake3", bytes(data), len(data), out)
    return out.raw


def fingerprints(tokens: TokenIds, k: int) -> list[int]:
    """Returns the rolling sum of each window of k tokens, as LMCache's multiprocess server does for
    blending. Raises Error with EINVAL if k is 0 or more than the number of tokens."""
    numbers, n = _token_array(tokens)
    out = (ctypes.c_uint64 * max(n - k + 1, 1))()
    _lib.check("fingerprints", numbers, n, k, out)
    return list(out)


# ---- Names on disk -------------------------------------------------------------------------------


def namings() -> list[str]:
    """Returns the names of all namings: "lmcache-fs", "sglang-file", "vllm-fs", ..."""
    return _lib.names("naming")


@dataclasses.dataclass(frozen=True)
class Name:
    """The parts of a file's name. A naming ignores the fields that it does not use. A size of 0
    means 1."""
    model: str = ""
    key: str = ""  # as Hasher.text() writes it
    # LMCache's CacheEngineKey
    world_size: int = 0
    worker: int = 0
    dtype: str = ""  # half, bfloat16, float, fp8_e4m3fn; "": bfloat16
    has_layer: bool = False
    layer: int = 0
    tags: str = ""  # "tag%value" joined by "@"
    # LMCache's ObjectKey
    kv_rank: int = 0  # world_size << 24 | global_rank << 16 | local_world_size << 8 | local_rank
    group: int = 0  # object group; vLLM: KV cache group
    salt: str = ""
    # SGLang
    pool: str = ""  # "": the KV pool
    mla: bool = False
    tp_rank: int = 0
    tp_size: int = 0
    pp_rank: int = 0
    pp_size: int = 0
    cp_rank: int = 0
    cp_size: int = 0
    dcp_rank: int = 0
    dcp_size: int = 0
    page: int = 0
    # vLLM
    config: str = ""
    rank: int = 0


def _struct(name: Name) -> _lib.NameStruct:
    struct = _lib.NameStruct()
    for field in dataclasses.fields(name):
        value = getattr(name, field.name)
        if isinstance(value, str):
            value = _lib.text(value, field.name)
            room = getattr(_lib.NameStruct, field.name).size - 1  # with its NUL
            if len(value) > room:
                raise ValueError(f"{field.name} has {len(value)} bytes: at most {room}")
        elif not 0 <= value < 1 << 32:  # ctypes would truncate it
            raise ValueError(f"{field.name} cannot be {value}")
        setattr(struct, field.name, value)
    return struct


def build(naming: str, name: Name) -> str:
    """Returns the path that an engine uses for a name, relative to the engine's folder. Raises
    Error with EINVAL if the naming cannot express a field, or with ENAMETOOLONG."""
    out = ctypes.create_string_buffer(_lib.PATH_MAX)
    _lib.check("name_build", _lib.find("naming", naming), ctypes.byref(_struct(name)), out)
    return os.fsdecode(out.value)


def parse(naming: str, path: str) -> Name:
    """Parses a relative path. Raises Error with EINVAL if the path does not have the form of the
    naming."""
    struct = _lib.NameStruct()
    _lib.check("name_parse", _lib.find("naming", naming), _lib.path(path), ctypes.byref(struct))
    said = {f.name: getattr(struct, f.name) for f in dataclasses.fields(Name)}
    return Name(**{n: os.fsdecode(v) if isinstance(v, bytes) else v for n, v in said.items()})


def unified_digest(model: str, dtype: str, page_size: int, *, total_kv_heads: int = 0,
                   head_group: int = 0, layer_partition: int = 0, replicated: bool = False,
                   object_layout: str | None = None) -> str:
    """The digest of a namespace of SGLang's unified key scheme: the facts that all deployments
    which share the objects must agree on. replicated: MLA, without heads. layer_partition: layers
    of an object; 0: those of the rank. Error with EINVAL: facts that contradict each other."""
    out = ctypes.create_string_buffer(_lib.UNIFIED_DIGEST)
    struct = _lib.UnifiedStruct(_lib.text(model, "the model"), _lib.text(dtype, "the dtype"),
                                page_size, replicated, total_kv_heads, layer_partition, head_group,
                                _lib.text(object_layout, "the layout"))
    _lib.check("unified_digest", ctypes.byref(struct), out)
    return out.value.decode()


def unified_key(page: str, digest: str, first: int, end: int, head: int | None = None) -> str:
    """The key of the object with layers [first, end) and a head group of a page, whose hash is
    given in hex; head None: replicated KV. Error with EINVAL: no layers, or too long a key."""
    out = ctypes.create_string_buffer(_lib.UNIFIED_KEY_MAX)
    _lib.check("unified_key", _lib.text(page, "the page"), _lib.text(digest, "the digest"), first,
               end, -1 if head is None else head, out)
    return os.fsdecode(out.value)
