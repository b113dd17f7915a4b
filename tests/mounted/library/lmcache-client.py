# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""The client for LMCache's server, called as LMCache does: names and bytes of its adapter fs,
existing files, absent, truncated and extended files, removals, a full pool, a daemon that is
stopped, dead or mounted again, wrong options, a user who may not write, an end with tasks in
progress, and calls after it."""
import select, signal, threading
from kvtest import *
from tensors import *
from kvcachefs import lmcache
from kvcachefs.lmcache import Client

s = Store(size="256M", cpu="64M", options="allow_other").mount()
N, SIZE = 6, 100000
HASH = "ab" * 31
keys = [f"org/model@01000100@{i % 2}@{HASH}{i:02x}" + ("@salt" if i == 5 else "") for i in range(N)]
data = [bytearray(os.urandom(SIZE + 4096 * i)) for i in range(N)]
views = [memoryview(d) for d in data]
want = [bytes(d) for d in data]


def path(i):
    return f"{s.mnt}/lmcache/org-SEP-model@0x{keys[i].split('@', 1)[1]}.data"


def ends(client, *tasks):
    """The completions of these tasks, in their order."""
    poll, done, end = select.poll(), {}, time.time() + 60 * SLOW
    poll.register(client.event_fd(), select.POLLIN)
    while not done.keys() >= set(tasks):
        assert time.time() < end, (tasks, done)
        if poll.poll(1000):
            done.update((c[0], c[1:]) for c in client.drain_completions())
    assert done.keys() == set(tasks), (tasks, done)
    return [done[t] for t in tasks]


def store(client, some=range(N)):
    return ends(client, client.submit_batch_set([keys[i] for i in some],
                                                [views[i] for i in some]))[0]


def load(client, some=range(N)):
    """Returns which chunks were loaded, with all bytes checked. Restores the other chunks."""
    for i in some:
        data[i][:] = bytes(len(data[i]))
    ok, error, good = ends(client, client.submit_batch_get([keys[i] for i in some],
                                                           [views[i] for i in some]))[0]
    assert ok == all(good) and bool(error) != ok
    for i, fine in zip(some, good):
        assert not fine or data[i] == want[i], i
        data[i][:] = want[i]
    return good


def found(client, some=range(N)):
    return ends(client, client.submit_batch_exists([keys[i] for i in some]))[0]


for options, word in (({}, "give the folder of the mount"), ({"mount": TMP}, "is not a mount"),
                      ({"mount": s.mnt, "thread": 1}, "no option 'thread'"),
                      ({"mount": s.mnt, "threads": 0}, "threads must be 1 to 64"),
                      ({"mount": s.mnt, "threads": True}, "threads must be 1 to 64"),
                      ({"mount": s.mnt, "folder": "a/../.."}, "folder must be"),
                      ({"mount": s.mnt, "push": "b"}, "push must name nodes as HOST:PORT"),
                      ({"mount": s.mnt, "push": 5}, "push must be HOST:PORT"),
                      ({"mount": s.mnt, "lookup_timeout_ms": "5"}, "lookup_timeout_ms must be")):
    try:
        Client(**options)
    except (ValueError, RuntimeError) as e:
        assert word in str(e), e
    else:
        raise AssertionError(options)



def as_nobody(what):
    """Calls `what` as the user nobody. Returns its result, or the text of its error."""
    mine, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            said = what()
        except Exception as e:
            said = str(e)
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with open(mine) as f:
        said = f.read()
    os.waitpid(pid, 0)
    return said


# The root folder of a mount belongs to root, so a client of another user is refused, and the error
# names the command after which it can store.
for folder in TMP, os.path.dirname(TMP):
    os.chmod(folder, 0o755)
mended = f"install -d -o 65534 {s.mnt}/other/folder"
stores = lambda: str(store(Client(s.mnt, folder="other/folder"), range(2)))
said = as_nobody(stores)
assert said.endswith(mended), said
run(*mended.split(), ok=True)
assert as_nobody(stores) == str((True, "", [True] * 2))
assert len(os.listdir(f"{s.mnt}/other/folder")) == 2

c = Client(s.mnt, lookup_timeout_ms=500 * SLOW)
assert not select.select([c.event_fd()], [], [], 0)[0] and c.drain_completions() == []
assert found(c) == (True, "", [False] * N)
assert load(c) == [False] * N
assert store(c, range(4)) == (True, "", [True] * 4)
for i in range(4):
    with open(path(i), "rb") as f:
        assert f.read() == want[i]
assert len(os.listdir(f"{s.mnt}/lmcache")) == 4
assert found(c)[2] == [True] * 4 + [False] * 2
inode = os.stat(path(0)).st_ino
assert store(c)[0] and os.stat(path(0)).st_ino == inode  # not written again
assert found(c)[2] == load(c) == [True] * N
assert ends(c, c.submit_batch_set([], []), c.submit_batch_get([], []),
            c.submit_batch_exists([])) == [(True, "", [])] * 3

# another process, and a mount's root
with contextlib.closing(Client(s.mnt, folder="")) as root:
    assert found(root)[2] == [False] * N and store(root)[0]
    assert os.path.exists(f"{s.mnt}/{os.path.basename(path(1))}") and load(root) == [True] * N

# files that are not chunks are removed, and stored again
with open(path(1), "r+b") as f:
    f.truncate(SIZE // 2)
with open(path(2), "r+b") as f:
    f.truncate(SIZE * 2)
assert load(c) == [True, False, False, True, True, True]
wait_for(lambda: not os.path.exists(path(1)) and not os.path.exists(path(2)))
assert store(c)[0] and load(c) == [True] * N

gone = [keys[0], keys[3], "org/model@01000100@0@" + "00" * 32]
assert ends(c, c.submit_batch_delete(gone)) == [(True, "", [True] * 3)]
assert found(c)[2] == [False, True, True, False, True, True]

# a full pool
os.makedirs(f"{s.mnt}/full")
with open(f"{s.mnt}/full/open", "wb", buffering=0) as f:
    try:
        while True:
            f.write(bytes(1 << 20))
    except OSError as e:
        assert e.errno == errno.ENOSPC
    ok, error, good = store(c)
    assert not ok and not good[0] and not good[3] and error, (ok, error, good)
    assert not os.path.exists(path(0))
os.unlink(f"{s.mnt}/full/open")
assert store(c)[0] and load(c) == [True] * N

# removals that wait do not hold up lookups
begun, over, remove = [], threading.Event(), c._remove
c._remove = lambda paths: begun.append(1) or over.wait() and remove(paths)
tasks = [c.submit_batch_delete(["a/b@1@0@cc"]) for _ in range(2 * lmcache.THREADS)]
wait_for(lambda: len(begun) == lmcache.THREADS)
assert found(c)[2] == [True] * N
over.set()
assert [e[0] for e in ends(c, *tasks)] == [True] * len(tasks)

# a daemon that does not answer
s.settle()
freeze(s.daemon.pid)
try:
    ok, error, bits = found(c)
    assert not ok and "does not answer" in error and bits == [False] * N
    tasks = [c.submit_batch_exists(keys) for _ in range(300)]
    assert all(e[2] == [False] * N for e in ends(c, *tasks))
finally:
    s.daemon.send_signal(signal.SIGCONT)
wait_for(lambda: found(c)[2] == [True] * N)

# a daemon that is dead, and mounted again
s.kill()
assert found(c)[2] == load(c) == [False] * N
ok, error, good = store(c)
assert not ok and error and good == [False] * N
s.mount()
assert found(c)[2] == load(c) == [True] * N

# the end, with tasks in progress: they are reported, and later tasks fail
some = [memoryview(bytearray(1 << 20)) for _ in range(16)]
last = c.submit_batch_set([f"m@0@0@{i:x}" for i in range(16)], some)
c.submit_batch_exists(keys)
c.close()
c.close()
assert last in [number for number, *_ in c.drain_completions()]
assert c.drain_completions() == []
late = [c.submit_batch_set(keys, views), c.submit_batch_get(keys, views),
        c.submit_batch_exists(keys), c.submit_batch_delete(keys)]
done = {number: rest for number, *rest in c.drain_completions()}
assert sorted(done) == late and not any(ok or any(good) for ok, _, good in done.values()), done
assert all("closed" in error for _, error, _ in done.values()), done
del some
s.umount()
