# SPDX-License-Identifier: Apache-2.0
"""tiny_vllm.py FOLDER KV_TRANSFER_JSON: a complete vLLM on the CPU with a tiny random model (only a
config.json; load_format=dummy makes the same weights each time). Its last line gives, for each
prompt, the number of cached tokens and the generated tokens."""

import json, os, sys

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    PYTHONHASHSEED="0",
    VLLM_NO_USAGE_STATS="1",
    LMCACHE_TRACK_USAGE="false",
)
MODEL = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=1024,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
    bos_token_id=1,
    eos_token_id=2,
    hidden_act="silu",
)


def mend_llvmlite():
    """LMCache imports llvmlite through numba. llvmlite's library object returns a function for any
    attribute, also for __dict__. vLLM reads __dict__ in its search for kernels, and crashes. This
    function makes the library object refuse such names."""
    try:
        from llvmlite.binding import ffi
    except ImportError:
        return
    kind = type(ffi.lib)
    real = kind.__getattr__

    def named(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return real(self, name)

    kind.__getattr__ = named


if __name__ == "__main__":
    mend_llvmlite()
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    folder, transfer = sys.argv[1], json.loads(sys.argv[2])
    with open(f"{folder}/config.json", "w") as f:
        json.dump(MODEL, f)
    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        block_size=32,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
    )
    # one after another: ExampleConnector does not survive a prompt that is computed in two steps
    prompts = [
        {"prompt_token_ids": [(i * 7 + 11 * j) % 1000 + 10 for i in range(640)]} for j in range(4)
    ]
    greedy = SamplingParams(temperature=0, max_tokens=24, detokenize=False, ignore_eos=True)
    made = [llm.generate(p, greedy, use_tqdm=False)[0] for p in prompts]
    print("\n" + json.dumps([[o.num_cached_tokens, list(o.outputs[0].token_ids)] for o in made]))
    sys.stdout.flush()
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)
