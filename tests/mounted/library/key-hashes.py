# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""kvcachectl hash matches Python's pickle and hashlib, and XXH3 of libxxhash: each scheme with both
encodings, at many block lengths, with tokens of every width, and beyond the frame size of a long
pickle. The case writes CBOR itself, and with cbor2 if that is installed."""
import ctypes, errno, hashlib, pickle, random, struct
from kvtest import TMP, binary, run

try:
    import cbor2
except ImportError:
    cbor2 = None
    print("cbor2 is not installed: CBOR is compared only with the case's own encoder")


class Sum(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


lib = ctypes.CDLL("libxxhash.so.0")
lib.XXH3_128bits.restype = Sum
lib.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh(data):
    s = lib.XXH3_128bits(data, len(data))
    return struct.pack(">QQ", s.high, s.low)


def cbor(v):
    def head(major, n):
        for code, form in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
            if n < 24:
                return bytes([major << 5 | n])
            if n < 1 << 8 * struct.calcsize(form):
                return bytes([major << 5 | code]) + struct.pack(form, n)

    if v is None:
        return b"\xf6"
    if isinstance(v, int):
        return head(0, v)
    if isinstance(v, bytes):
        return head(2, len(v)) + v
    if isinstance(v, str):
        return head(3, len(v.encode())) + v.encode()
    return head(4, len(v)) + b"".join(map(cbor, v))


def canonical(v):
    data = cbor(v)
    assert cbor2 is None or cbor2.dumps(v, canonical=True) == data
    return data


def sha(data):
    return hashlib.sha256(data).digest()


HASHES = {
    "sha256": lambda v: sha(pickle.dumps(v, protocol=5)),
    "sha256_cbor": lambda v: sha(canonical(v)),
    "xxhash": lambda v: xxh(pickle.dumps(v, protocol=5)),
    "xxhash_cbor": lambda v: xxh(canonical(v)),
}


def want(scheme, seed, block, tokens):
    engine, name = scheme.rsplit("-", 1)
    fn = HASHES[name]
    fold = (lambda d: int.from_bytes(d[:8], "big")) if engine == "lmcache" else (lambda d: d)
    parent, keys = fold(fn(seed)), []
    for i in range(0, len(tokens) - block + 1, block):
        parent = fold(fn((parent, tuple(tokens[i : i + block]), () if engine == "lmcache"
                          else None)))
        keys.append(f"{parent:x}" if engine == "lmcache" else parent.hex())
    return keys


def check(engine, name, block, tokens, seed):
    scheme = f"{engine}-{name}"
    with open(f"{TMP}/tokens", "w") as f:
        f.write(" ".join(map(str, tokens)))
    p = run(binary("kvcachectl"), "hash", f"{scheme}:{block}", f"{TMP}/tokens",
            env={"PYTHONHASHSEED": seed}, ok=True)
    assert p.stdout.split() == want(scheme, seed, block, tokens), (scheme, block, seed)


seed = random.randrange(1 << 32)
print("seed", seed)
r = random.Random(seed)
WIDTHS = [(0, 255), (256, 65535), (65536, 2**31 - 1), (2**31, 2**32 - 1), (0, 2**32 - 1)]
EDGES = [0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]
for engine in ("vllm", "lmcache", "lmcache-mp"):
    for name in HASHES:
        for block in (1, 2, 3, 4, 5, 10, 16, 23, 24, 64, 255, 256, 257):
            check(engine, name, block, EDGES
                  + [r.randint(*r.choice(WIDTHS)) for _ in range(2 * block)], str(block))
        for text in ("", "0", "random", "s" * 255, "s" * 256, "s" * 5000, "sälz"):
            check(engine, name, 4, EDGES[:8], text)
# lengths at which the first frame of a pickle, or several, are exactly full; and a tail below the
# minimum of a frame
for tokens in (range(32735, 32765), range(65520, 65530), (100000,)):
    for n in tokens:
        check("vllm", "sha256", n, [r.randint(0, 255)] * n, "0")
for lo, hi in WIDTHS[1:]:
    for n in (13098, 13099, 13100, 13101, 13102, 21830, 21831, 21832, 21833, 21834, 50000):
        check("lmcache", "sha256", n, [r.randint(lo, hi) for _ in range(n)], "0")
        check("vllm", "xxhash", n, [r.randint(lo, hi) for _ in range(n)], "0")
# as paths
with open(f"{TMP}/tokens", "w") as f:
    f.write(" ".join(map(str, range(256))))


def path(*words, seed="0"):
    return run(binary("kvcachectl"), "hash", *words, env={"PYTHONHASHSEED": seed})


for words, name in (
    (("lmcache-fs", "lmcache-sha256_cbor", "{}", "meta-llama/Llama-3.1-8B", "world_size=2",
      "worker=1"),
     "meta-llama-SEP-Llama-3.1-8B@2@1@b8a960cfcc69e7a5@bfloat16.data"),
    (("lmcache-disk", "lmcache-sha256_cbor", "{}", "org/m", "dtype=half", "layer=3"),
     "org-m@1@0@b8a960cfcc69e7a5@half@3.pt"),
    (("lmcache-l2", "lmcache-mp-blake3", "{}", "m", "kv_rank=0x01000100", "salt=me"),
     "m@0x01000100@0@084547b6c40ed5b05ba8cd0305db5bf74d5617673948d9ed193ab7d6cbc484d4@me.data"),
    (("sglang-file", "sglang:256", "{}", "Qwen/Qwen3-8B", "tp_rank=1", "tp_size=4"),
     hashlib.sha256(struct.pack("<256I", *range(256))).hexdigest() + "_Qwen-Qwen3-8B_1_4.bin"),
):
    p = path("--as", *(w.format(f"{TMP}/tokens") for w in words))
    assert p.returncode == 0 and p.stdout.strip() == name, (words, p.stdout)
first = want("vllm-sha256", "0", 16, range(256))
p = path("--as", "vllm-fs", "vllm-sha256", f"{TMP}/tokens", "Qwen/Qwen3-8B", "config=1a2b3c4d5e6f",
         "rank=3", "group=1")
assert p.stdout.split() == [f"Qwen_Qwen3-8B_1a2b3c4d5e6f_r3/{k[:3]}/{k[3:5]}_g1/{k}.bin"
                            for k in first], p.stdout
for bad in (("--as", "nobody", "sglang", f"{TMP}/tokens", "m"),
            ("--as", "vllm-fs", "vllm-sha256", f"{TMP}/tokens", "m"),
            ("--as", "sglang-file", "sglang", f"{TMP}/tokens"),
            ("--as", "sglang-file", "sglang", f"{TMP}/tokens", "m", "x=1"),
            ("--as", "sglang-file", "sglang", f"{TMP}/tokens", "m", "tp_size"),
            ("sglang", f"{TMP}/tokens", "m", "tp_size=2"),
            ("--as", "sglang-file")):
    p = path(*bad)
    assert p.returncode and len(p.stdout.strip().splitlines()) == 1, (bad, p.stdout)
print("ok")

# ---- SGLang's unified key scheme -----------------------------------------------------------------

import package, kvcachefs as kv  # noqa: E402

FACTS = [  # digests of sglang 0.5.23 with msgspec
    (dict(model_id="meta-llama/Llama-3.1-8B", dtype="bfloat16", page_size=64, rank_replicated=False,
          total_kv_heads=8, head_group=2, layer_partition=8), "ukv1-1d877872e0b3d918"),
    (dict(model_id="deepseek-ai/DeepSeek-V3", dtype="fp8_e4m3", page_size=1, rank_replicated=True,
          total_kv_heads=0, head_group=0), "ukv1-4ca5f632ef682526"),
    (dict(model_id="m" * 40 + "\u00e9", dtype="float8_e5m2", page_size=70000,
          rank_replicated=False, total_kv_heads=300, head_group=300, layer_partition=128),
     "ukv1-8d20703e706b0dde")]


def ours(facts):
    facts = {"model": facts["model_id"], "replicated": facts["rank_replicated"],
             **{k: v for k, v in facts.items() if k not in ("model_id", "rank_replicated")}}
    return kv.unified_digest(**facts)


def refused(**facts):
    try:
        ours({"model_id": "m", "dtype": "d", "page_size": 1, "rank_replicated": False, **facts})
    except kv.Error as e:
        assert e.errno == errno.EINVAL, e
        return
    raise AssertionError(f"no error: {facts}")


for facts, digest in FACTS:
    assert ours(facts) == digest, (facts, ours(facts))
page = "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07"
assert kv.unified_key(page, FACTS[0][1], 8, 16, 3) == f"{page}_{FACTS[0][1]}_L8-16_H3"
assert kv.unified_key(page, FACTS[1][1], 0, 61) == f"{page}_{FACTS[1][1]}_L0-61"
for wrong in (dict(total_kv_heads=8, head_group=3), dict(total_kv_heads=0, head_group=1),
              dict(total_kv_heads=1, head_group=0), dict(rank_replicated=True, total_kv_heads=8),
              dict(model_id="", total_kv_heads=1, head_group=1),
              dict(model_id="m" * 1025, total_kv_heads=1, head_group=1),
              dict(page_size=0, total_kv_heads=1, head_group=1)):
    refused(**wrong)
for arguments in ((page, FACTS[0][1], 8, 8, 3), ("x" * 200, "y", 0, 1, 0)):
    try:
        kv.unified_key(*arguments)
        raise AssertionError(arguments)
    except kv.Error as e:
        assert e.errno == errno.EINVAL
