# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""make cores measures each case on a tmpfs and on mounts, with threads and with processes, and
prints the waits for locks, which .kvcachefs/locks counts. It leaves neither mounts nor files."""
import os, re
from kvtest import *

SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/cores")
HERE = f"{TMP}/cores"
CASES = ["hit", "open", "lookup", "absent", "stat", "create", "store"]
os.mkdir(HERE)
out = run(SCRIPT, BUILD, "-s", "6", "-l", "1,2", "-b", "65536", ok=True,
          env=dict(os.environ, KV_TMP=HERE, MODES="tmpfs passthrough plain")).stdout
blocks = re.split(r"\n(?=\w+: )", out)[1:]
assert [b.split(":")[0] for b in blocks] == CASES, out
for b in blocks:
    names = re.search(r"^callers +(.*)", b, re.M).group(1).split()
    assert names == ["tmpfs", "passthrough", "plain"], b
    rows = re.findall(r"^ +(\d+)\*? +(threads|processes) (.*)", b, re.M)
    assert [r[:2] for r in rows] == [("1", "threads"), ("2", "threads"), ("2", "processes")], b
    for row in rows:
        rates = [float(v) for v in re.findall(r"([\d.]+) +[\d.]+x", row[2])]
        assert len(rates) == len(names) and min(rates) > 0, b
    assert len(re.findall(r"^  (?:passthrough|plain): lock (?:objects|tree): \d+ holds", b,
                          re.M)) == 4, b
assert os.listdir(HERE) == [] and HERE not in open("/proc/mounts").read(), os.listdir(HERE)
p = run(SCRIPT, BUILD, "-c", "misses", env=dict(os.environ, KV_TMP=HERE, MODES="tmpfs"))
assert p.returncode and "no case is named misses" in p.stdout, p.stdout

s = Store(cpu="64M").mount()
s.write("m/c/l0", b"x")
with open(f"{s.mnt}/.kvcachefs/locks") as f:
    lines = [l.split() for l in f if l[0] != "#"]
assert all(len(l) == 5 and all(v.isdigit() for v in l[1:]) for l in lines), lines
by_name = {l[0]: list(map(int, l[1:])) for l in lines}
assert by_name["objects"][0] > 3 and by_name["tree"][0] > 3, by_name
