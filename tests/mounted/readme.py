# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""What README.md tells to type works: its blocks of commands run, on folders of the case, and its
session prints what it shows; the pages, files, targets and options that it names are there, and the
picture is drawn from its table."""
import os, re, shlex
from kvtest import *

need_mount()
TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
text = open(f"{TOP}/README.md").read()
os.environ["PATH"] = f"{BUILD}/bin:{os.environ['PATH']}"
MNT = f"{TMP}/mnt"
# sizes that any machine has, and folders that are the case's own
HERE = [("/srv/kv", f"{TMP}/session"), ("/var/lib/kvcache", f"{TMP}/store"), ("/mnt/kv", MNT),
        ("/etc/kvcachefs.keys", f"{TMP}/keys"), ("redis://cache:6379/kv", f"dir://{TMP}/dir"),
        ("-o cpu=", f"-o run={TMP}/run,cpu="), ("200G", "64M"), ("64G", "32M"), ("=1G", "=128M"),
        ("--size 4G", "--size 256M"), ("head -c 2M", "head -c 1M")]
os.mkdir(f"{TMP}/dir")


def here(command):
    for a, b in HERE:
        command = command.replace(a, b)
    return command


def alike(output):
    """Without what differs from machine to machine, and from day to day."""
    output = re.sub(r"^kvcachefs: prefault.*\n", "", output, flags=re.M)
    for a, b in HERE[:3]:
        output = output.replace(b, a)
    # a killed daemon's mount says one of these, by where the call was
    output = re.sub("Software caused connection abort|Operation canceled",
                    "Transport endpoint is not connected", output)
    output = re.sub(r"\b[0-9a-f-]{32,40}\b", "HASH", output)
    output = re.sub(r"\d+(\.\d+)?( [KMG]iB|[KMG%]| s)?", "N", output)
    return re.sub(r" +", " ", output)


# the session
session = re.search(r"^```console\n(.*?)^```", text, re.M | re.S).group(1)
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
engines = open(f"{TOP}/man/kvcachefs-engines.7").read().replace("\\-", "-").replace("\\e", "\\")
blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
tried = 0
for block in blocks:
    if block.split()[0] in ("vllm", "PYTHONHASHSEED=0"):
        assert block.strip() in engines, block
        continue
    if "kvcachectl pin" in block:
        os.makedirs(f"{MNT}/MODEL/CHUNK")
        with open(f"{MNT}/MODEL/CHUNK/layer", "wb") as f:
            f.write(bytes(100000))
    if "newkey" in block:
        run("umount", MNT, ok=True)
    for command in block.replace("\\\n", " ").splitlines():
        if command.startswith("make"):
            continue
        if command.startswith("echo Y"):
            assert command.split(" > ")[1] in open(f"{TOP}/man/kvcachefs.8").read()
            continue
        extra = "--yes " if "kvcachectl quota" in command else ""  # nobody is at a terminal here
        p = run("bash", "-c", here(command).replace("quota ", "quota " + extra))
        assert p.returncode == 0, (command, p)
        tried += 1
assert tried >= 9, tried
run("umount", MNT, ok=True)

# what it names
makefile = open(f"{TOP}/Makefile").read()
for target in set(re.findall(r"(?:`|^|&& )make (?:MODE=\w+ )?([a-z][a-z-]*)", text, re.M)):
    assert re.search(rf"^(\.PHONY:.*\s)?{target}[:\s]", makefile, re.M), f"make {target}"
for page, n in re.findall(r"\b([a-z.]*kvcachef?s?[a-z.-]*)\((\d)\)", text):
    assert os.path.exists(f"{TOP}/man/{page}.{n}"), f"{page}({n})"
for path in re.findall(r"\]\(([^)]+)\)|`((?:scripts|man|tests)/[^` ]*)`", text):
    path = path[0] or path[1]
    assert os.path.exists(f"{TOP}/{path}"), path
known = " ".join(run(binary(p), "--help").stdout for p in (
    "kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "kvcachectl"))
for option in re.findall(r"-o ([a-z_]+)=", text) + re.findall(r",([a-z_]+)=", text) + re.findall(
        r"`([a-z_]+)=", text):
    if option in known or option.isupper():
        assert re.search(rf"^  {option}(=| )", known, re.M), option
for word in re.findall(r"`([a-z]+)`", text.split("### Day to day")[1].split("###")[0]):
    assert re.search(rf"^  {word} ", known, re.M), f"kvcachectl {word}"
run(f"{TOP}/scripts/bench-picture", f"{TOP}/README.md", f"{TMP}/speed.svg", ok=True)
assert open(f"{TMP}/speed.svg").read() == open(f"{TOP}/scripts/pictures/speed.svg").read(), \
    "scripts/bench-picture README.md scripts/pictures/speed.svg draws it anew"
