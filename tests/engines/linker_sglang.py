# SPDX-License-Identifier: Apache-2.0
"""linker_sglang.py MOUNT STEP: runs one step of the tests of kvcachefs.sglang_linker, a cache
linker for SGLang. (The step "injector" tests kvcachefs.sglang with SGLang's failure injector.)
The device pool groups (the objects in which SGLang describes the KV cache of a GPU) are SGLang's
own, with tensors in host memory. Some steps print a line and then wait for a line on stdin, so that
the caller can act in between."""

import os, sys, types

os.environ.update(SGLANG_LOGGING_LEVEL="ERROR")
import logging

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry,
    DevicePoolGroup,
)
from kvcachefs import sglang_linker
from kvcachefs.sglang_linker import KvcachefsLinker

logging.disable(logging.ERROR)
LAYERS, PAGE, PAGES, WIDTH = 20, 16, 64, 96
keys = [f"{i:064x}" for i in range(PAGES)]


def buffers(seed, rows, width=WIDTH):
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randint(-99, 99, (rows, width), dtype=torch.int16, generator=g)
        for _ in range(LAYERS)
    ]


def group(seed, pool=None):
    """A pool for full attention, with K and V in separate buffers, and a pool for a sliding window,
    with its own layers and one page in each row of a buffer."""
    k, v = buffers(seed, PAGES * PAGE), buffers(seed + 1, PAGES * PAGE)
    swa = buffers(seed + 2, PAGES, PAGE * WIDTH)[:5]
    return DevicePoolGroup(
        [
            DevicePoolEntry(
                name=PoolName.KV,
                indices_from_pool=PoolName.KV,
                device_pool=pool,
                components=[k, v],
                layer_mapping={i: i for i in range(LAYERS)},
                page_size=PAGE,
                rows_are_pages=False,
                packed=False,
            ),
            DevicePoolEntry(
                name=PoolName.SWA,
                indices_from_pool=PoolName.SWA,
                device_pool=None,
                components=[swa],
                layer_mapping={4 * i: i for i in range(5)},
                page_size=PAGE,
                rows_are_pages=True,
            ),
        ],
        LAYERS,
        PAGE,
    )


def slots(pages):
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def transfers(names, pages=None, window=2):
    at = None if pages is None else slots(pages)
    tail = None if pages is None else slots(pages[-window:])
    return [
        PoolTransfer(name=PoolName.KV, keys=list(names), device_indices=at),
        PoolTransfer(
            name=PoolName.SWA,
            keys=list(names[-window:]),
            device_indices=tail,
            hit_policy=PoolHitPolicy.TRAILING_PAGES,
        ),
    ]


def linker(mount, seed, pool=None):
    params = types.SimpleNamespace(
        page_size=PAGE,
        attn_cp_rank=0,
        attn_cp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_tp_cache_group=None,
        tp_cache_group=None,
    )
    return KvcachefsLinker(
        None,
        params,
        components=set(),
        extra_config={"mount": mount, "lookup_timeout_ms": 60000},
        pool_group=group(seed, pool),
        model="org/Tiny-8B",
    )


def store(l, n):
    assert l.offload(transfers(keys[:n], list(range(n))))
    l._offload_tasks.join()
    assert l.num_completed_offloads() == 1
    return l.pop_completed_offload()


def load(l, n, rid="r"):
    """Loads pages 0 to n - 1, which a linker with seed 1 stored, into pages n - 1 to 0, and checks
    their bytes. Returns False if the load fails."""
    places = list(range(n))[::-1]
    assert l.load(rid, transfers(keys[:n], places))
    index = l.start_layer_wise_loading()
    counter = l.layer_done_counter
    counter.set_consumer(index)
    for layer in range(LAYERS):
        counter.wait_until(layer)
    if not l.finish_layer_wise_loading(index):
        return False
    want = group(1)
    for name, window in ((PoolName.KV, n), (PoolName.SWA, 2)):
        mine, there = l.pools[name], want.entry_map[name]
        for key in range(n - window, n):
            for a, b in zip(mine.kv_buffer, there.kv_buffer):
                rows = 1 if name == PoolName.SWA else PAGE
                got = a[places[key] * rows : (places[key] + 1) * rows]
                assert torch.equal(got, b[key * rows : (key + 1) * rows]), (name, key)
    return True


def pause(said):
    print(said, flush=True)
    sys.stdin.readline()


def step_store(mount):
    l = linker(mount, 1)
    assert l.lookup("r", transfers(keys[:40])) == []
    assert store(l, 40)
    l.close()


def step_load(mount):
    l = linker(mount, 7)
    lengths = l.lookup("r", transfers(keys))
    # only the last two pages of the sliding window were stored
    assert lengths == [40], lengths
    assert l.lookup("r", transfers(keys)) == lengths
    assert load(l, 40)
    assert l.cancel_queued_load("r") is False
    l.reset()
    assert l.lookup("s", transfers(keys[:40])) == [40]
    l.load("s", transfers(keys[:40], list(range(40))))
    assert l.cancel_queued_load("s") is True
    assert l.start_layer_wise_loading() == -1
    l.close()


def step_pressed(mount):
    """The caller fills the mount between lookup and load."""
    l = linker(mount, 7)
    assert l.lookup("r", transfers(keys[:40])) == [40]
    pause("looked up")
    assert load(l, 40)
    l.close()


def step_leases(mount):
    """A lease ends if SGLang no longer asks about its request. If the leases exceed their limit in
    number or in bytes, those that SGLang has not asked about for the longest time end first."""
    sglang_linker.KEEP_S = 3600.0  # no lease becomes too old, even if this machine is slow
    l = linker(mount, 7)
    assert l._held_most == 128 << 20  # half of the pool
    l._held_most = 1 << 40

    def ask(*rids):
        for rid in rids:
            assert l.lookup(rid, transfers(keys[:40])) == [40]

    for i in range(200):
        ask(f"r{i}")
    assert len(l._leases) == sglang_linker.LEASES
    ask("r72", "new")
    assert "r72" in l._leases and "r73" not in l._leases
    one = l._leases["new"].size
    assert one >= 40 * LAYERS * PAGE * WIDTH * 4, one
    l._held_most = 3 * one
    ask("newer")
    assert list(l._leases) == ["r72", "new", "newer"]
    l._leases["r72"].asked -= sglang_linker.KEEP_S
    ask("new")
    assert list(l._leases) == ["newer", "new"]
    l._held_most = one // 2
    ask("last")
    assert list(l._leases) == ["last"]
    assert load(l, 40, "last") and not l._leases
    l.close()


def step_truncated(mount):
    l = linker(mount, 7)
    assert l.lookup("r", transfers(keys[:40])) == []
    l.close()


def step_killed(mount):
    """The caller kills the daemon after the line "looked up", and mounts again after "failed"."""
    l = linker(mount, 7)
    assert l.lookup("r", transfers(keys[:40])) == [40]
    pause("looked up")
    assert load(l, 40) is False
    assert l.lookup("t", transfers(keys[:40])) == []
    assert store(l, 8) is False
    pause("failed")
    assert l.lookup("u", transfers(keys[:40])) == [40]
    assert load(l, 40, "u")
    l.close()


def step_injector(mount):
    """SGLang's own injector makes a third of all calls fail; the rest must be right."""
    os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "0.33"
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    sys.argv = sys.argv[:1]
    import client

    client.serve = lambda *_: None
    import drive_sglang as d

    ours = d.Ours(f"{mount}/injected")
    good = bad = 0
    for round in range(40):
        numbers = list(range(round * 8, round * 8 + 8))
        stored = ours.store(numbers)
        for n, ok, data in zip(numbers, stored, ours.load(numbers)):
            assert data is None or (ok and (data == client.content(n, ours.size)).all()), n
            good, bad = good + (data is not None), bad + (data is None)
    assert good and bad, (good, bad)
    ours.close()


def step_names(mount):
    """Servers whose pages have equal sizes but different contents do not share files."""
    from kvcachefs import _sglang, sglang

    seen = set()

    def new(**pool):
        l = linker(mount, 1, types.SimpleNamespace(**pool))
        seen.add(l._files[PoolName.KV].paths(keys[:1])[0])
        l.close()

    new(dtype=torch.float8_e4m3fn, start_layer=0)
    new(dtype=torch.float8_e5m2, start_layer=0)  # SGLang keeps both as bytes
    new(dtype=torch.float8_e5m2, start_layer=1)
    for size in 2, 4:  # the number of ranks decides which heads rank 1 has
        KvcachefsLinker._tp = lambda *_: (1, size)
        new()
    assert len(seen) == 5, seen
    host = types.SimpleNamespace(
        page_size=PAGE, dtype=torch.uint8, get_page_buffer_meta=lambda _: ([1, 2], [64, 64])
    )
    said = dict(kv_cache_dtype="fp8_e4m3", quantization=None, revision=None)
    for more in {}, {"kv_cache_dtype": "fp8_e5m2"}, {"quantization": "fp8"}, {"revision": "a"}:
        _sglang.get_model = lambda: types.SimpleNamespace(**{**said, **more})
        seen.add(sglang._Pool("kv", host, "x").folder)
    assert len(seen) == 9, seen


def step_refused(mount):
    for extra, says in (
        ({}, "name the mount"),
        ({"mount": mount, "mont": 1}, "unknown option mont"),
        ({"mount": mount, "threads": 0}, "threads must be"),
        ({"mount": mount, "folder": "../x"}, "not below the mount"),
        ({"mount": "/"}, "Mount it first"),
    ):
        try:
            KvcachefsLinker(
                None,
                types.SimpleNamespace(page_size=PAGE),
                components=set(),
                extra_config=extra,
                pool_group=group(1),
            )
        except (ValueError, RuntimeError) as e:
            assert says in str(e), e
        else:
            assert False, extra


if __name__ == "__main__":
    globals()["step_" + sys.argv[2]](sys.argv[1])
    print("done", flush=True)
