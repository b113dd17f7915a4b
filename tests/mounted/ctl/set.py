# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl pin, unpin, ttl, quota, policy and evict: values with units, the resulting attributes,
the questions and their numbers, whole models and mounts, and one clear line for each refusal."""
import json, os, re, shutil
from kvtest import *

CTL = binary("kvcachectl")
N = 300000


def ctl(*words, **more):
    return run(CTL, *words, **more)


def quietly(*words):
    p = ctl(*words)
    assert p.returncode == 0 and not p.stdout, p


def said(p, code, *words):
    assert p.returncode == code and p.stdout.count("\n") == 1, p
    assert p.stdout.startswith("kvcachectl: ") and all(w in p.stdout for w in words), p


s = Store(options="settle=0", cpu="64M").mount()
for c in "abcd":
    for i in range(3):
        s.write(f"m/{c}/l{i}", blob(f"{c}{i}", N))
s.settle()
M = f"{s.mnt}/m"

# pins, also by a file of the chunk, and several at once
quietly("pin", f"{M}/a", f"{M}/b/l0")
assert s.attr("m/a", "pin") == s.attr("m/b", "pin") == "1"
quietly("unpin", f"{M}/a", f"{M}/b")
assert s.attr("m/a", "pin") == s.attr("m/b", "pin") == "0"
for text, least in (("2h", 7000), ("7d", 604000), ("4w", 2419000), ("600", 500), ("10m", 500)):
    quietly("pin", f"{M}/a", "--for", text)
    assert least < int(s.attr("m/a", "pin")) <= least * 1.2 + 100, (text, s.attr("m/a", "pin"))
quietly("unpin", f"{M}/a")
for text in ("", "2x", "h", "-2", "1.5h", "2hh"):
    said(ctl("pin", f"--for={text}", f"{M}/a"), 2, f"--for: '{text}' is not a time", "such as 90s")
for text in ("1", "0", "1s", "99999999w"):
    said(ctl("pin", f"--for={text}", f"{M}/a"), 2, f"--for {text}: give a time from 2s to 11574w")
said(ctl("pin", f"--for={'9' * 30}", f"{M}/a"), 2, "is too large for a time")
os.mkdir(f"{s.mnt}/empty")
said(ctl("pin", f"{s.mnt}/empty"), 1, "no chunks", "ls --recursive")
os.mkfifo(f"{s.mnt}/fifo")
said(ctl("pin", f"{s.mnt}/fifo"), 1, "not a file or a folder")

# whole models and mounts, and lists
quietly("pin", M, "--for", "1h")
pins = json.loads(run(CTL, "pins", "--json", s.mnt, ok=True).stdout)
assert pins["mount"] == s.mnt and [p["path"] for p in pins["pins"]] == \
    [f"{M}/{c}" for c in "abcd"], pins
assert all(p["bytes"] == 3 * N and p["files"] == 3 and 3500 < p["pin"] <= 3600
           for p in pins["pins"]), pins
text = run(CTL, "pins", f"{M}/b", ok=True).stdout
assert f"{M}/b\n" in text and text.splitlines()[-1].startswith("1 pinned chunk, "), text
quietly("unpin", s.mnt)
assert json.loads(run(CTL, "pins", "--json", s.mnt, ok=True).stdout)["pins"] == []
assert run(CTL, "pins", s.mnt, ok=True).stdout == "0 pinned chunks, 0 B\n"
os.unlink(f"{s.mnt}/fifo")
p = ctl("pin", f"{M}/none", f"{M}/a", TMP)
assert p.returncode == 1 and p.stdout.count("\n") == 2 and s.attr("m/a", "pin") == "1", p
quietly("unpin", f"{M}/a")

# a ttl, of a chunk and of a model
quietly("ttl", "3d", f"{M}/a", M)
assert s.attr("m/a", "ttl") == "259200" and s.attr("m", "ttl") == "259200"
quietly("ttl", "never", f"{M}/a", M)
assert s.attr("m/a", "ttl") == "0"
with fails(errno.ENODATA):
    s.attr("m", "ttl")
for text in ("0", "99999999999"):
    said(ctl("ttl", text, f"{M}/a"), 2, f"ttl {text}: give a time from 1s to 11574w", "or never")
for text in ("soon", "3y", "4 d", ""):
    said(ctl("ttl", text, f"{M}/a"), 2, f"ttl: '{text}' is not a time")
s.write("m/folder/x/l", blob("x", N))
s.settle()
said(ctl("ttl", "3d", f"{M}/folder"), 1, "a model's folder", "--chunks")
j = json.loads(run(CTL, "ttl", "--json", "--chunks", "--yes", "3d", f"{M}/folder",
                   ok=True).stdout.splitlines()[-1])
assert j["paths"][0]["chunks"] == 1 and s.attr("m/folder/x", "ttl") == "259200", j
shutil.rmtree(f"{M}/folder")
# the mount: all models
p = ctl("ttl", "3d", s.mnt)
assert p.returncode == 1 and "--yes" in p.stdout and p.stdout.startswith(
    f"{s.mnt}: 2 models: chunks that are created from now on are dropped after 3 d.\n"), p
code, seen = asked(b"y\n", CTL, "ttl", "3d", s.mnt)
assert code == 0 and s.attr("m", "ttl") == s.attr("empty", "ttl") == "259200", seen
assert s.attr("m/a", "ttl") == "0"
p = ctl("ttl", "--yes", "never", s.mnt)
assert p.returncode == 0 and p.stdout == \
    f"{s.mnt}: 2 models: chunks that are created from now on have no ttl.\n", p
with fails(errno.ENODATA):
    s.attr("m", "ttl")
# the present chunks of a model
p = ctl("ttl", "--chunks", "2d", M)
assert p.returncode == 1 and f"{M}: 4 chunks, 3.4 MiB: dropped 2 d from now.\n" in p.stdout, p
# the question has the exact time, in the largest unit
for time_given, shown in (("1h", "1 h"), ("60m", "1 h"), ("1d", "1 d"), ("49h", "49 h"),
                          ("90m", "90 m"), ("7d", "1 w"), ("61", "61 s"), ("14d", "2 w")):
    p = ctl("ttl", "--chunks", time_given, M)
    assert p.returncode == 1 and f": dropped {shown} from now.\n" in p.stdout, (shown, p)
    p = ctl("ttl", time_given, s.mnt)
    assert p.returncode == 1 and f" are dropped after {shown}.\n" in p.stdout, (shown, p)
assert s.attr("m/a", "ttl") == "0"
quietly("ttl", "1d", M)
assert "ttl 1 d" in " ".join(run(CTL, "stat", M, ok=True).stdout.split()), \
    run(CTL, "stat", M).stdout
quietly("ttl", "never", M)
code, seen = asked(b"y\n", CTL, "ttl", "--chunks", "2d", M)
assert code == 0 and [s.attr(f"m/{c}", "ttl") for c in "abcd"] == ["172800"] * 4, seen
j = json.loads(run(CTL, "ttl", "--chunks", "--json", "never", M, ok=True).stdout)
assert j == {"command": "ttl", "paths": [{"path": M, "chunks": 4, "bytes": 12 * N, "models": 0,
                                          "failed": 0}]}, j
assert s.attr("m/d", "ttl") == "0"

# a policy
quietly("policy", "lfu", M)
assert s.attr("m", "policy") == "lfu"
quietly("policy", "none", M)
quietly("policy", "none", M)
with fails(errno.ENODATA):
    s.attr("m", "policy")
said(ctl("policy", "best", M), 2, "unknown policy best", "s3fifo")
said(ctl("policy", "lfu", f"{M}/a"), 1, "it is not a model")
code, seen = asked(b"n\n", CTL, "policy", "lfu", s.mnt)
assert code == 1 and "2 models: each gets the policy lfu." in seen, seen
p = ctl("policy", "--yes", "lfu", s.mnt)
assert p.returncode == 0 and s.attr("m", "policy") == s.attr("empty", "policy") == "lfu", p
p = ctl("policy", "--yes", "none", s.mnt)
assert p.returncode == 0 and "each gets the policy of the mount" in p.stdout, p
with fails(errno.ENODATA):
    s.attr("m", "policy")

# a quota: asks if it may drop something
os.mkdir(f"{s.mnt}/new")
quietly("quota", "500M", f"{s.mnt}/new")
assert s.attr("new", "quota") == str(500 * MiB)
p = ctl("quota", "2M", M)
assert p.returncode == 1 and f"{M}: 4 chunks, 3.4 MiB: at least 1.4 MiB are dropped, the coldest " \
    "chunks first.\n" in p.stdout and "--yes" in p.stdout, p
with fails(errno.ENODATA):
    s.attr("m", "quota")
quietly("quota", "1G", M)  # more than the model has
assert s.attr("m", "quota") == str(1 << 30)
wait_for(lambda: int(s.attr("m", "used")) >= 12 * N)
quietly("quota", "0.5G", M)  # lower, but still above the used bytes
code, seen = asked(b"n\n", CTL, "quota", "2M", M)
assert code == 1 and \
    re.search(r"4 chunks, 3\.[45] MiB: at least 1\.[45] MiB are dropped", seen), seen
assert s.attr("m", "quota") == str(512 * MiB) and len(os.listdir(M)) == 4
code, seen = asked(b"y\n", CTL, "quota", "2MiB", M)
assert code == 0 and s.attr("m", "quota") == str(2 * MiB), seen
wait_for(lambda: int(s.attr("m", "used")) <= 2 * MiB)
quietly("quota", "64M", M)
quietly("quota", "none", M, f"{s.mnt}/new")
with fails(errno.ENODATA):
    s.attr("m", "quota")
code, seen = asked(b"n\n", CTL, "quota", "60M", s.mnt)
assert code == 1 and f"{s.mnt}: 3 models: each gets a quota of 60.0 MiB." in seen, seen
p = ctl("quota", "--yes", "60M", s.mnt)
assert p.returncode == 0 and [s.attr(m, "quota") for m in ("m", "new", "empty")] == \
    [str(60 * MiB)] * 3, p
j = json.loads(run(CTL, "quota", "--yes", "--json", "none", s.mnt, ok=True).stdout.splitlines()[-1])
assert j["paths"] == [{"path": s.mnt, "chunks": 0, "bytes": 0, "models": 3, "failed": 0}], j
with fails(errno.ENODATA):
    s.attr("new", "quota")
for text in ("0", "100K"):
    said(ctl("quota", text, M), 2, "or none")
for text in ("much", "1e9", ""):
    said(ctl("quota", text, M), 2, "is not a size")
said(ctl("quota", "4GB", M), 2, "write 4G (4 GiB)")
# a path that is not a model is refused also if there is nothing to set or remove, and before the
# command asks or describes an effect; the other paths are changed
chunk = f"{M}/{os.listdir(M)[0]}"
for path in (chunk, f"{chunk}/{os.listdir(chunk)[0]}"):
    for words in (("quota", "1G"), ("quota", "1M"), ("quota", "none"), ("policy", "lfu"),
                  ("policy", "none")):
        said(ctl(*words, path), 1, f"{path}: it is not a model")
p = subprocess.run([CTL, "quota", "--json", "none", chunk, M], capture_output=True, text=True)
assert p.returncode == 1 and "it is not a model" in p.stderr, p
assert [(q["models"], q["failed"]) for q in json.loads(p.stdout)["paths"]] == [(0, 1), (1, 0)], p
# a model's folder that contains files itself is a chunk, too
s.write("flat/l", blob("flat", N))
s.settle()
quietly("quota", "1G", f"{s.mnt}/flat")
assert s.attr("flat", "quota") == str(1 << 30)
quietly("quota", "none", f"{s.mnt}/flat")
shutil.rmtree(f"{s.mnt}/flat")
# new chunks belong to the tenant of a folder; a file has no new chunks
run(CTL, "tenant", "acme", s.mnt, ok=True)
for name in ("acme", "none"):
    said(ctl("tenant", "--folder", f"{chunk}/{os.listdir(chunk)[0]}", name), 1, "not a folder")

# evict from memory: a copy is made first; from a tier, or all: only after confirmation
for c in "ef":
    for i in range(3):
        s.write(f"m/{c}/l{i}", blob(f"{c}{i}", N))
s.settle()
quietly("evict", f"{M}/e", f"{M}/f/l1")
assert s.attr("m/e", "tiers") == s.attr("m/f", "tiers") == "disk"
p = ctl("evict", "--from", "disk", "--yes", f"{M}/e")
assert "A reboot loses" in p.stdout and "ther nodes" not in p.stdout, p
assert p.returncode == 1 and "no other copy" in p.stdout, p
assert s.read("m/e/l0") == blob("e0", N)
p = ctl("evict", "--from", "all", f"{M}/f")
assert p.returncode == 1 and f"{M}/f: 1 chunk, " in p.stdout, p
assert "dropped from memory" in p.stdout and "--yes" in p.stdout, p
code, seen = asked(b"n\n", CTL, "evict", "--from=all", f"{M}/f")
assert code == 1 and os.path.exists(f"{M}/f/l0"), seen
time.sleep(1)  # recently used chunks stay
p = ctl("evict", "--from=all", "--yes", f"{M}/f")
assert p.returncode == 0 and "dropped from memory" in p.stdout, p
assert not os.path.exists(f"{M}/f/l0")
quietly("pin", f"{M}/e")
assert s.read("m/e/l1") == blob("e1", N)
said(ctl("evict", f"{M}/e"), 1, "pinned", "try again later")
said(ctl("evict", "--from", "tape", f"{M}/e"), 1, "no tier tape")  # before it describes the effect
said(ctl("evict", "--from", "dis", M), 1, "no tier dis")
# a whole model: the pinned chunk stays, and is reported
for c in "gh":
    s.write(f"m/{c}/l", blob(c, N))
s.settle()
n = len(os.listdir(M))
p = ctl("evict", M)
assert p.returncode == 1 and f"{M}/e: " in p.stdout and "of its chunks were evicted" in p.stdout, p
assert all(s.attr(f"m/{c}", "tiers") == "disk" for c in os.listdir(M) if c != "e")
quietly("unpin", M)
time.sleep(1)
p = ctl("evict", "--from=all", M)
assert p.returncode == 1 and f"{M}: {n} chunks, " in p.stdout, p
p = ctl("evict", "--from=all", "--yes", M)
assert p.returncode == 0 and f"{M}: {n} chunks, " in p.stdout and not os.listdir(M), p
quietly("quota", "--yes", "2G", M)
j = json.loads(run(CTL, "quotas", "--json", s.mnt, ok=True).stdout)
assert j["mount"] == s.mnt and [(q["model"], q["quota"]) for q in j["quotas"]] == \
    [("m", 2 << 30)] and j["quotas"][0]["used"] < N, j
assert run(CTL, "quotas", s.mnt, ok=True).stdout.endswith("m\n")
quietly("quota", "none", M)
assert "no model has a quota" in run(CTL, "quotas", s.mnt, ok=True).stdout
# without a disk tier
t = Store("t", options="settle=0,disk=off").mount()
assert run(CTL, "tenants", t.mnt, ok=True).stdout == "no tenants\n"
t.write("m/a/l", blob("a", N))
t.settle()
said(ctl("evict", f"{t.mnt}/m/a"), 1, "no tier can take a copy", "--from all")
t.umount()

# wrong arguments
for words in (("pin",), ("pin", "--for", "2h"), ("pin", "--fr=2h", M), ("unpin",), ("ttl", "2h"),
              ("unpin", "--yes", M), ("quota", M), ("policy", "lru"), ("evict", "--from"),
              ("evict", "--yes=1", M), ("evict", "--yes")):
    said(ctl(*words), 2)
# on another filesystem nothing is set
os.mkdir(f"{TMP}/plain")
for words in (("pin",), ("unpin",), ("ttl", "2h"), ("quota", "1G"), ("policy", "lru"), ("evict",)):
    said(ctl(*words, f"{TMP}/plain"), 1, "not in a kvcachefs mount")
    said(ctl(*words, f"{TMP}/none"), 1, "No such file")
assert not os.listxattr(f"{TMP}/plain")
s.umount()
