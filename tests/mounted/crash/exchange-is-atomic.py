# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""RENAME_EXCHANGE under kill -9: each of the two names always refers to a different one of the two
files or folders, also if the pool is lost. With a remote as the only tier, where a copy is found by
the name of its file, an exchange works too. If two files in that remote do not fit the pool
together, they stay as they are and the call fails."""
import ctypes, errno, os, random, signal, threading, time
from kvtest import *

libc = ctypes.CDLL(None, use_errno=True)


def exchange(s, a, b):
    if libc.renameat2(-100, f"{s.mnt}/{a}".encode(), -100, f"{s.mnt}/{b}".encode(), 2):
        raise OSError(ctypes.get_errno(), f"{a} {b}")


seed = time.time_ns() % 10**6
print("seed", seed)
s = Store(options="settle=0").mount()
pairs = [(f"m/a/f{i}", f"m/b/f{i}", blob(i, 100000), blob(100 + i, 200000)) for i in range(4)]
for a, b, one, two in pairs:
    s.write(a, one)
    s.write(b, two)
for i in range(3):
    s.write(f"m/x/in{i}", b"x")
s.write("m/y", b"a file")
s.settle()
s.committed()  # the first kill may be sooner than 50 ms from here
for turn in range(6):
    pid = os.fork()
    if not pid:
        try:
            while True:
                for a, b, _, _ in pairs:
                    exchange(s, a, b)
                exchange(s, "m/x", "m/y")
        except OSError:
            os._exit(0)
    time.sleep(random.Random(seed + turn).uniform(0.02, 0.3) * SLOW)
    s.kill()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    run("umount", "-l", s.mnt)
    if turn % 3 == 2:
        s.drop_pool()
    s.fsck("-n")
    s.mount()
    for a, b, one, two in pairs:
        assert sorted((s.read(a), s.read(b)), key=len) == [one, two], (turn, a)
    folder, file = ("m/x", "m/y") if os.path.isdir(f"{s.mnt}/m/x") else ("m/y", "m/x")
    assert sorted(os.listdir(f"{s.mnt}/{folder}")) == ["in0", "in1", "in2"] \
        and s.read(file) == b"a file"
    assert os.stat(f"{s.mnt}/m").st_nlink == 5 and os.listdir(f"{s.mnt}/m/a") \
        and len(os.listdir(f"{s.mnt}/m")) == 4
s.settle()
s.umount()
s.fsck("-n", "--data")

# with a remote only, the exchanged files are not in the pool: they are loaded, and copied to the
# remote again under their new names
os.mkdir(f"{TMP}/shared")
a = Store("one", cpu="16M", options=f"disk=off,settle=0,remote=dir://{TMP}/shared").mount()
a.write("m/k/first", blob(1, MiB))
a.write("m/k/second", blob(2, 2 * MiB))
a.settle()
for i in range(40):
    a.write(f"fill/{i}/l", bytes(MiB))
wait_for(lambda: a.attr("m/k/first", "state") == a.attr("m/k/second", "state") == "lower")
exchange(a, "m/k/first", "m/k/second")
assert a.read("m/k/first") == blob(2, 2 * MiB) and a.read("m/k/second") == blob(1, MiB)
a.settle()
for i in range(40):
    a.write(f"fill/{i}/again", bytes(MiB))
wait_for(lambda: a.attr("m/k/first", "state") == a.attr("m/k/second", "state") == "lower")
assert a.read("m/k/first") == blob(2, 2 * MiB) and a.read("m/k/second") == blob(1, MiB) \
    and a.stats()["corrupt"] == 0
a.settle()
large = [blob(3, 9 * MiB), blob(4, 10 * MiB)]
for i, d in enumerate(large):
    with open(f"{a.mnt}/m/large{i}", "wb", buffering=0) as f:
        os.posix_fallocate(f.fileno(), 0, len(d))  # waits for space in the pool
        f.write(d)
    a.settle()
    os.setxattr(f"{a.mnt}/m/large{i}", "user.kvcachefs.demote", b"cpu")
ended = []


def cannot():
    with fails(errno.ENOSPC):
        exchange(a, "m/large0", "m/large1")
    ended.append(True)


threading.Thread(target=cannot, daemon=True).start()
wait_for(lambda: ended)
assert [a.read(f"m/large{i}") for i in (0, 1)] == large
b = Store("two", cpu="16M", options=f"disk=off,remote=dir://{TMP}/shared").mount()
assert b.read("m/k/first") == blob(2, 2 * MiB) and b.read("m/k/second") == blob(1, MiB)
a.umount()
b.umount()
