# SPDX-License-Identifier: Apache-2.0
# ways: plain
"""Plain writes that wait for space keep a copy of their data. The copies of all users together may
use an eighth of the part of memory= that is not fixed, and those of one user may use nine
sixteenths of this eighth. A user's write beyond that fails with ENOSPC at once. Another user's
write still waits and succeeds, and each write that waited stores its own bytes."""
import errno, os, threading
from kvtest import *

PUTS_HANG = f"{TMP}/puts-hang"
GREEDY, VICTIM, WRITERS = 20001, 20002, 150
for p in (TMP, os.path.dirname(TMP)):
    os.chmod(p, 0o755)
open(PUTS_HANG, "w").close()
s = Store(cpu="48M", options=f"allow_other,mode=1777,unit=file,settle=0,memory=96M,"
          "pace=600000,deadline=600000,share=100,"
          f"shim=delay-put:600000+delay-while:{PUTS_HANG}+only:disk").mount()

st = s.stats()
PART = (st["memory_bytes"] - st["memory_fixed_bytes"]) // 8


def private():
    with open(f"/proc/{s.daemon.pid}/status", encoding="utf-8") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith("RssAnon"))


def user(uid, writers):
    """A process of that user whose threads write 1 MiB each, to files that are open already."""
    r, w = os.pipe()
    pid = os.fork()
    if pid:
        os.close(w)
        return pid, os.fdopen(r)
    os.close(r)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)

    def write(i, fd):
        try:
            got = os.pwrite(fd, blob((uid, i), MiB), 0)
        except OSError as e:
            got = -e.errno
        os.write(w, b"%d %d\n" % (i, got))

    threads = [threading.Thread(target=write, args=each) for each in writers]
    [t.start() for t in threads]
    [t.join() for t in threads]
    os._exit(0)


os.mkdir(f"{s.mnt}/m")
os.chmod(f"{s.mnt}/m", 0o1777)
files = {uid: [(i, os.open(f"{s.mnt}/m/{uid}-{i}", os.O_RDWR | os.O_CREAT, 0o666))
               for i in range(n)] for uid, n in ((GREEDY, WRITERS), (VICTIM, 1))}


# The pool is full: a file without a copy, which is too small for pace=, and an open file.
s.write("fill", bytes(20 * MiB))
s.closed(len(files[GREEDY]) + len(files[VICTIM]))
held = os.open(f"{s.mnt}/held", os.O_WRONLY | os.O_CREAT)
filler = threading.Thread(target=lambda: [os.write(held, bytes(MiB // 4)) for _ in range(200)])
filler.start()  # one of these writes waits
wait_for(lambda: s.stats()["room_waits"] > 0)
before = private()
greedy, answers = user(GREEDY, files[GREEDY])
may = PART * 9 // 16 // MiB
wait_for(lambda: s.stats()["waits_refused"] >= WRITERS - may)
refused = [tuple(map(int, answers.readline().split())) for _ in range(WRITERS - may)]
assert all(n == -errno.ENOSPC for _, n in refused), refused
st = s.stats()
assert st["waits_refused"] >= WRITERS - may and st["memory_refusals"] == 0, st
assert may * MiB <= st["memory_used_bytes"] <= PART + 8 * MiB, st
now = private()
assert now - before < (PART + 24 * MiB) * SLOW, (before, now)  # sanitizers add their own memory

victim, said = user(VICTIM, files[VICTIM])
refusals = st["waits_refused"]
wait_for(lambda: s.stats()["memory_used_bytes"] > st["memory_used_bytes"])
assert s.stats()["waits_refused"] == refusals
os.unlink(PUTS_HANG)
waited = [tuple(map(int, l.split())) for l in answers]
assert len(waited) == may and all(n == MiB for _, n in waited), waited
assert said.read() == f"0 {MiB}\n"
filler.join()
for pid in (greedy, victim):
    os.waitpid(pid, 0)
for uid, i in [(GREEDY, i) for i, _ in waited] + [(VICTIM, 0)]:
    assert os.pread(files[uid][i][1], 2 * MiB, 0) == blob((uid, i), MiB), (uid, i)
for i, _ in refused:
    assert os.fstat(files[GREEDY][i][1]).st_size == 0
print(f"{may} of {WRITERS} waited; private memory {before >> 20} to {now >> 20} MiB")
for _, fd in files[GREEDY] + files[VICTIM] + [(0, held)]:
    os.close(fd)
s.settle()
assert s.stats()["memory_used_bytes"] < MiB
s.umount()
s.fsck("-n")
