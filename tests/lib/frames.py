# SPDX-License-Identifier: Apache-2.0
"""Makes frame headers as an attacker who can write bytes could: valid as in
kvcachefs-format(5), except for the proofs, which need a key."""
import ctypes, struct

PAGE = 4096


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_128bits.restype = Hash
xxhash.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def sum128(data):
    h = xxhash.XXH3_128bits(bytes(data), len(data))
    return struct.pack(">QQ", h.high, h.low)


def name_of(path):
    """The name of this path's copy in a shared tier."""
    return sum128(path.encode()).hex()


# name: offset and format
FIELDS = {"magic": (0, "8s"), "version": (8, "<I"), "flags": (12, "<I"), "store": (16, "16s"),
          "ino": (32, "<Q"), "gen": (40, "<Q"), "size": (48, "<Q"), "raw_len": (56, "<Q"),
          "stored_len": (64, "<Q"), "key_id": (76, "<I"), "raw_sum": (80, "16s"),
          "stored_sum": (96, "16s"), "proof": (384, "16s"), "mode": (512, "<I"), "uid": (516, "<I"),
          "gid": (520, "<I"), "name_proof": (3616, "16s")}


def get(page, field):
    at, form = FIELDS[field]
    return struct.unpack_from(form, page, at)[0]


def path_of(page):
    return bytes(page[544:544 + struct.unpack_from("<I", page, 524)[0]]).decode()


def header(page=None, path=None, **fields):
    """A header page with correct checksums, made from another page or from zeros."""
    page = bytearray(page or bytes(PAGE))
    for field, value in fields.items():
        at, form = FIELDS[field]
        struct.pack_into(form, page, at, value)
    if path is not None:
        page[544:544 + 3072] = path.encode().ljust(3072, b"\0")
        struct.pack_into("<I", page, 524, len(path.encode()))
    page[496:512] = sum128(page[:496])
    page[4080:] = sum128(page[512:4080])
    return bytes(page)


def made_up(uuid, path, payload, **fields):
    """A complete frame of a file, neither compressed nor encrypted."""
    s = sum128(payload)
    all_fields = dict(magic=b"KVCFRAME", version=2, store=uuid, ino=1 << 40, gen=1,
                      size=len(payload), raw_len=len(payload), stored_len=len(payload), raw_sum=s,
                      stored_sum=s, mode=0o100644)
    all_fields.update(fields)
    return header(path=path, **all_fields) + payload.ljust(-len(payload) % PAGE + len(payload),
                                                          b"\0")
