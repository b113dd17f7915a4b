# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Counters that explain evictions: the reason, the age, the time between two accesses, and the
bytes written to each tier today and in total; in stats and in metrics, and the part that survives a
remount."""
import os, re, sqlite3, time
from kvtest import *

SAME = {"tier": "trimmed_chunks", "quota": "quota_drops", "ttl": "expired_chunks",
        "behind": "behind_drops"}


def why():
    """Counters are updated and read one after the other, so during a drop two counters of the same
    event may differ."""
    def same():
        st = s.stats()
        return all(st[f"evicted_for_{reason}"] == st[counter]
                   for reason, counter in SAME.items()) and st
    return {k[12:]: v for k, v in wait_for(same).items() if k.startswith("evicted_for_")}


def spans(name):
    return {k[len(name) + 1:]: v for k, v in s.stats().items() if k.startswith(name + "_")}


def put(path, size=MiB):
    s.write(path, blob(path, size))


within_a_day()
# nothing yet
s = Store("s", size="128M", cpu="32M", options="settle=0,pace=600000").mount()
assert set(why()) == {"pool", "tier", "quota", "tenant", "ttl", "behind", "demote",
                      "refused"}
assert not any(why().values()) and not spans("eviction_age") and not spans("use_gap")
assert s.stats()["tier_disk_written_bytes"] == s.stats()["tier_disk_today_bytes"] == 0

# reason pool: stores need its space
for i in range(60):
    put(f"m/c{i}/l")
s.settle()
wait_for(lambda: why()["pool"] > 20)
got = why()
assert all(not got[r] for r in got if r != "pool"), got
wait_for(lambda: sum(spans("eviction_age").values()) == why()["pool"])  # once evictions ended
st = s.stats()
assert 60 * MiB <= st["tier_disk_written_bytes"] == st["tier_disk_today_bytes"] < 70 * MiB

# reason tier: the disk has space for about 100
for i in range(60, 140):
    put(f"m/c{i}/l")
s.settle()
wait_for(lambda: why()["tier"] > 5)

# a quota, a ttl, a request: one more eviction for each
before = why()
put("q/c/l")
s.settle()
for i in range(12):
    put(f"q/c{i}/l")
s.settle()
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"4M")
wait_for(lambda: why()["quota"] > before["quota"])
put("t/c/l")
os.setxattr(f"{s.mnt}/t/c", "user.kvcachefs.ttl", b"1")
wait_for(lambda: why()["ttl"] == before["ttl"] + 1)
for n, (path, where) in enumerate((("d/a", "cpu"), ("d/b", "disk"), ("d/c", "all"))):
    put(f"{path}/l", 5000)
    s.settle()
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", where.encode())
    wait_for(lambda: why()["demote"] == before["demote"] + n + 1)

# accesses: a burst counts as one, and an access a second later as another
put("u/c/l0", 5000)
put("u/c/l1", 5000)
s.settle()
time.sleep(1.2)
count = lambda: sum(spans("use_gap").values())
n, began = count(), time.monotonic()
for i in range(5):
    s.read("u/c/l0")
    s.read("u/c/l1")
pauses = int((time.monotonic() - began) / 0.3)  # a busy machine may be slow between two
assert n + 1 <= count() <= n + 1 + pauses, (n, count(), pauses)
assert any(v for k, v in spans("use_gap").items() if int(re.match(r"\d+", k)[0]) >= 2)

# the same in the metrics: the histograms are consistent, and samples have a reason and a tier
def settled_metrics():
    """The metrics of a mount at rest, whose stats are equal before and after."""
    before = s.stats()
    with open(f"{s.mnt}/.kvcachefs/metrics") as f:
        text = f.read()
    after = s.stats()
    return all(v == after[k] for k, v in before.items()
               if k.startswith(("evicted_for_", "tier_disk_written_"))) and (text, after)


text, st = wait_for(settled_metrics)
for name in ("eviction_age", "use_gap"):
    x = f"kvcachefs_{name}_seconds"
    assert f"# TYPE {x} histogram" in text
    b = [(le, int(v)) for le, v in re.findall(rf'{x}_bucket{{le="([^"]+)"}} (\d+)', text)]
    assert [le for le, _ in b] == [str(1 << i) for i in range(25)] + ["+Inf"]
    values = [v for _, v in b]
    assert values == sorted(values) and values[-1] > 0
    assert int(re.search(rf"{x}_count (\d+)", text)[1]) == values[-1]
    assert float(re.search(rf"{x}_sum ([\d.]+)", text)[1]) > 0
for reason in why():
    v = st[f"evicted_for_{reason}"]
    assert f'kvcachefs_evictions_by_reason_total{{reason="{reason}"}} {v}\n' in text
    by_policy = [l.split() for l in text.splitlines()
                 if l.startswith("kvcachefs_evictions_by_policy_total{")
                 and f'reason="{reason}"' in l]
    assert sum(int(n) for _, n in by_policy) == v, (reason, v, by_policy)
    assert all('tier="' in l and 'policy="' in l for l, _ in by_policy), by_policy
wrote = st["tier_disk_written_bytes"]
assert f'kvcachefs_tier_written_bytes_total{{tier="disk"}} {wrote}\n' in text

# the total of written bytes is kept over a remount; bytes of an earlier day do not count as today's
s.umount()
s.mount()
assert s.stats()["tier_disk_written_bytes"] == s.stats()["tier_disk_today_bytes"] >= wrote
assert not any(why().values())
s.umount()
db = sqlite3.connect(f"{s.path}/catalog.sqlite")
day, today, total = map(int, db.execute("SELECT value FROM meta WHERE key='written:0'")
                        .fetchone()[0].split())
assert today == total >= wrote and abs(day - time.time() // 86400) <= 1
db.execute("UPDATE meta SET value=? WHERE key='written:0'", (f"{day - 1} {today} {total}",))
db.commit()
db.close()
s.mount()
assert s.stats()["tier_disk_today_bytes"] == 0 and s.stats()["tier_disk_written_bytes"] == total
put("m/new/l", 5000)
s.settle()
st = s.stats()
assert 5000 <= st["tier_disk_today_bytes"] == st["tier_disk_written_bytes"] - total < 50000
s.umount()
s.fsck("-n")

# copies are behind: the pool is full of objects without a copy, and the coldest are dropped
s = Store("slow", size="512M", cpu="32M",
          options="shim=delay-put:400+only:disk,pace=50,settle=0").mount()
for i in range(120):
    put(f"m/c{i}/l")
wait_for(lambda: why()["behind"] > 0)
s.umount()
