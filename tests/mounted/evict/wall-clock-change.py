# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Setting the wall clock five years ahead or back changes neither the eviction order nor expiry,
here or in Redis. Expired chunks are dropped even if chunks that cannot be dropped precede them, and
faster than 64 a second. After a refused wait the next waiter can use the free space."""
import errno, os, threading, time
from fakes import Redis
from kvtest import *

YEARS = 5 * 365 * 86400


def put(path, name, value):
    os.setxattr(path, f"user.kvcachefs.{name}", str(value).encode())


def wall_file():
    """Each process has its own."""
    return f"{TMP}/wall{os.getpid()}"


def wall(seconds):
    with open(f"{wall_file()}.new", "w") as f:
        f.write(str(seconds))
    os.rename(f"{wall_file()}.new", wall_file())


def mount(s):
    os.environ.update(LD_PRELOAD=f"{BUILD}/lib/wall.so", WALL=wall_file())
    try:
        return s.mount()
    finally:
        del os.environ["LD_PRELOAD"]


def there(s, of):
    return [n for n in range(20) if os.path.exists(f"{s.mnt}/m/{of}{n}/l")]


def fill(s, of, n=20):
    for i in range(n):
        s.write(f"m/{of}{i}/l", blob(i, 512 * KiB))
    s.settle()


# chunks that are used at three wall times are evicted in the order of use
def uses():
    wall(0)
    s = mount(Store("clock", size="48M", cpu="24M", options="policy=lru"))
    fill(s, "a")
    put(f"{s.mnt}/m/a19", "ttl", 3600)
    wall(YEARS)
    fill(s, "b")
    time.sleep(2.5)  # the quota keeper looks for expired chunks every second
    assert 19 in there(s, "a"), "an hour has not passed"
    wall(-86400)
    fill(s, "c")
    s.umount()
    wall(YEARS)
    mount(s)
    assert 19 in there(s, "a"), "an hour has not passed, over a remount too"
    wall(-86400)
    fill(s, "d")
    fill(s, "e", 12)
    wait_for(lambda: s.stats()["trimmed_chunks"] or s.stats()["dropped_chunks"])
    time.sleep(0.5)
    left = steady(lambda: {of: there(s, of) for of in "abcde"})
    assert len(left["e"]) == 12 and len(left["d"]) == 20, left
    assert len(left["a"]) < 20 and len(left["c"]) == 20 or not left["a"], left
    assert len(left["b"]) == 20 or not [n for n in left["a"] if n != 19], left
    s.umount()


# the daemon tells Redis how long to keep a copy, and Redis counts with its own clock
lives = []


def keep_lives(fake, words, address):
    if words[0] == b"SET":
        lives.append(int(words[words.index(b"PX") + 1]) if b"PX" in words else None)


def px():
    wall(0)
    s = mount(Store("px", size="32M",
                    options=f"settle=0,remote=redis://127.0.0.1:{Redis(keep_lives).port}/kv"))
    for n, years in enumerate((0, 1, -1)):
        wall(years * YEARS)
        os.makedirs(f"{s.mnt}/px{n}/c")
        s.write(f"px{n}/c/l", blob(n, 5 * KiB))
        s.settle()
        lives.clear()
        put(f"{s.mnt}/px{n}/c", "ttl", 3600)
        s.write(f"px{n}/c/l", blob(n + 9, 5 * KiB))
        wait_for(lambda: lives)
        assert all(0 < ms <= 3600000 and ms > 1800000 for ms in lives), (years, lives)
    wall(0)
    s.umount()


# expired chunks are dropped although 300 pinned chunks precede them
def pinned():
    s = Store("ttl", size="64M", cpu="32M").mount()
    for n in range(600):
        s.write(f"m/{n // 300}-{n}/l", blob(n, 4 * KiB))
        if n < 300:
            put(f"{s.mnt}/m/0-{n}", "pin", 1)
        put(f"{s.mnt}/m/{n // 300}-{n}", "ttl", 1 if n < 300 else 2)
    wait_for(lambda: s.stats()["expired_chunks"] >= 300)
    assert sorted(n.split("-")[0] for n in os.listdir(f"{s.mnt}/m")) == ["0"] * 300
    for n in range(300):
        put(f"{s.mnt}/m/0-{n}", "pin", 0)
    wait_for(lambda: s.stats()["expired_chunks"] == 600)
    assert not os.listdir(f"{s.mnt}/m")
    s.umount()


# the first waiter asks for more than is possible; the waiter behind it does not
def ask(s, got, name, size):
    fd = os.open(f"{s.mnt}/{name}", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size)
        got[name] = 0
    except OSError as e:
        got[name] = e.errno
    os.close(fd)


def refused():
    s = Store("queue", size="64M", cpu="32M").mount()
    held = os.open(f"{s.mnt}/held", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(held, 0, 16 * MiB)

    got = {}
    large = threading.Thread(target=ask, args=(s, got, "large", 20 * MiB))
    large.start()
    wait_for(lambda: s.stats()["room_waits"], every=0.001)
    small = threading.Thread(target=ask, args=(s, got, "small", MiB))
    small.start()
    large.join()
    small.join()
    assert got == {"large": errno.ENOSPC, "small": 0}, got
    os.close(held)
    s.umount()


beside([(uses,), (px,), (pinned,), (refused,)])
print("ok")
