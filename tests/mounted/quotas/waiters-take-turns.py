# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A store that waits for bytes of a quota does not wait until all expired chunks are gone, however
many they are: quotas and expiry take turns. The daemon is stopped until many chunks have expired at
once, while a client continues to store in a model at its quota."""
import os, signal, threading, time
from kvtest import *

N, WRITES = 30000, 6
s = Store("s", size="256M", cpu="128M", options="settle=60000").mount()
os.mkdir(f"{s.mnt}/q")
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"4M")
for i in range(4):
    s.write(f"q/{i}/l", blob(i, MiB - 64 * KiB))


def make(folder, n):
    os.makedirs(f"{s.mnt}/{folder}", exist_ok=True)
    for i in range(n):
        os.close(os.open(f"{s.mnt}/{folder}/{i}", os.O_CREAT | os.O_WRONLY))


begun = time.monotonic()
make("first", N // 20)
ttl = 3 + int(40 * (time.monotonic() - begun))  # the rest is made in half of that
make("old", 0)
os.setxattr(f"{s.mnt}/old", "user.kvcachefs.ttl", b"%d" % ttl)
make("old", N)
made = time.monotonic()
went = s.stats()["expired_chunks"]
assert went < N // 4, f"{went} went already"
expired = []


def store():
    for i in range(WRITES):
        s.write(f"q/new{i}/l", blob(i, MiB - 64 * KiB))
        expired.append(s.stats()["expired_chunks"])


writer = threading.Thread(target=store)
s.daemon.send_signal(signal.SIGSTOP)
try:
    time.sleep(max(0, made + ttl + 1 - time.monotonic()))
    writer.start()
finally:
    s.daemon.send_signal(signal.SIGCONT)
writer.join()
wait_for(lambda: s.stats()["expired_chunks"] == N)
print("of", N, "had gone when a file was stored:", *expired)
assert s.stats()["quota_drops"] >= WRITES, s.stats()
assert expired[-1] < N, "the quota had to wait for all that expired"
assert not os.listdir(f"{s.mnt}/old")
s.umount()
