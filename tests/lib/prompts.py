# SPDX-License-Identifier: Apache-2.0
"""A load of prompts, and the way an engine runs it on a mount: it opens existing chunks and creates
the others, chunk by chunk."""
import json, os, time

CHUNK = 16 << 10


def prompts(chance):
    """Documents of different popularity, each with a question at its end; and sessions that
    grow."""
    requests, sessions = [], {}
    for i in range(1600):
        d = min(int(chance.paretovariate(0.8)), 300)
        if i % 3:
            requests.append([d * 100 + b for b in range(d % 23 + 4)] + [10**6 + i])
        else:
            s = sessions.setdefault(chance.randrange(12) + i // 200 * 12, [])
            s += [2 * 10**6 + 1000 * i + b for b in range(chance.randrange(1, 6))]
            requests.append(list(s))
    return requests


def name(i):
    return f"m/{i % 64:02x}/{i:x}"


def of_two(i):
    """As name(), but sessions have their own model."""
    return "s" + name(i)[1:] if i >= 2 * 10**6 else name(i)


def write_trace(path, requests, name=None):
    """name: the function that names chunks. If it is given, the trace has each request's model."""
    with open(path, "w") as f:
        for i, r in enumerate(requests):
            more = {"model": name(r[0]).split("/")[0]} if name else {}
            f.write(json.dumps({"timestamp": i * 300, "hash_ids": r, **more}) + "\n")


def load(path):
    """Opens and reads a chunk, with as few calls as an engine makes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        assert len(os.read(fd, CHUNK)) == CHUNK, path
    finally:
        os.close(fd)


def states(s, ids, name=name):
    """For each chunk, whether it is in the pool. This is not a use of the chunk."""
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write(("look\n" + "\n".join(name(i) for i in ids)).encode())
        answer = b""
        while part := f.read(1 << 20):
            answer += part
    return [l.split()[3] not in (b"ENOENT", b"lower") for l in answer.splitlines()]


def play(s, requests, told, compute=0, before={}, gaps=None, name=name, parts=None):
    """Makes the requests. Returns the hit rate of the last half of them, and the mean number of
    chunks in the pool. compute: seconds before the first chunk of a prompt is created; before:
    {number of a request: function that is called before it}; gaps: a list that gets the longest
    time between two calls of each request; parts: a dict that gets the hit rate of each model."""
    of_models = {}
    for d in {os.path.dirname(name(i)) for ids in requests for i in ids}:
        os.makedirs(f"{s.mnt}/{d}")
    made, hits, asked, held = set(), 0, 0, []
    data = b"x" * CHUNK
    for nr, ids in enumerate(requests):
        before.get(nr, int)()
        if nr >= len(requests) // 2:
            there = states(s, ids, name)
            had = (there + [False]).index(False)
            hits += had
            asked += len(ids)
            part = of_models.setdefault(name(ids[0]).split("/")[0], [0, 0])
            part[0] += had
            part[1] += len(ids)
            if nr % 50 == 0:
                held.append(s.stats()["objects_resident"])
        pause = compute
        longest, last = 0, time.monotonic()
        for at, i in enumerate(ids):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if i in made:
                load(f"{s.mnt}/{name(i)}")
                continue
            time.sleep(pause)
            pause = 0
            with open(f"{s.mnt}/{name(i)}", "wb", buffering=0) as f:
                f.write(data)
            made.add(i)
            if told:
                os.setxattr(f"{s.mnt}/{name(i)}", "user.kvcachefs.parent",
                            f"/{name(ids[at - 1])}".encode() if at else b"")
        if gaps is not None:
            gaps.append(longest)
    s.settle()
    if parts is not None:
        parts.update({model: h / n for model, (h, n) in of_models.items()})
    return hits / asked, sum(held) // len(held)
