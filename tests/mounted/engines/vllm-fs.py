# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""vLLM's file tier: a probe, O_EXCL with O_DIRECT, one write, replace, one readv;
access; setxattr before the rename. Also its single-file variant: sparse, unlinked at the end,
pwritev and preadv."""
import os, threading
from engines import *

s = store()
root = f"{s.mnt}/Qwen_Qwen3-8B_1a2b3c4d5e6f"
os.makedirs(root)
with open(f"{root}/config.json", "w") as f:
    f.write("{}")
probe = f"{root}/.o_direct_probe_77.tmp"
fd = os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT)
assert os.write(fd, aligned(bytes(4096))) == 4096
os.close(fd)
os.unlink(probe)
SIZE = 2 * MiB
path = lambda i: f"{root}_r0/{i % 3:03x}/{i % 2:02x}_g0/{i:064x}.bin"


def put(i):
    if os.path.exists(path(i)):
        return
    os.makedirs(os.path.dirname(path(i)), exist_ok=True)
    tmp = f"{path(i)}_{i * 7919}.tmp"
    fd = os.open(tmp, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT, 0o644)
    assert os.write(fd, aligned(blob(i, SIZE))) == SIZE
    os.close(fd)
    os.setxattr(tmp, "user.vllm.kv_crc32c", b"%08x" % i)
    os.replace(tmp, path(i))


t = [threading.Thread(target=lambda w=w: [put(i) for i in range(w, 16, 8)]) for w in range(8)]
[x.start() for x in t]
[x.join() for x in t]


def check():
    for i in range(16):
        assert os.access(path(i), os.F_OK) and not os.access(path(i) + "x", os.F_OK)
        b = aligned(bytes(SIZE))
        fd = os.open(path(i), os.O_RDONLY | os.O_DIRECT)
        assert os.readv(fd, [b]) == SIZE
        os.close(fd)
        assert b[:] == blob(i, SIZE) and os.getxattr(path(i), "user.vllm.kv_crc32c") == b"%08x" % i


one = f"{s.mnt}/offload.bin"
fd = os.open(one, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT, 0o600)
os.ftruncate(fd, 256 * MiB)
assert os.pwritev(fd, [aligned(blob("a", 4096)), aligned(blob("b", 8192))], 100 * MiB) == 12288
b = aligned(bytes(8192))
assert os.preadv(fd, [b], 100 * MiB + 4096) == 8192 and b[:] == blob("b", 8192)
os.unlink(one)
assert os.preadv(fd, [b], 100 * MiB + 4096) == 8192
os.close(fd)
through_the_tiers(s, check)
