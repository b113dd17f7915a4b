# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The catalog's log stays within its limit (log=) under an hour's worth of commits. With commit=1,
small changes go on until thirty times the limit has passed through the log in thousands of commits,
and the size of the file is watched all the time. Two readers run at the same time: a slow listing
of a large folder, and a program that holds a read transaction on the database, as sqlite3 does.
During that transaction SQLite can remove nothing from the log, so the log may grow, and it shrinks
afterwards. After a clean unmount it is almost empty."""
import os, sqlite3, threading, time
from kvtest import *

BOUND = 8 * MiB
TIMES = 24 if SLOW == 1 else 6
THREADS = 3

need_mount()
s = Store(size="64M", cpu="64M", options="log=8M,commit=1,unit=file,settle=3600000")
s.mount()
wal = f"{s.path}/catalog.sqlite-wal"
stop, wrong = threading.Event(), []
most = {"log": 0}


def salt():
    """The header of the log, which changes whenever the log restarts."""
    with open(wal, "rb") as f:
        return f.read(32)[12:24]


def watch():
    while not stop.is_set():
        try:
            most["log"] = max(most["log"], os.stat(wal).st_size)
        except FileNotFoundError:
            pass
        time.sleep(0.002)


def work(n):
    """Names, attributes and their removal: each touches many pages, and no tier."""
    try:
        os.makedirs(f"{s.mnt}/m{n}", exist_ok=True)
        serial = 0
        while not stop.is_set():
            names = [f"{s.mnt}/m{n}/{serial + i:08x}{'n' * 60}" for i in range(12)]
            serial += 12
            for name in names:
                os.symlink("x" * 200, name)
                time.sleep(0.0003)
            for name in names[:-1] if serial % 600 == 0 else names:  # few stay
                os.unlink(name)
                time.sleep(0.0003)
    except OSError as e:
        wrong.append(repr(e))


def through():
    """Returns how many bytes the daemon has written, most of them to the log: no file is copied to
    a tier here."""
    with open(f"/proc/{s.daemon.pid}/io") as f:
        return next(int(l.split()[1]) for l in f if l.startswith("wchar"))


os.makedirs(f"{s.mnt}/large")
for i in range(3000):
    os.symlink("x", f"{s.mnt}/large/{i:05d}")
watcher = threading.Thread(target=watch)
threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
began, commits = through(), s.stats()["commits"]
watcher.start()
[t.start() for t in threads]


def until(bytes_more):
    end = through() + bytes_more
    while through() < end and not wrong:
        time.sleep(0.02)
    assert not wrong, wrong


try:
    # a listing that is read slowly: 3,000 names, a few at a time, during the whole load
    listing = iter(os.scandir(f"{s.mnt}/large"))
    seen = 0
    for part in range(TIMES):
        for _ in range(3000 // TIMES):
            next(listing)
            seen += 1
        until(BOUND)
    seen += sum(1 for _ in listing)
    assert seen == 3000, seen
    kept = most["log"]
    # the log may exceed the limit by one batch, which writes each page of the database at most once
    batch = os.stat(f"{s.path}/catalog.sqlite").st_size + MiB
    assert kept <= BOUND + batch, (
        f"the log reached {kept} bytes with log={BOUND}, and a batch is at most {batch}")
    assert through() - began >= TIMES * BOUND
    # a read transaction that stays open
    db = sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True, isolation_level=None)
    db.execute("BEGIN")
    first = db.execute("SELECT count(*) FROM names").fetchone()
    held = salt()
    until(3 * BOUND)
    assert db.execute("SELECT count(*) FROM names").fetchone() == first
    grown = os.stat(wal).st_size
    db.execute("ROLLBACK")
    db.close()

    def smaller():
        return os.stat(wal).st_size <= BOUND
    wait_for(smaller)
    assert salt() != held
    most["log"] = 0
    until(3 * BOUND)
    again = most["log"]
    assert again <= BOUND + batch, f"the log reached {again} bytes after a long read transaction"
finally:
    stop.set()
    [t.join() for t in threads]
    watcher.join()
st = s.stats()
print(f"{st['commits'] - commits} commits, {(through() - began) >> 20} MiB written; "
      f"the log was {kept >> 10} KiB at most, "
      f"{grown >> 10} KiB during a read transaction, {again >> 10} KiB after that", flush=True)
names = {n: sorted(os.listdir(f"{s.mnt}/m{n}")) for n in range(THREADS)}
s.umount()
left = os.stat(wal).st_size if os.path.exists(wal) else 0
assert left <= 64 * KiB, left
s.fsck("-n")
s.mount()
assert names == {n: sorted(os.listdir(f"{s.mnt}/m{n}")) for n in range(THREADS)}
s.umount()
