# SPDX-License-Identifier: Apache-2.0
"""tiny_vllm.py FOLDER KV_TRANSFER_JSON: a complete vLLM on the CPU with a tiny random model, which
is always the same. Its last line gives, for each prompt, the number of cached tokens and the
generated tokens. Without KV_TRANSFER_JSON ("{}") prompts with another first half follow, to show
that the tokens depend on the whole prompt."""

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
    torch_dtype="float32",
    bos_token_id=1,
    eos_token_id=2,
    hidden_act="silu",
)


def write_model(folder):
    """Writes the model. Its weights are large. With those of load_format=dummy, the tokens depend
    on little more than the last token of the prompt."""
    import torch
    from safetensors.torch import save_file

    m = MODEL
    wide, narrow = (m[n] * m["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    hidden, middle, vocabulary = m["hidden_size"], m["intermediate_size"], m["vocab_size"]
    shapes = {
        "self_attn.q_proj": (wide, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, wide),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
    }
    g = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocabulary, hidden, generator=g),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": torch.randn(vocabulary, hidden, generator=g) / 16,
    }
    for i in range(m["num_hidden_layers"]):
        for name, shape in shapes.items():
            weight = torch.randn(*shape, generator=g) * 1.5 / shape[1] ** 0.5
            tensors[f"model.layers.{i}.{name}.weight"] = weight
        for name in "input_layernorm", "post_attention_layernorm":
            tensors[f"model.layers.{i}.{name}.weight"] = torch.ones(hidden)
    os.makedirs(folder, exist_ok=True)
    temporary = f"{folder}/{os.getpid()}"  # another engine may be reading the same files
    with open(temporary, "w") as f:
        json.dump(m, f)
    os.rename(temporary, f"{folder}/config.json")
    save_file(tensors, temporary, metadata={"format": "pt"})
    os.rename(temporary, f"{folder}/model.safetensors")


def prompt(n, length=640, changed=0):
    """Prompt n, of which the first `changed` tokens are those of another prompt."""
    return [(i * 7 + 11 * (n + 500 if i < changed else n)) % 1000 + 10 for i in range(length)]


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
    write_model(folder)
    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="float32",  # with bfloat16, the rounding of a shorter prefill would change tokens
        enforce_eager=True,
        block_size=32,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
    )
    # one after another: ExampleConnector does not survive a prompt that is computed in two steps
    prompts = [{"prompt_token_ids": prompt(n)} for n in range(4)]
    if not transfer:
        prompts += [{"prompt_token_ids": prompt(n, changed=320)} for n in range(4)]
    greedy = SamplingParams(temperature=0, max_tokens=24, detokenize=False, ignore_eos=True)
    made = [llm.generate(p, greedy, use_tqdm=False)[0] for p in prompts]
    print("\n" + json.dumps([[o.num_cached_tokens, list(o.outputs[0].token_ids)] for o in made]))
    sys.stdout.flush()
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)
