# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""If an fsync of an open file fails, or is still in progress at the close, no written data is lost:
the file is published, copied and found after a kill or an unmount. A file that stays open after a
failed fsync is unchanged. An fsync does not preserve set-id bits over a write. A process that has
the file open for reading can fsync it in every serving mode."""
import os, threading
from kvtest import *
import faults

N = 300000
s = Store("s", size="64M", cpu="32M", options="settle=0,unit=file")
READS = f"calls=read path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do=EIO"
SLOW_READS = f"calls=read path={TMP}/run/* nth={faults.FAR} count={faults.FAR} do=delay:100"


def mount(rule):
    r = faults.Rules(rule)
    assert r.mount(s)
    return r


def killed():
    s.kill()
    run("umount", "-l", s.mnt)
    s.mount()


def unmounted():
    s.umount()
    s.mount()


def dirty(path, data, seed):
    """Opens and writes: all of a new file, or a piece of an existing file. Returns the expected
    contents."""
    fd = os.open(f"{s.mnt}/{path}", os.O_WRONLY | os.O_CREAT, 0o600)
    piece = blob(seed, N if not data else 5000)
    os.pwrite(fd, piece, 0)
    return fd, piece + data[len(piece):]


for again in (killed, unmounted):
    s.mount()
    files = {}
    for path in ("m/there", "m/open", "m/race"):
        files[path] = blob(f"{path}.{again.__name__}", N)
        s.write(path, files[path])
    s.settle()
    s.umount()
    r = mount(READS)
    for path in ("m/there", "m/open"):
        assert s.read(path) == files[path]
    r.begin()
    for path in ("m/there", f"m/new.{again.__name__}"):  # fails, and is closed
        fd, files[path] = dirty(path, files.get(path, b""), path)
        with fails(errno.EIO):
            os.fsync(fd)
        os.close(fd)
    fd, _ = dirty("m/open", files["m/open"], "open")  # fails, and stays open
    with fails(errno.EIO):
        os.fsync(fd)
    with fails(errno.EIO):
        os.fsync(fd)
    if again == killed:
        s.committed(still_open=1)
        killed()
        os.close(fd)
    else:
        os.pwrite(fd, files["m/open"][:5000], 0)
        os.close(fd)
        r.heal()
        unmounted()
    for path, data in files.items():
        assert s.read(path) == data, (again.__name__, path)
    s.settle()
    s.umount()
    s.drop_pool()
    s.fsck("-n", "--data")

    # closed while an fsync is in progress
    r = mount(SLOW_READS)
    for n in range(4):
        path = f"m/race{n % 2}" if n % 2 else "m/race"
        r.begin()
        fd, files[path] = dirty(path, files.get(path, b""), f"{again.__name__}.{n}")
        done = []
        t = threading.Thread(target=lambda fd=os.open(f"{s.mnt}/{path}", os.O_RDONLY): (
            os.fsync(fd), os.close(fd), done.append(1)))
        met = r.fired()[0]
        t.start()
        wait_for(lambda: r.fired()[0] > met)  # the copy has begun
        os.close(fd)
        t.join()
        assert done, path
        r.heal()
        assert s.read(path) == files[path], path
    s.committed()
    if again == killed:
        s.kill()
        run("umount", "-l", s.mnt)
    else:
        s.umount()
    s.mount()
    for path, data in files.items():
        assert s.read(path) == data, (again.__name__, path)
    s.settle()
    s.umount()
    s.drop_pool()  # the tier has the data, too
    s.mount()
    for path, data in files.items():
        assert s.read(path) == data, (again.__name__, path)
    s.umount()
    s.fsck("-n", "--data")

s.mount(options="suid")
for sync in (False, True):
    path = f"{s.mnt}/m/setid{sync}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.close(fd)
    os.chmod(path, 0o6755)
    fd = os.open(path, os.O_RDWR)
    os.write(fd, b"x" * 5000)
    if sync:
        os.fsync(fd)
    os.close(fd)
    s.settle()
    assert os.stat(path).st_mode & 0o7777 == 0o755, (sync, oct(os.stat(path).st_mode))
s.umount()

# a shared tier fails and the disk accepts the copy: the fsync waits for the disk
remote = f"{TMP}/remote"
os.mkdir(remote)
r = faults.Rules(f"calls=all path={remote}/* nth={faults.FAR} count={faults.FAR} do=EIO")
assert r.mount(s, options=f"{s.options},remote=dir://{remote}")
r.begin()
for i in range(12):
    fd, data = dirty(f"m/shared{i}", b"", i)
    os.fsync(fd)
    os.close(fd)
    with open(f"{s.mnt}/m/shared{i}", "ab") as f:
        f.write(b"more")
    fd = os.open(f"{s.mnt}/m/shared{i}", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
assert r.fired()[0]
r.heal()

# the daemon's own descriptor does not count as a writer
os.mkdir(f"{s.mnt}/bounded")
os.setxattr(f"{s.mnt}/bounded", "user.kvcachefs.quota", b"8M")  # written by plain requests
wait_for(lambda: "user.kvcachefs.survey" not in os.listxattr(f"{s.mnt}/bounded"))
for path in ("m/read", "bounded/read"):
    fd, data = dirty(path, b"", path)
    reader = os.open(f"{s.mnt}/{path}", os.O_RDONLY)
    os.close(fd)
    os.fsync(reader)
    os.close(reader)
    assert s.read(path) == data
s.umount()
