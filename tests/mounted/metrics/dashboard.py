# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Every metric name, label and fixed label value in the dashboard and the alert rules of
scripts/monitoring exists in the metrics of a mount. The manual names both files."""
import json, os, re, shutil
from kvtest import *
from prometheus import check, PREFIX

top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
folder = f"{top}/scripts/monitoring"
os.mkdir(f"{TMP}/r")
s = Store(options=f"settle=0,remote=dir://{TMP}/r").mount()
s.write("m/c/l", b"x")
s.settle()
s.read("m/c/l")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"1M")  # for the metrics of models with a quota
with open(f"{s.mnt}/.kvcachefs/metrics", encoding="utf-8") as f:
    m = check(f.read())
s.umount()
labels = {}  # for each sample name, its labels with their values
for name, ls, _ in m.samples:
    for k, v in ls.items():
        labels.setdefault(name, {}).setdefault(k, set()).add(v)
OF_PROMETHEUS = {"instance", "job"}


def look(expr, where):
    """All names in the expression, after a check of its labels."""
    names = re.findall(rf"\b{PREFIX}\w+", expr)
    for name in names:
        assert name in {n for n, _, _ in m.samples}, f"{where}: there is no {name}"
    for name, inside in re.findall(rf"\b({PREFIX}\w+)\{{([^}}]*)\}}", expr):
        for label, how, value in re.findall(r'(\w+)(=~|=|!=|!~)"([^"]*)"', inside):
            if label in OF_PROMETHEUS:
                continue
            assert label in labels.get(name, {}), f"{where}: {name} has no {label}"
            assert how != "=" or value in labels[name][label], f"{where}: {name} {label}={value}"
    for by in re.findall(r"\bby \(([^)]*)\)", expr):
        for label in by.split(", "):
            assert any(label in labels.get(n, {}) for n in names), f"{where}: by {label}"
    return names


# the dashboard
with open(f"{folder}/dashboard.json") as f:
    dashboard = json.load(f)
asked, places = set(), []
for panel in dashboard["panels"]:
    assert panel["targets"] and panel["title"], panel
    grid = panel["gridPos"]
    assert grid["x"] + grid["w"] <= 24 and (grid["x"], grid["y"]) not in places, panel["title"]
    places.append((grid["x"], grid["y"]))
    for target in panel["targets"]:
        names = look(target["expr"], panel["title"])
        assert names and target["expr"].count("(") == target["expr"].count(")"), target
        asked |= set(names)
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert label in OF_PROMETHEUS or any(label in labels.get(n, {}) for n in names), target
assert len(dashboard["panels"]) >= 12 and len(asked) >= 20
ids = [p["id"] for p in dashboard["panels"]]
assert len(set(ids)) == len(ids)
for variable in dashboard["templating"]["list"]:
    look(variable["query"], variable["name"])

# the rules
with open(f"{folder}/alerts.yml") as f:
    text = f.read()
rules = re.split(r"^      - alert: ", text, flags=re.M)[1:]
for rule in rules:
    name = rule.split("\n")[0]
    expr = re.search(r"^        expr: (.*?)\n        \w", rule, re.S | re.M)[1]
    assert look(expr, name) and "summary: " in rule and "description: " in rule, rule
    assert re.search(r"severity: (warning|critical)\}", rule), rule
want = {"room_refusals_total": "PoolFull", "tier_up": "BreakerOpen", "corrupt_total": "Damaged",
        "commit_failures_total": "CommitFailures", "pool_misses_total": "MissesRising"}
for metric, alert in want.items():
    assert any(alert in r.split("\n")[0] and PREFIX + metric in r for r in rules), alert
if shutil.which("promtool"):
    p = run("promtool", "check", "rules", f"{folder}/alerts.yml")
    assert p.returncode == 0 and f"{len(rules)} rules found" in p.stdout, p.stdout
else:
    print("promtool is not installed: it does not check the rules")
with open(f"{top}/man/kvcachefs-metrics.7") as f:
    page = f.read()
assert all(n in page for n in os.listdir(folder))
