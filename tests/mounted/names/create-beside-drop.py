# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
# level: check
"""A create never fails because the chunk's folder is dropped while a program is about to write into
it. The case also checks the watermarks."""
import errno, os, random, threading, time
from kvtest import *

N = MiB


def press(s, name, n=20):
    """Stores n chunks. Old chunks are dropped for them, because no tier has a copy."""
    time.sleep(0.35)
    for i in range(n):
        s.write(f"press/{name}{i}/l", bytes(N))
    s.settle()


def written_in():
    s = Store("a", cpu="16M", options="disk=off").mount()
    m = f"{s.mnt}/m"
    os.mkdir(m)
    os.setxattr(m, "user.kvcachefs.codec", b"zstd")
    for kind in ("create", "mkdir", "rename", "link", "new"):
        s.write(f"m/{kind}/l", b"x" * N)
        s.settle()
        folder = os.open(f"{m}/{kind}", os.O_RDONLY)
        s.write("m/other", b"other")
        press(s, kind)
        wait_for(lambda: not os.path.exists(f"{m}/{kind}"))
        wait_for(lambda: os.stat(folder).st_nlink == 0)  # the kernel is notified
        s.write(f"m/tmp-{kind}", b"tmp")
        if kind == "new":  # another process creates the folder again, and the file is created in it
            os.mkdir(f"{m}/{kind}")
            os.close(os.open("again", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
            assert os.listdir(f"{m}/{kind}") == ["again"]
            os.close(os.open("again", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
            with fails(errno.EEXIST):
                os.open("again", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=folder)
        else:
            if kind == "create":
                os.close(os.open("again", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=folder))
            elif kind == "mkdir":
                os.mkdir("again", dir_fd=folder)
            elif kind == "rename":
                os.rename(f"{m}/tmp-{kind}", "again", dst_dir_fd=folder)
            else:
                os.link(f"{m}/tmp-{kind}", "again", dst_dir_fd=folder)
            wait_for(lambda: os.path.exists(f"{m}/{kind}"))  # the kernel is notified a moment later
            assert os.listdir(f"{m}/{kind}") == ["again"], kind
            assert os.stat(folder).st_nlink == 2 + (kind == "mkdir") \
                and os.stat(folder).st_ino == os.stat(f"{m}/{kind}").st_ino
        os.close(folder)
    # a folder that a caller removed stays removed
    os.mkdir(f"{m}/mine")
    folder = os.open(f"{m}/mine", os.O_RDONLY)
    os.rmdir(f"{m}/mine")
    with fails(errno.ENOENT):
        os.open("again", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.close(folder)
    # a model's folder is never dropped, whatever its unit
    os.setxattr(m, "user.kvcachefs.unit", b"dir")
    s.write("m/flat", b"x" * N)
    s.settle()
    press(s, "flat")
    wait_for(lambda: not os.path.exists(f"{m}/flat"))
    assert s.attr("m", "codec") == "zstd"
    s.umount()
    s.fsck("-n")


# makedirs and create, as engines call them, in folders that a full pool or a quota drops all the
# time
def store(folder, name):
    """A lookup protects a folder for a tenth of a second. makedirs looks up an existing folder
    again, and then the file is created: neither may fail, unless the machine delayed the process
    for longer in between. Returns true in that case."""
    start = time.monotonic()
    try:
        os.makedirs(folder, exist_ok=True)
        f = open(f"{folder}/{name}", "wb")
    except (FileExistsError, FileNotFoundError):
        if time.monotonic() - start < 0.1:
            raise
        return True
    with f:
        f.write(bytes(N // 2))
    return False


def writer(s, w, made, late, errors):
    r = random.Random(w)
    while made[0] < 400 and not errors:
        try:
            # at most 6 x 512 KiB, so that chunks in use do not fill the pool
            folder = f"{s.mnt}/m/{r.randrange(30)}"
            late[0] += store(folder, w)
            made[0] += 1
        except OSError as e:
            errors.append(e)
        time.sleep(r.choice((0, 0, 0.05, 0.4)))


def made_again(name, cpu, quota):
    s = Store(name, cpu=cpu, options="disk=off").mount()
    os.mkdir(f"{s.mnt}/m")
    if quota:
        os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"%d" % quota)
    made, late, errors = [0], [0], []
    threads = [threading.Thread(target=writer, args=(s, w, made, late, errors)) for w in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, (name, errors)
    print(f"{name}: {late[0]} of {made[0]} were delayed, and found the folder dropped")
    st = s.stats()
    assert st["dropped_chunks"] > 10 and bool(st["quota_drops"]) == bool(quota), (name, st)
    s.umount()
    s.fsck("-n")


# eviction begins above high= and ends at low=
def watermarks():
    s = Store("c", cpu="64M", size="256M", options="high=90,low=60,settle=0").mount()
    bound = s.stats()["pool_bytes"] * 15 // 16
    for i in range(80):
        s.write(f"m/{i}/l", bytes(N))
        s.settle()
        st = s.stats()
        assert st["pool_used_bytes"] < bound, (st["pool_used_bytes"], bound)
        if st["evictions"] or st["pool_used_bytes"] > 0.9 * bound + 2 * N:
            break
    assert i * N > 0.85 * bound - 2 * N, (i, bound)  # nothing is stored from here on
    # the chunk that is being created when the trim ends does not count as kept
    wait_for(lambda: s.stats()["pool_used_bytes"] <= 0.6 * bound + N)
    assert s.stats()["pool_used_bytes"] > 0.5 * bound
    s.umount()


beside([(written_in,), (made_again, "b", "24M", None), (made_again, "q", "64M", 20 * MiB),
        (watermarks,)])
print("ok")
