# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""While the policy refuses chunks of agents' prompts, the promises of other options hold: pinned
chunks stay in the pool, with admit=twice the disk has only chunks that were requested twice, with
daily= at most that many bytes are written to it, a model's quota is never exceeded, and most
chunks of a tenant within its share stay while another tenant is above its own."""
import collections, itertools, json
import curves
import errno
from kvtest import *
from prompts import *

with open(curves.unpack(TMP)["agents"]) as f:
    requests = [json.loads(l)["hash_ids"] for l in itertools.islice(f, 60)]
asked = collections.Counter(itertools.chain(*(set(ids) for ids in requests)))


def put(path, attribute, value):
    os.setxattr(path, f"user.kvcachefs.{attribute}", value)


def new(label, more=""):
    s = Store(label, cpu="16M", size="1G",
              options=f"policy=prefix,unit=file,high=99,low=98,settle=0,write=back{more}").mount()
    for d in {os.path.dirname(name(i)) for i in asked}:
        os.makedirs(f"{s.mnt}/{d}")
    return s


def prompt(s, ids):
    for before, i in zip([None] + ids, ids):
        path = f"{s.mnt}/{name(i)}"
        try:
            load(path)
            continue
        except FileNotFoundError:
            pass
        with open(path, "wb", buffering=0) as f:
            f.write(b"x" * CHUNK)
        try:
            put(path, "parent", f"/{name(before)}".encode() if before is not None else b"")
        except FileNotFoundError:
            pass  # the chunk or its parent was dropped since


def end(s):
    s.settle()
    refused = s.stats()["pool_refusals"]
    print(f"{s.path.rsplit('/', 1)[1]}: {refused} refusals")
    with open(f"{s.mnt}/.kvcachefs/policies") as f:
        policies = f.read()
    # Nothing is refused while prefix evicts by last access. Its guard may choose that for all of
    # these few prompts, or because a busy machine hides the order of the chunks.
    pool = policies.split("disk prefix")[0]
    assert refused or "guard loose" in pool or "switches 0" not in pool, policies
    s.umount()


def tiers_of(s, path):
    """None: the chunk was dropped."""
    try:
        return s.attr(path, "tiers")
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.ESTALE), e
        return None


def in_pool(s, paths):
    return sum("cpu" in (tiers_of(s, p) or "") for p in paths)


def pins():
    s = new("pins")
    prompt(s, requests[0])
    kept = [name(i) for i in requests[0][:200]]
    for p in kept:
        put(f"{s.mnt}/{p}", "pin", b"1")
    for ids in requests[1:]:
        prompt(s, ids)
    assert in_pool(s, kept) == len(kept), in_pool(s, kept)
    end(s)


def twice():
    s = new("twice", ",admit=twice")
    for ids in requests:
        prompt(s, ids)
    s.settle()
    tiers = {i: tiers_of(s, name(i)) for i in asked}
    there = [i for i in asked if tiers[i] is not None]
    copied = [i for i in there if "disk" in tiers[i]]
    once = [i for i in copied if asked[i] < 2]
    print(f"twice: {len(copied)} chunks on the disk, {len(there)} exist")
    assert copied and not once, once[:5]
    end(s)


def daily():
    within_a_day()
    most = 10 * MiB
    s = new("daily", f",daily={most}")
    for ids in requests:
        prompt(s, ids)
    s.settle()
    st = s.stats()
    print(f"daily: {st['tier_disk_today_bytes']} bytes today")
    assert 0 < st["tier_disk_today_bytes"] <= most, st["tier_disk_today_bytes"]
    end(s)


def quota():
    most = 24 * MiB
    s = new("quota")
    put(f"{s.mnt}/m", "quota", str(most).encode())
    highest = 0
    for ids in requests:
        prompt(s, ids)
        highest = max(highest, int(s.attr("m", "used")))
    print(f"quota: at most {highest} bytes used")
    assert most // 2 < highest <= most, highest
    end(s)


def tenants():
    s = new("tenants")
    put(s.mnt, "tenants", b"big share=4M")
    put(s.mnt, "tenants", b"small share=6M")
    os.makedirs(f"{s.mnt}/n/d")
    put(f"{s.mnt}/m", "tenant", b"big")
    put(f"{s.mnt}/n", "tenant", b"small")
    for ids in requests[:30]:
        prompt(s, ids)
    small = [f"n/d/{i}" for i in range(200)]
    for p in small:
        s.write(p, b"y" * CHUNK)
    for ids in requests[30:]:
        prompt(s, ids)
    # A few leave if at that moment no chunk of the other tenant may leave, for example because all
    # are open or have children.
    kept = in_pool(s, small)
    assert kept >= 9 * len(small) // 10, kept
    end(s)


beside([(pins,), (twice,), (daily,), (quota,), (tenants,)], most=3)
print("ok")
