# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""While one model is far above its quota and loses thousands of chunks, another model stores
without a refusal, and its stores do not wait until all these chunks are dropped."""
import os
from kvtest import *

N = 5000   # files of A
FIT = 10   # files that fit into the quota of B: further stores wait for the quota keeper
QUOTA_A = 1 * MiB

s = Store("beside", cpu="256M", size="1G", options="settle=0,high=99,low=98").mount()
A, B = f"{s.mnt}/A", f"{s.mnt}/B"
os.makedirs(f"{A}/a")
os.makedirs(f"{B}/b/sub")
os.setxattr(A, "user.kvcachefs.unit", b"file")
os.setxattr(B, "user.kvcachefs.unit", b"file")
os.setxattr(B, "user.kvcachefs.quota", b"7M")
small, large = blob(1, 4096), blob(2, 700 * KiB)
stores = 0


def used():
    return int(s.attr("A", "used"))


def store():
    """Stores the next file of B, and fails the test on an error."""
    global stores
    s.write(f"B/b/f{stores}", large)
    stores += 1


def trim():
    """Fills A far above its quota, and waits until A is within it. Returns how many stores in B
    waited for the quota keeper, began after A's first loss and ended before A's last loss."""
    beside = 0
    os.setxattr(A, "user.kvcachefs.quota", b"1G")
    for _ in range(FIT):
        store()
    for i in range(N):
        s.write(f"A/a/f{i}", small)
    s.settle()
    time.sleep(0.5)  # a chunk is dropped if it is older than 0.3 s
    full = used()
    os.setxattr(A, "user.kvcachefs.quota", b"%d" % QUOTA_A)
    left = full
    while left > QUOTA_A:
        began, waits = left < full, s.stats()["quota_waits"]
        store()
        left = used()
        beside += began and left > QUOTA_A and s.stats()["quota_waits"] > waits
    return beside


# The machine may pause this process while A loses its chunks. Then the next round tries again.
rounds = []
while not any(rounds):
    rounds.append(trim())
    assert len(rounds) < 40, f"{stores} stores waited for the whole trim of A"
assert s.stats()["quota_refusals"] == 0
print(f"{stores} stores, {rounds} of them during the trim of {N} chunks of another model")
s.umount()
