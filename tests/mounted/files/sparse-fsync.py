# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A sparse file that was fsynced while open has no checksum that shows whether a mapping changed it
since. It is copied again at its close. Until that copy is made and synced, the copy of the fsync
stays, because it is the only one if the pool is lost while no copy can be made. With a shared tier
both copies are made again, once."""
import os
from kvtest import MiB, Store, TMP, blob, wait_for

BAD = f"{TMP}/bad"
SIZE = 4 * MiB
os.makedirs(f"{TMP}/shared")
whole = bytearray(SIZE)
whole[MiB:MiB + 30000] = blob(1, 30000)


def after_power(s):
    s.kill()
    s.drop_pool()
    if os.path.exists(BAD):
        os.unlink(BAD)
    s.mount()
    assert s.read("m/c/sparse") == whole, s.name


for name, more in ("disk", "+only:disk"), ("shared", f",remote=dir://{TMP}/shared"):
    s = Store(name, size="64M", options=f"settle=0,shim=fail-while:{BAD}{more}").mount()
    path = f"{s.mnt}/m/c/sparse"
    os.makedirs(f"{s.mnt}/m/c")
    with open(path, "wb") as f:
        f.seek(MiB)
        f.write(whole[MiB:MiB + 30000])
        f.truncate(SIZE)
        f.flush()
        os.fsync(f.fileno())
        with open(BAD, "w"):
            pass
    wait_for(lambda: s.stats()["spill_failures"])
    s.committed()
    after_power(s)
    s.settle()
    before = s.stats()["spills"]
    os.close(os.open(path, os.O_RDWR))
    s.settle()
    again = s.stats()["spills"] - before
    assert again == (2 if name == "shared" else 1), (name, again)
    after_power(s)
    s.umount()
    s.fsck("-n", "--data")
