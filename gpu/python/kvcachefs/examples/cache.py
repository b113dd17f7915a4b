# SPDX-License-Identifier: Apache-2.0
"""python3 -m kvcachefs.examples.cache MOUNT

Stores the keys and values of three chunks of a prompt, asks how much of a longer prompt is cached,
loads the chunks again and compares them. Needs numpy."""
import importlib
import sys

import kvcachefs

CHUNK, LAYERS, HEADS, HEAD_SIZE = 256, 4, 8, 64


def main(mount: str) -> int:
    numpy = importlib.import_module("numpy")
    cache = kvcachefs.Cache(mount, "example-model")
    keys = kvcachefs.chunk_keys("lmcache-mp-blake3", range(5 * CHUNK), block_tokens=CHUNK)
    stored = [{kind: numpy.random.rand(LAYERS, CHUNK, HEADS, HEAD_SIZE).astype("float16")
               for kind in ("keys", "values")} for _ in range(3)]
    for key, chunk in zip(keys, stored):
        cache.put(key, chunk)
    cached = cache.prefix(keys)
    print(f"{cached} of {len(keys)} chunks are cached")
    same = all((cache.get(key)[kind] == array).all()
               for key, chunk in zip(keys, stored) for kind, array in chunk.items())
    print(f"loaded again: {'the same' if same else 'DIFFERENT'}")
    try:
        cache.get(keys[4])
    except FileNotFoundError:
        print("the last chunk is absent and must be computed")
    cache.delete(keys[2])
    print(f"after a delete, {cache.prefix(keys)} chunks are cached")
    status = cache.status()
    print(f"the pool has {status.counters['pool_bytes']} bytes, the model "
          f"{status.files} files with {status.bytes} bytes")
    return not (same and cached == 3)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m kvcachefs.examples.cache MOUNT")
    try:
        sys.exit(main(sys.argv[1]))
    except kvcachefs.Error as e:
        sys.exit(f"cache: {e.strerror}")
