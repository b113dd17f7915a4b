# SPDX-License-Identifier: Apache-2.0
"""Complete vLLMs (serve_vllm.py) with the connector kvcachefs.vllm. The generated tokens are
compared with those of a vLLM without a cache. KV_N (default 8) sets how many requests some rows
send at the same time."""

import contextlib, json, os, shutil, signal, socket, subprocess, threading, time, urllib.request
from kvtest import freeze

here = os.path.dirname(os.path.abspath(__file__))
top = os.path.dirname(os.path.dirname(here))
N = int(os.environ.get("KV_N", 8))
FAST = dict(  # tiny_vllm.py sets more variables
    PYTHONDONTWRITEBYTECODE="1",
    PYTHONHASHSEED="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="passive",
)
GEMMA3 = dict(
    architectures=["Gemma3ForCausalLM"],
    model_type="gemma3_text",
    sliding_window=128,
    sliding_window_pattern=2,
    layer_types=["sliding_attention", "full_attention"] * 2,
    query_pre_attn_scalar=64,
    hidden_activation="gelu_pytorch_tanh",
    rope_local_base_freq=10000.0,
    tie_word_embeddings=True,
)
GEMMA4 = dict(  # the pages of its full attention are larger than those of its sliding windows
    architectures=["Gemma4ForCausalLM"],
    model_type="gemma4_text",
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 2,
    global_head_dim=128,
    hidden_activation="gelu_pytorch_tanh",
    hidden_size_per_layer_input=0,
    tie_word_embeddings=True,
)
LFM2 = dict(
    architectures=["Lfm2ForCausalLM"],
    model_type="lfm2",
    layer_types=["conv", "full_attention"] * 2,
    conv_L_cache=3,
    conv_bias=False,
    conv_dim=256,
    conv_dim_out=256,
    block_dim=256,
    block_multiple_of=64,
    block_ffn_dim_multiplier=1.0,
    block_norm_eps=1e-5,
    block_use_swiglu=True,
    block_use_xavier_init=True,
    conv_use_xavier_init=True,
    use_pos_enc=True,
    block_ff_dim=512,
    block_auto_adjust_ff_dim=False,
    norm_eps=1e-5,
    theta=10000.0,
    tie_embedding=True,
    tie_word_embeddings=True,
)
MLA = dict(
    architectures=["DeepseekV2ForCausalLM"],
    model_type="deepseek_v2",
    kv_lora_rank=512,
    q_lora_rank=None,
    qk_nope_head_dim=64,
    qk_rope_head_dim=64,
    v_head_dim=64,
    num_key_value_heads=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    first_k_dense_replace=4,
    moe_intermediate_size=128,
    n_shared_experts=1,
)


class Died(AssertionError):
    pass


class Server:
    """serve_vllm.py, which imports vLLM once."""

    def __init__(self, env, base, build, **more):
        self.path, self.log = f"{base}/serve-vllm.socket", f"{base}/serve-vllm.log"
        e = dict(
            os.environ,
            **FAST,
            PYTHONPATH=f"{top}/gpu/python:{here}",
            KVCACHEFS_LIBRARY=f"{build}/lib/libkvcachefs.so.0",
        )
        e.update(more)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [env.python, f"{here}/serve_vllm.py", self.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=base,
                env=e,
            )
        for line in iter(self.process.stdout.readline, b""):
            if line.startswith(b"ready"):
                threading.Thread(target=self._drain, daemon=True).start()
                return
        self.process.wait()
        raise Died("serve_vllm.py did not start")

    def _drain(self):
        with open(self.log, "ab", buffering=0) as log:
            for line in iter(self.process.stdout.readline, b""):
                log.write(line)

    def end(self):
        self.process.kill()
        self.process.wait()
        os.unlink(self.path)  # the next server in this folder binds it


class Vllm:
    """An engine in a process of its own."""

    def __init__(self, server):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(600)
        self.socket.connect(server.path)
        self.lines = self.socket.makefile("rb")

    def __call__(self, do, **more):
        self.socket.sendall(json.dumps({"do": do, **more}).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise Died(f"the engine died at {do}")
        answer = json.loads(line)
        if "error" in answer:
            raise Died(f"{do}: {answer['error']}")
        return answer["is"]

    def run(self, prompts, **more):
        """Returns two lists: the number of cached tokens of each prompt, and the tokens generated
        for each prompt."""
        made = self("run", prompts=prompts, **more)
        return [c for c, _ in made], [t for _, t in made]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self("end")
        self.lines.close()
        self.socket.close()


def connector(store, **extra):
    return {
        "kv_connector": "KvcachefsConnector",
        "kv_connector_module_path": "kvcachefs.vllm",
        "kv_role": "kv_both",
        # a lookup may take long on a busy machine
        "kv_connector_extra_config": {"mount": store.mnt, "lookup_timeout_ms": 120000, **extra},
    }


def rows(env, base, mounted, folder, need, row, asked):
    names = {}

    def is_row(name):
        def keep(run):
            names[f"whole vllm kvcachefs, {name}"] = run
            return run

        return keep

    build = os.environ["KV_BUILD"]
    model = f"{base}/tiny"  # a folder for each kind of model: only one kind has a file of weights
    servers, plain = [], {}

    def server():
        if not servers:
            servers.append(Server(env, base, build))
        return servers[0]

    def prompts(n=4, size=640, first=0, **more):
        return [{"n": first + i, "len": size, **more} for i in range(n)]

    @contextlib.contextmanager
    def vllm(transfer, **start):
        with Vllm(server()) as v:
            kind = (start.get("model") or {}).get("model_type", "llama")
            where = f"{model}-{'images' if start.get('images') else kind}"
            v("start", folder=where, transfer=transfer, **start)
            yield v

    def reference(asks, out=8, start=None, params=None):
        """The tokens of a vLLM without a cache. Changes of the first three quarters must give other
        tokens for at least half of the prompts: otherwise equal tokens would not show that loads
        return the right data."""
        key = json.dumps([asks, out, start, params], sort_keys=True)
        if key not in plain:
            start = start or {}
            others = [dict(p, changed=p["len"] * 3 // 4) for p in asks[:4]]
            with vllm({}, **start) as v:
                plain[key] = v.run(asks, out=out, params=params)[1]
                changed = v.run(others, out=out, params=params)[1]
            need(
                2 * sum(a != b for a, b in zip(plain[key], changed)) >= len(changed),
                f"the tokens do not depend on the prompt: {plain[key][:4]}, {changed}",
            )
        return plain[key]

    def right(got, asks, what, together=False, **more):
        want = reference(asks, **more)
        need(got[1] == want, f"{what}: the tokens differ from those without a cache")
        return got[0]

    def tell(**hints):
        """Sampling parameters of a request with these hints."""
        return {"extra_args": {"kv_transfer_params": {"kvcachefs": hints}}}

    def files(store):
        return sorted(
            f"{p}/{f}" for p, _, found in os.walk(store.mnt) for f in found if f.endswith(".bin")
        )

    @contextlib.contextmanager
    def stored(mine, connector=connector):
        """A mount on which an engine stored the prompts."""
        with mounted(size=512, cpu=256) as store:
            with vllm(connector(store)) as v:
                right(v.run(mine), mine, "first")
            store.settle()
            yield store

    def hits(store, mine, what, connector=connector):
        """Another engine gets the prompts from the cache."""
        with vllm(connector(store)) as v:
            cached = right(v.run(mine), mine, what)
            need(min(cached) >= 512, f"{what}: {cached} tokens were from the cache")

    def again(store):
        store.committed()
        store.kill()
        store.mount()

    def twice(
        start=None, extra=None, least=512, asks=None, between=again, space=512, ends=None, **more
    ):
        """Stores in one engine, kills the daemon, mounts again, and expects hits in another
        engine. ends(store, engine) is called at the end of both engines."""

        def run():
            mine = asks or prompts()
            with mounted(size=2 * space, cpu=space) as store:
                with vllm(connector(store, **(extra or {})), **(start or {})) as v:
                    cached = right(v.run(mine, **more), mine, "first", start=start, **more)
                    need(not any(cached), f"hits in an empty store: {cached}")
                    if ends:
                        ends(store, v)
                between(store)
                with vllm(connector(store, **(extra or {})), **(start or {})) as v:
                    cached = right(v.run(mine, **more), mine, "second", start=start, **more)
                    counts = v("counts", word="kvcachefs")
                    need(
                        min(cached) >= least,
                        f"the second engine had {cached} of {mine[0]['len']} tokens from the "
                        f"cache: {counts}",
                    )
                    need(counts.get("vllm:kvcachefs_chunk_hits"), f"no hits in metrics: {counts}")
                    need(not counts.get("vllm:kvcachefs_load_failures"), f"failures: {counts}")
                    if ends:
                        ends(store, v)

        return run

    def folded(store, v):
        """The two workers have equal caches: each chunk has one file, which was written once, and
        both workers loaded it."""
        chunks = 4 * 5  # files of 128 tokens for four prompts of 640 tokens
        store.settle()
        have = files(store)
        need(len(have) == chunks, f"{len(have)} files instead of {chunks}")
        names = {p.split("/")[-4].rsplit("_r", 1)[1] for p in have}
        need(names == {"0"}, f"files of the ranks {sorted(names)}")
        size, end = os.path.getsize(have[0]), time.monotonic() + 30
        want = (chunks * size, 0), (0, 2 * chunks * size)  # of the first and the second engine
        while True:
            # vLLM counts the bytes of a transfer in one of its later steps
            v.run(prompts(1, size=64, first=60))
            counts = v("counts", word="kv_offload")
            got = tuple(counts.get(f"vllm:kv_offload_{w}_bytes", 0) for w in ("store", "load"))
            if got in want:
                return
            need(time.monotonic() < end, f"bytes stored and loaded: {got}, not one of {want}")

    # ---- Models and settings ----

    is_row("a restart")(twice())
    is_row("blocks_per_chunk 1")(twice(extra={"blocks_per_chunk": 1}, least=608))
    is_row("fp8 cache")(twice(start={"llm": {"kv_cache_dtype": "fp8_e5m2"}}))
    is_row("sliding windows")(twice(start={"model": GEMMA3}, least=480))
    is_row("pages of unequal size")(twice(start={"model": GEMMA4}, least=480))
    is_row("short convolutions")(twice(start={"model": LFM2}, least=320))
    # On CPUs, the kernel of vLLM 0.32 for rotary positions uses the stride of heads as that of
    # tokens. With MLA it therefore rotates other memory, and the cache of a token depends on the
    # number of tokens that are computed with it: also without a connector, chunked prefill gives
    # other tokens. Without the kernel, vLLM rotates with torch, which is right.
    torch_rotates = {"compilation_config": {"custom_ops": ["-rotary_embedding"]}}
    is_row("MLA")(twice(start={"model": MLA, "llm": torch_rotates}))
    is_row("two workers (TP)")(twice(start={"llm": {"tensor_parallel_size": 2}}))
    is_row("MLA, two workers")(
        twice(
            start={"model": MLA, "llm": {"tensor_parallel_size": 2, **torch_rotates}},
            ends=folded,
        )
    )
    is_row("an engine core of its own")(
        twice(start={"env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}})
    )
    is_row(f"{N} requests at once")(
        twice(asks=prompts(N), start={"llm": {"max_num_seqs": N}}, together=True)
    )

    for codec in "kvq-high", "kvq-mid", "kvq-low", "fp8":
        is_row(f"tokens after a prefix coded with {codec}")(lambda codec=codec: coded(codec))

    def coded(codec):
        """The connector tells the layout of its files, so compress= alone makes the copies lossy.
        The second engine gets the decoded prefixes. Prints the share of equal tokens; random
        weights amplify small differences, so only the first token has a bound."""
        start, out = {"llm": {"dtype": "bfloat16"}}, 16
        mine = prompts(16, first=1)
        want = reference(mine, start=start, out=out)
        with mounted(size=512, cpu=256, options=f",compress={codec}") as store:
            with vllm(connector(store), **start) as v:
                right(v.run(mine, out=out), mine, "first", start=start, out=out)
            store.settle()
            count = len(files(store))
            t = store.stats()
            need(
                t["lossy_copies"] == count > 0 == t["lossy_no_layout"] == t["lossy_no_fit"],
                f"{t['lossy_copies']} lossy copies of {count} files",
            )
            store.umount()
            store.drop_pool()
            store.mount()
            with vllm(connector(store), **start) as v:
                cached, tokens = v.run(mine, out=out)
            need(min(cached) >= 512, f"{cached} tokens were from the cache")
            need(store.stats()["loads_decoded"] >= count, "the prefixes were not decoded")
        firsts = sum(a[0] == b[0] for a, b in zip(want, tokens))
        same = sum(a == b for w, t in zip(want, tokens) for a, b in zip(w, t))
        print(
            f"{codec}: {100 * same / len(mine) / out:.1f} % of {len(mine) * out} tokens are equal, "
            f"{firsts} of {len(mine)} first tokens"
        )
        need(firsts >= len(mine) // 2, f"{firsts} of {len(mine)} first tokens are equal")

    @is_row("preemption")
    def preempted():
        start = {"llm": {"num_gpu_blocks_override": 70, "max_num_seqs": 8}}
        mine = prompts(12, 300)
        with mounted(size=512, cpu=256) as store:
            for what in ("first", "second"):
                with vllm(connector(store), **start) as v:
                    got = v.run(mine, together=True, out=64)
                    cached = right(got, mine, what, start=start, out=64)
            need(sum(cached) >= 12 * 256 // 2, f"the second engine had {cached} from the cache")

    @is_row("salts")
    def salts():
        mine, other = prompts(2, cache_salt="a"), prompts(2, cache_salt="b")
        with mounted(size=512, cpu=256) as store:
            with vllm(connector(store)) as v:
                right(v.run(mine), mine, "first")
            with vllm(connector(store)) as v:
                cached = right(v.run(other), other, "another salt")
                need(not any(cached), f"hits of another salt: {cached}")
                cached = right(v.run(mine), mine, "the same salt")
                need(min(cached) >= 512, f"no hits of the same salt: {cached}")

    @is_row("images")
    def images():
        mine, other = prompts(2, image=1), prompts(2, image=2)
        start = {"images": True}
        with mounted(size=512, cpu=256) as store:
            with vllm(connector(store), **start) as v:
                right(v.run(mine), mine, "first", start=start)
            again(store)
            with vllm(connector(store), **start) as v:
                cached = right(v.run(other), other, "another image", start=start)
                need(not any(cached), f"hits of another image: {cached}")
                cached = right(v.run(mine), mine, "the same image", start=start)
                need(min(cached) >= 512, f"no hits of the same image: {cached}")
                cached = right(v.run(prompts(2)), prompts(2), "no image", start=start)
                need(not any(cached), f"hits without an image: {cached}")

    @is_row("LoRA")
    def lora():
        mine = prompts(2)
        start = {"llm": {"enable_lora": True, "max_lora_rank": 8}}
        one, two = f"{base}/adapter-one", f"{base}/adapter-two"
        with mounted(size=512, cpu=256) as store:
            with vllm(None, **start) as v:
                v("adapter", folder=one)
                v("adapter", folder=two)
                plain_one, plain_two = (v.run(mine, lora=a)[1] for a in (one, two))
            with vllm(connector(store), **start) as v:
                need(v.run(mine, lora=one)[1] == plain_one, "the first engine made other tokens")
            with vllm(connector(store), **start) as v:
                cached, tokens = v.run(mine, lora=two)
                need(plain_one != plain_two, "two adapters make the same tokens")
                need(not any(cached), f"hits of another adapter: {cached}")
                need(tokens == plain_two, "other tokens with another adapter")
                cached, tokens = v.run(mine)
                need(not any(cached), f"hits of an adapter without it: {cached}")
                cached, tokens = v.run(mine, lora=one)
                need(min(cached) >= 512, f"no hits of the same adapter: {cached}")
                need(tokens == plain_one, "other tokens with the same adapter")

    @is_row("hints at the end of requests")
    def hints():
        """Chunks of finished and unimportant requests leave the pool first; those of sessions, of
        urgent requests and of paused requests stay."""
        mine = prompts(6)
        cases = (
            ("finished", {"params": tell(finished=True)}),
            ("low", {"priority": 5}),
            ("plain", {}),
            ("session", {"session_id": "a"}),
            ("high", {"priority": -5}),
            ("paused", {"params": tell(pause=600)}),
        )
        with mounted(size=512, cpu=48) as store:
            held = {}
            start = {"llm": {"scheduling_policy": "priority"}}
            with vllm(connector(store, session_pause=600), **start) as v:
                for one, (what, more) in zip(mine, cases):
                    before = set(files(store))
                    got = [c for c in zip(*v("session", prompts=[one], **more))]
                    need(list(got[1]) == reference([one], start=start), f"{what}: other tokens")
                    store.settle()
                    held[what] = set(files(store)) - before
                    need(len(held[what]) == 2, f"{what}: {len(held[what])} files instead of 2")
                v("session", prompts=[mine[2]], params=tell(pause="long"))
                end = time.time() + 30
                while store.stats()["hints"] < 5 and time.time() < end:
                    time.sleep(0.1)
                counts = v("counts", word="kvcachefs_hint")
                need(counts.get("vllm:kvcachefs_hints") == 5, f"hints: {counts}")
                need(counts.get("vllm:kvcachefs_hint_failures") == 1, f"failures: {counts}")
                need(store.stats()["hints"] == 5, f"{store.stats()['hints']} hints instead of 5")

                def inside(what):
                    return sum("cpu" in store.attr(os.path.relpath(p, store.mnt), "tiers")
                               for p in held[what])

                for i in range(400):
                    if not inside("plain"):
                        break
                    with open(f"{store.mnt}/fill{i}", "wb") as f:
                        f.write(os.urandom(1 << 20))
                    store.settle()
                left = {what: inside(what) for what in held}
                want = {"finished": 0, "low": 0, "plain": 0, "session": 2, "high": 2, "paused": 2}
                need(left == want, f"files in the pool: {left}")
                # the session's next request supersedes the chunks of its first request
                v("session", prompts=prompts(1, first=40), session_id="a",
                  params=tell(supersedes=True))
                # vLLM reports the end of a request in a step of the next request
                v("session", prompts=prompts(1, first=50))
                end = time.time() + 30
                while store.stats()["hints"] < 7 and time.time() < end:
                    time.sleep(0.1)
                need(store.stats()["hints"] == 7, "no hints of the older and the newer state")

    @is_row("two engines store the same prompts")
    def both():
        mine, got = prompts(), {}
        server()  # one for both threads
        with mounted(size=512, cpu=256) as store:

            def one(i):
                with vllm(connector(store)) as v:
                    got[i] = v.run(mine)

            threads = [threading.Thread(target=one, args=(i,)) for i in range(2)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            need(len(got) == 2, "an engine died")
            for i in got:
                right(got[i], mine, f"engine {i}")
            need(len(files(store)) == 8, f"{len(files(store))} files instead of 8")
            hits(store, mine, "third")

    # ---- Failures ----

    def multi(store):
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [connector(store)]},
        }

    def harmed(harm, connector=connector):
        """Runs harm(store) between two engines. The second engine computes and stores the prompts
        again, and a third engine finds them in the cache."""

        def run():
            mine = prompts(2)
            with stored(mine, connector) as store:
                harm(store)
                with vllm(connector(store)) as v:
                    right(v.run(mine), mine, "harmed")
                    counts = v("counts", word="kvcachefs")
                    need(
                        counts.get("vllm:kvcachefs_load_failures") or connector is multi,
                        f"no failure: {counts}",
                    )
                    time.sleep(1)
                hits(store, mine, "healed", connector)

        return run

    def change_sizes(by):
        def harm(store):
            for path in files(store):
                with open(path, "r+b") as f:
                    f.truncate(max(os.path.getsize(path) + by, 0))

        return harm

    is_row("truncated files")(harmed(change_sizes(-100000)))
    is_row("files that are too large")(harmed(change_sizes(4096)))
    is_row("truncated files in a MultiConnector")(
        harmed(change_sizes(-100000), connector=multi)
    )
    is_row("empty files")(harmed(change_sizes(-(1 << 40))))

    @is_row("files that disappear between lookup and load")
    def gone():
        mine = prompts(2)
        with stored(mine) as store:
            with vllm(connector(store)) as v:
                v("before_loads", do_what="remove", folder=store.mnt)
                cached = right(v.run(mine), mine, "removed")
                counts = v("counts", word="kvcachefs")
                need(counts.get("vllm:kvcachefs_load_failures"), f"no failure: {counts}")

    @is_row("a full mount evicts between lookup and load")
    def evicted():
        """The lookup leases the chunks, so they stay. Chunks of another prompt are dropped."""
        mine, other = prompts(1), prompts(1, first=1)
        with mounted(size=48, cpu=48) as store:
            with vllm(connector(store)) as v:
                right(v.run(mine), mine, "first")
                before = set(files(store))
                right(v.run(other), other, "first")
            store.settle()
            need(len(before) == 2 and len(files(store)) == 4, f"{len(files(store))} files")
            with vllm(connector(store)) as v:
                v("before_loads", do_what="fill", folder=store.mnt)
                cached = right(v.run(mine), mine, "evicted")
                need(min(cached) >= 512, f"{cached} tokens were from the cache")
                counts = v("counts", word="kvcachefs")
                need(not counts.get("vllm:kvcachefs_load_failures"), f"failures: {counts}")
            need(not set(files(store)) - before, "no chunk of the other prompt was dropped")

    @is_row("on_failure fail")
    def fails():
        mine = prompts(2)
        with stored(mine) as store:
            change_sizes(-100000)(store)
            with vllm(connector(store, on_failure="fail")) as v:
                _, tokens = v.run(mine)
                need(tokens == [[], []], f"requests did not fail: {tokens}")
                right(v.run(mine), mine, "afterwards")

    def broken(path, *words):
        """Opens of these files fail with EIO. Each of `words` names a counter,
        vllm:kvcachefs_WORD_failures. At least one of these counters must not be 0."""

        def run():
            mine = prompts(2)
            with stored(mine) as store:
                rules = f"calls=open path={path} nth=1 count=0 do=EIO"
                faulty = Server(
                    env, f"{base}/faulty", build, LD_PRELOAD=f"{build}/lib/faults.so", FAULTS=rules
                )
                try:
                    with Vllm(faulty) as v:
                        v("start", folder=f"{model}-llama", transfer=connector(store))
                        more = prompts(4)
                        right(v.run(more), more, "with EIO")
                        counts = v("counts", word="kvcachefs")
                        need(
                            any(counts.get(f"vllm:kvcachefs_{w}_failures") for w in words),
                            f"no failure: {counts}",
                        )
                finally:
                    faulty.end()

        return run

    is_row("EIO in loads and stores")(broken("*.bin*", "store", "load"))
    is_row("EIO in lookups")(broken("*/.kvcachefs/lease", "lookup"))

    @is_row("a full pool (ENOSPC)")
    def full():
        mine = prompts(4)
        with mounted(size=512, cpu=16) as store:
            with open(f"{store.mnt}/open", "wb", buffering=0) as f:
                with contextlib.suppress(OSError):
                    while True:
                        f.write(bytes(1 << 20))
                with vllm(connector(store)) as v:
                    right(v.run(mine), mine, "full")
                    time.sleep(1)
                    right(v.run(prompts(1, first=9)), prompts(1, first=9), "afterwards")
                    counts = v("counts", word="kvcachefs")
                    need(counts.get("vllm:kvcachefs_store_failures"), f"no failure: {counts}")
            os.unlink(f"{store.mnt}/open")
            with vllm(connector(store)) as v:
                right(v.run(mine), mine, "space again")
                time.sleep(1)
            hits(store, mine, "stored")

    @is_row("a daemon that does not answer")
    def stopped():
        mine = prompts(3)
        with stored(mine) as store:
            with vllm(connector(store, lookup_timeout_ms=500)) as v:
                freeze(store.daemon.pid)
                try:
                    cached = right(v.run(mine), mine, "stopped")
                    need(not any(cached), f"hits without a daemon: {cached}")
                    counts = v("counts", word="kvcachefs")
                    need(counts.get("vllm:kvcachefs_lookup_timeouts"), f"no timeout: {counts}")
                finally:
                    store.daemon.send_signal(signal.SIGCONT)

    @is_row("a daemon that is killed during calls")
    def killed():
        mine = prompts(4 * N)
        with mounted(size=512, cpu=256) as store:
            with vllm(connector(store)) as v:
                right(v.run(mine[: 2 * N], together=True), mine[: 2 * N], "first")
            done, kills = threading.Event(), [0]

            def kill():
                while not done.wait(0.7):
                    store.kill()
                    done.wait(0.3)
                    store.mount()
                    kills[0] += 1

            with vllm(connector(store)) as v:
                thread = threading.Thread(target=kill)
                thread.start()
                try:
                    for _ in range(3):
                        right(v.run(mine, together=True), mine, "while it was killed")
                finally:
                    done.set()
                    thread.join()
                need(kills[0] > 1, "the daemon was not killed")
                more = prompts(2, first=5 * N)
                right(v.run(more), more, "afterwards")
                time.sleep(1)
            hits(store, more, "afterwards")

    @is_row("no daemon")
    def away():
        mine = prompts(2)
        with mounted(size=512, cpu=256) as store:
            with vllm(connector(store)) as v:
                store.kill()
                right(v.run(mine), mine, "without a daemon")
                store.mount()
                more = prompts(2, first=7)
                right(v.run(more), more, "mounted")
                time.sleep(1)
            hits(store, more, "again")

    def refused(what, word, change, **start):
        def run():
            with mounted(size=512, cpu=256) as store:
                transfer = connector(store)
                change(transfer["kv_connector_extra_config"])
                try:
                    with vllm(transfer, **start):
                        pass
                except Died as e:
                    need(word in str(e), f"the error does not say '{word}': {e}")
                    return
                need(False, "the engine started")

        is_row(what)(run)

    refused("no mount at the start", "mount -t kvcachefs", lambda x: x.update(mount=base))
    refused("an option that does not exist", "no option 'thread'", lambda x: x.update(thread=1))
    refused("no option mount", '"mount": "/mnt/kv"', lambda x: x.pop("mount"))
    refused(
        "canonical_layout", "canonical_layout is not", lambda x: x.update(canonical_layout=True)
    )

    def script(last_line, name, *more):
        """Runs a script of this folder on a mount."""
        with mounted(size=512, cpu=256) as store:
            p = subprocess.run(
                [env.python, f"{here}/{name}", store.mnt, *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=1200,
                env=dict(
                    os.environ,
                    **FAST,
                    PYTHONPATH=f"{top}/gpu/python",
                    KVCACHEFS_LIBRARY=f"{build}/lib/libkvcachefs.so.0",
                ),
            )
            last = (p.stdout.strip().splitlines() or [""])[-1]
            need(p.returncode == 0 and last == last_line, f"{p.returncode}: {last}")

    @is_row("names and bytes of the file tier")
    def same_files():
        script("same", "same_files.py")

    @is_row("events that vLLM makes and reads")
    def router_events():
        script("same", "router_events.py", f"{build}/bin/kvcachectl")

    @is_row("events that Dynamo's indexer reads")
    def dynamo():
        mine, block = prompts(), 32
        with mounted(size=512, cpu=256) as store, socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port, address = s.getsockname()[1], f"ipc://{store.path}/events"
            s.close()
            options = ["--port", port, "--threads", 1, "--block-size", block]
            options += ["--workers", f"1={address}", "--model-name", "tiny"]

            def ask(what):
                answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/{what}", timeout=30)
                return json.load(answer)

            def tiers():
                """The blocks in each tier. A block is a tuple of three hashes: of its parent, of
                itself, and of its tokens."""
                got = {}
                for e in ask("dump")["tiny:default"]["events"]:
                    blocks = e["event"]["data"]["stored"]
                    parent = blocks["parent_hash"]
                    for b in blocks["blocks"]:
                        got.setdefault(e["storage_tier"], set()).add(
                            (parent, b["block_hash"], b["tokens_hash"])
                        )
                        parent = b["block_hash"]
                return got

            def ready(what):
                end = time.monotonic() + 120
                while True:
                    with contextlib.suppress(OSError):
                        if what():
                            return
                    have = {tier: len(blocks) for tier, blocks in tiers().items()}
                    need(time.monotonic() < end, f"Dynamo's indexer has {have} blocks")
                    time.sleep(0.2)

            with open(f"{base}/dynamo.log", "ab") as log, subprocess.Popen(
                [str(w) for w in [env.python, "-m", "dynamo.indexer", *options]],
                stdout=log,
                stderr=log,
            ) as indexer:
                try:
                    extra = {"events": True, "self_describing_kv_events": True}
                    with vllm(connector(store, **extra), events=address) as v:
                        # events that vLLM sends before the indexer has subscribed are lost
                        short = iter(prompts(100, size=64, first=100))
                        ready(lambda: tiers() or v.run([next(short)]) and tiers())
                        right(v.run(mine), mine, "first")
                        # 512 of the 640 tokens of each prompt are in whole files
                        most = len(mine) * 512 // block
                        # vLLM sends the events of a store in one of its later steps
                        ready(
                            lambda: len(tiers().get("disk", ())) >= most
                            or v.run([next(short)]) and False
                        )
                        have = tiers()
                        need(
                            have["disk"] <= have["device"],
                            "the stored blocks are not blocks of the GPU",
                        )
                finally:
                    indexer.kill()

    chosen = [n for n in names if asked(n)]
    if not chosen:
        return
    if "vllm-cpu" in env.missing:
        for n in chosen:
            row(n, "skip", f"vllm-cpu: {env.missing['vllm-cpu']}")
        return
    os.makedirs(f"{base}/faulty", exist_ok=True)
    with open("/proc/cpuinfo") as f:
        fp8 = {"avx512f", "amx_tile"} & set(f.read().split())
    try:
        for n in chosen:
            if n.endswith("fp8 cache") and not fp8:
                row(n, "skip", "vLLM's fp8 cache on the CPU needs AVX-512 or AMX")
                continue
            yield n, names[n]
    finally:
        for s in servers:
            s.end()
            os.makedirs(f"{top}/build/engines", exist_ok=True)
            shutil.copy(s.log, f"{top}/build/engines/vllm-kvcachefs.log")
