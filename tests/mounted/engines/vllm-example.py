# SPDX-License-Identifier: Apache-2.0
# ways: fast plain passthrough
"""vLLM's ExampleConnector: a folder for each chunk, a safetensors file for each layer
written directly to its name, loads by mmap. The existence of the folder is the hit test."""
import json, os, struct
from engines import *

s = store()
SIZE, LAYERS = 512 * KiB, 8
folder = lambda c: f"{s.mnt}/store/{c:032x}"
layer = lambda c, l: f"{folder(c)}/model.layers.{l}.self_attn.attn.safetensors"
head = json.dumps({"kv_cache": {"dtype": "BF16", "shape": [SIZE // 2],
                                "data_offsets": [0, SIZE]}}).encode()
for c in range(6):
    assert not os.path.exists(folder(c))
    os.makedirs(folder(c), exist_ok=True)
    for l in range(LAYERS):
        with open(layer(c, l), "wb") as f:
            f.write(struct.pack("<Q", len(head)))
            f.write(head)
            f.write(blob((c, l).__repr__(), SIZE))


def check():
    for c in range(6):
        assert os.path.exists(folder(c)) and len(os.listdir(folder(c))) == LAYERS
        for l in range(LAYERS):
            with open(layer(c, l), "rb") as f, mmap.mmap(f.fileno(), 0,
                                                         access=mmap.ACCESS_READ) as m:
                n = struct.unpack("<Q", m[:8])[0]
                assert m[8 + n:] == blob((c, l).__repr__(), SIZE)


s.settle()
assert s.attr("store/" + "0" * 32, "tiers") == "cpu,disk"
through_the_tiers(s, check)
