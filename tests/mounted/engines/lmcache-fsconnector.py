# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""LMCache's FSConnector: flat names, .tmp files in the same or another folder,
header and data, os.replace."""
import glob, os, struct
from engines import *

s = store()
base = f"{s.mnt}/data"
os.makedirs(f"{base}/tmp", exist_ok=True)
os.statvfs(base).f_bsize
SIZE = 32 * MiB // 16
keys = [f"meta-llama-SEP-Llama-3.1-8B-Instruct@1@0@{i:064x}@bfloat16" for i in range(8)]


def put(key, data, where=""):
    tmp = f"{base}/{where}{key}.tmp" if not where else f"{base}/{where}{key}.data"
    with open(tmp, "wb") as f:
        f.write(struct.pack("7i", len(data), 1, 3, 2, 32, 256, 128))
        f.write(data)
    os.replace(tmp, f"{base}/{key}.data")


for i, k in enumerate(keys):
    assert not os.path.exists(f"{base}/{k}.data")
    put(k, blob(i, SIZE), "tmp/" if i % 2 else "")
# O_DIRECT, no O_TRUNC, one write
buf = aligned(blob(99, MiB))
fd = os.open(f"{base}/direct.tmp", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
assert os.write(fd, buf) == MiB
os.close(fd)
os.replace(f"{base}/direct.tmp", f"{base}/direct.data")


def check():
    assert len(glob.glob(f"{base}/*.data")) == len(keys) + 1
    for i, k in enumerate(keys):
        head, data = bytearray(28), bytearray(SIZE)
        with open(f"{base}/{k}.data", "rb") as f:
            assert f.readinto(head) == 28 and f.readinto(data) == SIZE
        assert struct.unpack("7i", head)[0] == SIZE and data == blob(i, SIZE)
    fd = os.open(f"{base}/direct.data", os.O_RDONLY | os.O_DIRECT)
    back = aligned(bytes(MiB))
    assert os.readv(fd, [back]) == MiB and back[:] == blob(99, MiB)
    os.close(fd)


put(keys[0], blob(0, SIZE))  # again, over the existing file
through_the_tiers(s, check)
