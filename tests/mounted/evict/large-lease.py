# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""Leases of very many objects, by lines or by a folder. While they are taken, all other callers are
served, by the same CPU's ring and by the remaining threads. The answers are complete, a prefetch
that a close requests is made, a lease ends with its killed reader, and a daemon that stops does not
wait for leases."""
import contextlib, errno, os, subprocess, sys, threading, time
from kvtest import *

LINES, READERS, FILES = 30000, 20, 3000
s = Store(cpu="64M", options=f"settle=0,{PATIENT}").mount()
LEASE = f"{s.mnt}/.kvcachefs/lease"
os.makedirs(f"{s.mnt}/m/c")
os.setxattr(f"{s.mnt}/m/c", "user.kvcachefs.unit", b"dir")
for i in range(FILES):
    s.write(f"m/c/{i}", b"%d" % i)
cpus = os.sched_getaffinity(0)


def lease(text):
    fd = os.open(LEASE, os.O_RDWR)
    for at in range(0, len(text), 1 << 20):
        os.write(fd, text[at:at + (1 << 20)])
    return fd


def read_all(fd):
    text, at = b"", 0
    while part := os.pread(fd, 1 << 20, at):
        text, at = text + part, at + len(part)
    return text.decode().splitlines()


# ---- by lines, many at once, with other calls meanwhile ----

os.sched_setaffinity(0, {min(cpus)})  # all by one ring
text = b"".join(b"m/c/%d\n" % (i % FILES) for i in range(LINES))


def taken():
    """Takes many large leases at once. Returns the number of other calls that were served before
    the first lease was answered (at least one, which was in progress then), and the leases, with
    the beginnings of their answers."""
    fds = [lease(text) for _ in range(READERS)]
    first, answers = threading.Event(), {}

    def take(i):
        answers[i] = os.pread(fds[i], 4096, 0)
        first.set()

    threads = [threading.Thread(target=take, args=(i,)) for i in range(READERS)]
    [t.start() for t in threads]
    others = 0
    while not first.is_set():
        fd = lease(b"m/c/7\n")
        assert read_all(fd)[0].startswith("m/c/7 ")
        os.close(fd)
        s.write("m/other", b"x")
        others += 1
    [t.join() for t in threads]
    return others, fds, answers


for _ in range(100):  # the callers share one CPU, so the scheduler decides which runs
    others, fds, answers = taken()
    print(f"{others} other calls while the first lease was taken")
    if others > 1:
        break
    [os.close(fd) for fd in fds]
os.sched_setaffinity(0, cpus)
assert others > 1, "all other calls waited for the leases, each time"
got = read_all(fds[3])
assert len(got) == LINES and [l.split()[0] for l in got] == text.decode().split()
assert {l.split()[3] for l in got} <= {"resident", "resident+lower"}
assert set(answers) == set(range(READERS)) and {a[:6] for a in answers.values()} == {b"m/c/0 "}
with fails(errno.EBUSY):
    os.write(fds[3], b"m/c/1\n")
[os.close(fd) for fd in fds]


def demoted():
    """The lease holds nothing any more, as soon as the daemon has processed the close or the death
    of the client."""
    def goes():
        with contextlib.suppress(OSError):
            os.setxattr(f"{s.mnt}/m/c", "user.kvcachefs.demote", b"cpu")
            return True
    wait_for(goes)


# ---- by a folder, and by closing ----

fd = lease(b"m/c")
assert len(read_all(fd)) == FILES
os.close(fd)
demoted()
assert s.attr("m/c", "state") == "lower"
os.close(lease(b"prefetch\nm/c\n"))
wait_for(lambda: s.attr("m/c", "state") == "resident+lower")
with fails(errno.EINVAL):
    os.read(lease(b"prefetch\n"), 10)

# ---- a reader that is killed ----

TAKE = f"""
import os
fd = os.open({LEASE!r}, os.O_RDWR)
for _ in range(20):
    os.write(fd, b"".join(b"m/c/%d\\n" % (i % {FILES}) for i in range({LINES})))
os.write(1, b'x')
os.read(fd, 10)
os.write(1, b'y')
"""
p = subprocess.Popen([sys.executable, "-c", TAKE], stdout=subprocess.PIPE)
assert p.stdout.read(1) == b"x"
time.sleep(0.1)
p.kill()
p.wait()
demoted()

# ---- the daemon ends while leases are taken ----

readers = [subprocess.Popen([sys.executable, "-c", TAKE], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL) for _ in range(3)]
assert [p.stdout.read(1) for p in readers] == [b"x"] * 3
time.sleep(0.2)
s.term()
[p.wait() for p in readers]
s.mount()
assert s.read("m/c/2999") == b"2999"
s.umount()
s.fsck("-n")
print("ok")
