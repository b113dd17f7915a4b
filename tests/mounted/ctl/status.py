# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl status shows the figures of a mount on one screen, as text and as JSON, for now and
since the start. It distinguishes two tiers of one kind, and shows a suspended tier, and a tier that
refuses one class of calls, with the reason and the time to the next probe."""
import json, os, re, subprocess, threading
from fakes import Redis
from kvtest import *

CTL = binary("kvcachectl")
N = 300000


def ctl(*words):
    return run(CTL, *words)


def status(*words):
    p = run(CTL, "status", "--json", *words, ok=True)
    assert p.stdout.count("\n") == 1, p
    return json.loads(p.stdout)


def said(p, code, *words):
    assert p.returncode == code and p.stdout.count("\n") == 1, p
    assert p.stdout.startswith("kvcachectl: ") and all(w in p.stdout for w in words), p


BAD = f"{TMP}/bad"
for r in ("r1", "r2"):
    os.mkdir(f"{TMP}/{r}")
s = Store(size="256M", cpu="64M", options=f"settle=0,remote=dir://{TMP}/r1,remote=dir://{TMP}/r2,"
          f"shim=fail-while:{BAD}+only:disk").mount()
j = status(s.mnt)
assert j["hits"]["since_start"]["share"] is None and "lately" not in j["hits"], j
assert "since the start        0         -        0         -" in ctl("status", s.mnt).stdout
for c in "abc":
    for i in range(3):
        s.write(f"m/{c}/l{i}", blob(f"{c}{i}", N))
s.settle()
os.setxattr(f"{s.mnt}/m/a", "user.kvcachefs.pin", b"1")
os.setxattr(f"{s.mnt}/m/b", "user.kvcachefs.demote", b"cpu")
assert all(s.read(f"m/{c}/l{i}") == blob(f"{c}{i}", N) for c in "abc" for i in range(3))
s.settle()

j, stats, config = status(f"{s.mnt}/m/a/l0"), s.stats(), s.config()
assert j["mount"] == s.mnt and j["store"] == s.path and j["uuid"] == config["uuid"], j
assert j["served_by"] == config["served_by"] and j["policy"] == config["policy"], j
tiers = j["tiers"]
assert [t["tier"] for t in tiers] == ["cpu", "disk", "dir", "dir"] and all(t["up"] for t in tiers)
assert tiers[0]["limit_bytes"] == 64 * MiB and 9 * N <= tiers[0]["used_bytes"] <= 64 * MiB, tiers
assert tiers[1]["limit_bytes"] == stats["tier_disk_bytes"] and tiers[1]["used_bytes"] >= 9 * N
assert all(t["written_bytes"] >= 9 * N for t in tiers[1:]) and "written_bytes" not in tiers[0]
h = j["hits"]["since_start"]
assert h["hits"] == stats["pool_hits"], (h, stats)
assert h["opens"] == h["hits"] + stats["pool_misses"], (h, stats)
assert h["loaded_bytes"] >= 3 * N and abs(h["share"] - h["hits"] / h["opens"]) < 1e-5, h
assert j["queues"]["jobs"] == 0 and j["pinned"]["pins"] == 1 and j["catalog_ok"] is True, j
slow = j["slowest"]
assert {o["operation"] for o in slow} >= {"commit", "spill", "load"}, slow
assert [o["seconds"] for o in slow] == sorted((o["seconds"] for o in slow), reverse=True), slow
assert all(o["tier"] is None for o in slow if o["operation"] == "commit"), slow
assert all((o["tier"], o["model"]) == ("disk", "m") for o in slow if o["operation"] == "load"), slow
assert set(j["evicted_for"]) == {n[len("evicted_for_"):] for n in stats if "evicted_for" in n}, j
assert j["evicted_for"]["demote"] == 1 and j["breakers"] == {"opened": 0, "closed": 0}, j

(model,) = j["models"]
assert (model["model"], j["models_count"], j["models_counted"]) == ("m", 1, True), j
assert model["bytes"] >= 9 * N and 0 < model["pool_bytes"] and model["found"] >= 1, model
assert model["asked"] >= model["found"], model

# as text, on one screen
text = ctl("status", s.mnt).stdout
lines = text.splitlines()
assert len(lines) <= 28 and max(map(len, lines)) <= 100, text
assert lines[0] == f"{s.mnt} of the store {s.path}" and "\nlast " not in text, text
assert re.search(r"^slowest of the last ten minutes: \S.* m?s$", text, re.M), text
rows = {l.split()[0]: l.split() for l in lines if l[:1].isalpha()}
assert rows["cpu"][3:5] == ["64.0", "MiB"] and rows["disk"][6] == "up", rows
assert f"{100 * h['share']:.1f}%" in text and "           1  chunks pinned" in text, text

# over an interval
stop = threading.Event()


def reader():
    while not stop.is_set():
        s.read("m/a/l0")


t = threading.Thread(target=reader)
t.start()
try:
    def lately():
        """Returns the status over a second in which the reader ran, or a false value: on a busy
        machine it may not run for a second."""
        j, text = status("--interval", "1s", "--count", "1", s.mnt), \
            ctl("status", "--interval=1", "--count=1", s.mnt).stdout
        return j["hits"]["lately"]["opens"] and "100.0%" in text and (j, text)
    j, text = wait_for(lately)
finally:
    stop.set()
    t.join()
late = j["hits"]["lately"]
assert late["seconds"] >= 1 and 0 < late["opens"] < j["hits"]["since_start"]["opens"], j
assert late["share"] == 1 and late["loaded_bytes"] == 0, j
assert any(l.startswith("last ") and "100.0%" in l for l in text.splitlines()), text

# a tier that is out
open(BAD, "w").close()
for i in range(40):
    s.write(f"m/more/l{i}", blob(i, 5000))
wait_for(lambda: not s.stats()["tier_disk_up"])
j = status(s.mnt)
assert [t["up"] for t in j["tiers"]] == [True, False, True, True] and j["breakers"]["opened"], j
text = ctl("status", s.mnt).stdout
assert " OUT " in text, text

calls = [t["calls"] for t in j["tiers"][1:]]
assert all(set(c) == {"read", "write", "list", "remove"} for c in calls), calls
assert all(c == {"state": "closed", "reason": "", "next_ms": 0} for c in calls[1].values()), calls
out = calls[0]["write"]
assert out["state"] in ("out", "probing") and out["reason"] and out["next_ms"] <= 30000, out
line = re.search(r"^disk: write calls (fail|are being probed) \((.+?)\)(; next probe in \S+ s)?$",
                 text, re.M)
assert line and line.group(2) == out["reason"], (text, out)
assert "\ndir: " not in text and "\ndir-2: " not in text, text
os.remove(BAD)
wait_for(lambda: s.stats()["tier_disk_up"])
s.settle()

# a tier that refuses one class of calls
r = Redis(lambda fake, words, _: b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
          if words[0].upper() == b"SET" else None)
o = Store("other", options=f"settle=0,remote=redis://127.0.0.1:{r.port}/m").mount()
for i in range(3):
    o.write(f"m/c/l{i}", blob(i, 5000))
wait_for(lambda: not o.stats()["tier_redis_write_up"])
j, text = status(o.mnt), ctl("status", o.mnt).stdout
calls = j["tiers"][2]["calls"]
assert {n for n, c in calls.items() if c["state"] != "closed"} == {"write"}, calls
assert calls["write"]["state"] in ("refused", "probing"), calls
row = next(l.split() for l in text.splitlines() if l.startswith("redis "))
assert "part" in row and "OUT" not in text and j["tiers"][2]["up"], (row, text)
assert re.search(r"^redis: write calls (are refused|are being probed) \(full\)", text, re.M), text
o.umount()

# --interval streams: a block, or a line of JSON, after each interval, until a signal
lines = run(CTL, "status", "--interval", "1s", "--count", "3", "--json", s.mnt,
            ok=True).stdout.splitlines()
assert len(lines) == 3 and all(json.loads(x)["mount"] == s.mnt for x in lines), lines
assert all(json.loads(x)["hits"]["lately"]["seconds"] >= 1 for x in lines), lines
p = subprocess.Popen([CTL, "status", "--interval", "1s", s.mnt], stdout=subprocess.PIPE, text=True)
seen = ""
while seen.count("chunks evicted, by reason") < 2:
    seen += p.stdout.readline()
assert p.poll() is None and seen.count("last 1.") == 2 and "\n\n" + s.mnt in seen, seen
p.terminate()
p.communicate()
# wrong arguments
for words in (("--count", "1"), ("--interval", "1s", "--count", "x"),
              ("--interval", "0"), ("--interval=2x",), ("--interval", "2d"), ("--interval",),
              ("--all",), (s.mnt, s.mnt)):
    said(ctl("status", *words), 2, "--help")
said(ctl("status", TMP), 1, "not in a kvcachefs mount")
s.umount()
