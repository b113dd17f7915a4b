# SPDX-License-Identifier: Apache-2.0
"""tiny_sglang.py FOLDER DTYPE [MOUNT]: a complete SGLang on the CPU with the tiny model of
tiny_vllm.py, with torch's attention and stand_in/sgl_kernel.py. If MOUNT is given, SGLang uses its
hierarchical cache with kvcachefs.sglang on this mount, and ends when all pages are stored there.
The last line of the output gives, for each prompt, the number of cached tokens and the generated
tokens. Without MOUNT, prompts with another first half follow, to show that the tokens depend on
the whole prompt."""

import json, os, sys, time

os.environ.update(
    HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"
)
# The processes of SGLang import this file, too.
from sglang.srt.mem_cache.pool_host import base

base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # else SGLang needs 10 GiB of free memory
PAGE, LENGTH, PROMPTS = 32, 640, 3


def cache(mount):
    return dict(
        enable_hierarchical_cache=True,
        hicache_ratio=2.0,
        hicache_write_policy="write_through",
        hicache_io_backend="direct",
        hicache_mem_layout="layer_first",
        hicache_storage_backend="dynamic",
        hicache_storage_prefetch_policy="wait_complete",
        hicache_storage_backend_extra_config=json.dumps(
            {
                "backend_name": "kvcachefs",
                "module_path": "kvcachefs.sglang",
                "class_name": "HiCacheKvcachefs",
                "interface_v1": 1,
                "mount": mount,
            }
        ),
    )


def stored(mount):
    return sum(f.endswith(".bin") for _, _, files in os.walk(mount) for f in files)


def main(folder, dtype, mount=None):
    import tiny_vllm
    from sglang.srt.entrypoints.engine import Engine

    tiny_vllm.write_model(folder)
    engine = Engine(
        model_path=folder,
        device="cpu",
        attention_backend="torch_native",
        skip_tokenizer_init=True,
        dtype=dtype,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        mem_fraction_static=0.1,
        max_total_tokens=4096,
        page_size=PAGE,
        **(cache(mount) if mount else {}),
    )
    before = stored(mount) if mount else 0
    prompts = [tiny_vllm.prompt(n, LENGTH) for n in range(PROMPTS)]
    if not mount:
        prompts += [tiny_vllm.prompt(n, LENGTH, changed=LENGTH // 2) for n in range(PROMPTS)]
    made = []
    for prompt in prompts:
        (got,) = engine.generate(
            input_ids=[prompt],
            sampling_params={"max_new_tokens": 8, "temperature": 0},
        )
        made.append((got["meta_info"]["cached_tokens"], got["output_ids"]))
    # stores continue after the answers; with hits, all pages exist already
    pages = before + sum(LENGTH // PAGE for cached, _ in made if not cached)
    end = time.monotonic() + 300
    while mount and stored(mount) < pages:
        assert time.monotonic() < end, f"{stored(mount)} of {pages} pages are stored"
        time.sleep(0.1)
    engine.shutdown()
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
