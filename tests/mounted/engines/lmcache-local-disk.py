# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""LMCache's LocalDiskBackend: writes directly to the final name, overwrites in place,
with and without O_DIRECT, os.remove."""
import os, threading
from engines import *

s = store()
base = f"{s.mnt}/local"
os.makedirs(base)
name = lambda i: f"{base}/Qwen-Qwen3-8B@1@0@{i:x}@half.pt"


def worker(w):
    for i in range(w, 24, 4):
        with open(name(i), "wb") as f:
            f.write(blob(i, MiB))
        fd = os.open(name(i), os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)  # the same again
        assert os.write(fd, aligned(blob(i, MiB))) == MiB
        os.close(fd)


t = [threading.Thread(target=worker, args=(w,)) for w in range(4)]
[x.start() for x in t]
[x.join() for x in t]
for i in range(20, 24):
    os.remove(name(i))


def check():
    assert len(os.listdir(base)) == 20
    for i in range(20):
        data = bytearray(MiB)
        with open(name(i), "rb") as f:
            assert f.readinto(data) == MiB
        assert data == blob(i, MiB)


through_the_tiers(s, check)
