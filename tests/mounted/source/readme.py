# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The commands in README.md and kvcachefs-tutorial(7) work: the case runs their command blocks in
its own folders and compares the output of the tutorial's session. The pages, files, targets and
options that both texts name exist, and so do the paths and targets in CONTRIBUTING.md and
SECURITY.md. README's table is a part of the table in kvcachefs-performance(7), and the pictures are
drawn from the tables of that page."""
import os, re, shutil
from kvtest import *

need_mount()
TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
readme = open(f"{TOP}/README.md").read()


def manual(page):
    return open(f"{TOP}/man/{page}.7").read().replace("\\-", "-").replace("\\e", "\\")


tutorial = manual("kvcachefs-tutorial")
examples = re.findall(r"^\.EX\n(.*?)^\.EE", tutorial, re.M | re.S)
# both texts, to check the names in them; text in a font of the manual gets backquotes as in README
text = readme + re.sub(r'^\.(?:B|I|RB \(|BR)\s*"?(.*?)"?(?: \))?$', r"`\1`", tutorial, flags=re.M)
os.environ["PATH"] = f"{BUILD}/bin:{os.environ['PATH']}"
MNT = f"{TMP}/mnt"
# sizes that any machine has, and folders that are the case's own
HERE = [("/srv/kv", f"{TMP}/session"), ("/var/lib/kvcache", f"{TMP}/store"), ("/mnt/kv", MNT),
        ("/etc/kvcachefs.keys", f"{TMP}/keys"), ("/etc/kvcachefs", f"{TMP}/etc"),
        ("10.0.0.", "127.0.0."), ("redis://cache:6379/kv", f"dir://{TMP}/dir"),
        ("-o cpu=", f"-o run={TMP}/run,cpu="), ("200G", "64M"), ("64G", "32M"), ("=1G", "=128M"),
        ("--size 4G", "--size 256M"), ("head -c 2M", "head -c 1M")]
os.mkdir(f"{TMP}/dir")


def here(command):
    for a, b in HERE:
        command = command.replace(a, b)
    return command


def alike(output):
    """The text without the parts that differ between machines and days."""
    output = re.sub(r"^(mounted \S+ on \S+) \(.*\)$", r"\1", output, flags=re.M)
    for a, b in HERE[:3]:
        output = output.replace(b, a)
    # a call to a killed daemon's mount fails with one of these errors
    output = re.sub("Software caused connection abort|Operation canceled",
                    "Transport endpoint is not connected", output)
    output = re.sub(r"\b[0-9a-f-]{32,40}\b", "HASH", output)
    output = re.sub(r"\d+(\.\d+)?( [KMG]iB|[KMG%]| s)?", "N", output)
    return re.sub(r" +", " ", output)


# the session
session = next(e for e in examples if e.startswith("# "))
steps = re.findall(r"^# (?!file:)(.*)\n((?:(?!# (?!file:)).*\n)*)", session, re.M)
assert len(steps) >= 12 and sum(2 + len(c) + 1 + len(o) for c, o in steps) == len(session)
os.mkdir(MNT)
for command, shown in steps:
    p = run("bash", "-c", here(command))
    assert (p.returncode == 0) != ("not connected" in shown), (command, p)
    if command.startswith("pkill"):
        wait_for(lambda: run("stat", "-f", MNT).returncode)
        continue
    assert alike(p.stdout) == alike(shown), (command, alike(p.stdout), alike(shown))
    if command.startswith("head"):
        wait_for(lambda: os.getxattr(f"{MNT}/llama-8b/9f2c41", "user.kvcachefs.state")
                 == b"resident+lower")
# the blocks, but for the engines' own commands, which kvcachefs-engines(7) has, too
engines = manual("kvcachefs-engines")
blocks = re.findall(r"^```sh\n(.*?)^```", readme, re.M | re.S)
for e in examples:
    if not e.startswith(("# ", "/var/lib/kvcache ")):
        blocks.append(e)
tried = 0
for block in blocks:
    if re.search("^(vllm|PYTHONHASHSEED=0|python) ", block, re.M):
        assert block.strip() in engines, block
        continue
    if "systemctl" in block:  # these blocks install and remove the packages: make deb-check
        continue
    if "mkfs.kvcachefs" in block and os.path.exists(f"{TMP}/store"):
        run("umount", MNT, ok=True)
        run(binary("fsck.kvcachefs"), "-n", f"{TMP}/store", ok=True)  # waits for the daemon's end
        shutil.rmtree(f"{TMP}/store")
    if "kvcachectl pin" in block:
        os.makedirs(f"{MNT}/MODEL/CHUNK")
        with open(f"{MNT}/MODEL/CHUNK/layer", "wb") as f:
            f.write(bytes(100000))
    if "newkey" in block:
        run("umount", MNT, ok=True)
    if "peer_listen=10.0.0.1" in block:
        run("umount", MNT, ok=True)
        run(binary("fsck.kvcachefs"), "-n", f"{TMP}/store", ok=True)
    if "peer_listen=10.0.0.2" in block:  # the second node has another store
        run(binary("mkfs.kvcachefs"), "--size", "64M", f"{TMP}/store2", ok=True)
        os.mkdir(f"{TMP}/mnt2")
        block = block.replace("/var/lib/kvcache", f"{TMP}/store2").replace("/mnt/kv",
                                                                           f"{TMP}/mnt2")
    for command in block.replace("\\\n", " ").splitlines():
        if command.startswith("make"):
            continue
        if command.startswith("echo Y"):
            assert command.split(" > ")[1] in open(f"{TOP}/man/kvcachefs.8").read()
            continue
        extra = "--yes " if "kvcachectl quota" in command else ""  # there is no terminal here
        p = run("bash", "-c", here(command).replace("quota ", "quota " + extra))
        assert p.returncode == 0, (command, p)
        tried += 1
    if "peer_listen=10.0.0.2" in block:
        with open(f"{MNT}/file", "w") as f:
            f.write("shared")
        with open(f"{TMP}/mnt2/file") as f:
            assert f.read() == "shared"
        assert "127.0.0.2:9465" in run(binary("kvcachectl"), "cluster", MNT, ok=True).stdout
        run("umount", f"{TMP}/mnt2", ok=True)
assert tried >= 9, tried
run("umount", MNT, ok=True)

# the names in both texts
makefile = open(f"{TOP}/Makefile").read()
others = "".join(open(f"{TOP}/{f}.md").read() for f in ("CONTRIBUTING", "SECURITY"))
targets = set(re.findall(r"(?:`|^|&& )make (?:MODE=\w+ )?([a-z][a-z-]*)", text + others, re.M))
assert len(targets) >= 8, targets
for target in targets:
    assert re.search(rf"^(\.PHONY:.*\s)?{target}[:\s]", makefile, re.M), f"make {target}"
named = set(re.findall(r"\b([a-z.]*kvcachef?s?[a-z.-]*)`? ?\((\d)\)", text))
assert len(named) >= 13, named
for page, n in named:
    assert os.path.exists(f"{TOP}/man/{page}.{n}"), f"{page}({n})"
paths = re.findall(r"\]\(([^)]+)\)|`((?:scripts|man|tests|engine|tiers|mkfs|fs|gpu)/[^` ]*)`",
                   text + others)
assert len(paths) >= 40, paths
for path in paths:
    path = path[0] or path[1]
    if "NAME" in path:
        continue
    if path.startswith("#"):  # a heading of the README
        heading = path[1:].replace("-", " ")
        assert re.search(rf"^#+ {heading}$", text, re.M | re.I), path
        continue
    assert os.path.exists(f"{TOP}/{path}"), path
known = " ".join(run(binary(p), "--help").stdout for p in (
    "kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "kvcachectl"))
for option in re.findall(r"-o ([a-z_]+)=", text) + re.findall(r",([a-z_]+)=", text) + re.findall(
        r"`([a-z_]+)=", text):
    if option == "nodes":  # a parameter of the URL
        assert f"BI {option}=" in manual("kvcachefs-peers")
    elif option in known or option.isupper():
        assert re.search(rf"^  {option}(=| )", known, re.M), option
words = re.search(r"^More commands of.*\n.*\n(.*)$", text, re.M).group(1)
words = re.findall(r"[a-z]+", words)
assert len(words) >= 7, words
for word in words:
    assert re.search(rf"^  {word} ", known, re.M), f"kvcachectl {word}"

# README's table and the picture agree with the manual's table
page = f"{TOP}/man/kvcachefs-performance.7"
rows = dict(l.split("\t", 1) for l in open(page).read().split("\n") if l.count("\t") == 5)
names = rows.pop("one thread").split("\t")
table = re.search(r"^\| kvcachefs compared with \|(.*)\|\n\| ---.*\n((?:\|.*\n)+)", readme, re.M)
columns = [names.index(c.strip()) for c in table.group(1).split("|")]
assert len(columns) >= 3 and table.group(2).count("\n") >= 6
for line in table.group(2).splitlines():
    what, *cells = [c.strip() for c in line.strip("|").split("|")]
    assert cells == [rows[what].split("\t")[i] for i in columns], line
for script, picture in ("bench-picture", "speed.svg"), ("ttft-picture", "ttft.svg"):
    run(f"{TOP}/scripts/{script}", page, f"{TMP}/{picture}", ok=True)
    assert open(f"{TMP}/{picture}").read() == open(f"{TOP}/scripts/pictures/{picture}").read(), \
        f"run scripts/{script} man/kvcachefs-performance.7 scripts/pictures/{picture}"
