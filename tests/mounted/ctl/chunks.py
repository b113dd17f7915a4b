# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl ls and stat print the attributes of chunks, files, models and folders, as text with
units and as JSON, for names of any bytes. They load nothing and do not count as an access."""
import json, os
from kvtest import *

CTL = binary("kvcachectl")
N = 300000


def ctl(*words, **more):
    return run(CTL, *words, **more)


def stat(*paths, **more):
    e = json.loads(ctl("stat", "--json", *paths, ok=True, **more).stdout)["entries"]
    return e[0] if len(paths) == 1 else e


def ls(*words):
    e = json.loads(ctl("ls", "--json", *words, ok=True).stdout)["entries"]
    return {one["name"]: one for one in e}


def said(p, code, *words):
    assert p.returncode == code and p.stdout.count("\n") == 1, p
    assert p.stdout.startswith("kvcachectl: ") and all(w in p.stdout for w in words), p


s = Store(options="settle=0", cpu="64M").mount()
for c in "abc":
    for i in range(3):
        s.write(f"m/{c}/l{i}", blob(f"{c}{i}", N + i))
s.write("flat.bin", blob("flat", N))
s.settle()
M = f"{s.mnt}/m"
os.setxattr(f"{M}/a", "user.kvcachefs.demote", b"cpu")
os.setxattr(f"{M}/b", "user.kvcachefs.pin", b"1")
os.setxattr(f"{M}/c", "user.kvcachefs.pin", b"7300")
os.setxattr(f"{M}/c", "user.kvcachefs.ttl", b"259200")
os.setxattr(f"{M}/c", "user.kvcachefs.parent", b"b")
os.setxattr(M, "user.kvcachefs.quota", b"64M")
os.setxattr(M, "user.kvcachefs.codec", b"zstd")
assert s.read("m/b/l1") == blob("b1", N + 1)
hits = int(s.attr("m/b", "hits"))
before = s.stats()

# each kind, and each attribute that it has
a, b, c = stat(f"{M}/a", f"{M}/b", f"{M}/c")
assert a["is"] == "chunk" and a["path"] == f"{M}/a", a
assert a["files"] == 3 and a["bytes"] == 3 * N + 3, a
assert a["tiers"] == ["disk"] and a["state"] == "lower" and a["pin"] == a["ttl"] == 0, a
assert b["tiers"] == ["cpu", "disk"] and b["pin"] == 1 and b["hits"] == hits, b
assert abs(b["last_use"] - os.stat(f"{M}/b/l1").st_atime) < 2, b
assert 7000 < c["pin"] <= 7300 and c["ttl"] == 259200 and c["parent"] == "/m/b", c
m = stat(M)
assert m["is"] == "model" and m["quota"] == 64 * MiB and m["codec"] == "zstd", m
assert m["used"] == m["bytes"] >= 9 * N and m["files"] == 9 and "policy" not in m, m
assert m["tier_bytes"]["disk"] > 0 and m["evicted"]["quota"] == 0, m
line = run(binary("kvcachectl"), "ls", s.mnt, ok=True).stdout
assert re.search(r"^ +[\d.]+ MiB +9 .* m/$", line, re.M), line
f = stat("m/b/l1", cwd=s.mnt)
assert f["is"] == "file" and f["bytes"] == N + 1 and f["files"] == 1, f
assert f["checksum"] == s.attr("m/b/l1", "checksum") and f["path"] == "m/b/l1", f
assert stat(s.mnt)["is"] == "folder"
os.setxattr(M, "user.kvcachefs.layout", b"bf16 l2 k2 t64 h2 d64")
ctl("tenant", "acme", s.mnt, ok=True)
ctl("tenant", "--folder", M, "acme", ok=True)
assert (stat(M)["layout"], stat(M)["tenant"]) == ("bf16 l2 k2 t64 h2 d64", "acme"), stat(M)
for path in (M, f"{M}/c", f"{M}/b/l0", f"{s.mnt}/flat.bin"):
    mine = {n[len("user.kvcachefs."):] for n in os.listxattr(path)
            if n.startswith("user.kvcachefs.")}
    assert mine <= set(stat(path)), (path, mine, stat(path))

# as text: with units
text = ctl("stat", f"{M}/a", f"{M}/c", M, ok=True).stdout
for words in ("879 KiB in 3 files", "tiers      disk", "pin        2 h", "ttl        3 d",
              "parent     /m/b", "quota      64.0 MiB", "codec      zstd", "last use",
              "pin        no"):
    assert words in text, (words, text)
assert "pin        for ever" in ctl("stat", f"{M}/b", ok=True).stdout

# lists: the mount, a model, a chunk, a file; and all below
assert {n: e["is"] for n, e in ls(s.mnt).items()} == {"m": "model", "flat.bin": "file"}
l = ls(M)
assert set(l) == set("abc"), l
for n, e in (("a", a), ("b", b)):
    assert {k: v for k, v in l[n].items() if k != "name"} == \
        {k: v for k, v in e.items() if k != "path"}, (l[n], e)
assert set(ls(f"{M}/a")) == {"l0", "l1", "l2"} and set(ls(f"{M}/a/l2")) == {"l2"}
assert set(ls("--recursive", s.mnt)) == {"m/a", "m/b", "m/c", "flat.bin"}
lines = ctl("ls", M, ok=True).stdout.splitlines()
assert lines[0].split()[:3] == ["SIZE", "FILES", "TIERS"] and len(lines) == 4, lines
assert lines[1].split()[:8] == ["879", "KiB", "3", "disk", "lower", str(a["hits"]), "no", "no"]
assert lines[1].endswith(" a/") and lines[2].split()[4:6] == [b["state"], str(hits)], lines
assert "for ever" in lines[2] and "cpu,disk" in lines[2], lines
assert ctl("ls", f"{M}/a/l0", ok=True).stdout.splitlines()[1].endswith(" l0")

# none of these commands loaded or accessed anything
after = s.stats()
for n in ("loads", "opens", "pool_hits", "pool_misses"):
    assert before[n] == after[n], (n, before[n], after[n])
assert s.attr("m/a", "tiers") == "disk" and int(s.attr("m/b", "hits")) == hits

# names of any bytes, and a tree deeper than PATH_MAX
odd = [b"new\nline", b"quote\" \\ \x01", "ein Wort: \u00e4\u20ac\U0001f600".encode(),
       b"\xff\xc3(", b"\xed\xa0\x80", b"\xc0\xaf"]
os.mkdir(f"{s.mnt}/odd")
for n in odd:
    with open(os.fsencode(f"{s.mnt}/odd/") + n, "wb") as f:
        f.write(b"x")
out = ctl("ls", "--json", f"{s.mnt}/odd", ok=True).stdout
names = {os.fsencode(e["name"]) for e in json.loads(out)["entries"]}
assert names == set(odd), names
text = ctl("ls", f"{s.mnt}/odd", ok=True, errors="replace").stdout
assert len(text.splitlines()) == len(odd) + 1, text
fd = os.open(f"{s.mnt}/odd", os.O_RDONLY)
for i in range(30):
    os.mkdir("d" * 200, dir_fd=fd)
    inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    fd = inner
os.close(fd)
said(run("sh", "-c", f"{CTL} ls --recursive {s.mnt}/odd 2>&1 >/dev/null"), 1, "too long")

# invalid words, and paths outside a mount
said(ctl("ls", TMP), 1, "not in a kvcachefs mount")
for missing in ("none", "none/below/it"):
    said(ctl("ls", f"{M}/{missing}"), 1, "No such file", f"in the mount {s.mnt};", "mkdir")
said(ctl("ls", f"{TMP}/none"), 1, "No such file", "give a path in a kvcachefs mount")
said(ctl("ls", M, M), 2, "--help")
said(ctl("ls", "--long", M), 2, "--long")
said(ctl("stat"), 2, "usage: kvcachectl stat")
said(ctl("stat", "--json"), 2, "--help")
p = ctl("stat", f"{M}/none", f"{M}/a")
assert p.returncode == 1 and "No such file" in p.stdout and "is         chunk" in p.stdout, p
s.umount()
