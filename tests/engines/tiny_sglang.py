# SPDX-License-Identifier: Apache-2.0
"""tiny_sglang.py FOLDER [MOUNT]: a complete SGLang on the CPU with a tiny random model (only a
config.json; load_format=dummy makes the same weights each time), with torch's attention and
stand_in/sgl_kernel.py. If MOUNT is given, SGLang uses its hierarchical cache with kvcachefs.sglang
on this mount. The last line of the output gives, for each prompt, the number of cached tokens and
the generated tokens."""

import json, os, sys, time

os.environ.update(
    HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"
)
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


def main(folder, mount=None):
    import tiny_vllm
    from sglang.srt.entrypoints.engine import Engine

    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/config.json", "w") as f:
        json.dump(dict(tiny_vllm.MODEL, torch_dtype="bfloat16"), f)
    engine = Engine(
        model_path=folder,
        device="cpu",
        attention_backend="torch_native",
        load_format="dummy",
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        mem_fraction_static=0.1,
        max_total_tokens=4096,
        page_size=PAGE,
        **(cache(mount) if mount else {}),
    )
    made = []
    for n in range(PROMPTS):
        (got,) = engine.generate(
            input_ids=[[(i * 7 + 11 * n) % 1000 + 10 for i in range(LENGTH)]],
            sampling_params={"max_new_tokens": 8, "temperature": 0},
        )
        made.append((got["meta_info"]["cached_tokens"], got["output_ids"]))
    end = time.monotonic() + 60  # stores continue after the answers
    while mount and stored(mount) < PROMPTS * LENGTH // PAGE and time.monotonic() < end:
        time.sleep(0.1)
    engine.shutdown()
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
