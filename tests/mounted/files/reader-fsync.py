# SPDX-License-Identifier: Apache-2.0
# ways: fast passthrough plain
"""A file is copied while readers have it open, however it was written and accessed before. An fsync
by a reader ends, and the data that it copied survives the loss of memory. Only a process that can
still write to the file delays a copy. In a model with a quota, plain requests serve a writer
although a reader's registration of the segment is kept. A truncate by path, a refused write and a
search for holes open the file in the daemon while a reader has it open by passthrough. A mapping
for reading outlives its file."""
import mmap, os
from kvtest import *

s = Store(cpu="64M", size="256M", options="settle=3000000,deadline=60000").mount()
P = lambda *a: os.path.join(s.mnt, *a)
for model in "free", "bound":
    os.mkdir(P(model))
os.setxattr(P("bound"), "user.kvcachefs.quota", b"32M")
wanted = {}


def read(path):
    with open(P(path), "rb") as f:
        assert f.read() == wanted[path]


def rewrite(path, seed):
    """Writes a file in place and closes it, while a reader has it open. Returns the reader."""
    wanted[path] = blob(seed, MiB)
    w = os.open(P(path), os.O_RDWR)
    r = os.open(P(path), os.O_RDONLY)
    os.pwrite(w, wanted[path], 0)
    os.close(w)
    return r


def registered_before(path):
    read(path)
    return rewrite(path, path + "1")


def reader_first(path):
    read(path)
    r = os.open(P(path), os.O_RDONLY)
    os.close(rewrite(path, path + "2"))
    return r


def anew(path):
    read(path)
    wanted[path] = blob(path + "3", 3000)
    w = os.open(P(path), os.O_RDWR | os.O_TRUNC)
    r = os.open(P(path), os.O_RDONLY)
    os.write(w, wanted[path])
    os.close(w)
    return r


def by_path(path):
    r = os.open(P(path), os.O_RDONLY)
    wanted[path] = wanted[path][:5000]
    os.truncate(P(path), 5000)
    return r


def searched(path):
    r = os.open(P(path), os.O_RDONLY)
    assert os.lseek(r, 0, os.SEEK_HOLE) == len(wanted[path])
    return r


mapped = []


def outlived(path):
    """A process still reads the earlier contents."""
    with open(P(path), "rb") as f:
        mapped.append(mmap.mmap(f.fileno(), len(wanted[path]), prot=mmap.PROT_READ))
    return rewrite(path, path + "4")


late = []
for model in "free", "bound":
    for how in registered_before, reader_first, anew, by_path, searched, outlived:
        path = f"{model}/{how.__name__}"
        wanted[path] = blob(path, MiB)
        s.write(path, wanted[path])
        r = how(path)
        s.closed(still_open=1 + len(mapped))
        try:
            os.fsync(r)
        except TimeoutError:
            late.append(path)
        assert os.pread(r, MiB, 0) == wanted[path], path
        os.close(r)
assert not late, late
for m in mapped:
    m.close()
s.kill()
s.drop_pool()
s.mount()
for path in wanted:
    read(path)
s.umount()
s.fsck("-n", "--data")
