#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""example_layers.py MOUNT: stores a chunk of a paged KV cache in a mount, a file a layer under the
chunk's own key, gives its blocks to something else, and loads it again layer by layer: what a layer
computes can begin while the next ones are still on their way. With torch where that is installed,
else with memory of its own."""
import asyncio
import ctypes
import math
import sys

import kvcachefs

LAYERS, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE = 8, 64, 16, 8, 64


class Memory:
    """What kvcachefs takes for a tensor, over a bytearray: dense, in host memory."""
    device = "cpu"

    def __init__(self, *shape, size=2):
        self.shape, self._size = shape, size
        self.data = bytearray(math.prod(shape) * size)

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.data))

    def stride(self):
        return tuple(math.prod(self.shape[i + 1:]) for i in range(len(self.shape)))

    def element_size(self):
        return self._size

    def fill(self, seed):
        pattern = bytes((i * 7 + seed * 31) % 251 for i in range(251))
        self.data[:] = (pattern * (len(self.data) // 251 + 1))[:len(self.data)]


def make_cache():
    """[K and V, block, slot, head, element] a layer, as FlashAttention has it."""
    shape = (2, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE)
    try:
        import torch
        layers = [torch.randn(*shape).to(torch.bfloat16) for _ in range(LAYERS)]
    except ImportError:
        layers = [Memory(*shape) for _ in range(LAYERS)]
        for seed, layer in enumerate(layers):
            layer.fill(seed)
    return kvcachefs.Paged(layers, "NL_X_TWO_NB_BS_NH_HS", block_size=BLOCK_SIZE, heads=HEADS)


async def main(mount):
    cache = make_cache()
    prompt = [i * 31 + 5 for i in range(256)]
    key = kvcachefs.chunk_keys("lmcache-mp-blake3", prompt)[0]
    # the chunk's blocks are anywhere in the cache
    tokens = kvcachefs.Tokens(blocks=[(b * 23 + 7) % BLOCKS for b in range(256 // BLOCK_SIZE)])
    items = kvcachefs.layerwise(cache, lambda layer: f"example/{key}/layer_{layer}", tokens)
    before = cache.gather(tokens)

    await kvcachefs.store(mount, cache, items)
    cache.scatter(tokens, bytes(len(before)))  # the engine reuses the blocks

    async with kvcachefs.load(mount, cache, items) as load:
        async for layer in load.layers():
            print(f"layer {layer} is there")  # and its attention can be computed
    same = cache.gather(tokens) == before
    print(f"{LAYERS} layers of {len(prompt)} tokens stored under example/{key} and loaded again: "
          f"{'the same' if same else 'DIFFERENT'}")
    return not same


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: example_layers.py MOUNT")
    try:
        sys.exit(asyncio.run(main(sys.argv[1])))
    except kvcachefs.Error as e:
        sys.exit(f"example_layers: {e.strerror}")
