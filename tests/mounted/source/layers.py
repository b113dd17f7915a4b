# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""Calls between the engine's layers point downwards only, and files do not call each other in
circles, except for the circle that engine/README names. The name of a public function, also of an
inline one in a header, contains a word of its file's name. The test reads the symbols of the built
objects, and the headers."""
import collections, glob, os, re
from kvtest import *

top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
layers = re.search(r"^LAYERS := (.*)$", open(f"{top}/Makefile").read(), re.M).group(1).split()
readme = open(f"{top}/engine/README").read()
folders = {os.path.basename(os.path.dirname(p)) for p in glob.glob(f"{top}/engine/*/*.c")}
assert folders == set(layers), f"folders and layers differ: {folders ^ set(layers)}"
# A layer may call the layers below. The folders around the engine may call only what they see.
may = {f"engine/{f}": {f"engine/{g}" for g in layers[: i + 1]} for i, f in enumerate(layers)}
seen = {f"engine/{f}" for f in ("base", "frames", "catalog")}
may |= {"tiers": {"tiers", "engine/base", "engine/frames"},
        "mkfs": {"mkfs", "tiers"} | seen,
        "mkfs/mkfs": {"mkfs/mkfs", "mkfs", "tiers"} | seen,
        "mkfs/fsck": {"mkfs/fsck", "mkfs", "tiers"} | seen,
        "mkfs/mount": {"mkfs/mount", "mkfs", "tiers"} | seen,
        # The table of commands in ctl names those of replay and doctor.
        "mkfs/ctl": {"mkfs/ctl", "mkfs/replay", "mkfs/doctor", "mkfs", "tiers", "gpu"} | seen,
        "mkfs/replay": {"mkfs/replay", "mkfs/ctl", "mkfs", "tiers", "engine/policy"} | seen,
        "mkfs/doctor": {"mkfs/doctor", "mkfs/replay", "mkfs/ctl", "mkfs"} | seen,
        "fs": {"fs", "tiers", "engine/ops", "engine/jobs", "engine/report", "engine/mount"} | seen}

objects = [p for d in may for p in glob.glob(f"{BUILD}/obj/{d}/*.o")
           if os.path.exists(f"{top}/{d}/{os.path.basename(p)[:-2]}.c")]
defined, used, symbols_of = {}, {}, {}
for line in run("nm", "-P", "-A", *objects, ok=True).stdout.splitlines():
    path, symbol, kind = line.split()[:3]
    symbols_of.setdefault(path.rstrip(":"), []).append((symbol, kind))
for path in objects:
    name = os.path.relpath(path, f"{BUILD}/obj")[:-2]
    used[name] = set()
    for symbol, kind in symbols_of[path]:
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
assert not named - circles, f"engine/README names circles that do not exist: {named - circles}"

# engine/README has a line for each layer and each file.
for f in layers:
    assert re.search(rf"^\s*\d+\s+{f}/", readme, re.M), f"engine/README does not list {f}/"
for path in sources:
    name = os.path.basename(path)[:-2]
    assert re.search(rf"\b{name}\b", readme), f"engine/README does not know {name}"

# A public function is found by the name of its file. These files serve several tables or are
# collections of small functions, whose names carry these words instead.
WORDS = {
    "base/util": [""],
    "base/units": ["size", "time"],
    "base/caller": ["client", "wait"],
    "base/stats": ["histogram"],
    "catalog/catalog_rows": ["bare", "chunk", "gone", "meta", "name", "object", "place", "row",
                             "target", "xattr", "wiped"],
    "catalog/catalog_range": ["chunk", "meta", "name", "object", "place", "xattr"],
    "catalog/catalog_priv": ["sql", "usage"],
    "catalog/conn": ["catalog", "reader", "scan", "sql"],
    "catalog/usage": ["row", "xattr"],
    "policy/queues": ["replacer"],
    "policy/ranked": ["replacer"],
}


def words(path):
    stem = os.path.basename(path)
    found = {stem} | {w for w in stem.split("_") if len(w) > 2}
    found |= {w[:-1] for w in found if w.endswith("s")} | {w[:-1] + "ie" for w in found
                                                          if w.endswith("y")}
    return found | set(WORDS.get(path, ()))


public = [(s, f"{p}.c") for s, p in defined.items() if p.startswith("engine/")]
for path in glob.glob(f"{top}/engine/*/*.h"):
    inline = re.findall(r"^static inline [^(;=]*?\b(\w+)\(", open(path).read(), re.M)
    public += [(s, os.path.relpath(path, top)) for s in inline]
wrong = [f"{path}: {symbol}" for symbol, path in public if symbol.startswith("kvc_")
         and not any(w in symbol for w in words(path[len("engine/"):-2]))]
assert not wrong, "names without a word of their file's name: " + ", ".join(sorted(wrong))
print(f"{len(sources)} files, {edges} pairs that call, {len(circles)} circle")
