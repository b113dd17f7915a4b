# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A sync of the disk tier fails, the kernel has lost the bytes of the copies, and the daemon is
killed. The pool survives, and with it the only good bytes of its files. The next daemon copies them
again before they leave the pool, by the evictor and by `kvcachectl evict`."""
import os
from kvtest import *
import faults

need_mount()
SIZE = 1 << 20
DATA = {f"m/file{i}": blob(f"file{i}", SIZE) for i in range(8)}


def lose(path):
    """The kernel lost the bytes that the failed sync had to write."""
    with open(path, "r+b") as f:
        content = f.read()
        for name, data in DATA.items():
            at = content.find(data[:4096])
            assert at >= 0, name
            f.seek(at)
            f.write(bytes(SIZE))


for how in ("evictor", "command"):
    s = Store(how, size="128M", cpu="32M", options="settle=0,unit=file,policy=lru,pace=600000")
    rules = faults.Rules(f"calls=sync path={s.path}/data nth={faults.FAR} count=1 do=EIO")
    assert rules.mount(s)
    for name, data in DATA.items():
        s.write(name, data)
    s.settle()
    rules.begin()
    fd = os.open(f"{s.mnt}/m/file0", os.O_RDONLY)
    with fails(errno.EIO):
        os.fsync(fd)
    os.close(fd)
    s.committed()
    s.kill()
    run("umount", "-l", s.mnt)
    lose(f"{s.path}/data")
    s.mount()
    assert s.stats()["recovered"] == len(DATA)
    if how == "evictor":
        for i in range(36):
            s.write(f"m/more{i}", blob(i, SIZE))
    else:
        run(binary("kvcachectl"), "evict", *(f"{s.mnt}/{n}" for n in DATA), ok=True)
    wait_for(lambda: all("cpu" not in s.attr(n, "tiers") for n in DATA))
    for name, data in DATA.items():
        assert s.read(name) == data, (how, name)
    s.umount()
    s.fsck("-n", "--data")
