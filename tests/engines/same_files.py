# SPDX-License-Identifier: Apache-2.0
"""same_files.py MOUNT: compares the files of the connector kvcachefs.vllm with those of vLLM's file
tier, for models with one KV cache group. Names and bytes must be equal, and the connector and the
file tier must load each other's files. vLLM's own code makes the memory region, computes the
addresses to copy, and runs the file tier. Only the copy itself, which vLLM does on a GPU, is a
memmove here. The last line is "same"."""

import ctypes, dataclasses, os, sys, time, types, uuid

mount = sys.argv[1]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_vllm

tiny_vllm.mend_llvmlite()
import numpy, torch
from vllm.v1.kv_offload import base, config
from vllm.v1.kv_offload.cpu.gpu_worker import SingleDirectionOffloadingHandler
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kvcachefs import vllm as kvcachefs_vllm

BLOCKS, CHUNKS = 40, 5


def configuration(layers, page, slots, mla, world, folder):
    return config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(16, tuple(f"l{i}" for i in range(layers)), 0),),
        worker_kv_bytes_per_block=layers * page,
        enable_kv_cache_events=False,
        extra_config={"mount": mount, "folder": folder},
        engine_id=str(uuid.uuid4()),
        model=config.OffloadingModelConfig("some/Model-1", "bfloat16"),
        cache=config.OffloadingCacheConfig(16, slots),
        parallel=config.OffloadingParallelConfig(
            0, world, world, 1, 1, 1, 0, 1, None, not mla
        ),
        replicated_layout=mla and world > 1,
        kv_cache_layout="LBHNC",
    )


def tree(folder):
    found = {}
    for path, _, files in os.walk(folder):
        for f in files:
            with open(f"{path}/{f}", "rb") as h:
                found[os.path.relpath(f"{path}/{f}", folder)] = h.read()
    return found


def ends(poll):
    while not (got := list(poll())):
        time.sleep(0.01)
    return got


def compare(layers, page, padded, slots, mla=False, world=1):
    name = f"{layers}-{page}-{padded}-{slots}-{mla}-{world}"
    ours, theirs = f"ours/{name}", f"theirs/{name}"
    where = f"{mount}/{theirs}"
    spec = kvcachefs_vllm.KvcachefsSpec(configuration(layers, padded, slots, mla, world, ours))
    assert spec.shared_format
    cache = [torch.randint(-128, 127, (BLOCKS, padded), dtype=torch.int8) for _ in range(layers)]
    if padded > page:
        for t in cache:
            t[:, page:] = 0  # vLLM copies the pages without their padding
    whole = [t.clone() for t in cache]
    caches = base.CanonicalKVCaches(
        [base.CanonicalKVCacheTensor(t, padded) for t in cache],
        [[base.CanonicalKVCacheRef(i, page) for i in range(layers)]],
    )
    keys = [base.make_offload_key(os.urandom(32), 0) for _ in range(CHUNKS)]
    ids = numpy.random.permutation(BLOCKS)[: CHUNKS * slots].tolist()
    blocks = base.GPULoadStoreSpec(ids, [len(ids)], [2 * slots])

    # vLLM copies the GPU blocks of each chunk to a row of the region; the file tier stores it
    size = -(-layers * padded * slots // 4096) * 4096
    region = SharedOffloadRegion(str(uuid.uuid4()), CHUNKS, 0, size, layers * padded * slots)
    rows = [region.create_next_worker_view(padded * slots) for _ in range(layers)]
    view = region.create_kv_memoryview()

    def copy(store):
        handler = object.__new__(SingleDirectionOffloadingHandler)
        handler.layer_refs_per_group = caches.group_data_refs
        handler.src_tensors, handler.dst_tensors = (cache, rows) if store else (rows, cache)
        handler.src_blocks_per_chunk, handler.dst_blocks_per_chunk = (
            (1, slots) if store else (slots, 1)
        )
        n = len(ids) * layers
        src, dst, sizes = (numpy.zeros(n, numpy.int64) for _ in range(3))
        gpu, cpu = numpy.array(ids, numpy.int32), numpy.arange(CHUNKS, dtype=numpy.int32)
        a, b = (gpu, cpu) if store else (cpu, gpu)
        handler._fill_direct_ops(0, a, b, len(ids), 0, 0, src, dst, sizes, 0)
        for s, d, z in zip(src.tolist(), dst.tolist(), sizes.tolist()):
            ctypes.memmove(d, s, z)

    copy(store=True)
    tier = FileSystemTierManager(spec, view, "fs", root_dir=where)
    job = lambda i, load: TransferJob(
        i, keys, numpy.arange(CHUNKS), load, base.ReqContext(req_id="r")
    )
    tier.submit_store(job(1, False))
    assert ends(tier.get_finished_jobs)[0].success

    # the connector
    spec.describe()
    worker = spec.get_worker(caches)
    files = kvcachefs_vllm.Files(keys)
    worker.submit_store(1, blocks, files)
    assert ends(worker.get_finished)[0].success and not worker.take_unstored()
    mine, other = tree(f"{mount}/{ours}"), tree(where)
    assert sorted(mine) == sorted(other), (sorted(mine), sorted(other))
    assert len(mine) == CHUNKS + 1 and all(mine[n] == other[n] for n in mine), name

    # each loads the other's files
    def wipe():
        for t in cache:
            t.zero_()
        view.cast("B")[:] = bytes(view.nbytes)

    def loaded(how):
        for t, w in zip(cache, whole):
            assert torch.equal(t[sorted(ids)], w[sorted(ids)]), (how, name)

    os.rename(f"{mount}/{ours}", f"{mount}/{ours}.aside")
    os.rename(where, f"{mount}/{ours}")
    os.rename(f"{mount}/{ours}.aside", where)
    wipe()
    worker.submit_load(2, files, blocks)
    ends(worker.get_finished)
    assert not worker.take_failed_loads()
    loaded("the connector loads the file tier's")
    wipe()
    tier.submit_load(job(2, True))
    assert ends(tier.get_finished_jobs)[0].success
    copy(store=False)
    loaded("the file tier loads the connector's")
    worker.shutdown()
    tier.shutdown()
    print(name, len(mine), size, flush=True)


def stages():
    """Compares only names, because vLLM 0.32 has no pipeline parallelism on the CPU. The scheduler
    must know the files of all stages, whose layers differ. The row "two workers (TP)" of
    whole_kvcachefs.py covers tensor parallelism."""
    specs = []
    for rank in range(4):
        one = configuration(4, 4096, 2, False, 4, "stages")
        layers = tuple(f"l{i}" for i in range(4 * (rank // 2), 4 * (rank // 2) + 4))
        specs.append(
            kvcachefs_vllm.KvcachefsSpec(
                dataclasses.replace(
                    one,
                    groups=(dataclasses.replace(one.groups[0], layer_names=layers),),
                    parallel=dataclasses.replace(one.parallel, rank=rank, tp_size=2, pp_size=2),
                )
            )
        )
    key = base.make_offload_key(os.urandom(32), 0)
    known = specs[0].paths(key)
    assert len(set(known)) == 4 and not specs[0].shared_format
    assert known == [spec.path(key, rank) for rank, spec in enumerate(specs)]
    os.environ["VLLM_PP_LAYER_PARTITION"] = "5,3"
    assert not set(known) & set(kvcachefs_vllm.KvcachefsSpec(specs[0].config).paths(key))
    del os.environ["VLLM_PP_LAYER_PARTITION"]


def groups():
    """Two groups of the same sizes with different layers have different files."""
    one = configuration(4, 4096, 2, False, 1, "groups")
    names = set()
    for layers in ("l0", "l1"), ("l1", "l0"):
        of = tuple(
            dataclasses.replace(one.groups[0], layer_names=(n,), group_id=i)
            for i, n in enumerate(layers)
        )
        spec = kvcachefs_vllm.KvcachefsSpec(dataclasses.replace(one, groups=of))
        names |= set(spec.paths(base.make_offload_key(bytes(32), 0)))
    assert len(names) == 2


def contexts():
    """Compares only names, because vLLM 0.32 has no context parallelism on the CPU. With decode
    context parallelism each worker has its own files, whose names depend on the interleaving.
    Prefill context parallelism and HiSparse are refused."""
    none = types.SimpleNamespace(
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        pipeline_parallel_size=1,
        cp_kv_cache_interleave_size=1,
    )
    key, names, tokens = base.make_offload_key(bytes(32), 0), set(), []
    for mla in False, True:
        for dcp, interleave in (1, 1), (1, 16), (2, 1), (2, 16):
            one = configuration(4, 4096, 2, mla, 2, "contexts")
            parallel = types.SimpleNamespace(
                **{
                    **vars(none),
                    "decode_context_parallel_size": dcp,
                    "cp_kv_cache_interleave_size": interleave,
                }
            )
            transfer = types.SimpleNamespace(kv_connector_extra_config=dict(one.extra_config))
            vllm_config = types.SimpleNamespace(
                parallel_config=parallel,
                kv_transfer_config=transfer,
                attention_config=types.SimpleNamespace(hisparse_config=None),
            )
            kvcachefs_vllm._complete(vllm_config)
            kvcachefs_vllm._refuse(vllm_config)
            parts = [
                kvcachefs_vllm.KvcachefsSpec(
                    dataclasses.replace(
                        one,
                        extra_config=transfer.kv_connector_extra_config,
                        parallel=dataclasses.replace(
                            one.parallel, rank=rank, dcp_size=dcp, is_parallelism_agnostic=False
                        ),
                        replicated_layout=mla and dcp == 1,
                    )
                )
                for rank in range(2)
            ]
            known = parts[0].paths(key)
            assert known == parts[1].paths(key) and len(known) == (1 if mla and dcp == 1 else 2)
            assert [s.path(key, s.rank) for s in parts][-len(known) :] == known
            names.add(tuple(known))
    # without dcp the interleaving does not matter; with dcp, models with and without MLA have the
    # same names if their groups are equal
    assert len(names) == 4, names
    prefill = types.SimpleNamespace(**{**vars(none), "prefill_context_parallel_size": 2})
    plain = types.SimpleNamespace(hisparse_config=None)
    sparse = types.SimpleNamespace(hisparse_config={})
    for what, parallel, attention in (
        ("--prefill-context-parallel-size", prefill, plain),
        ("hisparse_config", none, sparse),
    ):
        try:
            kvcachefs_vllm._refuse(
                types.SimpleNamespace(
                    parallel_config=parallel,
                    kv_transfer_config=transfer,
                    attention_config=attention,
                )
            )
        except ValueError as e:
            assert what in str(e), e
        else:
            raise AssertionError(f"{what} was not refused")


stages()
groups()
contexts()
compare(4, 4096, 4096, 4)
compare(4, 4096, 4096, 1)
compare(3, 1000, 1000, 3)
compare(3, 1000, 1024, 2)
compare(5, 1152, 1152, 8, mla=True)
compare(5, 1152, 1152, 8, mla=True, world=2)
print("same")
os._exit(0)
