# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A policy remembers chunks that were dropped: if a client stores one of them again, under the same
name, the policy takes it for the same chunk, although the file has another inode number. This is
so if the file is created, if it gets its name by a rename, and if the chunk is a folder. s3fifo
shows it: a remembered chunk enters its long queue."""
from kvtest import *

SIZE = 64 << 10
MANY, AGAIN = 600, 10


def in_long_queue(s):
    with open(f"{s.mnt}/.kvcachefs/policies") as f:
        text = f.read()
    return int(re.search(r"^ *queue_used (\d+)$", text, re.M)[1])


def store(path, data=b"x" * SIZE):
    with open(path, "xb", buffering=0) as f:
        f.write(data)


def renamed(path):
    store(f"{path}.tmp")
    os.rename(f"{path}.tmp", path)


def folder(path):
    os.mkdir(path)
    for layer in "ab":
        store(f"{path}/{layer}", b"x" * (SIZE // 2))


for make, unit in (store, "file"), (renamed, "file"), (folder, "dir"):
    s = Store(make.__name__, cpu="16M", size="64M",
              options=f"policy=s3fifo,unit={unit},disk=off,settle=0").mount()
    os.mkdir(f"{s.mnt}/m")
    paths = [f"{s.mnt}/m/{i}" for i in range(MANY)]
    for path in paths:
        make(path)
    gone = lambda: [p for p in paths if not os.path.exists(p)]
    dropped = wait_for(lambda: len(gone()) > AGAIN and gone())
    assert in_long_queue(s) == 0
    for path in dropped[-AGAIN:]:  # the last ones are remembered for sure
        make(path)
    make(f"{s.mnt}/m/next")  # now the policy learns of the chunk before it
    wait_for(lambda: in_long_queue(s) >= AGAIN)
    assert in_long_queue(s) == AGAIN
    s.umount()
print("ok")
