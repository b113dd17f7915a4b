# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""A file whose only copy is damaged is gone: open, stat and a listing agree, for readers and for
writers, and the name can be stored again. While another copy exists in a remote that does not
answer, a damaged copy is not an absence: stat finds the file, an open for writing fails with EIO,
an open for reading is a miss, and the file is there again when the remote answers."""
import errno, os
import frames
from kvtest import KiB, Store, TMP, blob, fails, wait_for

REMOTES = [f"{TMP}/remote{i}" for i in range(2)]
ALONE, BOTH = [f"m/alone{i}" for i in range(4)], [f"m/both{i}" for i in range(2)]
data = {path: blob(path, 20 * KiB) for path in ALONE + BOTH}
for r in REMOTES:
    os.mkdir(r)
s = Store("s", size="64M", options="settle=0,deadline=3000,disk=off,unit=file," +
          ",".join(f"remote=dir://{r}" for r in REMOTES)).mount()
for path, d in data.items():
    s.write(path, d)
s.settle()


def frame(remote, path):
    name = frames.name_of(path)
    return f"{remote}/{name[:2]}/{name}"


def damage(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        old = f.read(64)
        f.seek(at)
        f.write(bytes(b ^ 0xff for b in old))


def opens(path, flags):
    os.close(os.open(f"{s.mnt}/{path}", flags))


def there(path):
    return os.path.basename(path) in os.listdir(f"{s.mnt}/m")


for path in data:
    wait_for(lambda: s.attr(path, "tiers").count("dir") == 2)
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    assert s.attr(path, "state") == "lower"

# (a) another copy exists; of the remotes, the first one tried has the damaged copy, or the last
for path, (bad, away) in zip(BOTH, (REMOTES, REMOTES[::-1])):
    damage(frame(bad, path), 4096 + 9000)
    os.rename(away, f"{TMP}/away")
    before = s.stats()["corrupt"]
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR):
        with fails(errno.EIO):
            opens(path, flags)
    with fails(errno.ENOENT):
        opens(path, os.O_RDONLY)
    assert s.stats()["corrupt"] == before + 1, s.stats()
    assert os.stat(f"{s.mnt}/{path}").st_size == len(data[path]) and there(path)
    os.rename(f"{TMP}/away", away)

    def reads():
        try:
            return s.read(path) == data[path]
        except FileNotFoundError:
            return False

    wait_for(reads)  # a load probes the remote

# (b) no other copy; the payload or the header is damaged
for i, path in enumerate(ALONE):
    os.unlink(frame(REMOTES[1], path))
    damage(frame(REMOTES[0], path), 4096 + 9000 if i < 2 else 10)
    for _ in range(2):
        with fails(errno.ENOENT):
            opens(path, (os.O_RDONLY, os.O_RDWR)[i % 2])
        with fails(errno.ENOENT):
            os.stat(f"{s.mnt}/{path}")
        assert not there(path)
    s.write(path, data[path])
    assert s.read(path) == data[path]
s.umount()
