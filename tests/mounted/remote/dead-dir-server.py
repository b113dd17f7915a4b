# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The server of a dir:// tier stops answering, and calls to it never return. The tier is suspended,
and nothing else waits for it: statistics, leases, stores, loads, lookups and the unmount. The tier
recovers by itself, and threads that never return are abandoned at the end. Loads that the tier has
not begun are served by another remote."""
import errno, os, shutil, signal, subprocess, sys, threading
from kvtest import HANG, KiB, Store, TMP, binary, blob, fails, freeze, run, wait_for

LIMIT = HANG  # a call that takes longer counts as hanging

server = Store("server", size="64M", options="io_uring=off,settle=0").mount()
os.mkdir(f"{server.mnt}/shared")
s = Store("s", size="64M",
          options=f"settle=0,deadline=2500,remote=dir://{server.mnt}/shared").mount()
data = {f"m/c{i}/l": blob(i, 50 * KiB) for i in range(12)}
for path, d in list(data.items())[:6]:
    s.write(path, d)
s.settle()


def stop():
    server.settle()
    freeze(server.daemon.pid)  # data that a thread has already read stays with it after a kill


def outside(code, *args):
    """Runs in its own process, because a hanging call can be neither cancelled nor awaited."""
    p = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)
    try:
        out = p.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        server.daemon.send_signal(signal.SIGCONT)
        raise AssertionError(f"it hangs: {code} {args}")
    assert p.returncode == 0, (code, args)
    return out


LEASE = """import os, sys
fd = os.open(sys.argv[1] + '/.kvcachefs/lease', os.O_RDWR)
os.write(fd, sys.argv[2].encode())
print(os.pread(fd, 9999, 0).decode())"""
LOOK = "import os, sys; print(os.path.exists(sys.argv[1]))"
SPACE = "import os, sys; print(os.statvfs(sys.argv[1]).f_blocks)"


def others_go_on(some):
    for path, d in some:
        s.write(path, d)
        assert s.read(path) == d
    for name in ("stats", "metrics", "config", "models", "slowest", "policies", "log", "control",
                 "tiers"):
        assert outside("import sys; print(open(sys.argv[1]).read())",
                       f"{s.mnt}/.kvcachefs/{name}")
    for path in (s.mnt, f"{s.mnt}/m/c0"):
        assert int(outside(SPACE, path)) == blocks
    assert "resident" in outside(LEASE, s.mnt, "m/c0/l\n")
    # a name that this node does not know
    assert outside(LOOK, f"{s.mnt}/m/unknown{len(some)}").strip() == "False"


blocks = os.statvfs(s.mnt).f_blocks
# after a pause of the machine the tier may be suspended already
wait_for(lambda: s.stats()["tier_dir_up"] == 1)
opened = s.stats()["breaker_opened"]
stop()
# more than there are threads, so that each of them is caught
others_go_on(list(data.items())[6:])
for i in range(12):
    s.write(f"m/more{i}", b"x" * 5000)
wait_for(lambda: s.stats()["tier_dir_up"] == 0 or not outside(
    LOOK, f"{s.mnt}/m/unknown{os.urandom(4).hex()}"))
st = s.stats()
assert st["tier_dir_up"] == 0 and st["tier_disk_up"] == 1, st
assert opened < st["breaker_opened"] <= opened + 1, (opened, st)
others_go_on([("m/d/l", data["m/c0/l"])])
server.daemon.send_signal(signal.SIGCONT)
wait_for(lambda: s.stats()["tier_dir_up"] == 1)
wait_for(lambda: all("dir" in s.attr(p, "tiers").split(",") for p in list(data) + ["m/more11"]))
s.settle()

# the unmount, with a listing and copies in progress
stop()
for i in range(12):
    s.write(f"m/last{i}", b"y" * 5000)
subprocess.Popen([binary("kvcachectl"), "import", s.mnt], stdout=subprocess.DEVNULL,
                 stderr=subprocess.DEVNULL)
wait_for(lambda: "running" in open(f"{s.mnt}/.kvcachefs/control").read())
s.term()
assert "exits without waiting" in s.log()
s.fsck("-n")
# a start while the server does not answer
s.mount()
assert "does not answer; the next access" in s.log()
assert s.read("m/c0/l") == data["m/c0/l"]
s.write("m/without", b"z" * 5000)
wait_for(lambda: "disk" in s.attr("m/without", "tiers").split(","))
s.term()
server.daemon.send_signal(signal.SIGCONT)
s.mount()
for path, d in data.items():
    assert s.read(path) == d
assert s.read("m/last11") == b"y" * 5000 and s.read("m/without") == b"z" * 5000
wait_for(lambda: "dir" in s.attr("m/last11", "tiers").split(","))
wait_for(lambda: "dir" in s.attr("m/without", "tiers").split(","))
s.umount()
# the server answers after the start: the folder is recognized without its mark
os.unlink(f"{server.mnt}/shared/.kvcachefs-remote")
shutil.rmtree(f"{s.path}/dir-remotes")
stop()
s.mount()
server.daemon.send_signal(signal.SIGCONT)
s.write("m/late", b"l" * 5000)
wait_for(lambda: "dir" in s.attr("m/late", "tiers").split(","))
assert os.path.exists(f"{server.mnt}/shared/.kvcachefs-remote")
s.umount()
assert s.fsck("-n")

# more loads than there are threads
os.mkdir(f"{TMP}/other")
WORKERS, MORE = 8, 6
s = Store("two", options=f"settle=0,deadline=1000,disk=off,unit=file,"
          f"remote=dir://{server.mnt}/shared,remote=dir://{TMP}/other").mount()
data = {f"two/{i}": blob(i, 50 * KiB) for i in range(WORKERS + MORE)}
for path, d in data.items():
    s.write(path, d)
s.settle()
for path in data:
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
stop()
good = set()


def load(path):
    try:
        assert s.read(path) == data[path]
        good.add(path)
    except OSError as e:
        assert e.errno == errno.ENOENT, e


def all_but_those_begun():
    threads = [threading.Thread(target=load, args=(p,)) for p in data if p not in good]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return len(good) >= MORE


wait_for(all_but_those_begun)
server.daemon.send_signal(signal.SIGCONT)
wait_for(lambda: all_but_those_begun() and len(good) == len(data))
s.umount()
server.umount()
