# SPDX-License-Identifier: Apache-2.0
# ways: none
"""kvcachectl codec prints for each codec the ratio, the error and the speed on a sample of a file.
The lossy codes in the order of their names give smaller copies with larger errors. The command
warns of a wrong layout: exchanged keys and values, exchanged axes, and a wrong head size. Without a
layout only lossless codecs are tried; the layout can be an attribute of a folder above the file."""
import json, os, random, struct
from kvtest import *

CTL = binary("kvcachectl")
L, T, H, D = 2, 128, 2, 64
r = random.Random(7)
mean = [[(8 if d % 16 == 5 else 0.3) * r.gauss(0, 1) for d in range(D)] for h in range(H)]


def bf16(f):
    return struct.pack("<f", f)[2:]


def slab(keys):
    """The keys or the values of a layer. Only keys have means."""
    return b"".join(bf16(r.gauss(mean[h][d] if keys else 0, 1))
                    for t in range(T) for h in range(H) for d in range(D))


os.mkdir(f"{TMP}/model")
right, swapped = f"{TMP}/model/right", f"{TMP}/model/swapped"
slabs = [(slab(True), slab(False)) for _ in range(L)]
with open(right, "wb") as f:
    f.write(b"".join(k + v for k, v in slabs))
with open(swapped, "wb") as f:
    f.write(b"".join(v + k for k, v in slabs))
with open(f"{TMP}/model/header", "wb") as f:
    f.write(bytes(28) + b"".join(k + v for k, v in slabs))


def codec(path, layout=None):
    words = ["--layout", layout] if layout else []
    text = run(CTL, "codec", *words, path, ok=True).stdout
    j = json.loads(run(CTL, "codec", "--json", *words, path, ok=True).stdout)
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    for c in j["codecs"]:
        assert c["encode_ns"] > 0 and c["decode_ns"] > 0, c
        assert f"{c['bytes'] / c['stored_bytes']:.2f}" in lines[c["codec"]], (c, text)
    assert ("Warning" in text) == (j["warning"] is not None), (text, j)
    assert j["warning"] is None or j["warning"] in text, (text, j)
    return j, {c["codec"]: c for c in j["codecs"]}


LAYOUT = f"bf16 l{L} k2 t{T} h{H} d{D}"
j, c = codec(right, LAYOUT)
assert j["layout"] == LAYOUT and j["blocks"] == 1 and j["warning"] is None, j
assert list(c) == ["zstd", "bf16+zstd", "kvq-high", "kvq-mid", "kvq-low", "fp8"], list(c)
for lossless in ("zstd", "bf16+zstd"):
    assert c[lossless]["lossy_bytes"] == c[lossless]["error"] == 0, c[lossless]
size, error = os.path.getsize(right), 0
for name in ("kvq-high", "kvq-mid", "kvq-low"):
    assert c[name]["lossy_bytes"] == c[name]["bytes"] == os.path.getsize(right), c[name]
    assert c[name]["stored_bytes"] < size and c[name]["error"] > error, (c[name], size, error)
    assert c[name]["worst_error"] >= c[name]["error"] * 0.999, c[name]
    size, error = c[name]["stored_bytes"], c[name]["error"]
assert c["kvq-high"]["stored_bytes"] < c["fp8"]["stored_bytes"] < c["bf16+zstd"]["stored_bytes"], c

assert "keys and values seem to be exchanged" in codec(swapped, LAYOUT)[0]["warning"]
# two heads of 64 in rows of 128, described as rows of another size
warning = codec(right, f"bf16 l{L} k2 h{H} t{T} d{D}")[0]["warning"]
assert "axes t and h" in warning and f"'bf16 l{L} k2 t{T} h{H} d{D}'" in warning, warning
assert codec(f"{TMP}/model/header", LAYOUT + " @28")[0]["warning"] is None
one = f"{TMP}/model/one"  # the keys and values of a token side by side
with open(one, "wb") as f:
    f.write(b"".join(half[t * H * D * 2:(t + 1) * H * D * 2]
                     for k, v in slabs for t in range(T) for half in (k, v)))
assert codec(one, f"bf16 t* k2 h{H} d{D}")[0]["warning"] is None
warning = codec(one, f"bf16 t* k2 h{H} d{D // 2}")[0]["warning"]
assert f"'bf16 t* k2 h{H} d{D}'" in warning, warning

# data that is not what the layout says is coded without loss
with open(f"{TMP}/model/random", "wb") as f:
    f.write(r.randbytes(300000))
assert all(x["lossy_bytes"] == 0 for x in codec(f"{TMP}/model/random", "bf16 t* d64")[1].values())

j, c = codec(right)
assert j["layout"] is None and list(c) == ["zstd", "bf16+zstd"], j
try:
    os.setxattr(f"{TMP}/model", "user.kvcachefs.layout", LAYOUT.encode())
except OSError as e:
    print(f"no attributes in {TMP}: {e}")
else:
    j, c = codec(right)
    assert j["layout"] == LAYOUT and "kvq-mid" in c, j
    p = run(CTL, "codec", f"{TMP}/model/random")
    assert p.returncode == 1 and "does not have the layout" in p.stdout, p
