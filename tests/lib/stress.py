# SPDX-License-Identifier: Apache-2.0
"""Traces to test policies with loads that are rare in the public traces. Each is a list of
(ms, [block, ...]). All use one stream of random numbers, so a seed always gives the same traces.

agent   sessions of fast turns with a growing context, sometimes with a long pause, sometimes with a
        new start from the system prompt
zipf    documents of constant popularity, each with a question at its end
drift   as zipf, but the popular documents change over time
loop    all documents in turn, repeatedly
phase   the first half as zipf, then conversations"""
import json, random

DOCUMENTS = 3000
STEP = 300  # ms between two requests, if they are evenly spaced


def document(d, blocks, question):
    return [(d, b) for b in range(blocks)] + [("question", question)]


def agent(chance):
    found = []
    for s in range(120):
        at = chance.random() * 6 * 3600e3
        system = [("system", s % 4, i)
                  for i in range(chance.choice([10, 20, 30]) if s % 4 == 0 else 15)]
        context = list(system)
        for turn in range(int(chance.lognormvariate(3.6, .8))):
            context = context + [(s, turn, i) for i in range(1 + int(chance.expovariate(1 / 2.5)))]
            found.append((at, context + [(s, turn, "tail")]))
            fast = chance.random() < .93
            at += chance.lognormvariate(9.2, .8) if fast else chance.lognormvariate(12.5, 1)
            if len(context) > 300:
                context = system + [(s, turn, "compacted", i) for i in range(10)]
    return found


def zipf(chance, length):
    weights = [1 / (d + 1) ** .9 for d in range(DOCUMENTS)]
    return [(i * STEP, document(d, length[d], i))
            for i, d in enumerate(chance.choices(range(DOCUMENTS), weights, k=6000))]


def drift(chance, length):
    found = []
    for i in range(6000):
        d = int(i * .4) + int(chance.expovariate(1 / 60))
        found.append((i * STEP, document(d, length[d % DOCUMENTS], i)))
    return found


def loop():
    return [(i * STEP, document(i % 400, 25, i)) for i in range(4000)]


def phase(chance, length):
    weights = [1 / (d + 1) ** .9 for d in range(DOCUMENTS)]
    found = []
    for i in range(4000):
        d = chance.choices(range(DOCUMENTS), weights)[0]
        found.append((i * STEP, document(d, length[d], i)))
    for s in range(2500):
        at = 4000 * STEP + chance.random() * 4000 * STEP
        context = [("user", s, i) for i in range(chance.randint(3, 40))]
        while True:
            found.append((at, context + [("asked", s, at)]))
            if chance.random() < .4:
                break
            context = context + [("user", s, at, i) for i in range(chance.randint(1, 3))]
            at += chance.lognormvariate(11.6, 1)
    return found


def traces(seed):
    chance = random.Random(seed)
    found = {"agent": agent(chance)}
    length = [chance.randint(5, 60) for _ in range(DOCUMENTS)]
    found["zipf"] = zipf(chance, length)
    found["drift"] = drift(chance, length)
    found["loop"] = loop()
    found["phase"] = phase(chance, length)
    return {name: sorted(requests, key=lambda r: r[0]) for name, requests in found.items()}


def write(folder, seed=1):
    """{name: path} of the traces, in the form that kvcachectl replay reads."""
    paths = {}
    for name, requests in traces(seed).items():
        ids, paths[name] = {}, f"{folder}/{name}-{seed}.jsonl"
        with open(paths[name], "w") as f:
            for at, blocks in requests:
                numbers = [ids.setdefault(b, len(ids)) for b in blocks]
                f.write(json.dumps({"timestamp": int(at), "hash_ids": numbers}) + "\n")
    return paths
