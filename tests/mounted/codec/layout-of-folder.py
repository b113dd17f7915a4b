# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The layout of the nearest folder above a file decides how its copy is coded, also after a rename
of the folder and after a remount. @safetensors finds the first element after the header of each
file, and the header is stored without loss. The Python package describes the caches of engines, and
sets the layout on the folder of a connector's files unless it has one."""
import json, logging, os, struct, types
import kvdata
from kvdata import LAYOUT
from kvtest import *
import package  # first, because it makes kvcachefs importable
from kvcachefs import _layouts

N = MiB
NAME = "user.kvcachefs.layout"
s = Store(cpu="64M", size="512M", options="compress=kvq-mid,settle=0").mount()


def tell(folder, layout):
    _layouts.tell(s.mnt, folder, layout, logging.getLogger()).join()
    return os.getxattr(f"{s.mnt}/{folder}", NAME).decode()


def codec(path, seed=1):
    s.write(path, kvdata.kv(seed, N))
    s.settle()
    return s.attr(path, "codec")


# no folder has a layout, or only one beside or below the file
os.makedirs(f"{s.mnt}/m/beside")
assert tell("m/beside", LAYOUT) == LAYOUT
assert codec("m/none/c/l") == "disk=bf16+zstd"
assert codec("m/beside/c/d/l") == "disk=kvq-mid"
assert codec("m/l") == "disk=bf16+zstd"
assert s.stats()["lossy_no_layout"] == 2

# the nearest folder decides, although another layout fits, too, or does not
assert tell("m/deep/deeper", "bf16 l3 k2 t16 h2 d64") == "bf16 l3 k2 t16 h2 d64"
os.setxattr(f"{s.mnt}/m", NAME, LAYOUT.encode())
assert codec("m/other/l") == "disk=kvq-mid"
assert codec("m/deep/l") == "disk=kvq-mid"
assert codec("m/deep/deeper/c/l") == "disk=bf16+zstd" and s.stats()["lossy_no_fit"] == 1
assert "does not fit the layout bf16 l3 k2 t16 h2 d64" in s.log(), s.log()
assert tell("m/deep/deeper", LAYOUT) == "bf16 l3 k2 t16 h2 d64"  # the folder keeps its own layout
os.rename(f"{s.mnt}/m/beside", f"{s.mnt}/renamed")
assert codec("renamed/c/d/new") == "disk=kvq-mid"
os.removexattr(f"{s.mnt}/m/deep/deeper", NAME)
assert codec("m/deep/deeper/c/l2") == "disk=kvq-mid"
s.umount()
s.mount()
assert os.getxattr(f"{s.mnt}/renamed", NAME).decode() == LAYOUT
assert codec("renamed/c/d/newer") == "disk=kvq-mid"

# headers of several lengths; the last two files have none, and lose nothing
def safetensors(size, *names):
    part = size // len(names)
    text = json.dumps({n: {"dtype": "BF16", "shape": [part // 128, 64],
                           "data_offsets": [i * part, (i + 1) * part]}
                       for i, n in enumerate(names)})
    text += " " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text.encode()


layout = f"{LAYOUT} @safetensors"
assert tell("st", layout) == layout
heads = {f"st/c{i}/l.safetensors": safetensors(N, *(f"kv{n}" for n in range(i)))
         for i in (1, 4, 64)}
heads["st/short"], heads["st/long"] = b"\1" + bytes(7), b"\xff" * 8
for path, head in heads.items():
    s.write(path, head + kvdata.kv(5, N))
s.settle()
for path, head in heads.items():
    assert s.attr(path, "codec") == f"disk={'kvq-mid' if len(head) > 8 else 'bf16+zstd'}", path
j = json.loads(run(binary("kvcachectl"), "codec", "--json", f"{s.mnt}/st/c4/l.safetensors",
                   ok=True).stdout)
assert j["layout"] == f"{LAYOUT} @{len(heads['st/c4/l.safetensors'])}" and not j["warning"], j
p = run(binary("kvcachectl"), "codec", f"{s.mnt}/st/short")
assert p.returncode == 1 and f"does not have the layout '{layout}'" in p.stdout, p
s.umount()
s.drop_pool()
s.mount()
for path, head in heads.items():
    got, want = s.read(path), head + kvdata.kv(5, N)
    assert got[:len(head)] == head and len(got) == len(want), path
    if len(head) == 8:
        assert got == want, path
    else:
        assert got != want and kvdata.written(got[len(head):]) == kvdata.kv(5, N), path

# a folder that cannot have a layout: a message, no exception
said = []
logger = types.SimpleNamespace(warning=lambda text, *more: said.append(text % more))
_layouts.tell(s.mnt, "m/l", LAYOUT, logger).join()
_layouts.tell(s.mnt, "m", "bf16", logger).join()
assert len(said) == 1 and f"the layout '{LAYOUT}' cannot be set on {s.mnt}/m/l" in said[0], said
_layouts.tell(s.mnt, "wrong", "bf16", logger).join()
assert len(said) == 2 and "Invalid argument" in said[1], said

# caches in memory
assert _layouts.axes([("h", 8, 64), ("t", 16, 512), ("k", 2, 8192), ("d", 64, 1)]) == \
    [("k", 2), ("t", 16), ("h", 8), ("d", 64)]
assert _layouts.axes([("h", 8, 2048), ("t", 16, 128), ("k", 2, 64), ("d", 64, 1)]) == \
    [("h", 8), ("t", 16), ("k", 2), ("d", 64)]
assert _layouts.axes([("h", 1, 7), ("t", 16, 64), ("d", 64, 1)]) == [("t", 16), ("d", 64)]
assert _layouts.axes([("t", 16, 65), ("d", 64, 1)]) is None  # gaps
assert _layouts.axes([("t", 16, 64), ("d", 64, 2)]) is None
shape = [("l", 4), ("p", 1), ("t", 16), ("h", 2), ("k", 2), ("d", 64)]
size = 4 * 16 * 2 * 2 * 64 * 2
assert _layouts.text("torch.bfloat16", shape, size) == "bf16 l4 t16 h2 k2 d64"
assert _layouts.text("torch.float16", shape, size) == "fp16 l4 t16 h2 k2 d64"
assert _layouts.text("torch.uint8", shape, size) is None
assert _layouts.text("torch.bfloat16", shape, size + 2) is None  # padding
assert _layouts.text("torch.bfloat16", [("h", 2), ("t", 1), ("d", 64)], 256) == "bf16 t1 h2 d64"
assert not s.stats()["corrupt"]
s.umount()
s.fsck()
