# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Every command of kvcachectl, except help, accepts --json and then prints only JSON. For the
commands without their own case (lease, dump, gpus, hash, newkey and replay) the JSON has the same
content as the text."""
import json, os, re, shutil
from kvtest import *
import nodes

CTL = binary("kvcachectl")


def both(*words):
    """The object of --json, and the lines without it."""
    text = run(CTL, *words, ok=True).stdout.splitlines()
    p = run(CTL, words[0], "--json", *words[1:], ok=True)
    assert p.stdout.count("\n") == 1, p
    return json.loads(p.stdout), text


help_ = run(CTL, "--help", ok=True).stdout
names = re.findall(r"^  ([a-z-]+)(?: |$)", help_, re.M)
names.remove("help")
for n in names:
    usage = run(CTL, n, "--help", ok=True).stdout.splitlines()[0]
    assert "--json" in usage, usage

with open(f"{TMP}/tokens", "w") as f:
    f.write(" ".join(map(str, range(64))))
for words in (("hash", "vllm-sha256", f"{TMP}/tokens", "m"), ("hash", "sglang:1", f"{TMP}/tokens"),
              ("hash", "--as", "vllm-fs", "vllm-sha256", f"{TMP}/tokens", "m",
               "config=0123456789ab", "rank=0", "group=0")):
    j, text = both(*words)
    assert j == {"keys": text} and text, (j, text)
p = run(CTL, "hash", "--json", "vllm-sha256", f"{TMP}/none")
assert p.returncode == 1 and p.stdout.count("\n") == 1 and "No such file" in p.stdout, p

j, text = both("newkey", f"{TMP}/keys")
assert j == {"file": f"{TMP}/keys", "key": 2}, j
assert len(text) == 1 and text[0].startswith(f"key 1 added to {TMP}/keys; copy"), text

for name, node in (("0000:01:00.0", 1), ("0000:02:00.0", -1)):
    os.makedirs(f"{TMP}/pci/{name}")
    for file, value in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", node)):
        with open(f"{TMP}/pci/{name}/{file}", "w") as f:
            f.write(f"{value}\n")
j, text = both("gpus", f"{TMP}/pci")
assert {g["device"]: g["node"] for g in j["gpus"]} == {"0000:01:00.0": 1, "0000:02:00.0": None}, j
assert len(text) == 2
os.mkdir(f"{TMP}/empty")
assert both("gpus", f"{TMP}/empty") == ({"gpus": []}, ["no NVIDIA devices found"])

with open(f"{TMP}/trace", "w") as f:
    for i in range(50):
        f.write(json.dumps({"hash_ids": [1, 2, 3 + i % 7]}) + "\n")
j, text = both("replay", "--policy", "lru,prefix", "--capacity", "3,5:9", f"{TMP}/trace")
t, = j["traces"]
assert t["requests"] == 50 and t["accesses"] == 150 and t["chunks"] == 9 and t["lost"] == 0, t
assert [(s["pool_chunks"], s["disk_chunks"]) for s in t["shares"]] == [(3, 0), (5, 9)], t
for s, line in zip(t["shares"], text[2:]):
    got = [s["policies"]["lru"], s["policies"]["prefix"]]
    want = line.split()[1:]
    assert float(want[2]) == round(s["optimum"], 4), (line, s)
    for g, w in zip(got, want):
        parts = [float(x) for x in w.split("+")]
        assert all(abs(a - b) < 0.001 for a, b in zip(parts, (g["pool"], g["disk"]))), (line, s)

with open(f"{TMP}/mount.keys", "w") as f:
    f.write("1 " + "5a" * 32 + "\n")
os.chmod(f"{TMP}/mount.keys", 0o600)
os.mkdir(f"{TMP}/shared")
s = Store(options=f"settle=0,keyfile={TMP}/mount.keys,remote=dir://{TMP}/shared").mount()
s.write("m/a b/l 1", bytes(5000))
s.settle()
p = subprocess.Popen([CTL, "lease", "--json", s.mnt, "m/a b", "none"], stdout=subprocess.PIPE,
                     text=True)
line = p.stdout.readline()
p.terminate()
p.wait()
e = {x["path"]: x for x in json.loads(line)["entries"]}
assert e["m/a b/l 1"] == {"path": "m/a b/l 1", "bytes": 5000, "state": "resident+lower",
                          "inode": os.stat(f"{s.mnt}/m/a b/l 1").st_ino}, e
assert e["none"]["state"] == "ENOENT", e
j = json.loads(run(CTL, "dump", "--json", "-o", f"{TMP}/d.tar", s.mnt, ok=True).stdout)
assert j == {"mount": s.mnt, "file": f"{TMP}/d.tar"} and os.path.exists(f"{TMP}/d.tar"), j

t, = nodes.make("self", 1)  # a node that is its own peer
t.options = t.options.split(",remote=")[0] + ",remote=" + nodes.url([nodes.local(t.port)], t.secret)
t.mount()
t.write("m/c/l", bytes(5000))

# every command: one object, or one for each line
CHUNK, MODEL, FOREVER = f"{s.mnt}/m/a b", f"{s.mnt}/m", ("lease",)
WORDS = {"top": ["--count", "2", "--interval", "1s", s.mnt], "reload": ["-o", "high=91", s.mnt],
         "log": ["info", s.mnt], "stat": [CHUNK], "pin": [CHUNK], "unpin": [CHUNK],
         "ttl": ["1h", CHUNK], "quota": ["1G", MODEL], "policy": ["lru", MODEL],
         "tenant": ["acme", s.mnt], "evict": [CHUNK], "prefetch": [CHUNK],
         "hint": ["--finished", CHUNK], "lease": [CHUNK], "dump": ["-o", f"{TMP}/e.tar", s.mnt],
         "codec": [f"{TMP}/trace"], "gpus": [f"{TMP}/pci"], "pools": [f"{TMP}/run"],
         "hash": ["vllm-sha256", f"{TMP}/tokens"], "push": [nodes.local(t.port), f"{t.mnt}/m"],
         "replay": ["--policy", "lru", "--capacity", "3", f"{TMP}/trace"],
         "trace": ["--for", "1s", s.mnt], "events": ["--for", "1s", s.mnt],
         "add": ["--size", "16M", f"{TMP}/part", s.mnt], "remove": [f"{TMP}/part", s.mnt],
         "newkey": [f"{TMP}/more.keys"], "tier-test": [f"{TMP}/program?folder={TMP}/empty"]}
shutil.copy(binary("tier-folder"), f"{TMP}/program")
for n in names:
    p = subprocess.Popen([CTL, n, "--json", *WORDS.get(n, [s.mnt])], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    if n in FOREVER:
        text = p.stdout.readline()
        p.terminate()
    else:
        while n in ("trace", "events") and p.poll() is None:
            s.write(f"m/{n}{time.monotonic_ns()}/l", bytes(5000))
            time.sleep(0.1)
        text, err = p.communicate(timeout=HANG)
        assert p.returncode == 0 and (not err or n == "trace"), (n, p.returncode, err)
    objects = [json.loads(line) for line in text.splitlines()]
    assert objects and all(isinstance(o, dict) and o for o in objects), (n, text)
    assert n in ("top", "trace", "events") or len(objects) == 1, (n, text)
s.umount()
t.umount()
