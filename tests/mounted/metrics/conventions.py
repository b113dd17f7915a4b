# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The metrics for Prometheus: names, units and types follow its conventions, histograms are
consistent, latencies are by operation and tier, and opens are by model for a limited number of
models with any names."""
import os, re, shutil
from kvtest import *
from prometheus import check, parse, PREFIX

os.mkdir(f"{TMP}/a")
os.mkdir(f"{TMP}/b")
s = Store(cpu="64M", options=f"settle=0,remote=dir://{TMP}/a,"
          f"remote=dir://{TMP}/b").mount()


def read():
    with open(f"{s.mnt}/.kvcachefs/metrics", encoding="utf-8") as f:
        return f.read()


def look():
    text = read()
    check(text)
    return parse(text)


def opens(m, model):
    return [m.value("model_opens_total", model=model, result=r) for r in ("hit", "miss")]


def count(m, **labels):
    return m.value("operation_seconds_count", **labels)


# before any activity, all samples that are known in advance exist, and are 0
m = look()
assert count(m, operation="open", tier="cpu") == count(m, operation="load", tier="dir-2") == 0
assert m.value("models") == 0 and opens(m, "") == [0, 0]
assert {l["tier"] for n, l, v in m.samples if n == PREFIX + "tier_up"} == {"disk", "dir", "dir-2"}
if shutil.which("promtool"):
    p = subprocess.run(["promtool", "check", "metrics"], input=read(), text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert p.returncode == 0 and not p.stdout.strip(), p.stdout
else:
    print("promtool is not installed: only tests/lib/prometheus.py checks")

# a model with a quota, because only such models have samples of it
s.write("q/f", b"x")
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"1M")
wait_for(lambda: (m := look()).value("models_counted") == 1
         and m.value("model_quota_bytes", model="q") == MiB)
m = look()
assert m.value("model_files", model="q") == 1 and m.value("model_files", model="") == 0
run("rm", "-r", f"{s.mnt}/q", ok=True)
s.settle()
look()  # notices that it was removed

# the manual lists exactly these metrics, with their types and labels
with open(os.path.join(os.path.dirname(__file__), "../../../man/kvcachefs-metrics.7")) as f:
    page = f.read().split(".SS List of metrics")[1].split("\n.SH ")[0]
said = {n: (k, by) for n, k, by in re.findall(r"\.B (\w+)\n(\w+)(?:, by ([\w ]+))?: ", page)}
real = {}
for name, kind in m.types.items():
    labels = {k for n, l, _ in m.samples if m.family(n) == name for k in l} - {"le"}
    real[name] = kind, labels
assert {n: (k, set(by.split(" and ")) - {""}) for n, (k, by) in said.items()} == real

# the daemon's process, as its own /proc shows it
raw = {n: v for n, _, v in m.samples if n.startswith("process_")}
pid = s.daemon.pid
with open(f"/proc/{pid}/statm") as f:
    size, resident = (int(w) * os.sysconf("SC_PAGE_SIZE") for w in f.read().split()[:2])
assert 0.5 < raw["process_virtual_memory_bytes"] / size < 2, (raw, size)
assert 0.3 < raw["process_resident_memory_bytes"] / resident < 3, (raw, resident)
assert abs(raw["process_open_fds"] - len(os.listdir(f"/proc/{pid}/fd"))) <= 8, raw
assert 0 < raw["process_open_fds"] < raw["process_max_fds"], raw
assert abs(raw["process_start_time_seconds"] - os.stat(f"/proc/{pid}").st_ctime) < 60, raw
assert raw["process_cpu_seconds_total"] > 0, raw
assert m.value("passthrough") == (s.config()["served_by"] == "passthrough")
assert m.value("io_uring") == (s.config()["requests_by"] == "io_uring")
assert m.value("daily_limit_bytes") == 0
run(binary("kvcachectl"), "reload", "-o", "daily=3G", s.mnt, ok=True)
s.write("commit/c/l", b"x")
s.settle()
m = look()
assert m.value("daily_limit_bytes") == 3 << 30 and m.value("commit_longest_seconds") > 0
assert s.stats()["commit_longest_ms"] >= 1
run(binary("kvcachectl"), "reload", "-o", "daily=0", s.mnt, ok=True)

# names that would end a label, or are not valid text
ODD = [b'a"b', b"a\\b", b"a\nb", b"\xff\xfe", b"\xef\xbf\xbd\\xFF", "größe".encode(),
       b'{x="1"} 2', b"\x1b[2Jb", "\u009bx".encode(), b"\xc0\xaf"]
for i, name in enumerate(ODD):
    folder = os.fsencode(s.mnt) + b"/" + name
    os.makedirs(folder + b"/c")
    with open(folder + b"/c/l", "wb") as f:
        f.write(blob(i, 5000))
s.settle()
for name in ODD:
    for _ in range(3):
        with open(os.fsencode(s.mnt) + b"/" + name + b"/c/l", "rb") as f:
            f.read()
s.write("top", b"of no model")
s.settle()
s.read("top")
m = look()
shown = ['a"b', "a\\b", "a\nb", "\ufffd\\xFF\\xFE", "\ufffd\\xEF\\xBF\\xBD\\\\xFF", "größe",
         '{x="1"} 2', "\ufffd\\x1B[2Jb", "\ufffd\\xC2\\x9Bx", "\ufffd\\xC0\\xAF"]
assert all(opens(m, n) == [3, 0] for n in shown), m.labels("model_opens_total", "model")
assert opens(m, "") == [1, 0] and m.value("models") == len(ODD)

# times: of opens from the pool and from a tier, and of the work between them
assert count(m, operation="open", tier="cpu") == s.stats()["pool_hits"]
assert count(m, operation="create", tier="cpu") == s.stats()["creates"]
assert all(count(m, operation="spill", tier=t) >= len(ODD) for t in ("disk", "dir", "dir-2"))
before = count(m, operation="rename")
os.rename(f"{s.mnt}/top", f"{s.mnt}/top2")
for i in range(70):
    s.write(f"fill/{i}/l", bytes(MiB))
s.settle()
wait_for(lambda: s.attr("größe/c/l", "state") == "lower")
s.read("größe/c/l")
m, st = look(), s.stats()
assert count(m, operation="rename") == before + 1
assert opens(m, "größe") == [3, 1]
assert count(m, operation="open", tier="disk") == st["pool_misses"] >= 1
assert count(m, operation="load", tier="disk") == st["loads"] >= 1
assert count(m, operation="commit") >= 1 and m.value("lock_held_seconds_count", lock="objects") > 0
took = m.value("operation_seconds_sum", operation="open", tier="disk")
loading = m.value("operation_seconds_sum", operation="load", tier="disk")
assert took > 0 and loading > 0, (took, loading)

# more models than are shown individually: the sums are right, also after a removal
for i in range(150):
    s.write(f"m{i}/c/l", b"x")
s.settle()
for i in range(150):
    s.read(f"m{i}/c/l")
for _ in range(9):
    s.read("m149/c/l")
m, st = look(), s.stats()
all_of = lambda m: sum(v for n, l, v in m.samples if n == PREFIX + "model_opens_total")
assert all_of(m) == st["pool_hits"] + st["pool_misses"]
assert len(m.labels("model_opens_total", "model")) == 101
# fill has files, but none was opened; a slow create may count as a question for its name
asked = m.value("models")
assert asked == 150 + len(ODD) or (asked == 151 + len(ODD) and m.value(
    "model_asked_total", model="fill", result="absent") > 0), asked
assert opens(m, "m149") == [0, 0]  # it has the most opens: it is shown from here on
s.read("m149/c/l")
m = look()
assert opens(m, "m149") == [1, 0]
rest = opens(m, "")
for name in ODD:
    shutil.rmtree(os.fsencode(s.mnt) + b"/" + name)
look()  # notices that they were removed
m = look()
assert len(m.labels("model_opens_total", "model")) == 101, m.labels("model_opens_total", "model")
assert opens(m, "")[0] >= rest[0] + 3 * len(ODD)  # their counts are now part of the rest
s.umount()
