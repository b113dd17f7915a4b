# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The layers of the engine: calls between its folders go down only, and files in a folder do not
call each other in circles, except for those that engine/README names. The case reads the symbols of
the built objects."""
import collections, glob, os, re
from kvtest import *

top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
floors = re.search(r"^FLOORS := (.*)$", open(f"{top}/Makefile").read(), re.M).group(1).split()
readme = open(f"{top}/engine/README").read()
folders = {os.path.basename(os.path.dirname(p)) for p in glob.glob(f"{top}/engine/*/*.c")}
assert folders == set(floors), f"folders and floors differ: {folders ^ set(floors)}"
# Allowed calls: a layer may call the layers below. Folders outside the engine may call only the
# folders that they include.
may = {f"engine/{f}": {f"engine/{g}" for g in floors[: i + 1]} for i, f in enumerate(floors)}
seen = {f"engine/{f}" for f in ("base", "frames", "catalog")}
may |= {"tiers": {"tiers", "engine/base", "engine/frames"},
        "mkfs": {"mkfs", "tiers", "gpu", "engine/policy"} | seen,
        "fs": {"fs", "tiers", "engine/calls"} | seen}

objects = [p for d in may for p in glob.glob(f"{BUILD}/obj/{d}/*.o")
           if os.path.exists(f"{top}/{d}/{os.path.basename(p)[:-2]}.c")]
defined, used = {}, {}
for path in objects:
    name = os.path.relpath(path, f"{BUILD}/obj")[:-2]
    used[name] = set()
    for line in run("nm", "-P", path, ok=True).stdout.splitlines():
        symbol, kind = line.split()[:2]
        if kind == "U":
            used[name].add(symbol)
        elif kind in "TDBRVC" and symbol.startswith(("kvc_", "kvct_", "kvfs_")):
            assert (symbol not in defined or
                    "mkfs" in (name.split("/")[0], defined[symbol].split("/")[0])), symbol
            defined[symbol] = name
sources = glob.glob(f"{top}/engine/*/*.c")
assert len([n for n in used if n.startswith("engine/")]) == len(sources), (
    "not all of the engine is built")

calls = collections.defaultdict(lambda: collections.defaultdict(set))
for name, symbols in used.items():
    for s in symbols & defined.keys():
        calls[name][defined[s]].add(s)
edges = sum(len(v) for v in calls.values())
assert edges > 300, f"only {edges} calls between files were found"
up = [f"{a} calls {b}: {' '.join(sorted(s))}" for a in calls for b, s in calls[a].items()
      if os.path.dirname(b) not in may[os.path.dirname(a)]]
assert not up, "upwards:\n" + "\n".join(sorted(up))


def reach(start):
    found, todo = set(), [start]
    while todo:
        for b in calls[todo.pop()]:
            if b not in found:
                found.add(b)
                todo.append(b)
    return found


within = {a: reach(a) for a in used if a.startswith("engine/")}
circles = {" ".join(sorted(b for b in within[a] if a in within[b]))
           for a in within if a in within[a]} - {""}
named = {" ".join(sorted(f"engine/{f}" for f in c.split()))
         for c in re.findall(r"^circle: (.*)$", readme, re.M)}
assert not circles - named, (
    f"files that call each other both ways, and engine/README does not name: {circles - named}")
assert not named - circles, f"engine/README names circles that are none: {named - circles}"

# Each floor and each file has its line in the page that draws the house.
for f in floors:
    assert re.search(rf"^\s*\d+\s+{f}/", readme, re.M), f"engine/README does not draw {f}/"
for path in sources:
    name = os.path.basename(path)[:-2]
    assert re.search(rf"\b{name}\b", readme), f"engine/README does not know {name}"
print(f"{len(sources)} files, {edges} pairs that call, {len(circles)} circle")
