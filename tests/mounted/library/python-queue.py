# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The queues of the Python package signal completion without a Python thread, to several event
loops and threads at once, also if one of them is interrupted. Also: full queues, cancelled stores,
stores whose layers change, many mounts and threads, forks, and the end of a process."""
import asyncio, errno, os, select, signal, subprocess, sys, threading
from kvtest import *
from tensors import *
from kvcachefs import _lib, _queue

flag = f"{TMP}/slow.flag"
kv.map_cache(0)
s = Store(options=f"settle=0,shim=delay-get:60000+delay-while:{flag}", size="512M").mount()
tensors, cache = made("NL_X_TWO_NB_BS_NH_HS")
items = kv.layerwise(cache, "q/{}".format, BLOCKS)
kv.store(s.mnt, cache, items).wait()
slow = kv.layerwise(cache, "slow/{}".format, BLOCKS)
kv.store(s.mnt, cache, slow).wait()
whole = cache.gather(BLOCKS)


def block():
    """A load of `slow` that waits for its tier until the flag is removed."""
    evict(s, *[i.path for i in slow])
    open(flag, "w").close()
    load = kv.load(s.mnt, cache, slow)
    wait_for(lambda: s.attr(slow[0].path, "state") == "loading")
    return load


# ---- Notifications -------------------------------------------------------------------------------


async def no_thread():
    """A task is notified by its own loop, whose reader is removed with the last waiting task."""
    loop = asyncio.get_running_loop()
    readers, threads = len(loop._selector.get_map()), threading.active_count()
    seen = []
    loads = [asyncio.ensure_future(kv.load(s.mnt, cache, items[:2])) for _ in range(10)]
    while not all(l.done() for l in loads):
        seen.append((threading.active_count() - threads,
                     len(loop._selector.get_map()) - readers))
        await asyncio.sleep(0)
    assert {t for t, _ in seen} == {0} and {r for _, r in seen} <= {0, 1}, seen
    assert len(loop._selector.get_map()) == readers and [l.result() for l in loads] == [None] * 10
asyncio.run(no_thread())


def crowd():
    """Loops and threads that all wait in one queue, and take each other's completions."""
    rounds, failed = 60, []

    def threads():
        for _ in range(rounds):
            kv.load(s.mnt, cache, items[:1]).wait(HANG)

    def polls():
        for _ in range(rounds):
            load = kv.load(s.mnt, cache, items[:1])
            wait_for(load.poll)

    async def tasks():
        for _ in range(rounds):
            await asyncio.wait_for(kv.load(s.mnt, cache, items[:1]), HANG)

    def noted(what):
        try:
            what()
        except BaseException as e:
            failed.append(e)
    all_of = [threading.Thread(target=noted, args=[w]) for w in
              (threads, threads, polls, lambda: asyncio.run(tasks()), lambda: asyncio.run(tasks()))]
    for t in all_of:
        t.start()
    for t in all_of:
        t.join()
    assert not failed, failed
crowd()
assert not _queue._busy


def told():
    """A thread and a task learn of completions that another has taken."""
    load = block()
    queue, (nothing, end) = load._queue, os.pipe()
    queue._fd, really = nothing, queue._fd  # not notified by the queue's descriptor
    heard = []
    threads = [threading.Thread(target=lambda: heard.append(load.wait(HANG))),
               threading.Thread(target=lambda: heard.append(asyncio.run(load._complete())))]
    for t in threads:
        t.start()
    wait_for(lambda: len(load.wakers) == 2)
    queue._fd = really
    os.unlink(flag)
    wait_for(load.done)
    for t in threads:
        t.join()
    assert heard == [None, None] and not load.wakers
    os.close(nothing)
    os.close(end)
told()


def interrupted():
    """Ctrl-C during a wait, and while a completion is being handled: nothing is lost."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    load = block()
    try:
        threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        load.wait()
        raise AssertionError("no interrupt")
    except KeyboardInterrupt:
        assert not load.done()
    os.unlink(flag)
    load.wait()

    def breaks_early(*arguments):
        raise KeyboardInterrupt
    really, _lib.check = _lib.check, breaks_early
    try:
        kv.load(s.mnt, cache, items)
        raise AssertionError("no interrupt")
    except KeyboardInterrupt:
        assert not _queue._busy
    _lib.check = really
    for at in ("take", "end", "_over", "_forget"):
        where = {"take": _queue._lib, "end": kv.Transfer}.get(at, _queue.Queue)
        name = {"take": "call"}.get(at, at)
        really, once = getattr(where, name), []

        def breaks(*arguments):
            answer = really(*arguments)
            if not once and (at != "take" or (arguments[0] == "take" and answer)):
                once.append(at)
                raise KeyboardInterrupt
            return answer
        load = kv.load(s.mnt, cache, items[:1])
        setattr(where, name, breaks)
        try:
            load.wait(HANG)
            raise AssertionError(f"no interrupt: {at}")
        except KeyboardInterrupt:
            pass
        setattr(where, name, really)
        load.wait(HANG)
        assert once == [at] and not _queue._busy, at
interrupted()

# ---- Stores, and a queue that is full ------------------------------------------------------------

kv.workers(1)
load = block()
waiting = [kv.store(s.mnt, cache, kv.layerwise(cache, f"never/{n}/{{}}".format, BLOCKS))
           for n in range(_lib.QUEUE_MOST - 1)]
more = kv.layerwise(cache, "never/more/{}".format, BLOCKS)
assert "have not been collected" in wrong(errno.EAGAIN, kv.store, s.mnt, cache, more).strerror
for w in waiting:
    w.cancel()
assert all(w.done() for w in waiting) and not load.done()
wrong(errno.ECANCELED, waiting[-1].poll)
wrong(errno.ECANCELED, waiting[-1].wait_layer, 0)
assert all(i.error.errno == errno.ECANCELED for w in waiting for i in w.items)
try:
    with kv.store(s.mnt, cache, more) as store:
        raise ZeroDivisionError
except ZeroDivisionError:
    wrong(errno.ECANCELED, store.poll)
os.unlink(flag)
load.wait()
assert not os.path.exists(f"{s.mnt}/never") and not _queue._busy and cache.gather(BLOCKS) == whole
kv.workers(8)


async def changed():
    """A layer that was copied out may be changed, without an effect on the stored bytes."""
    store = kv.store(s.mnt, cache, kv.layerwise(cache, "changed/{}".format, BLOCKS))
    for layer in range(NL):
        await store.layer(layer)
        cache.scatter(BLOCKS, bytes(len(whole) // NL), layer, 1)
    await store
    assert not any(cache.gather(BLOCKS))
    assert b"".join(s.read(f"changed/{layer}") for layer in range(NL)) != bytes(len(whole))
    async with kv.load(s.mnt, cache, store.items) as load:
        await load.layer(NL)
    assert cache.gather(BLOCKS) == whole
asyncio.run(changed())
refused(ValueError, "threads", kv.workers, 0)
refused(ValueError, "threads", kv.workers, 65)

# ---- Many mounts ---------------------------------------------------------------------------------


def threads():
    return len(os.listdir("/proc/self/task"))


del load, waiting, w, store, more  # and their queues
first = kv.load(s.mnt, cache, items[:1])
wait_for(lambda: select.select([first._queue._fd], [], [], 0)[0])
assert not first.over
other = kv.load(f"{TMP}/none", cache, items[:1])  # takes the completion of `first`
assert first.over and not first._kept
wrong(errno.ENOENT, other.wait)
del first, other
kv.workers(3)
before = threads()
for n in range(3 * _queue.MOUNTS):
    wrong(errno.ENOENT, kv.load(f"{TMP}/none{n}", cache, items[:1]).wait)
assert len(_queue._open) == _queue.MOUNTS
wait_for(lambda: threads() <= before + 3 * _queue.MOUNTS)
load = block()
kv.workers(8)  # transfers in a queue that is closed still end
wait_for(lambda: threads() <= before + 3)
os.unlink(flag)
load.wait()
queue = load._queue
del load
wait_for(lambda: not _queue._busy)
del queue
wait_for(lambda: threads() <= before)

# ---- Forks, and ends -----------------------------------------------------------------------------

load = block()
for how in os._exit, sys.exit:
    pid = os.fork()
    if not pid:
        wrong(errno.ECANCELED, load.wait)
        assert "forked" in load.items[0].error.strerror
        wrong(errno.ECANCELED, load.wait_layer, 0)
        load.cancel()
        mine = kv.load(s.mnt, cache, items)
        asyncio.run(asyncio.wait_for(mine, HANG))
        mine.wait_layer(NL)
        how(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, how
assert not load.done()
os.unlink(flag)
load.wait()

SCRIPT = """
import atexit, multiprocessing, sys
sys.path[:0] = sys.argv[3:]
from tensors import *
mount, what = sys.argv[1:3]
def store(name):
    tensors, cache = made("NL_X_TWO_NB_BS_NH_HS")
    kv.store(mount, cache, kv.layerwise(cache, (name + "/{}").format, BLOCKS))
if what == "store":
    store("ends/own")
    child = multiprocessing.get_context("fork").Process(target=store, args=["ends/child"])
    child.start()
    child.join()
    assert child.exitcode == 0
elif what == "owner":  # a queue of its own; the daemon does not answer the lease
    queue, memory = kv.Queue(mount), bytearray(4 << 20)
    queue.store([kv.Item("ends/owner", parts=kv.Parts([(memory, 0)]))])
    late = queue.lease(["slow/0"])
    assert not late.done()
else:
    atexit.register(lambda: print("over" if load.over else "not over"))  # called last
    tensors, cache = made("NL_X_TWO_NB_BS_NH_HS")
    load = kv.load(mount, cache, kv.layerwise(cache, "slow/{}".format, BLOCKS))
    sys.stdin.readline()
    atexit.register(print, "ending", flush=True)
"""


def begin(what):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, s.mnt, what, *sys.path[:4]], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


if MODE != "asan":
    p = begin("store")
    out, _ = p.communicate(timeout=HANG)
    assert p.returncode == 0 and not out, out
    for who in "own", "child":
        assert len(os.listdir(f"{s.mnt}/ends/{who}")) == NL, who
        assert s.read(f"ends/{who}/0") == cache.gather(BLOCKS, 0, 1)
    evict(s, *[i.path for i in slow])
    open(flag, "w").close()
    p = begin("owner")
    out, _ = p.communicate(timeout=HANG)
    assert p.returncode == 0 and not out, out
    assert os.path.getsize(f"{s.mnt}/ends/owner") == 4 << 20
    p = begin("load")
    wait_for(lambda: s.attr(slow[0].path, "state") == "loading")
    p.stdin.write("\n")
    p.stdin.flush()
    assert p.stdout.readline() == "ending\n"
    os.unlink(flag)  # until then its memory may be written to
    out, _ = p.communicate(timeout=HANG)
    assert p.returncode == 0 and out == "over\n", out
assert not temporaries(s) and not held()
s.umount()
s.fsck()
