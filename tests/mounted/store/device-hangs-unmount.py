# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""Devices that hang. While the syncs of two of three devices hang, files on the third device and
folders are synced. An unmount does not wait for a device that does not answer, in its writes or in
its syncs: the daemon names the device and the number of objects without a copy on stable storage,
and exits with status 1. The next mount has all files."""
import sqlite3, threading
from faults import FAR, Rules
from kvtest import *

need_mount()
N = 200000
FILES = {f"m/c{i}/l": i for i in range(20)}


def store(name, devices):
    parts = [f"{TMP}/{name}.part{i}" for i in range(devices)]
    s = Store(name, make=False, cpu="96M", options="settle=0,deadline=2000,disk_workers=2")
    run(binary("mkfs.kvcachefs"), "--size", "64M", *(w for f in parts for w in ("--file", f)),
        s.path, ok=True)
    return s, parts


def mount(s, rule):
    r = Rules(f"{rule} nth={FAR} count={FAR} do=hold")
    assert r.mount(s)
    return r


def unmounts(s, device, objects):
    """Unmounts it; the daemon gives up."""
    run("umount", s.mnt, ok=True)
    assert s.daemon.wait() == 1
    log = s.log()
    assert f"the device {device} does not answer" in log, log
    assert "the unmount is incomplete: " in log, log
    n = int(log.split("the unmount is incomplete: ")[1].split()[0])
    assert n >= objects, log


def has(s, files):
    s.mount()
    for f, seed in files.items():
        assert s.read(f) == blob(seed, N), f
    s.settle()
    s.umount()
    assert s.fsck(ok=None).returncode == 0


def writes_of_one_of_two():
    s, parts = store("writes", 2)
    s.mount()
    s.write("m/old/l", blob(-1, N))
    s.settle()
    s.umount()
    r = mount(s, f"calls=write path={parts[1]}")
    r.begin()
    for f, seed in FILES.items():
        s.write(f, blob(seed, N))
    wait_for(lambda: r.fired()[0])
    unmounts(s, parts[1], 1)
    has(s, FILES | {"m/old/l": -1})


def syncs_of_the_only_one():
    s, parts = store("sync", 1)
    r = mount(s, f"calls=sync path={parts[0]}")
    for f, seed in FILES.items():
        s.write(f, blob(seed, N))
    s.settle()
    r.begin()
    unmounts(s, parts[0], len(FILES))
    has(s, FILES)


def syncs_of_two_of_three():
    s, parts = store("two", 3)
    s.mount()
    for f, seed in FILES.items():
        s.write(f, blob(seed, N))
    inode = {f: os.stat(f"{s.mnt}/{f}").st_ino for f in FILES}
    s.settle()
    s.umount()
    with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
        at = {ino: where >> 48 for ino, where in c.execute("SELECT ino, at FROM placements")}
    of = [[f for f in FILES if at[inode[f]] == nr] for nr in range(3)]
    assert all(of), of
    rules = Rules(*(f"calls=sync path={parts[i]} nth={FAR} count={FAR} do=hold" for i in (1, 2)))
    assert rules.mount(s)
    done = {}

    def fsync(path):
        fd = os.open(f"{s.mnt}/{path}", os.O_RDONLY)
        try:
            os.fsync(fd)
            done[path] = True
        except OSError as e:
            done[path] = e
        finally:
            os.close(fd)

    rules.begin(0)
    rules.begin(1)
    threads = [threading.Thread(target=fsync, args=(f,), daemon=True) for f in of[1] + of[2]]
    for t in threads:
        t.start()
    wait_for(lambda: all(rules.fired()[:2]))
    for f in of[0] + ["m", "m/c1"]:
        fsync(f)
        assert done[f] is True, (f, done[f])
    rules.heal(0)
    rules.heal(1)
    for t in threads:
        t.join()
    s.umount()
    has(s, FILES)


beside([(writes_of_one_of_two,), (syncs_of_the_only_one,), (syncs_of_two_of_three,)])
