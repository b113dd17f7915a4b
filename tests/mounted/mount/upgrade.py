# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""A newer binary takes over: SIGTERM to the running daemon, and the new one starts at once. It has
the warm pool, also with disk=off. Files that were closed or synced during the change are there.
Clients with open files get the errors in kvcachefs(8), UPGRADE."""
import collections, errno, fcntl, mmap, os, shutil, signal, struct, subprocess, threading
import time
from kvtest import *

newer = f"{TMP}/newer/kvcachefs"
os.mkdir(f"{TMP}/newer")
shutil.copy(binary("kvcachefs"), newer)
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED)


def take_over(s, hurry=False, meanwhile=lambda: None):
    """Stops the daemon of s and starts the newer one. hurry: sends SIGTERM twice."""
    old = s.daemon
    old.terminate()
    meanwhile()
    wait_for(lambda: old.poll() is not None or s.ending())
    o = ",".join(filter(None, [f"cpu={s.cpu}", f"run={TMP}/run", PATIENT, WAYS[WAY], s.options]))
    if hurry:
        wait_for(lambda: old.poll() is not None or old.send_signal(signal.SIGINT))
    with open(f"{TMP}/log", "ab") as log:
        s.daemon = subprocess.Popen([newer, s.path, s.mnt, "-f", "-o", o], stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log, start_new_session=True)

    def up():
        assert s.daemon.poll() is None, s.log()[-3000:]
        try:
            os.statvfs(s.mnt)
            return old.poll() is not None and os.path.ismount(s.mnt)
        except OSError:
            return False
    wait_for(up)
    assert old.wait() == 0, s.log()[-3000:]


# stores continue during the change: a file whose close returned is in memory and on the disk
s = Store(size="512M", cpu="512M", options="keep_pool")
below = os.stat(s.mnt).st_dev
s.mount()
done, told, stop = [], collections.Counter(), threading.Event()


def store(n):
    i = 0
    while not stop.is_set():
        i += 1
        path = f"m/{n}-{i}/l"
        try:
            if not os.path.ismount(s.mnt):
                continue
            os.makedirs(os.path.dirname(f"{s.mnt}/{path}"))
            fd = os.open(f"{s.mnt}/{path}", os.O_CREAT | os.O_WRONLY | os.O_EXCL)
            try:
                if os.fstat(fd).st_dev == below:  # between the two daemons there is no mount
                    continue
                for part in range(4):
                    assert os.write(fd, blob(f"{path} {part}", 20000)) == 20000
            finally:
                os.close(fd)
            done.append(path)
        except OSError as e:
            told[errno.errorcode[e.errno]] += 1
        stop.wait(0.002)


def whole(path):
    return s.read(path) == b"".join(blob(f"{path} {part}", 20000) for part in range(4))


os.makedirs(f"{s.mnt}/m")
writers = [threading.Thread(target=store, args=(n,), daemon=True) for n in range(3)]
[w.start() for w in writers]
for turn in range(3):
    so_far = len(done)
    wait_for(lambda: len(done) >= so_far + 60)
    take_over(s)
stop.set()
[w.join() for w in writers]
assert "files open for writing" not in s.log()
# only calls in progress at the end, and calls to a mount that was gone
assert set(told) <= {"ENOTCONN", "ECONNABORTED", "ECANCELED", "ENOENT"}, told
lost = [p for p in done if not os.path.exists(f"{s.mnt}/{p}") or not whole(p)]
assert not lost and s.stats()["loads"] == 0, (len(lost), len(done), s.stats()["loads"])
assert s.config()["pool_warm"] == "yes"
s.umount()
s.drop_pool()
s.mount()
assert all(whole(p) for p in done)

# a store in progress is completed first
os.makedirs(f"{s.mnt}/m/half")
half = os.open(f"{s.mnt}/m/half/l", os.O_CREAT | os.O_WRONLY)
os.write(half, blob(5, MiB))


def rest():
    time.sleep(0.2)
    os.write(half, blob(6, MiB))
    os.close(half)


take_over(s, meanwhile=rest)
assert s.read("m/half/l") == blob(5, MiB) + blob(6, MiB)
assert "files open for writing" not in s.log()

# open files: umount refuses; files that are only read do not keep the daemon running
s.write("m/read/l", blob(1, MiB))
s.write("m/over/l", blob(2, MiB))
s.settle()
r = os.open(f"{s.mnt}/m/read/l", os.O_RDONLY)
seen = mmap.mmap(r, MiB, prot=mmap.PROT_READ)
assert run("umount", s.mnt).returncode != 0
os.stat(s.mnt)
take_over(s)
assert "files open for writing" not in s.log()
if s.config()["served_by"] == "passthrough":
    assert os.pread(r, MiB, 0) == seen[:] == blob(1, MiB)
else:
    with fails(*GONE):
        os.pread(r, MiB, 0)
with fails(*GONE):
    os.fstat(r)
seen.close()
os.close(r)
assert s.read("m/read/l") == blob(1, MiB)
# a file that stays open for writing: synced data is there, and fsync reports the loss of other data
os.makedirs(f"{s.mnt}/m/open")
fd = os.open(f"{s.mnt}/m/open/l", os.O_CREAT | os.O_RDWR)
os.write(fd, blob(3, MiB))
os.fsync(fd)
over = os.open(f"{s.mnt}/m/over/l", os.O_RDWR)
os.pwrite(over, b"not synced", 0)
take_over(s, hurry=True)
assert "ending with 2 files open for writing" in s.log()
for f in fd, over:
    with fails(*GONE):
        os.pwrite(f, b"late", 0)
        os.fsync(f)
assert s.read("m/open/l") == blob(3, MiB)
assert s.read("m/over/l") == blob(2, MiB)
os.close(fd)
os.close(over)
assert s.read("m/open/l") == blob(3, MiB) and s.read("m/over/l") == blob(2, MiB)
s.umount()
s.fsck("-n", "--data")

# with disk=off only the pool has the files
s = Store("off", options="disk=off,keep_pool").mount()
s.write("m/c/l", blob(4, MiB))
take_over(s)
assert s.read("m/c/l") == blob(4, MiB) and s.attr("m/c/l", "tiers") == "cpu"
s.umount()
