# SPDX-License-Identifier: Apache-2.0
# ways: fast plain passthrough
"""File times: every time that 64 bits of nanoseconds can hold, also before 1970, is kept through
close, kill, eviction and remount. Only the largest number is not available to clients, since the
store uses it as a mark. Birth times, also of files in .kvcachefs/."""
import errno, os, subprocess, time
from kvtest import *

s = Store(cpu="32M", size="256M").mount()
P = lambda *a: os.path.join(s.mnt, *a)
S = 10**9
first, last = -(1 << 63), (1 << 63) - 2
TIMES = [1 * S + 1, 0, -1, -S, -S - 1, -S + 1, -5 * 365 * 86400 * S + 7, 2**31 * S, 2**32 * S + 5,
         -(2**31) * S - 3, first, last]


def look(**at):
    for i, t in enumerate(TIMES):
        for kind in ("new", "done", "open", "folder"):
            p = P("m", f"{kind}{i}")
            assert os.stat(p).st_mtime_ns == t, (kind, t, os.stat(p).st_mtime_ns, at)
            if kind != "open" and not at:
                assert os.stat(p).st_atime_ns == t, (kind, t)
            assert abs(os.stat(p).st_ctime_ns - time.time_ns()) < 3600 * S, (kind, t)
        for kind in ("new", "done", "open"):
            assert s.read(f"m/{kind}{i}") == blob(i, 100000), (kind, t)


os.mkdir(P("m"))
for i, t in enumerate(TIMES):
    with open(P("m", f"new{i}"), "wb", buffering=0) as f:  # set during the first write
        f.write(blob(i, 100000))
        os.utime(f.fileno(), ns=(t, t))
    s.write(f"m/done{i}", blob(i, 100000))
    os.utime(P("m", f"done{i}"), ns=(t, t))
    s.write(f"m/open{i}", blob(i, 100000))
    os.mkdir(P("m", f"folder{i}"))
    os.utime(P("m", f"folder{i}"), ns=(t, t))
s.settle()
for i, t in enumerate(TIMES):
    fd = os.open(P("m", f"open{i}"), os.O_RDWR)  # set while it is open and not written
    os.utime(fd, ns=(t, t))
    os.close(fd)
s.settle()
look()
s.umount()
s.mount()
look(after="remount")
s.committed()
s.kill()
s.mount()
look(after="kill")
for i in range(12):
    s.write(f"fill/{i}/x", bytes(4 * MiB))
s.settle()
assert s.attr("m/new0", "state") == "lower"
look(after="eviction")

# the limits of the range
s.write("m/late", b"x")
for t, want in ((2**33 * S * 2, last), (2**62 * 4, last), (-(2**34) * S, first)):
    run("touch", "-d", f"@{t // S}", P("m/late"), ok=True)
    assert os.stat(P("m/late")).st_mtime_ns == want, (t, os.stat(P("m/late")).st_mtime_ns)
s.settle()
s.umount()
s.mount()
assert s.read("m/late") == b"x" and os.stat(P("m/late")).st_mtime_ns == first
with open(P("m/late"), "ab") as f:
    f.write(b"y")
assert abs(os.stat(P("m/late")).st_mtime_ns - time.time_ns()) < 3600 * S


def birth(p):
    return run("stat", "-c", "%W", p, ok=True).stdout.strip()


# a query of the birth of a file in .kvcachefs/ does not return another file's
if os.path.exists("/usr/bin/stat") and birth(P("m")) not in ("-", "0"):
    assert birth(P(".kvcachefs/stats")) in ("-", "0")
    s.write("m/born", b"x")
    assert abs(int(birth(P("m/born"))) - time.time()) < 3600
s.umount()
s.fsck("-n")
