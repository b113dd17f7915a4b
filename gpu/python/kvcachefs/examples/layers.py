#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python3 -m kvcachefs.examples.layers MOUNT

Stores two chunks of a paged KV cache in a mount, one file for each layer under the chunk's own key,
and reuses the blocks of a layer as soon as the layer is copied out. Then asks how much of a longer
prompt is cached, and loads these chunks layer by layer, both at the same time: the computation of a
layer can begin while the next layers are still being loaded. Uses torch tensors if torch is
installed, otherwise its own memory."""
import asyncio
import ctypes
import importlib
import math
import sys
from typing import Any

import kvcachefs

LAYERS, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE, CHUNK = 8, 64, 16, 8, 64, 256


class Memory:
    """The interface of a tensor for kvcachefs, over a bytearray: dense, in host memory."""
    device = "cpu"

    def __init__(self, *shape: int, size: int = 2) -> None:
        self.shape, self._size = shape, size
        self.data = bytearray(math.prod(shape) * size)

    def data_ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.data))

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[i + 1:]) for i in range(len(self.shape)))

    def element_size(self) -> int:
        return self._size

    def fill(self, seed: int) -> None:
        pattern = bytes((i * 7 + seed * 31) % 251 for i in range(251))
        self.data[:] = (pattern * (len(self.data) // 251 + 1))[:len(self.data)]


def make_cache() -> kvcachefs.Paged:
    """A tensor [K and V, block, slot, head, element] for each layer, as in FlashAttention."""
    shape = (2, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE)
    layers: list[Any]
    try:
        torch = importlib.import_module("torch")
        layers = [torch.randn(*shape).to(torch.bfloat16) for _ in range(LAYERS)]
    except ImportError:
        layers = [Memory(*shape) for _ in range(LAYERS)]
        for seed, layer in enumerate(layers):
            layer.fill(seed)
    return kvcachefs.Paged(layers, "NL_X_TWO_NB_BS_NH_HS", block_size=BLOCK_SIZE, heads=HEADS)


def wipe(cache: kvcachefs.Paged, tokens: kvcachefs.Tokens, layer: int) -> None:
    """The engine reuses the blocks."""
    cache.scatter(tokens, bytes(cache.file_size(tokens, 1)), layer, 1)


async def main(mount: str) -> int:
    cache = make_cache()
    prompt = [i * 31 + 5 for i in range(3 * CHUNK)]
    keys = kvcachefs.chunk_keys("lmcache-mp-blake3", prompt, block_tokens=CHUNK)
    # the chunks' blocks are anywhere in the cache
    blocks = [b * 23 % BLOCKS for b in range(2 * CHUNK // BLOCK_SIZE)]
    chunks = [kvcachefs.Tokens(blocks=blocks[:len(blocks) // 2]),
              kvcachefs.Tokens(blocks=blocks[len(blocks) // 2:])]
    before = [cache.gather(tokens) for tokens in chunks]

    def items(n: int) -> list[kvcachefs.Item]:
        return kvcachefs.layerwise(cache, lambda layer: f"example/{keys[n]}/layer_{layer}",
                                   chunks[n])

    stores = [kvcachefs.store(mount, cache, items(n)) for n in range(2)]
    for layer in range(LAYERS):
        for tokens, store in zip(chunks, stores):
            await store.layer(layer)
            wipe(cache, tokens, layer)
    await asyncio.gather(*stores)  # the files are there

    cached = kvcachefs.prefix(mount, [f"example/{key}" for key in keys])
    print(f"{cached} of {len(keys)} chunks are cached")
    loads = [kvcachefs.load(mount, cache, items(n)) for n in range(cached)]
    for layer in range(LAYERS):
        for load in loads:
            await load.layer(layer)
        print(f"layer {layer} is there")  # and its attention can be computed
    await asyncio.gather(*loads)
    same = [cache.gather(tokens) for tokens in chunks] == before
    print(f"{LAYERS} layers of {cached * CHUNK} tokens stored under example/{keys[0]} and "
          f"{keys[1]} and loaded again: {'the same' if same else 'DIFFERENT'}")
    return not same


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m kvcachefs.examples.layers MOUNT")
    try:
        sys.exit(asyncio.run(main(sys.argv[1])))
    except kvcachefs.Error as e:
        sys.exit(f"layers: {e.strerror}")
