# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A load that no tier serves in time is a miss for a reader and an error for a writer. The name
stays: stat finds the file, the kernel keeps no negative entry, and the same open works when the
tier is back. This holds for a missing folder, for a tier that does not answer, and for leases."""
import errno, os, time
from kvtest import HANG, KiB, Store, TMP, blob, fails, wait_for

DEADLINE = 1500
shared, away = f"{TMP}/shared", f"{TMP}/away"
flag = f"{TMP}/hangs"
os.mkdir(shared)
PATHS = [f"m/c{i}/l" for i in range(8)]
data = {path: blob(i, 20 * KiB) for i, path in enumerate(PATHS)}
s = Store(size="64M", options=f"settle=0,deadline={DEADLINE},disk=off,remote=dir://{shared},"
          f"shim=delay-get:60000+delay-while:{flag}").mount()
for path, d in data.items():
    s.write(path, d)
s.settle()


def lower(path):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    assert s.attr(path, "state") == "lower"


def unserved():
    return s.stats()["unserved_loads"]


def lease(path):
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write(f"{path}\n".encode())
        return f.read(999).split()[-1]


def is_a_miss(path, *error):
    """Checks that the file is a miss for a reader, within the time limit and each time, but exists
    for stat, a listing and a writer, which gets an error."""
    at, before, absent = f"{s.mnt}/{path}", unserved(), s.stats()["absent"]
    begun = time.monotonic()
    for _ in range(2):
        with fails(errno.ENOENT):
            s.read(path)
        assert os.stat(at).st_size == len(data[path])
        assert os.path.basename(path) in os.listdir(os.path.dirname(at))
    assert unserved() == before + 2 and s.stats()["absent"] == absent + 2, s.stats()
    for flags in os.O_RDWR, os.O_WRONLY:
        with fails(*error):
            os.close(os.open(at, flags))
    with fails(*error):
        os.truncate(at, 10)
    assert unserved() == before + 2, s.stats()
    assert lease(path) in (b"lower", b"loading") and unserved() == before + 3, s.stats()
    assert time.monotonic() - begun < 6 * DEADLINE / 1000 + HANG


def reads(path):
    try:
        return s.read(path) == data[path]
    except FileNotFoundError:
        return False


def back(path):
    wait_for(lambda: reads(path))  # a load probes the tier
    assert lease(path).startswith(b"resident")


for path in PATHS:
    lower(path)
with open(f"{s.mnt}/{PATHS[0]}", "rb") as opened:  # open files stay readable
    os.rename(shared, away)
    for path in PATHS[1:4]:
        is_a_miss(path, errno.EIO)
    assert opened.read() == data[PATHS[0]]
    os.rename(away, shared)
for path in PATHS[1:4]:
    back(path)

open(flag, "w").close()
is_a_miss(PATHS[5], errno.ETIMEDOUT, errno.EIO)
os.unlink(flag)
back(PATHS[5])

# A file that a writer replaces needs no load, and a file that was never stored is absent.
lower(PATHS[6])
os.rename(shared, away)
s.write(PATHS[6], b"anew")
assert s.read(PATHS[6]) == b"anew"
with fails(errno.ENOENT):
    os.stat(f"{s.mnt}/m/c0/never")
os.rename(away, shared)
s.umount()
