# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""make mlperf says in one line what is missing. With a stand-in for the benchmark of MLPerf
Storage, it measures each row in each round, gives mounts the options of their rows, compares rows
of the same round, and leaves neither mounts nor files."""
import json, os
from kvtest import *

need_mount()
SCRIPT = os.path.join(os.path.dirname(__file__), "../../../scripts/mlperf")
HERE, TOOL, SITE, OUT = (f"{TMP}/{n}" for n in ("here", "tool", "site", "out"))
[os.mkdir(d) for d in (HERE, TOOL, SITE, OUT)]
STAND_IN = '''
import json, os, sys
value = lambda name: sys.argv[sys.argv.index(name) + 1]
folder = value("--cache-dir")
assert not os.path.exists(folder), folder
os.mkdir(folder)
with open(f"{folder}/a.npy", "wb") as f:
    f.write(b"x" * (1 << 20))
    os.fsync(f.fileno())
assert len(open(f"{folder}/a.npy", "rb").read()) == 1 << 20
config = os.path.join(os.path.dirname(folder), "../.kvcachefs/config")
config = dict(l.rstrip().split("=", 1) for l in open(config)) if os.path.exists(config) else {}
with open(__file__ + ".runs", "a") as f:
    f.write(" ".join([folder.split("/")[-2], config.get("cpu", ""), config.get("prefault", ""),
                      value("--duration"), value("--seed"),
                      value("--storage-capacity-gb")]) + "\\n")
n = len(open(__file__ + ".runs").readlines())  # each run is slower than the run before
if os.environ.get("NONE"):
    sys.exit("no requests")
stats = {"tier_storage_read_bandwidth_gbps": 1 / n, "storage_read_p95_ms": n,
         "storage_write_p95_ms": 2 * n, "storage_write_device_p95_ms": n}
with open(value("--output"), "w") as f:
    json.dump({"summary": {"storage_throughput_tokens_per_sec": 1000 / n, "total_requests": n,
                           "cache_stats": stats}}, f)
'''


def mlperf(ok, **more):
    return run(SCRIPT, BUILD, ok=ok, env=dict(os.environ, KV_TMP=HERE, OUT=OUT, **more)).stdout


def left():
    return os.listdir(HERE) == [] and HERE not in open("/proc/mounts").read()


out = mlperf(True)
assert out == ("skip  mlperf: MLPERF= must name the folder kv_cache_benchmark of "
               "github.com/mlcommons/storage\n"), out
out = mlperf(True, MLPERF=TOOL)
assert out.startswith(f"skip  mlperf: {TOOL} has no kv-cache.py; ") and out.count("\n") == 1, out
with open(f"{TOOL}/kv-cache.py", "w") as f:
    f.write(STAND_IN)
out = mlperf(True, MLPERF=TOOL, PYTHON="/bin/false")
assert out.startswith("skip  mlperf: /bin/false lacks numpy") and out.count("\n") == 1, out

for name in ("numpy", "yaml"):
    open(f"{SITE}/{name}.py", "w").close()
small = dict(MLPERF=TOOL, PYTHON=sys.executable, PYTHONPATH=SITE, ROUNDS="2", SECONDS="7",
             SEED="5", FILES="1", ABOVE="64M", BELOW="32M", STORE="64M")
out = mlperf(True, **small)
with open(f"{TOOL}/kv-cache.py.runs") as f:
    runs = [l.split(" ") for l in f.read().splitlines()]
assert [r[:3] for r in runs] == 2 * [
    ["disk", "", ""], ["tmpfs", "", ""], ["mlperf", str(64 * MiB), "auto"],
    ["mlperf", str(64 * MiB), "hold"], ["mlperf", str(32 * MiB), "auto"]], runs
assert all(r[3:] == ["7", "5", "1"] for r in runs), runs
with open(f"{OUT}/mlperf.txt") as f:
    table = f.read().splitlines()
assert table[0] == ".TS" and table[-1] == ".TE" and len(table) == 9, table
rows = {l.split("\t")[0]: l.split("\t")[1:] for l in table[3:-1]}
disk = next(iter(rows))
assert list(rows)[1:] == ["tmpfs", "cpu=64M", "cpu=64M, hold", "cpu=32M"], rows
# run 3 and 8: tokens 1000/3 and 125, their ratios to runs 2 and 7, and times of 3 and 8
assert rows["cpu=64M"] == ["0.23", "229", f"{(2 / 3 + 7 / 8) / 2:.2f}", "6 ms", "11 ms",
                           f"{(3 + 8 / 6) / 2:.2f}", "6 ms"], rows
assert rows["tmpfs"][2] == "1.00" and rows[disk][5] == "1.00", rows
assert all(name in out for name in rows) and "load average before each round: " in out, out
with open(f"{OUT}/mlperf.json") as f:
    assert len(json.load(f)["results"]["cpu=32M"]) == 2
assert left(), os.listdir(HERE)

out = mlperf(False, NONE="1", **small)
assert "mlperf: the benchmark has no result" in out and "no requests" in out, out
assert left(), os.listdir(HERE)
