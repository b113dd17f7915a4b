# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl doctor: on mounts that are misconfigured in known ways it finds each fault and names
the option to change and its value, and on a well-made mount it finds nothing. Without data it says
so. A trace is replayed with the mount's policies."""
import json, os, random, re, threading, time
from kvtest import *
from findings import TMPFS, doctor, points

CTL = binary("kvcachectl")


def put(s, path, size=MiB):
    s.write(path, blob(path, size))


def exists(s, *names):
    return [os.path.exists(f"{s.mnt}/{n}") for n in names]


# a mount without requests: nothing is found, and nothing is claimed
s = Store("good", size="256M", cpu="64M", options="settle=0").mount()
found, j = doctor(s)
assert not found and not j["summary"] and len(j["notes"]) == 3, j
assert "0 chunks and stored no file" in j["notes"][0] and "may write" in j["notes"][0], j
assert "too few to replay" in j["notes"][2], j
text = run(CTL, "doctor", "--for", "1s", s.mnt, ok=True).stdout
assert TMPFS or text.startswith("No findings.\n"), text
assert "\nNot judged:\n" in text and max(map(len, text.splitlines())) <= 80, text
# the same well-made mount with requests: 400 found chunks, and 40 names that nobody stored
for i in range(40):
    put(s, f"m/c{i}/l")
for turn in range(10):
    for i in range(40):
        s.read(f"m/c{i}/l")
assert not any(exists(s, *(f"m/never{i}" for i in range(40))))
s.settle()
found, j = doctor(s)
assert not found and "90.9% were found" in j["summary"][0], j
assert "9.1% of the requested names were never stored" in j["summary"][1], j
assert any("100.0% found the file in memory" in t for t in j["summary"]), j
# evicted by request: 60 of 560 names
for i in range(30):
    os.setxattr(f"{s.mnt}/m/c{i}", "user.kvcachefs.demote", b"all")
wait_for(lambda: not any(exists(s, *(f"m/c{i}" for i in range(30)))))
found, j = doctor(s)
assert set(found) == {"evicted-by-request"}, j
s.umount()

# options that do not fit each other
s = Store("options", size="64M", cpu="32M", options="settle=0,high=60,low=59,debug,passthrough=off,"
          "io_uring=off,daily=8M,shim=fail-while:/nothing").mount()
within_a_day()
for i in range(10):
    put(s, f"m/c{i}/l")
s.settle()
found, j = doctor(s)
want = {"watermarks-close": ("low", "50"), "pool-unused": ("high", "90"),
        "no-passthrough": ("passthrough", "auto"), "no-io-uring": ("io_uring", "auto"),
        "daily-used": ("daily", "16M"), "faults-injected": ("shim", None),
        "debug-log": ("debug", None)}
assert {k: (f["option"], f["value"]) for k, f in found.items()} == want, j
assert found["daily-used"]["remedy"] == f"Run kvcachectl reload -o daily=16M {s.mnt}.", found
assert found["no-passthrough"]["remedy"] == "Mount without the option passthrough=off.", found
s.umount()

# a store in memory, and a pool for which the memory does not suffice any more
os.mkdir(f"{TMP}/ram")
run("mount", "-t", "tmpfs", "-o", "size=200M", "none", f"{TMP}/ram", ok=True)
s = Store("ram", size="64M", cpu="64M", options="settle=0", make=False)
run(binary("mkfs.kvcachefs"), "--size", "64M", f"{TMP}/ram/s", ok=True)
s.path = f"{TMP}/ram/s"
s.mount()
found, j = doctor(s, even=set())
assert set(found) == {"store-on-tmpfs"}, j
with open("/proc/meminfo") as f:
    text = re.sub(r"(MemAvailable: *)\d+", r"\g<1>20480", f.read())
with open(f"{TMP}/meminfo", "w") as f:
    f.write(text)
p = run("unshare", "-m", "sh", "-c", f"mount --bind {TMP}/meminfo /proc/meminfo && "
        f"{CTL} doctor --json --for 1s {s.mnt}", ok=True)
found = {f["id"]: f for f in json.loads(p.stdout)["findings"]}
assert set(found) == {"store-on-tmpfs", "pool-exceeds-memory"}, found
full = found["pool-exceeds-memory"]
assert full["option"] == "cpu" and "only 20.0 MiB" in full["text"], full
assert int(full["value"][:-1]) in range(10, 20) and full["value"][-1] == "M", full
s.umount()

# a disk tier that is too small, and a pool that is too small
s = Store("small", size="64M", cpu="32M", options="settle=0,pace=600000,policy=lru").mount()
for i in range(100):
    put(s, f"m/c{i}/l")
    if i % 4 == 3:
        s.settle()  # no store waits for a slow disk
dropped = -1
while dropped != s.stats()["dropped_chunks"] or dropped < 30:  # until the trimmer is done
    dropped = s.stats()["dropped_chunks"]
    time.sleep(1)
here = sorted(int(n[1:]) for n in os.listdir(f"{s.mnt}/m"))
gone = sorted(set(range(100)) - set(here))
assert len(gone) >= 30 and here, (gone, here)
for i in gone:
    exists(s, f"m/c{i}/l")
for i in here:
    s.read(f"m/c{i}/l")
for i in range(100):
    s.read(f"m/c{here[-1]}/l")
found, j = doctor(s)
assert set(found) == {"disk-small", "pool-small"}, j
disk, pool = found["disk-small"], found["pool-small"]
share = 100 * len(gone) / (s.stats()["found"] + s.stats()["absent"])
head = f"{share:.1f}% of the requested names ({len(gone)} of "
assert disk["text"].startswith(head), (disk, head)
assert "the disk tier was full. A disk tier of " in disk["text"], disk
assert 0.7 * share <= points(disk["text"]) <= share + 0.1, (disk, share)
assert disk["option"] == "grow" and disk["value"] in ("96M", "128M", "192M"), disk
assert pool["option"] == "cpu" and pool["value"] in ("48M", "64M", "96M"), pool
assert points(pool["text"]) >= 3 and "A pool of " in pool["text"], pool
s.umount()

# no tier below the pool; a quota, a ttl and pins
s = Store("none", size="64M", cpu="32M", options="settle=0,disk=off,policy=lru").mount()
for i in range(60):
    put(s, f"m/c{i}/l")
for i in range(6):
    put(s, f"q/c{i}/l")
    put(s, f"t/c{i}/l", 5000)
os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", b"2M")
for i in range(6):
    os.setxattr(f"{s.mnt}/t/c{i}", "user.kvcachefs.ttl", b"1")
wait_for(lambda: s.stats()["evicted_for_quota"] >= 4 and s.stats()["evicted_for_ttl"] == 6)
time.sleep(0.5)
for model, n in (("m", 60), ("q", 6), ("t", 6)):
    exists(s, *(f"{model}/c{i}/l" for i in range(n)))
exists(s, *(f"m/no{i}" for i in range(60)))
keep = sorted(os.listdir(f"{s.mnt}/m"))[:15]
for c in keep:
    os.setxattr(f"{s.mnt}/m/{c}", "user.kvcachefs.pin", b"1")
found, j = doctor(s)
want = {"pool-small-no-copy": "disk", "quota-small": "quota", "ttl-short": "ttl",
        "pins-fill-pool": "unpin"}
assert {k: f["option"] for k, f in found.items()} == want, j
assert list(found)[-1] != "pool-small-no-copy" and "the pool was full" in \
    found["pool-small-no-copy"]["text"], found
s.umount()

# chunks that the disk tier does not admit
s = Store("admit", size="64M", cpu="32M", options="settle=0,admit=twice,policy=lru").mount()
for i in range(60):
    put(s, f"m/c{i}/l")
wait_for(lambda: s.stats()["evicted_for_refused"] >= 20)
exists(s, *(f"m/c{i}/l" for i in range(60)), *(f"m/no{i}" for i in range(100)))
found, j = doctor(s)
assert set(found) == {"admission-refuses"}, j
assert (found["admission-refuses"]["option"], found["admission-refuses"]["value"]) == \
    ("admit", "all"), j
# the same counts, but the policy of a full disk tier has refused them: admit=all changes nothing
with open(f"{s.mnt}/.kvcachefs/stats") as f:
    text = f.read()
for a, b in (("twice", "other"), ("worth", "twice"), ("other", "worth")):
    text = re.sub(f"refused_{a}_", f"refused_{b}_", text)
with open(f"{TMP}/stats", "w") as f:
    f.write(text)
p = run("unshare", "-m", "sh", "-c", f"mount --bind {TMP}/stats {s.mnt}/.kvcachefs/stats && "
        f"{CTL} doctor --json --for 1s {s.mnt}", ok=True)
found = {f["id"]: f for f in json.loads(p.stdout)["findings"]}
assert set(found) == {"disk-refuses"} and found["disk-refuses"]["option"] == "grow", found
assert "the policy of the disk tier kept other chunks" in found["disk-refuses"]["text"], found
assert "disk_policy=" in found["disk-refuses"]["remedy"], found
s.umount()

# a tier that fails, and a tier that is slow
bad = f"{TMP}/bad"
s = Store("out", options=f"settle=0,shim=fail-while:{bad}+only:disk").mount()
open(bad, "w").close()
for i in range(40):
    s.write(f"m/c{i}/l", blob(i, 5000))
wait_for(lambda: not s.stats()["tier_disk_up"])
found, j = doctor(s)
assert set(found) == {"tier-out", "faults-injected"} and list(found)[0] == "tier-out", j
assert f"{s.mnt}/.kvcachefs/log" in found["tier-out"]["remedy"], j
os.remove(bad)
wait_for(lambda: s.stats()["tier_disk_up"])
s.umount()
s = Store("slow", size="256M", cpu="32M", options="settle=0,shim=delay-get:250+only:disk").mount()
for i in range(25):
    put(s, f"m/c{i}/l", 100000)
s.settle()
for i in range(25):
    os.setxattr(f"{s.mnt}/m/c{i}", "user.kvcachefs.demote", b"cpu")
threads = [threading.Thread(target=s.read, args=(f"m/c{i}/l",)) for i in range(25)]
for t in threads:
    t.start()
for t in threads:
    t.join()
found, j = doctor(s)
assert {"tier-slow", "faults-injected"} <= set(found), j
s.umount()

# clients that ask for other names than they store
s = Store("names", size="64M", cpu="64M", options="settle=0").mount()
for i in range(120):
    s.write(f"m/c{i}/l", b"x" * 100)
    exists(s, f"m/salted{i}")
exists(s, "m/end")
found, j = doctor(s)
assert set(found) == {"names-differ"} and "PYTHONHASHSEED" in found["names-differ"]["remedy"], j

# a thread that asks and stores at once: nothing is counted as missing, and the report says so
s.umount()
s = Store("at-once", size="64M", cpu="64M", options="settle=0").mount()
for i in range(120):
    assert not os.path.exists(f"{s.mnt}/m{i % 2}/c{i}")
    s.write(f"m{i % 2}/c{i}", b"x" * 100)
found, j = doctor(s)
assert not found and s.stats()["absent"] < 60, (j, s.stats())
assert any("Clients stored 120 files" in n and "too high" in n for n in j["notes"]), j

# a trace: LRU keeps nothing of a loop over a little more than the caches hold
trace = f"{TMP}/trace"
with open(trace, "w") as f:
    for turn in range(12):
        for i in range(100):
            f.write(json.dumps({"timestamp": turn * 1000 + i, "hash_ids": [i], "bytes": [MiB]}) +
                    "\n")
s.umount()
s = Store("loop", size="32M", cpu="32M", options="settle=0,policy=lru").mount()
found, j = doctor(s, "--trace", trace)
assert "1200 requests for 100 chunks" in j["summary"][0] and "0.0% of its" in j["summary"][1], j
assert set(found) == {"policy"} and found["policy"]["option"] == "policy", j
assert found["policy"]["value"] in ("mru", "prefix", "lfu", "arc", "s3fifo", "leaf", "gdsf"), j
assert points(found["policy"]["text"]) > 10, j
# ... and with a skewed trace, a larger pool finds more
random.seed(5)
with open(trace, "w") as f:
    for i in range(6000):
        n = min(int(random.paretovariate(0.5)), 400)
        f.write(json.dumps({"timestamp": i, "hash_ids": [n], "bytes": [MiB]}) + "\n")
found, j = doctor(s, "--trace", trace)
assert "replay-pool-size" in found and found["replay-pool-size"]["option"] == "cpu", j
assert found["replay-pool-size"]["value"] == "48M", j
assert 3 <= points(found["replay-pool-size"]["text"]) < 30, j
# a policy is advised only if it finds more: the chunks that are asked for twice in a row favour lru
with open(trace, "w") as f:
    for i in range(3000):
        n = i // 2 if i % 50 else i // 2 % 7 + 10000
        f.write(json.dumps({"timestamp": i, "hash_ids": [n], "bytes": [MiB]}) + "\n")
for policy in ("lru", "mru", "lfu", "prefix"):
    s.umount()
    s.options = f"settle=0,policy={policy}"
    s.mount()
    found, j = doctor(s, "--trace", trace)
    advice = found.get("policy")
    if advice:
        now, then = map(float, re.findall(r"([\d.]+)%", advice["text"])[:2])
        assert advice["value"] != policy and then > now, j
# a recording of this mount
stop = threading.Event()


def client():
    r = random.Random(3)
    while not stop.is_set():
        path = f"m/c{min(int(r.paretovariate(0.5)), 80)}/l"
        try:
            s.read(path)
        except FileNotFoundError:
            put(s, path)


t = threading.Thread(target=client)
t.start()
try:
    def recorded():
        found, j = doctor(s, "--for", "3s")
        said = [x for x in j["summary"] if x.startswith("Replayed with the mount's policies")]
        return said and j["summary"]
    said = wait_for(recorded)
finally:
    stop.set()
    t.join()
assert any(x.startswith("The recording of 3 s has ") for x in said), said
s.umount()
