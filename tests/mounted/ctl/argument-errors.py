# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Every command of kvcachectl reports each wrong argument in one line (tests/lib/wrong.py) and
changes nothing. The options and operands are read from its usage, so new ones are tested too. Also
tested: folders that are not mounts, missing files, a killed daemon, and a full stdout."""
import os, re, shutil
from kvtest import *
from wrong import Wrong, tree, VALUES

CTL = binary("kvcachectl")
w = Wrong({CTL: (1, 2)})
s = Store("s", size="16M", cpu="32M").mount()
s.write("m/c/l", blob(1, 5000))
s.settle()
PATH, EMPTY, FILE = f"{s.mnt}/m/c/l", f"{TMP}/empty", f"{TMP}/file"
os.mkdir(EMPTY)
TOKENS, TRACE, KEYS = f"{TMP}/tokens", f"{TMP}/trace", f"{TMP}/keys"
for path, text in ((FILE, "somebody's\n"), (TOKENS, "1 2 3\n"),
                   (TRACE, '{"hash_ids": [1, 2]}\n' * 4)):
    with open(path, "w") as f:
        f.write(text)
shutil.copy(binary("tier-folder"), f"{FILE}.program")
# a valid word for each operand, and invalid ones for operands that are not paths in a mount
RIGHT = {"PATH...": PATH, "MODEL...": f"{s.mnt}/m", "TIME|never": "1h", "SIZE|none": "none",
         "NAME|none": "none", "SCHEME": "vllm-sha256", "FILE": TOKENS, "TRACE...": TRACE,
         "PROGRAM": f"{FILE}.program?folder={EMPTY}", "NAME": "acme",
         "DEVICE": f"{TMP}/no-such-device", "NODE": "127.0.0.1:1", "-o": "-o", "OPTIONS": "high=91"}
WRONG = {"TIME|never": VALUES["TIME"], "SIZE|none": VALUES["SIZE"], "NAME|none": ["", "best"],
         "SCHEME": ["", "md5", "vllm-sha256:0", "vllm-sha256:x", "vllm-sha256:9999999999"],
         "PROGRAM": ["", f"{TMP}/nothing", EMPTY, FILE, f"{FILE}.program?x",
                     f"{FILE}.program?arena=1&folder={EMPTY}", f"{FILE}.program?folder={FILE}"],
         "NODE": ["", "nothing", "h:99999"],
         "FILE": ["", f"{TMP}/nothing", EMPTY], "TRACE...": ["", f"{TMP}/nothing", EMPTY, FILE]}
VALUE = {"TIME": VALUES["TIME"], "N": VALUES["N"], "SIZE": VALUES["SIZE"], "TIER": ["", "nothing"],
         "OPTIONS": ["", "polcy=lru", "cpu=1G", "high=x", "high=10,low=20", "keyfile=/x"],
         "SIZE|none": ["", "x", "1", "5Q"], "UID|none": ["", "me", "-1", "1x"],
         "FOLDER": ["", f"{TMP}/nothing"],
         "LAYOUT": ["", "bf16", "bf16 t*", "bf16 t1 d128", "fp8 t* d16"], "NAMING": ["", "nothing"],
         "FILE": ["", f"{TMP}/no/such"], "DEVICE": ["", f"{TMP}/no-such-device", "99"],
         "NAME,...": ["", "best", ","],
         "ADDRESS": ["", "nonsense", "tcp://*:x"], "CHUNKS,...": ["", "x", "0", "2,1", "1:x"],
         "told|learned|none": ["", "best"], "low|normal|high": ["", "best"],
         "tool|turn|closed": ["", "best"],
         "NAME|none": ["", "a b"],
         "NAME=POLICY,...": ["", "m", "=lru", "m=best"], "TEXT": [], "COLUMN": ["", "best"]}
# commands that need no mount
ALONE = ("codec", "gpus", "hash", "pools", "replay", "newkey", "tier-test", "help")
names = re.findall(r"^  ([a-z-]+)(?: |$)", run(CTL, "--help", ok=True).stdout, re.M)
usages = {n: " ".join(run(CTL, n, "--help").stdout.splitlines()[0].split()[3:]) for n in names}


def operands(usage):
    """Returns the required operands, in order."""
    while "[" in usage:
        usage = re.sub(r"\[[^][]*\]", "", usage)
    return usage.split(" | ")[0].split()


for words, says in (((), "command"), (("",), "''"), (("nothing",), "'nothing'"),
                    (("--wrong",), "--wrong"), (("-W",), "-W")):
    w.tell(CTL, *words, says=[says, "--help"], code=2)
for name, usage in usages.items():
    needed = operands(usage)
    right = [RIGHT[o] for o in needed]
    for flag, value in re.findall(r"(--?[a-z]+)(?: ([A-Za-z][^]\s]*))?",
                                  usage.replace("[:DISK]", "")):
        joined = [f"{flag}="] if flag.startswith("--") else []
        if not value:
            for j in joined:
                w.tell(CTL, name, j + "x", *right, says=[f"{flag} does not", f"{name} --help"],
                       code=2)
            continue
        assert value in VALUE, f"argument-errors.py knows no wrong value of {name} {flag} {value}"
        w.tell(CTL, name, *[r for r in right if r not in ("-o", "high=91")], flag,
               says=[flag, "--help"], code=2)
        for v in VALUE[value]:
            if value == "DEVICE":
                w.told()  # these start a job in the daemon, which runs one job at a time
            rest = [r for r in right if r not in ("-o", "high=91")] + ["--yes"] * (name == "evict")
            w.tell(CTL, name, flag, v, *rest, *([] if needed[-1:] != ["OPTIONS"] and needed or
                                                name in ALONE else [s.mnt]),
                   says=[v.split(
                       "=")[0]] if v else [], quiet=flag != "--svg")
        if value == "DEVICE":
            w.told()
    if needed:
        w.tell(CTL, name, says=["too few" if "-o" not in needed else "-o", "--help"], code=2)
    if "..." not in usage:
        w.tell(CTL, name, *right, *["x"] * 4, says=["unexpected argument x", "--help"], code=2)
    for at, o in enumerate(needed):
        for v in WRONG.get(o, ()):
            if name != "newkey" or v in ("", EMPTY):
                w.tell(CTL, name, *right[:at], v, *right[at + 1:], says=[v] if v else [])
    if name in ALONE:
        continue
    for v, says in ((EMPTY, EMPTY), (f"{TMP}/nothing", f"{TMP}/nothing"), ("", "''"),
                    (f"{FILE}/x", FILE)):
        if needed and needed[-1] in ("PATH...", "MODEL..."):
            w.tell(CTL, name, *right[:-1], v, says=[says], code=1)
        elif name == "dump":
            w.tell(CTL, name, "-o", f"{TMP}/dump.tar", v, says=[says], code=1)
        else:
            w.tell(CTL, name, *right, v, says=[says], code=1)
for words in (("hash", "--as", "vllm-fs", "vllm-sha256", TOKENS),
              ("hash", "--as", "vllm-fs", "vllm-sha256", TOKENS, "m", "nothing=1"),
              ("hash", "vllm-sha256", TOKENS, "m", "config=1"), ("events", "--topic", "x", s.mnt),
              ("verify", "--stop", "--rate", "1M", s.mnt), ("pools", "--yes"),
              ("pools", "--free", "--json"), ("pools", "--free", f"{TMP}/nothing"),
              ("gpus", f"{TMP}/nothing"), ("pools", f"{TMP}/nothing"),
              ("newkey", f"{TMP}/no/such"), ("newkey", FILE), ("quota", "none", f"{s.mnt}/nothing"),
              ("stat", f"{s.mnt}/nothing"), ("dump", "-o", FILE, s.mnt),
              ("top", "--count", "0", s.mnt), ("help", "nothing"), ("help", "")):
    w.tell(CTL, *words)
for words, says in (
        (("--json", "status"), ["--json is not a command"]),
        (("ls", "-lx", s.mnt), ["option -x", "ls --help"]), (("dump", "-o",), ["-o needs a value"]),
        (("hint", "--finished", "--prefetch", PATH), ["--finished and --prefetch"]),
        (("hint", "--superseded", PATH, "--pause", "1m", PATH), ["--superseded and --pause"]),
        (("hint", "--demote", "--priority", "normal", PATH), ["--demote and --priority normal"]),
        (("hint", "--priority", "high", "--pause", "1m", PATH), ["--pause and --priority high"]),
        (("hint", "--finished", s.mnt), [f"{s.mnt} is the root of the mount"]),
        (("prefetch", s.mnt), [f"{s.mnt} is the root of the mount"]),
        (("cluster", "wher", PATH), ["wher is not one of the words where, pin, unpin and evict"]),
        (("hash", "vllm-sha256", TOKENS, "m", "rank=1"), ["rank=1", "needs --as"]),
        (("hash", "--as", "vllm-fs", "vllm-sha256", TOKENS, "m", "rank"), ["rank: give MEMBER="]),
        (("remove", "--stop", "0", s.mnt), ["remove --stop: remove is not running"]),
        (("trace", "--for", "1s", "--seconds", "1", s.mnt), ["--for and --seconds"]),
        (("tenant", "--remove", "--user", "1", "acme", s.mnt), ["cannot be combined"])):
    w.tell(CTL, *words, says=says)
for words in (("evict", "--from", "disk", PATH), ("ttl", "--chunks", "1h", f"{s.mnt}/m")):
    p = run(CTL, *words)  # no terminal: it describes the effect, and does not ask
    assert p.returncode == 1 and "nothing is changed" in p.stdout and "--yes" in p.stdout, p
# a key file takes only names of models; every other line would be an error of the next mount
KEYS = f"{TMP}/keys"
for v in ("", "a/b", "/m", "m/", ".", "..", "a b", "a\tb", "a\nb", "m" * 256):
    w.tell(CTL, "newkey", KEYS, v, says=["MODEL", "name of a folder"], code=2)
assert not os.path.exists(KEYS)
run(CTL, "newkey", KEYS, "m" * 255, ok=True)
os.unlink(KEYS)
# nothing is leased or loaded: an error instead of a wait
os.mkdir(f"{s.mnt}/hollow")
for command, says in (("lease", "nothing is leased"), ("prefetch", "nothing is loaded")):
    for words, why in (((s.mnt, "no such", "nothing"),
                        "no such: No such file or directory; check the path"),
                       ((s.mnt, "hollow"), "the folders contain no files")):
        p = run("timeout", str(HANG), CTL, command, *words)
        assert p.returncode == 1 and \
            p.stdout.splitlines()[-1] == f"kvcachectl: {command}: {says}: {why}", p
run(CTL, "prefetch", s.mnt, "nothing", os.path.relpath(PATH, s.mnt), ok=True)
w.told()
# nothing is changed if the output cannot be printed
for name, words in [(n, [s.mnt]) for n in ("status", "stats", "config", "log", "ls", "stat")] + [
        ("gpus", []), ("pools", []), ("hash", ["vllm-sha256:1", TOKENS]), ("--help", []),
        ("help", []), ("help", ["ls"]),
        ("replay", [TRACE]), ("top", ["--count", "1", "--interval", "1s", s.mnt])]:
    with open("/dev/full", "w") as full:
        w.tell(CTL, name, *words, says=["stdout", "free space"], code=1, out=full)
        w.told()
assert s.read("m/c/l") == blob(1, 5000) and s.config()["high"] == "90"
assert not [a for a in os.listxattr(f"{s.mnt}/m") if a.endswith((".quota", ".ttl", ".policy"))]
assert sorted(os.listdir(TMP)) == sorted(set(os.listdir(TMP)) - {"dump.tar", "keys"})
# the mount of a killed daemon
s.kill()
for name, usage in usages.items():
    if name in ALONE or name == "dump":  # dump works on a dead mount: ctl/dump
        continue
    right = [RIGHT[o] for o in operands(usage)]
    if operands(usage)[-1:] not in (["PATH..."], ["MODEL..."]):
        right += [s.mnt]
    w.tell(CTL, name, *right, says=[s.mnt, "daemon", "unmount"], code=1)
w.end()
run("umount", s.mnt, ok=True)
