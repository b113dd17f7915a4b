# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Reads of distinct chunks at full rate write little to the catalog, and these bytes are counted.
access_bytes in stats and metrics grows by at most 1 MiB a second beyond the 4 MiB that may be saved
up, and the catalog keeps the sum as part of daily=. The unmount stores all accesses."""
import os, sqlite3, time
from kvtest import *

CHUNKS, LONG, SAVED_UP = 8000, 8.0, 4 * MiB
s = Store(size="256M", cpu="256M", options="settle=50,daily=1G").mount()
os.makedirs(f"{s.mnt}/A/b/sub")
for i in range(CHUNKS):
    with open(f"{s.mnt}/A/b/{i}", "wb", buffering=0) as f:
        f.write(bytes(4096))
s.settle()
s.committed()
before, began, n = s.stats(), time.monotonic(), 0
while time.monotonic() - began < LONG:
    for i in range(CHUNKS):
        os.close(os.open(f"{s.mnt}/A/b/{i}", os.O_RDONLY))
    n += CHUNKS
took, after = time.monotonic() - began, s.stats()
wrote = after["access_bytes"] - before["access_bytes"]
rows = after["access_rows"] - before["access_rows"]
print(f"{n} opens in {took:.1f} s: {rows} rows, {wrote >> 10} KiB")
assert 0 < wrote <= SAVED_UP + took * MiB, wrote
assert 0 < rows
# the limit is per second, so only at full rate are rows few compared with opens
if n / took > 10000:
    assert rows < n / 4, rows
assert "kvcachefs_access_bytes_total" in open(f"{s.mnt}/.kvcachefs/metrics").read()
s.umount()
with contextlib.closing(sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True)) as c:
    (kept,), = c.execute("SELECT value FROM meta WHERE key = 'written:accesses'")
    assert int(kept.split()[2]) >= after["access_bytes"], kept
    # the unmount has stored the last use of every chunk
    (last,), = c.execute("SELECT count(*) FROM chunks WHERE hits = 0 AND id IN "
                         "(SELECT ino FROM names WHERE kind = 32768)")
    assert last == 0, last
s.fsck("-n")
