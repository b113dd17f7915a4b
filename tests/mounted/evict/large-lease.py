# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""Leases of very many objects, by lines or by a folder. While they are taken, all other callers are
served, by the same CPU's ring and by the remaining threads. The lookup of a prompt waits neither
for longer lists nor for the lists of another user. The answers are complete, a prefetch is made
although its descriptor is closed at once, a lease ends if its reader is killed, and a daemon that
stops does not wait for leases."""
import contextlib, errno, os, subprocess, sys, threading, time
from kvtest import *

LINES, READERS, FILES, PROMPT = 30000, 20, 3000, 600
USER = 1001
s = Store(cpu="64M", options=f"settle=0,allow_other,{PATIENT}").mount()
LEASE = f"{s.mnt}/.kvcachefs/lease"
os.chmod(s.mnt, 0o755)
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

os.sched_setaffinity(0, {min(cpus)})  # one CPU, so one ring takes all
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


# ---- the lookup of a prompt, beside longer lists, and beside the lists of another user ----

FLOOD = f"""
import os, sys, threading
user, lists, lines = map(int, sys.argv[1:])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
text = b"look\\n" + b"".join(b"m/c/%d\\n" % (i % {FILES}) for i in range(lines))

def look():
    fd = os.open(".kvcachefs/lease", os.O_RDWR)
    for at in range(0, len(text), 1 << 20):
        os.write(fd, text[at:at + (1 << 20)])
    os.pread(fd, 1, 0)
    os.write(1, b"x")

threads = [threading.Thread(target=look) for _ in range(lists)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


def looked(files):
    fd = lease(b"look\n" + b"".join(b"m/c/%d\n" % (i % FILES) for i in range(files)))
    try:
        return len(read_all(fd))
    finally:
        os.close(fd)


def answered_later(user, lists, lines):
    """Looks up a prompt when the first of the user's lists has been answered. Returns how many of
    the lists were answered after the prompt."""
    # a folder above the mount may be closed to the user
    p = subprocess.Popen([sys.executable, "-c", FLOOD, str(user), str(lists), str(lines)],
                         stdout=subprocess.PIPE, bufsize=0, cwd=s.mnt)
    assert p.stdout.read(1) == b"x"
    assert looked(PROMPT) == PROMPT
    os.set_blocking(p.stdout.fileno(), False)
    p.stdout.read(lists)
    os.set_blocking(p.stdout.fileno(), True)
    later = len(p.stdout.read())
    assert p.wait() == 0
    return later


for what in ((0, 8, 2 * LINES), (USER, 24, 8000)):
    for _ in range(20):  # the scheduler decides which thread runs
        later = answered_later(*what)
        print(f"the lookup of a prompt was answered before {later} of {what[1]} lists")
        if later > what[1] // 2:
            break
    assert later > what[1] // 2, f"the lookup of a prompt waited for {what}, each time"


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
for _ in range(10):
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
