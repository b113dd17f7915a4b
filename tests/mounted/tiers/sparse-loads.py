# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A sparse file can be loaded any number of times. It grew page by page, but a load uses huge
pages, which fill its holes, so the size of the segment says nothing about the frame in the tier.
The case covers plain, coded and sealed files, and a shared tier. Without huge pages no hole is
filled."""
import os, secrets
from kvtest import MiB, Store, TMP, blob, skip

SIZE = 8 * MiB
parts = {2 * MiB * i + 100 * i: blob(i, 5000 + 70000 * i) for i in range(4)}
whole = bytearray(SIZE)
for at, part in parts.items():
    whole[at:at + len(part)] = part

with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write("1 " + secrets.token_hex(32) + "\n")
os.makedirs(f"{TMP}/shared")
huge = False
for n, extra in enumerate(("", ",compress=zstd", f",keyfile={TMP}/keys",
                           f",keyfile={TMP}/keys,compress=zstd",
                           f",disk=off,remote=dir://{TMP}/shared")):
    s = Store(f"s{n}", size="64M", options="settle=10" + extra).mount()
    os.makedirs(f"{s.mnt}/m/c")
    with open(f"{s.mnt}/m/c/sparse", "wb") as f:
        for at, part in parts.items():
            f.seek(at)
            f.write(part)
        f.truncate(SIZE)
    s.settle()
    made = os.stat(f"{s.mnt}/m/c/sparse").st_blocks * 512
    for load in range(4):
        s.umount()
        s.mount()
        assert s.read("m/c/sparse") == whole, (extra, load)
        st = s.stats()
        assert st["loads"] == 1 and st["corrupt"] == 0, (extra, load, st)
    filled = os.stat(f"{s.mnt}/m/c/sparse").st_blocks * 512
    huge |= filled > made
    print(extra or ",plain", "huge" if s.config()["pool_huge"] == "yes" else "small pages",
          "takes", filled)
    s.umount()
    if "dir://" not in extra:
        s.fsck("-n", "--data")
if not huge:
    skip("the pool gets no huge pages: no load has filled a hole")
