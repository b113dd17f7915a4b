# SPDX-License-Identifier: Apache-2.0
# ways: fast (passthrough) plain
# level: check
"""A chunk of many files leaves the pool in several steps while clients open and close its files. A
file that is opened in between stays or is loaded again; no open gets the freed segment. Later
writes in place are visible to readers and survive the loss of the pool."""
import os, random, threading, time
from kvtest import *

FILES, SIZE, SECONDS = 300, 100000, 6
s = Store(cpu="64M", size="256M", options="settle=0").mount()
P = lambda name: f"{s.mnt}/m/c/{name}"
os.makedirs(f"{s.mnt}/m/c")
os.setxattr(f"{s.mnt}/m/c", "user.kvcachefs.unit", b"dir")
held, wrong, stop = {}, [], threading.Event()
for i in range(FILES):
    held[str(i)] = blob(i, SIZE)
    s.write(f"m/c/{i}", held[str(i)])
s.settle()
locks = {name: threading.Lock() for name in held}


def demote():
    while not stop.is_set():
        for name in held:  # loads all files into the pool
            os.close(os.open(P(name), os.O_RDONLY))
        try:
            os.setxattr(f"{s.mnt}/m/c", "user.kvcachefs.demote", b"cpu")
        except OSError as e:
            if e.errno not in (errno.EBUSY, errno.ETIMEDOUT):
                wrong.append(repr(e))


def client(seed):
    r = random.Random(seed)
    try:
        while not stop.is_set():
            name = r.choice(sorted(held))
            time.sleep(r.random() / 500)
            with locks[name]:
                if r.random() < 0.9:
                    with open(P(name), "rb", buffering=0) as f:
                        got = f.read()
                    assert got == held[name], f"{name}: {got[:16]} for {held[name][:16]}"
                else:
                    piece = r.randbytes(16)
                    fd = os.open(P(name), os.O_RDWR)
                    os.pwrite(fd, piece, 0)
                    os.close(fd)
                    held[name] = piece + held[name][16:]
    except (AssertionError, OSError) as e:
        wrong.append(repr(e))


threads = [threading.Thread(target=demote)] + [threading.Thread(target=client, args=(n,))
                                               for n in range(3)]
[t.start() for t in threads]
stop.wait(SECONDS)
wait_for(lambda: s.stats()["evictions"] > 4 * FILES or wrong)
stop.set()
[t.join() for t in threads]
assert not wrong, wrong[:3]
for name, data in held.items():
    assert s.read(f"m/c/{name}") == data, name
s.settle()
s.umount()
s.drop_pool()
s.mount()
for name, data in held.items():
    assert s.read(f"m/c/{name}") == data, name
s.umount()
s.fsck("-n", "--data")
