# SPDX-License-Identifier: Apache-2.0
# ways: none
"""Each alert of scripts/monitoring/alerts.yml fires when its condition holds for its time, and not
before, nor on a mount that works. Prometheus' own promtool evaluates the rules over made-up
samples."""
import json, os, re, shutil, sys
from kvtest import *

if not shutil.which("promtool"):
    print("promtool is not installed")
    sys.exit(77)
rules = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                     "../../../scripts/monitoring/alerts.yml")
ID = 'instance="n1",job="kvcachefs"'
# a mount that works: METRIC[{LABELS}]: a sample per minute ("a+bxn" is promtool's notation: the
# value a, then n samples that each add b)
WORKS = {
    "build_info": "1+0", "room_refusals_total": "0+0", "room_waiters": "0+0",
    "pool_used_bytes": "98+0", "pool_bytes": "100+0", 'tier_used_bytes{tier="disk"}': "90+0",
    'tier_bytes{tier="disk"}': "100+0", 'tier_up{tier="disk"}': "1+0",
    'tier_used_bytes{tier="s3"}': "500+0", 'tier_bytes{tier="s3"}': "0+0",  # without a limit
    'device_up{device="0"}': "1+0", 'tier_calls_up{tier="disk",call="read"}': "1+0",
    "unknown_keys_total": "0+0", "corrupt_total": "0+0", "commit_failures_total": "0+0",
    "catalog_ok": "1+0", "copies_failing": "0+0", "absent_total": "0+60", "found_total": "0+540",
    "pool_misses_total": "0+60", "pool_hits_total": "0+540", "load_failures_total": "0+0",
    "load_timeouts_total": "0+0", "quota_refusals_total": "0+0",
    'tier_today_bytes{tier="disk"}': "89+0", "daily_limit_bytes": "100+0",
    "unsealable_total": "0+0", "commit_longest_seconds": "1+0", "memory_used_bytes": "60+0",
    "memory_bytes": "200+0", "memory_fixed_bytes": "120+0", "memory_refusals_total": "0+0",
}
# alert: the metric that changes, its values before and after the change, and the minutes after the
# change at which the alert does not fire yet, and at which it does
COUNTS = ("0+0", "1+1")
AFTER = 90
COMPARED = 25 * 60  # minutes before the change, for alerts that compare with yesterday
CASES = [
    ("Down", 'up{' + ID + '}', ("1+0", "0+0"), 1, 4),
    ("PoolFull", "room_refusals_total", COUNTS, -1, 2),
    ("PoolNearlyFull", "room_waiters", ("0+0", "3+0"), 4, 8),
    ("TierFull", 'tier_used_bytes{tier="disk"}', ("90+0", "99+0"), 13, 20),
    ("BreakerOpen", 'tier_up{tier="disk"}', ("1+0", "0+0"), 0, 3),
    ("DeviceFails", 'device_up{device="0"}', ("1+0", "0+0"), 0, 3),
    ("TierRefuses", 'tier_calls_up{tier="disk",call="read"}', ("1+0", "0+0"), 4, 8),
    ("UnknownKeys", "unknown_keys_total", COUNTS, -1, 2),
    ("DamagedCopies", "corrupt_total", COUNTS, -1, 2),
    ("CommitFailures", "commit_failures_total", COUNTS, 0, 4),
    ("CommitFailures", "catalog_ok", ("1+0", "0+0"), 0, 3),
    ("CopiesFail", "copies_failing", ("0+0", "5+0"), 28, 33),
    ("FoundFalls", "found_total", ("0+540", "810000+20"), 25, 60),
    ("MissesRising", "pool_misses_total", ("0+60", "90000+400"), 25, 60),
    ("LoadsFail", "load_timeouts_total", COUNTS, -1, 2),
    ("LoadsFail", "load_failures_total", COUNTS, -1, 2),
    ("QuotaRefuses", "quota_refusals_total", COUNTS, -1, 2),
    ("DailyNearlyUsed", 'tier_today_bytes{tier="disk"}', ("89+0", "91+0"), -1, 1),
    ("KeyMissing", "unsealable_total", COUNTS, -1, 2),
    ("SlowCommits", "commit_longest_seconds", ("1+0", "3+0"), 8, 13),
    ("Memory", "memory_used_bytes", ("60+0", "75+0"), 4, 8),
    ("Memory", "memory_refusals_total", COUNTS, 4, 9),
]


def series(metric, values):
    name, _, rest = metric.partition("{")
    name = name if name == "up" else f"kvcachefs_{name}"
    labels = ",".join(x for x in (rest.rstrip("}") if name != "up" else "", ID) if x)
    return {"series": f"{name}{{{labels}}}", "values": values}


def samples(changed=None, values=None, at=60):
    """All metrics of a mount that works, except that one changes after `at` minutes."""
    all = {"up{" + ID + "}": "1+0", **WORKS}
    assert changed is None or values[0] == all[changed], (changed, values)
    return [series(m, f"{values[0]}x{at - 1} {values[1]}x{AFTER}" if m == changed
                   else f"{works}x{at + AFTER}") for m, works in all.items()]


def minutes(time):
    return sum(int(n) * {"d": 1440, "h": 60, "m": 1, "s": 0}[u]
               for n, u in re.findall(r"(\d+)(\w)", time))


def check(name, tests, step="1m"):
    path = f"{TMP}/{name}.yml"
    with open(path, "w") as f:
        json.dump({"rule_files": [rules], "evaluation_interval": step, "tests": tests}, f)
    return run("promtool", "test", "rules", path)


with open(rules) as f:
    names = re.findall(r"- alert: (\S+)", f.read())
assert {f"Kvcachefs{c[0]}" for c in CASES} == set(names), set(names) ^ {c[0] for c in CASES}

# Nothing fires on a mount that works, and no alert before its time: these must not be in promtool's
# output. Each alert fires later: promtool prints these, because none is expected.
quick, slow, want = [], [], []
for alert, metric, values, not_yet, fires in CASES:
    with_yesterday = alert in ("FoundFalls", "MissesRising")
    at = COMPARED if with_yesterday else 60
    (slow if with_yesterday else quick).append({
        "interval": "1m", "input_series": samples(metric, values, at), "alert_rule_test": [
            {"alertname": f"Kvcachefs{alert}", "eval_time": f"{t}m", "exp_alerts": []}
            for t in (at + not_yet, at + fires)]})
    want.append((f"Kvcachefs{alert}", at + fires))
for at, tests in (60, quick), (COMPARED, slow):
    tests.append({"interval": "1m", "input_series": samples(at=at), "alert_rule_test": [
        {"alertname": n, "eval_time": f"{at + AFTER}m", "exp_alerts": []} for n in names]})
out = "".join(check(name, tests, step).stdout
              for name, tests, step in (("quick", quick, "1m"), ("slow", slow, "5m")))
got = re.findall(r"alertname: (\w+), time: (\w+),\s+exp:\[\S*\s+got:\[(.*?)\n\s*\n",
                 out + "\n\n", re.S)
assert sorted((name, minutes(t)) for name, t, _ in got) == sorted(want), (want, out)
for name, _, alerts in got:
    text = re.search(r'summary="([^"]*)', alerts)
    assert 'instance="n1"' in alerts and text and "{{" not in text[1], (name, alerts)
    assert "<no value>" not in alerts, (name, alerts)

# no sample of the metrics at all
p = check("absent", [{"interval": "1m", "input_series": [], "alert_rule_test": [
    {"alertname": "KvcachefsDown", "eval_time": "5m", "exp_alerts": []}]}])
assert p.returncode == 1 and 'severity="critical"' in p.stdout, p.stdout
