# SPDX-License-Identifier: Apache-2.0
"""serve_vllm.py SOCKET: complete vLLMs on the CPU with tiny random models, for tests. It imports
vLLM once and forks a process for each connection, which executes commands, one JSON line each, so
that every engine is a process of its own without the cost of the import.

start  folder (of the model's config.json), model (changes to the tiny Llama), transfer (arguments
       of KVTransferConfig), llm (arguments of LLM), env, images (a model with images: LLaVA with
       the tiny Llama), events (the address to which vLLM publishes its KV events): starts an engine
run    prompts (each {"n": number, "len": tokens, "image": number, ...}), out (number of tokens
       to generate), together (all prompts in one call), params (sampling parameters), lora (the
       folder of an adapter): generates, and answers with the number of cached tokens and the
       generated tokens of each prompt
session  prompts, out, params and arguments of the engine's add_request(), such as session_id: runs
       one prompt after another through add_request(), and answers as run does
timed  prompts, out: runs one prompt after another, and answers with the seconds from the request to
       its first token, the number of cached tokens and the generated tokens of each prompt
prefill  prompts, params: computes one prompt after another, with one token each, and takes the
       steps that store the chunks; answers with the parameters for the decode node of each prompt
decode  prompts, out, params: runs one prompt after another, and answers with the time of the first
       hit in the cache (time.time(), or 0), the number of cached tokens and the generated tokens
adapter  folder: makes a LoRA adapter there
counts  word: answers with the counters and gauges of vLLM's Prometheus metrics whose names contain
       the word
before_loads  do_what, folder: from now on, acts before each load of the connector. "remove" removes
       all chunk files (*.bin) of the folder; "fill" writes 160 other files of 1 MiB to it
end    stops the engine
"""

import json, os, signal, socket, sys, time, traceback, zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_vllm


IMAGE_TOKEN, IMAGE_SIZE, PATCH = 1023, 56, 14


def prompt(n, len, changed=0, image=None, **more):
    """Prompt n of `len` tokens, of which the first `changed` are those of another prompt. `image`
    is the number of an image to insert after 20 tokens."""
    tokens = tiny_vllm.prompt(n, len, changed)
    if image is not None:
        import random
        from PIL import Image

        pixels = random.Random(image).randbytes(3 * IMAGE_SIZE**2)
        tokens.insert(20, IMAGE_TOKEN)  # vLLM replaces it with a token for each patch
        picture = Image.frombytes("RGB", (IMAGE_SIZE, IMAGE_SIZE), pixels)
        more["multi_modal_data"] = {"image": picture}
    return {"prompt_token_ids": tokens, **more}


def with_images(folder, text):
    """Writes the processor of a tiny LLaVA and returns the configuration of the model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

    words = {**{f"t{i}": i for i in range(IMAGE_TOKEN)}, "<image>": IMAGE_TOKEN}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    LlavaProcessor(
        CLIPImageProcessor(
            size={"shortest_edge": IMAGE_SIZE},
            crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        ),
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            unk_token="t0",
            bos_token="t1",
            eos_token="t2",
            pad_token="t0",
            additional_special_tokens=["<image>"],
        ),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    return dict(
        architectures=["LlavaForConditionalGeneration"],
        model_type="llava",
        image_token_index=IMAGE_TOKEN,
        projector_hidden_act="gelu",
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        torch_dtype=text["torch_dtype"],
        text_config={k: v for k, v in text.items() if k != "architectures"},
        vision_config=dict(
            model_type="clip_vision_model",
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=IMAGE_SIZE,
            patch_size=PATCH,
            projection_dim=64,
        ),
    )


class Engine:
    made = []

    def start(
        self,
        folder,
        transfer,
        model=None,
        llm=None,
        env=None,
        images=False,
        events=None,
    ):
        os.environ.update(env or {})
        from vllm import LLM
        from vllm.config import KVEventsConfig, KVTransferConfig

        whole = not model and not images
        if whole:
            tiny_vllm.write_model(folder)
        else:
            os.makedirs(folder, exist_ok=True)
            config = dict(tiny_vllm.MODEL, **(model or {}))
            if images:
                config = with_images(folder, config)
            with open(f"{folder}/config.json.{os.getpid()}", "w") as f:
                json.dump(config, f)
            os.rename(f.name, f"{folder}/config.json")
        arguments = dict(
            skip_tokenizer_init=not images,
            load_format="auto" if whole else "dummy",
            worker_extension_cls="" if whole else "strong_weights.Strong",
            dtype="float32",  # with bfloat16, the rounding of a shorter prefill would change tokens
            enforce_eager=True,
            block_size=32,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            max_num_seqs=4,
            disable_log_stats=False,
        )
        arguments.update(llm or {})
        if events:
            arguments["kv_events_config"] = KVEventsConfig(
                enable_kv_cache_events=True, publisher="zmq", endpoint=events
            )
        self.llm = LLM(
            folder,
            kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
            **arguments,
        )

    def run(self, prompts, out=8, together=False, params=None, lora=None):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        name = os.path.basename(lora or "")
        number = zlib.crc32(name.encode()) % 1000 + 1  # by which vLLM tells adapters apart
        more = {"lora_request": LoRARequest(name, number, lora)} if lora else {}

        greedy = SamplingParams(
            temperature=0, max_tokens=out, detokenize=False, ignore_eos=True, **(params or {})
        )
        prompts = [prompt(**p) for p in prompts]
        if together:
            made = self.llm.generate(prompts, greedy, use_tqdm=False, **more)
        else:
            made = [self.llm.generate(p, greedy, use_tqdm=False, **more)[0] for p in prompts]
        return [[o.num_cached_tokens, list(o.outputs[0].token_ids)] for o in made]

    def session(self, prompts, out=8, params=None, **more):
        from vllm import SamplingParams

        greedy = SamplingParams(
            temperature=0, max_tokens=out, detokenize=False, ignore_eos=True, **(params or {})
        )
        engine, made = self.llm.llm_engine, []
        for i, p in enumerate(prompts):
            name = f"session-{id(self)}-{i}-{len(self.made)}"
            engine.add_request(name, prompt(**p), greedy, **more)
            self.made.append(name)
            while engine.has_unfinished_requests():
                for o in engine.step():
                    if o.finished:
                        made.append([o.num_cached_tokens, list(o.outputs[0].token_ids)])
        return made

    def timed(self, prompts, out=8):
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=out, detokenize=False, ignore_eos=True)
        engine, made = self.llm.llm_engine, []
        for p in prompts:
            self.made.append(f"timed-{id(self)}-{len(self.made)}")
            start, first = time.perf_counter(), None
            engine.add_request(self.made[-1], prompt(**p), greedy)
            while engine.has_unfinished_requests():
                done = engine.step()
                if not done:  # as vLLM's engine core does: threads may need the interpreter's lock
                    time.sleep(0.001)
                for o in done:
                    if first is None and o.outputs[0].token_ids:
                        first = time.perf_counter() - start
                    if o.finished:
                        made.append([first, o.num_cached_tokens, list(o.outputs[0].token_ids)])
        return made

    def _steps(self, p, greedy):
        """Runs a prompt, and returns its output. Takes the steps after the end that the connector
        needs, as the engine's own process does."""
        engine, output = self.llm.llm_engine, None
        self.made.append(f"handed-{id(self)}-{len(self.made)}")
        engine.add_request(self.made[-1], prompt(**p), greedy)
        connector = engine.engine_core.engine_core.scheduler.connector
        while engine.has_unfinished_requests() or connector.has_pending_push_work():
            done = engine.step()
            if not done:  # as vLLM's engine core does: threads may need the interpreter's lock
                time.sleep(0.001)
            output = next((o for o in done if o.finished), output)
        return output

    def prefill(self, prompts, params=None):
        from vllm import SamplingParams

        one = SamplingParams(
            temperature=0, max_tokens=1, detokenize=False, ignore_eos=True, **(params or {})
        )
        return [self._steps(p, one).kv_transfer_params for p in prompts]

    def decode(self, prompts, out=8, params=None):
        from kvcachefs import vllm as connector
        from vllm import SamplingParams

        greedy = SamplingParams(
            temperature=0, max_tokens=out, detokenize=False, ignore_eos=True, **(params or {})
        )
        real, hits, made = connector.Manager.lookup, [], []

        def lookup(manager, *arguments):
            answer = real(manager, *arguments)
            if answer == connector.LookupResult.HIT:
                hits.append(time.time())
            return answer

        connector.Manager.lookup = lookup
        for p in prompts:
            hits.clear()
            o = self._steps(p, greedy)
            made.append(
                [hits[0] if hits else 0, o.num_cached_tokens, list(o.outputs[0].token_ids)]
            )
        connector.Manager.lookup = real
        return made

    def adapter(self, folder):
        import torch
        from safetensors.torch import save_file

        os.makedirs(folder, exist_ok=True)
        about = dict(peft_type="LORA", r=8, lora_alpha=64, target_modules=["q_proj", "v_proj"])
        with open(f"{folder}/adapter_config.json", "w") as f:
            json.dump(about, f)
        torch.manual_seed(zlib.crc32(os.path.basename(folder).encode()))
        tensors, m = {}, tiny_vllm.MODEL
        for layer in range(m["num_hidden_layers"]):
            for name, heads in (("q", m["num_attention_heads"]), ("v", m["num_key_value_heads"])):
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}_proj"
                tensors[f"{key}.lora_A.weight"] = torch.randn(8, m["hidden_size"])
                tensors[f"{key}.lora_B.weight"] = torch.randn(heads * m["head_dim"], 8)
        save_file(tensors, f"{folder}/adapter_model.safetensors")

    def counts(self, word):
        return {
            m.name: m.value
            for m in self.llm.get_metrics()
            if word in m.name and hasattr(m, "value")
        }

    def before_loads(self, do_what, folder):
        from kvcachefs import vllm as connector

        real = connector.Worker.submit_load

        def remove():
            for path, _, files in os.walk(folder):
                for f in files:
                    if f.endswith(".bin"):
                        os.unlink(f"{path}/{f}")

        def fill():
            for i in range(160):
                with open(f"{folder}/fill{i}", "wb") as f:
                    f.write(os.urandom(1 << 20))

        act = {"remove": remove, "fill": fill}[do_what]

        def load(worker, *arguments):
            act()
            return real(worker, *arguments)

        connector.Worker.submit_load = load

    def end(self):
        self.llm.llm_engine.engine_core.shutdown()


def child(conn):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    engine, lines = Engine(), conn.makefile("rb")
    for line in lines:
        order = json.loads(line)
        try:
            answer = {"is": getattr(engine, order.pop("do"))(**order)}
        except Exception as e:
            traceback.print_exc()
            answer = {"error": f"{type(e).__name__}: {e}"[:2000]}
        sys.stdout.flush()
        conn.sendall(json.dumps(answer).encode() + b"\n")


def main():
    tiny_vllm.mend_llvmlite()
    import vllm, vllm.entrypoints.llm, vllm.v1.engine.core  # noqa

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(8)
    print("ready", vllm.__version__, flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        conn, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.setsid()
            try:
                child(conn)
            finally:
                os._exit(0)
        conn.close()


if __name__ == "__main__":
    main()
