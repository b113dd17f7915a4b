# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Eight client processes make the requests of agents on a mount at the same time, so that they also
create chunks of the same prompts. A recording of the mount (kvcachectl trace) has each request
once. The hit rates of the mount and of a replay with eight clients and about as many chunks, which
gets the times at which the clients began the requests, are printed. make check-long makes a tenth
of the requests of the whole trace, and compares them; two runs differ by about .01. make check
makes too few requests to compare the hit rates: they depend on how the clients' calls
interleave."""
import contextlib, itertools, json, multiprocessing, signal, statistics, subprocess
import curves, faults
from kvtest import *
from prompts import *

CLIENTS = 8
# requests, and the sizes of the pool and of a disk that is full
N, POOL, FULL = (2400, "32M", 96 << 20) if LONG else (300, "16M", 48 << 20)
AGREES = .04
PAUSE = 1  # seconds without a call after which a request has ended (access/access.c)
FRAME = CHUNK + 4096
CTL = binary("kvcachectl")
with open(curves.unpack(TMP)["agents"]) as f:
    requests = [json.loads(l)["hash_ids"] for l in itertools.islice(f, N)]
DATA = b"x" * CHUNK


def get(path):
    """Opens and reads a chunk, which another client may be writing. Returns False if it is not
    there."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    os.read(fd, CHUNK)
    os.close(fd)
    return True


def make(s, ids, at):
    """Creates a chunk, or opens it if another client has created it."""
    path = f"{s.mnt}/{name(ids[at])}"
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        get(path)
        return
    os.write(fd, DATA)
    os.close(fd)
    with contextlib.suppress(FileNotFoundError):  # the chunk, or the one before it, was dropped
        os.setxattr(path, "user.kvcachefs.parent", f"/{name(ids[at - 1])}".encode() if at else b"")


def client(s, following, results):
    """Makes one request after the other, and reports for each: its number, when it began, its hits
    in the pool and in any tier, the bytes of both, and the longest time between two calls."""
    try:
        make_requests(s, following, results)
    finally:
        results.put(None)


def make_requests(s, following, results):
    while True:
        with following.get_lock():
            nr = following.value
            following.value += 1
        if nr >= N:
            break
        ids, hits, held = requests[nr], (0, 0), None
        began = last = time.monotonic()
        longest = 0
        if nr >= N // 2:
            pool, any_tier = look(s, ids)
            hits = (pool + [False]).index(False), (any_tier + [False]).index(False)
            stats = s.stats()
            held = stats["pool_used_bytes"], stats["tier_disk_used_bytes"]
        there = 0  # chunks from the beginning of the prompt
        for i in range(len(ids)):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if there == i and get(f"{s.mnt}/{name(ids[i])}"):
                there += 1
            else:
                make(s, ids, i)
        results.put((nr, began, hits, held, longest))


def look(s, ids):
    """For each chunk, whether it is in the pool, and whether it is in any tier."""
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write(("look\n" + "\n".join(name(i) for i in ids)).encode())
        answer = b""
        while part := f.read(1 << 20):
            answer += part
    states = [l.split()[3] for l in answer.splitlines()]
    return [x not in (b"ENOENT", b"lower") for x in states], [x != b"ENOENT" for x in states]


def run_clients(s):
    following, results = multiprocessing.Value("i", 0), multiprocessing.Queue()
    clients = [multiprocessing.Process(target=client, args=(s, following, results))
               for _ in range(CLIENTS)]
    for c in clients:
        c.start()
    done, left = [], CLIENTS
    while left:
        got = results.get(timeout=HANG)
        done += [got] * bool(got)
        left -= not got
    for c in clients:
        c.join()
    assert len(done) == N, len(done)
    return sorted(done, key=lambda r: r[1])


def replayed(path, pool, disk):
    sizes = [f"{round(pool * f)}" + f":{round(disk * f)}" * bool(disk)
             for f in (.97, .98, .99, 1, 1.01, 1.02, 1.03)]
    p = run(CTL, "replay", "--json", "--chain", "told", "--policy", "prefix", "--clients",
            str(CLIENTS), "--capacity", ",".join(sizes), path, ok=True)
    shares = [r["policies"]["prefix"] for r in json.loads(p.stdout)["traces"][0]["shares"]]
    return [r["pool"] + r["disk"] * bool(disk) for r in shares]


def compare(label, size, full):
    s = Store(f"memory/{label}", cpu=POOL, size=size,
              options="policy=prefix,unit=file,high=99,low=98,settle=100,write=through").mount()
    for d in {os.path.dirname(name(i)) for ids in requests for i in ids}:
        os.makedirs(f"{s.mnt}/{d}")
    path = f"{TMP}/{label}.jsonl"
    recording = subprocess.Popen([CTL, "trace", "-o", path, s.mnt], stdin=subprocess.DEVNULL)
    wait_for(lambda: s.stats()["trace_readers"] == 1)
    done = run_clients(s)
    refused = s.stats()["pool_refusals"]
    recording.send_signal(signal.SIGINT)
    assert recording.wait(HANG) == 0
    s.umount()
    with open(path) as f:
        recorded = [len(json.loads(l)["hash_ids"]) for l in f]
    uses = sum(map(len, requests))
    print(f"{label}: {N} requests of {uses} chunks; recorded {len(recorded)} of {sum(recorded)}")
    # a few are split, if a chunk in the middle was dropped and its parent is not known any more
    assert N <= len(recorded) <= 1.2 * N and abs(sum(recorded) / uses - 1) < .05, recorded[:50]

    with open(path, "w") as f:
        for nr, at, _, _, _ in done:
            f.write(json.dumps({"timestamp": round((at - done[0][1]) * 1000) + 1,
                                "hash_ids": requests[nr]}) + "\n")
    counted = [r for r in done if r[3]]
    got = (sum(r[2][full] for r in counted) /
           sum(len(requests[r[0]]) for r in counted))
    pool, disk = [statistics.mean(r[3][i] for r in counted) for i in range(2)]
    shares = replayed(path, pool / CHUNK, disk / FRAME if full else 0)
    want = statistics.mean(shares)
    print(f"  {got:.4f} on a mount with {pool / CHUNK:.0f} chunks in the pool and "
          f"{disk / FRAME:.0f} on the disk, {refused} refusals; replayed {want:.4f}, "
          f"{min(shares):.4f} to {max(shares):.4f}")
    # if the machine stands still for a second within a request, the request ends there
    longest = max(r[4] for r in done)
    print(f"  the longest time between two calls: {longest:.2f} s, of {PAUSE} s")
    agrees = AGREES if longest < PAUSE else 3 * AGREES
    assert not LONG or abs(got - want) <= agrees, (got, want, longest)


faults.in_memory("memory")  # the stores
compare("full", str(FULL), True)
if LONG:
    compare("large", "8G", False)
print("ok")
