# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The policy table of make bench: each policy has a row with decisions per second and memory per
chunk. With ten million chunks and many evictions, prefix uses at most 48 bytes per chunk, including
its memory of evicted chunks and its shadow caches."""
from kvtest import *

if SLOW > 1:
    skip("it measures the memory of ten million chunks")


def rows(*words):
    """{policy: (zipf, chains, bytes, bytes with more)}"""
    text = run(binary("test-policies"), *map(str, words), ok=True).stdout
    return {l.split()[0]: tuple(map(float, l.split()[1:])) for l in text.splitlines()}


p = run(binary("kvcachectl"), "replay", "--policy", "none", "trace")
names = p.stdout.split("the policies are:")[1].split(";")[0].split()
got = rows(2000, 4000, "all", 20_000)
assert list(got) == names, (got, names)
assert all(len(row) == 4 and min(row) > 0 for row in got.values()), got
chunks = 10_000_000 if LONG else 3_000_000
(name, (*_, each)), = rows(0, chunks, "prefix").items()
print(f"{name}: {each} bytes a chunk of {chunks}")
assert name == "prefix" and 30 < each <= 48, each
