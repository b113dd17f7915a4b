# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The daemon's memory does not grow with the length of a file. Sparse files, plain, compressed and
sealed, are copied, verified and loaded through buffers of limited size, and their holes stay holes.
"""
import os, secrets
from kvtest import MiB, Store, TMP, blob

DATA, SIZE, MOST = 192 * MiB, 16 << 30, 80 * MiB
with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write("1 " + secrets.token_hex(32) + "\n")
os.makedirs(f"{TMP}/shared")
piece = blob(7, MiB)
text = bytes(piece[:MiB // 2]) + bytes(MiB // 2)  # half of it is compressible


def private(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith("RssAnon"))


for n, extra in enumerate(("", ",compress=zstd,memory=96M", f",keyfile={TMP}/keys",
                           f",disk=off,remote=dir://{TMP}/shared")):
    s = Store(f"s{n}", size="512M", cpu="256M",
              options="settle=10,share=100,deadline=600000" + extra).mount()
    os.makedirs(f"{s.mnt}/m")
    with open(f"{s.mnt}/m/f", "wb") as f:
        for at in range(DATA // MiB):  # behind a hole, in two parts
            f.seek(MiB + at * MiB + (SIZE // 2 if at > 100 else 0))
            f.write(text)
        f.truncate(SIZE)
    s.settle()
    made = os.stat(f"{s.mnt}/m/f").st_blocks
    s.umount()
    s.mount()
    before, most = private(s.daemon.pid), 0
    with open(f"{s.mnt}/m/f", "rb") as f:
        for at in (0, 100, 101, DATA // MiB - 1):
            f.seek(MiB + at * MiB + (SIZE // 2 if at > 100 else 0))
            assert f.read(MiB) == text, (extra, at)
            most = max(most, private(s.daemon.pid))
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) >= 0
    st = s.stats()
    assert st["loads"] == 1 and st["corrupt"] == 0 and st["memory_refusals"] == 0, (extra, st)
    # the peak shows the moment of the load, RssAnon the memory that the allocator kept
    assert 0 < st["memory_peak_bytes"] <= min(MOST, st["memory_bytes"]), (extra, st)
    assert most - before < MOST, (extra, before, most)
    assert os.stat(f"{s.mnt}/m/f").st_blocks <= made + 2 * 2048 * 8, extra
    print(extra or ",plain", "peak", st["memory_peak_bytes"] >> 20, "MiB, private",
          before >> 20, "to", most >> 20, "MiB")
    s.umount()
    if "dir://" not in extra:
        s.fsck("-n", "--data")
