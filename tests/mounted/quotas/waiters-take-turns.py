# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A store that waits for bytes of a quota does not wait until all expired chunks are gone, however
many they are: quotas and expiry take turns. The daemon is stopped until many chunks have expired at
once, while a client continues to store in a model at its quota."""
import os, signal, threading, time
from kvtest import *

N, WRITES = 30000 if LONG else 15000, 6
s = Store("s", size="256M", cpu="128M", options="settle=60000").mount()
os.mkdir(f"{s.mnt}/q")
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"4M")
for i in range(4):
    s.write(f"q/{i}/l", blob(i, MiB - 64 * KiB))


def expired():
    return s.stats()["expired_chunks"]


def make(folder, n):
    os.makedirs(f"{s.mnt}/{folder}", exist_ok=True)
    for i in range(n):
        os.close(os.open(f"{s.mnt}/{folder}/{i}", os.O_CREAT | os.O_WRONLY))


def round_(number, ttl):
    """Returns how many stores began after the first of the chunks had expired and ended before the
    last, or -1 if the chunks did not expire at once."""
    folder, before, seen = f"old{number}", expired(), []

    def store():
        for i in range(WRITES):
            seen.append(expired() - before)
            s.write(f"q/new{number}-{i}/l", blob(i, MiB - 64 * KiB))
        seen.append(expired() - before)

    make(folder, 0)
    os.setxattr(f"{s.mnt}/{folder}", "user.kvcachefs.ttl", b"%d" % ttl)
    make(folder, N)
    made, early = time.monotonic(), expired() - before
    writer = threading.Thread(target=store)
    freeze(s.daemon.pid)
    try:
        time.sleep(max(0, made + ttl + 1 - time.monotonic()))
        writer.start()
    finally:
        s.daemon.send_signal(signal.SIGCONT)
    writer.join()
    wait_for(lambda: expired() == before + N)
    assert not os.listdir(f"{s.mnt}/{folder}")
    print("of", N, "chunks had expired before each store, and after the last:", *seen)
    if early > N // 4:
        return -1
    return sum(a > 0 and b < N for a, b in zip(seen, seen[1:]))


begun = time.monotonic()
make("first", N // 20)
ttl = 3 + int(40 * (time.monotonic() - begun))  # creating all N takes about half as long
beside = []
# a busy machine makes the chunks more slowly, or runs no store until all have expired
while not beside or max(beside) <= 0:
    assert len(beside) < 8, f"no store ended while chunks expired: {beside}"
    beside.append(round_(len(beside), ttl))
    ttl *= 1 + (beside[-1] < 0)
assert s.stats()["quota_drops"] >= WRITES, s.stats()
s.umount()
