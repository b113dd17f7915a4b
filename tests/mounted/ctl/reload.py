# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl reload changes the options that the manual marks Live on a mount in use, all or none
of them; any other option is refused in one line. kvcachectl log sets the level, .kvcachefs/log has
the last lines, and stats and config print JSON."""
import json, os, re, signal
from kvtest import *

CTL = binary("kvcachectl")


def ctl(*words, **more):
    return run(CTL, *words, **more)


def said(p, code, *words):
    assert p.returncode == code and p.stdout.count("\n") == 1, p
    assert p.stdout.startswith("kvcachectl: ") and all(w in p.stdout for w in words), p


here = os.path.dirname(__file__)
man = open(f"{here}/../../../man/kvcachefs.8").read().split(".SS Mount options")[1]
entries = {m[1]: m[0] for m in re.finditer(
    r"^\.TP\n\.BI? (\w+)\b.*?(?=^\.TP|^\.S[SH])", man, re.M | re.S)}
live = {n for n, e in entries.items() if e.endswith("Live.\n")}
assert len(live) >= 11 and {"high", "pace"} <= live and "cpu" not in live, live

os.mkdir(f"{TMP}/r")
s = Store(cpu="64M", options=f"settle=0,remote=dir://{TMP}/r").mount()
before = s.config()

# each Live option, and no other
values = {"high": "95", "low": "70", "pins": "40", "share": "80", "admit": "twice", "daily": "5G",
          "compress": "zstd", "level": "3", "keep_pool": "1", "pace": "200",
          "commit": "20", "save": "60"}
assert set(values) == live, (set(values) ^ live)
for n, v in values.items():
    p = ctl("reload", "-o", f"{n}={v}", s.mnt)
    assert p.returncode == 0 and not p.stdout, p
    assert s.config()[n] in (v, str(5 << 30)), (n, s.config()[n])
others = {"cpu": "32M", "memory": "200M", "policy": "lfu", "disk_policy": "lfu",
          "unit": "file", "partial": "miss",
          "write": "back", "disk": "off", "remote": f"dir://{TMP}/other", "keyfile": "/x",
          "adopt_uid": "5", "adopt_gid": "5", "adopt_mode": "600", "metrics": "127.0.0.1:1",
          "metrics_token": "/x", "logfile": "/x", "peer_listen": "127.0.0.1:1", "peer_secret": "/x",
          "peer_name": "h:1", "peer_control": "1",
          "passthrough": "off", "io_uring": "off", "huge": "never", "numa": "local",
          "prefault": "off", "deadline": "5", "settle": "1234", "log": "32M", "catalog": "1G",
          "run": "/x", "shim": "only:disk", "disk_workers": "5", "allow_other": "1",
          "protect_mountpoint": "1",
          "uid": "5", "gid": "5", "mode": "700", "debug": "1"}
table = re.findall(r"^  (\w+)(?:=\S+)? ", run(binary("kvcachefs"), "--help", ok=True).stdout.split(
    "options (default):")[1], re.M)
assert set(others) | live == set(table) - {"ro"}, set(others) ^ set(table)
for n, v in others.items():
    said(ctl("reload", "-o", f"{n}={v}", s.mnt), 1, f"option {n} cannot change on a live mount")
said(ctl("reload", "-o", "noatime", s.mnt), 1, "option noatime cannot change")
said(ctl("reload", "-o", "high=91,cpu=1G,noexec,policy=lru", s.mnt), 1,
     "options cpu, policy, noexec cannot change on a live mount")
# all or nothing
now = s.config()
for text, word in (("high=91,cpu=1G", "option cpu"), ("high=91,low=92", "must be below"),
                   ("high=91,low=x", "not a number"), ("hihg=91", "unknown option")):
    said(ctl("reload", f"-o{text}", s.mnt), 1, word)
assert s.config() == now
said(ctl("reload", "-o", "", s.mnt), 2, "-o OPTIONS")
said(ctl("reload", s.mnt), 1, "no key file or log file", "-o OPTIONS")
assert json.loads(ctl("reload", "-o", "high=90,low=80", "--json", s.mnt, ok=True).stdout) == \
    {"mount": s.mnt, "changed": "high=90,low=80"}

# options that a file has, and options that are saved there
conf = f"{TMP}/kv.conf"


def config_file(text):
    with open(conf, "w") as f:
        f.write(text)
    os.chmod(conf, 0o640)


OPTIONS = f"settle=0,remote=dir://{TMP}/r,cpu=64M"
config_file(f"# a comment\nSTORE={s.path}\nMOUNTPOINT={s.mnt}\n"
            f"OPTIONS='{OPTIONS},high=88,pins=7'\n#x\n")
ctl("reload", "--file", conf, ok=True)
assert (s.config()["high"], s.config()["pins"]) == ("88", "7"), s.config()
ctl("reload", "-o", "high=89,low=79,daily=1G", "--save", conf, s.mnt, ok=True)
with open(conf) as f:
    text = f.read()
assert text == (f"# a comment\nSTORE={s.path}\nMOUNTPOINT={s.mnt}\n"
                f"OPTIONS={OPTIONS},pins=7,high=89,low=79,daily=1G\n#x\n"), text
assert os.stat(conf).st_mode & 0o777 == 0o640
ctl("reload", "-o", "daily=0", s.mnt, ok=True)
ctl("reload", "--file", conf, s.mnt, ok=True)
assert s.config()["daily"] == str(1 << 30), s.config()
# nothing changes if the file cannot be written, and nothing is saved if the mount refuses it
said(ctl("reload", "-o", "high=99", "--save", f"{TMP}/none/conf", s.mnt), 1, "No such file")
long = f"{TMP}/{'c' * 250}"
with open(long, "w") as f:  # no room for the name of the new file
    f.write(text)
said(ctl("reload", "-o", "high=99", "--save", long, s.mnt), 1, "File name too long")
assert s.config()["high"] == "89"
said(ctl("reload", "-o", "high=x", "--save", conf, s.mnt), 1, "high")
assert not [n for n in os.listdir(TMP) if n.endswith(".new")]
with open(conf) as f:
    assert f.read() == text
config_file(f"OPTIONS=cpu=99M,high=87\nMOUNTPOINT={s.mnt}\n")
said(ctl("reload", "--file", conf), 1, "option cpu cannot change")
assert s.config()["high"] == "89"
for text, word in (("STORE=x\n", "OPTIONS="), ("OPTIONS=high=90\n", "MOUNTPOINT="),
                   ("", "OPTIONS="),
                   ("OPTIONS=" + "x" * 5000, "too long")):
    config_file(text)
    said(ctl("reload", "--file", conf), 1, word)
said(ctl("reload", "--file", f"{TMP}/none"), 1, "No such file")
said(ctl("reload", "--file", conf, "-o", "high=9", s.mnt), 2, "not both")
said(ctl("reload", "--save", conf, s.mnt), 2, "-o OPTIONS")
config_file("STORE=x")  # a file without options gets a line
ctl("reload", "-o", "daily=0,pins=50,high=90,low=80", "--save", conf, s.mnt, ok=True)
with open(conf) as f:
    assert f.read() == "STORE=x\nOPTIONS=daily=0,pins=50,high=90,low=80\n"

# SIGHUP reads the key file, or says that there is none; the mount stays
s.daemon.send_signal(signal.SIGHUP)
wait_for(lambda: "SIGHUP: the mount has no key file or log file" in s.log())
assert s.config()["high"] == "90"

# the new values have an effect: low= evicts from the pool
ctl("reload", "-o", "admit=all,compress=none", s.mnt, ok=True)
for i in range(40):
    s.write(f"m/c{i}/l", blob(2 + i, MiB))
s.settle()
assert s.stats()["pool_used_bytes"] > 35 * MiB
ctl("reload", "-o", "high=30,low=10", s.mnt, ok=True)
wait_for(lambda: s.stats()["pool_used_bytes"] < 20 * MiB)

# the log
assert ctl("log", s.mnt, ok=True).stdout == "info\n"
path = f"{s.mnt}/.kvcachefs/log"
lines = open(path).read().splitlines()
assert any("serving by" in l for l in lines)
assert any(l.endswith("options changed: high=30,low=10") for l in lines), lines
assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warn|error|debug) \S", l)
           for l in lines), lines
assert json.loads(ctl("log", "--json", "error", s.mnt, ok=True).stdout) == \
    {"mount": s.mnt, "level": "error"}
ctl("reload", "-o", "high=31", s.mnt, ok=True)
assert open(path).read().splitlines() == lines and "high=31" not in s.log()
assert ctl("log", "debug", f"{s.mnt}/m", ok=True).stdout == "debug\n"
for i in range(600):
    fd = os.open(f"{s.mnt}/.kvcachefs/control", os.O_WRONLY)
    os.write(fd, f"reload pins={i % 50}".encode())
    os.close(fd)
lines = open(path).read().splitlines()
assert len(lines) == 512, len(lines)
assert [l.split("pins=")[1] for l in lines if "options changed: pins=" in l][-1] == "49"
said(ctl("log", "loud", s.mnt), 2, "error, warn, info or debug")
said(ctl("log", "loud"), 1, "a kvcachefs mount")
os.chmod(s.mnt, 0o755)
for name in ("log", "control"):
    p = run("setpriv", "--reuid", "65534", "--clear-groups", "cat", f"{s.mnt}/.kvcachefs/{name}")
    assert p.returncode, p

# as JSON
j = json.loads(ctl("stats", "--json", s.mnt, ok=True).stdout)
assert j["mount"] == s.mnt and j["stats"]["pool_bytes"] == 64 * MiB, j
assert set(j["stats"]) == set(s.stats()), j
j = json.loads(ctl("config", "--json", s.mnt, ok=True).stdout)["config"]
assert j["store"] == s.path and j["settle"] == "0" and len(j["tier"]) == 2, j
s.umount()
