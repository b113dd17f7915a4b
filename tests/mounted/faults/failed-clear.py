# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A write error while a deleted file's frame is cleared neither leaks its space nor brings the file
back: not in a running daemon, not after its end, not in a rebuild. The same holds for a write error
while a frame is made."""
import os
from kvtest import *
import faults

N = 200000


def mount(s, rule):
    """Mounts the store. The rule counts the calls from here on."""
    env = faults.environment(rule)
    keep = {k: os.environ.get(k) for k in env}
    os.environ.update({k: env[k] for k in ("LD_PRELOAD", "FAULTS")})
    try:
        s.mount(options="settle=0")
    finally:
        for k in ("LD_PRELOAD", "FAULTS"):
            if keep[k] is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = keep[k]


def used(s):
    return s.stats()["tier_disk_used_bytes"]


def headers(s):
    """The number of frame headers in the data file of the store."""
    with open(f"{s.path}/data", "rb") as f:
        d = f.read()
    return sum(d[at:at + 8] == b"KVCFRAME" for at in range(0, len(d), 4096))


# a deleted frame is cleared by zeros over its header (its first 4 KiB): these writes fail at first,
# or always
for how, count in (("for a moment", 3), ("until the end", 0)):
    s = Store("s-" + how.split()[0], cpu="32M", size="24M").mount()
    for i in range(6):
        s.write(f"m/{i}", blob(i, N))
    s.settle()
    time.sleep(0.3)
    s.umount()
    assert headers(s) == 6
    mount(s, f"calls=write path={s.path}/data nth=1 count={count} do=EIO")
    before = used(s)
    for i in range(3):
        os.unlink(f"{s.mnt}/m/{i}")
    if count:
        wait_for(lambda: used(s) == before - 3 * 204800, every=0.1)
    else:
        wait_for(lambda: "cannot remove a frame" in s.log())
        time.sleep(1.5)
        assert used(s) == before - 3 * 200704  # a header is kept while it is readable
    s.umount()
    if count:
        assert headers(s) == 3, headers(s)
        s.fsck("-n", ok=True)
    else:
        p = s.fsck("-n", ok=None)
        assert p.returncode == 0 and "are in free space" in p.stdout, p.stdout
        s.fsck("-y", ok=True)
        assert headers(s) == 3, headers(s)
    s.fsck("--rebuild", ok=True)
    s.mount()
    assert sorted(os.listdir(f"{s.mnt}/m")) == ["3", "4", "5"], os.listdir(f"{s.mnt}/m")
    s.settle()
    assert used(s) == 3 * (4096 + 200704), used(s)
    s.umount()

# a write error while a frame is made: its space comes back
s = Store("w", cpu="32M", size="24M")
mount(s, f"calls=write path={s.path}/data nth=1 count=2 do=EIO")
s.write("m/x", blob("x", N))
wait_for(lambda: used(s) == 4096 + 200704, every=0.3)
os.unlink(f"{s.mnt}/m/x")
wait_for(lambda: used(s) == 0, every=0.2)
s.umount()
s.fsck("-n", ok=True)
