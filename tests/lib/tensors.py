# SPDX-License-Identifier: Apache-2.0
"""Shared code of the Python package's cases: tensors without torch, and calls that must fail."""
import contextlib, errno, os
from kvtest import wait_for
import package  # first, because it makes kvcachefs importable
import kvcachefs as kv
from kvcachefs.examples.layers import Memory

NB, BS, NH, HS, NL = 12, 4, 3, 8, 5
LETTERS = {"B": NB, "S": BS, "H": NH, "E": HS, "C": 2 * HS, "K": 2, "L": NL, "T": NB * BS, "1": 1}
BLOCKS = kv.Tokens(blocks=[7, 2, 9])
SLOTS = kv.Tokens(slots=[30, 31, -1, 1, 47], skip=1)


def wrong(number, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kv.Error as e:
        assert e.errno == number and e.strerror, (e, number)
        return e
    raise AssertionError(f"no error where {errno.errorcode[number]} was expected")


def refused(kind, word, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as e:
        assert word in str(e), (word, e)
        return
    raise AssertionError(f"no {kind.__name__} about {word}")


def evict(s, *paths):
    s.settle()
    for p in paths:
        os.setxattr(f"{s.mnt}/{p}", "user.kvcachefs.demote", b"cpu")
    wait_for(lambda: all(s.attr(p, "state") == "lower" for p in paths))


def held():
    """Leases of this process. Other threads open and close descriptors at the same time."""
    n = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            n += "/lease" in os.readlink(f"/proc/self/fd/{fd}")
    return n


def temporaries(s):
    return [f for _, _, files in os.walk(s.mnt) for f in files if ".tmp." in f]


class View:
    """Another tensor's memory, with other strides."""
    device = "cpu"

    def __init__(self, of, shape, strides, at=0):
        self.of, self.shape, self.strides, self.at = of, shape, strides, at

    def data_ptr(self):
        return self.of.data_ptr() + self.at

    def stride(self):
        return self.strides

    def element_size(self):
        return self.of.element_size()


WORDS = {"NB": "B", "NL": "L", "TWO": "K", "BS": "S", "NH": "H", "HS": "E", "CS": "C", "NBBS": "T",
         "ONE": "1", "NP": "P", "BSV": "S", "BSS": "E"}


def made(name, size=2):
    """Tensors, and a cache of them, with the dimensions that the name of the format lists."""
    *pointers, dims = ["".join(map(WORDS.get, part.split("_"))) for part in name.split("_X_")]
    n = {"": 1, "L": NL, "KL": 2 * NL, "LK": 2 * NL, "LP": 2 * NL}["".join(pointers)]
    tensors = [Memory(*[LETTERS[d] for d in dims], size=size) for _ in range(n)]
    for seed, t in enumerate(tensors):
        t.fill(seed)
    planes = pointers == ["L", "P"]
    nested = [tensors[i:i + 2] for i in range(0, n, 2)] if planes else tensors
    cache = kv.Paged(nested, name, block_size=BS)
    assert (cache.blocks, cache.block_size, cache.layers, cache.struct.heads, cache.struct.elem,
            cache.struct.head_size, cache.struct.planes) == \
        (NB, BS, NL, NH if "H" in dims else 1, size, HS * (2 if planes else 1), 2 * planes), name
    return tensors, cache
