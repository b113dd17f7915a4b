# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Every example that kvcachectl COMMAND --help prints works as it is printed. The case gives it the
mount, the models and the files that its words name, runs it with a shell, and ends it if it would
run for minutes or until a signal."""
import os, re, signal, subprocess, threading
from kvtest import *
import nodes, servers

CTL = binary("kvcachectl")
# what differs here from the words of the examples
PLACES = [("/mnt/kv", "MNT"), ("/etc/kvcachefs/keys", f"{TMP}/new.keys"),
          ("tcp://*:5557", "tcp://127.0.0.1:*"),
          ("/usr/local/lib/kvtier/folder.py", servers.Program("folder.py").path),
          ("/srv/values", os.path.dirname(servers.Program("folder.py").path))]
# examples that run until a signal, or for minutes: they are ended after this output
UNTIL = {"top /mnt/kv": "(all)", "top --sort found --interval 5s --count 12 --json": '"models"',
         "lease /mnt/kv/llama-70b/chunk-1": "chunk-1",
         "lease --wait 30s /mnt/kv m/chunk-1/layer": "chunk-1",
         "events --for 1m /mnt/kv": '"',
         "events --zmq 'tcp://*:5557' --tokens 256 /mnt/kv": None,
         "doctor --for 10m --json /mnt/kv": None,
         "trace -o trace.jsonl /mnt/kv": None, "trace --for 10m /mnt/kv > trace.jsonl": None}
CHUNKS = ("llama-70b/chunk-1", "llama-70b/chunk-9", "llama-70b/system-prompt", "m/chunk-1",
          "m/chunk-2", "old-model/c", "acme/c")

here = f"{TMP}/cwd"
os.mkdir(here)
with open(f"{TMP}/mount.keys", "w") as f:
    f.write("1 " + "5a" * 32 + "\n")
os.chmod(f"{TMP}/mount.keys", 0o600)
os.mkdir(f"{TMP}/shared")
s = Store(options=f"settle=0,keyfile={TMP}/mount.keys,remote=dir://{TMP}/shared").mount()
peer, = nodes.make("self", 1)  # a node that is its own peer
peer.options = peer.options.split(",remote=")[0] + ",remote=" + nodes.url([nodes.local(peer.port)],
                                                                          peer.secret)
PLACES.append(("b:9465", nodes.local(peer.port)))
names = re.findall(r"^  ([a-z-]+)(?: |$)", run(CTL, "--help", ok=True).stdout, re.M)
examples = []
names = [n for n in names if n not in ("add", "remove", "grow")]  # need devices; see their cases
for name in names:
    found = re.findall(r"^  kvcachectl (.*)$", run(CTL, name, "--help", ok=True).stdout, re.M)
    assert len(found) == 2, (name, found)
    examples += found
assert set(UNTIL) <= set(examples), set(UNTIL) - set(examples)


def prepare(example):
    """Makes what the example names. Earlier examples may have dropped or changed it."""
    for c in CHUNKS:
        if not os.path.exists(f"{s.mnt}/{c}/layer"):
            s.write(f"{c}/layer", blob(c, 20000))
    s.settle()
    if "acme" in example:
        run(CTL, "tenant", "acme", s.mnt, ok=True)
    if example.startswith("codec"):
        with open(f"{here}/chunk.bin", "wb") as f:  # the layout of the example
            f.write(bytes(2 * 2 * 64 * 2 * 64 * 2))
    if example.startswith(("replay", "hash")):
        with open(f"{here}/trace.jsonl", "w") as f:
            f.write('{"hash_ids": [1, 2, 3]}\n' * 20)
        with open(f"{here}/tokens.txt", "w") as f:
            f.write(" ".join(map(str, range(64))))
    if example.startswith("unpin"):
        run(CTL, "pin", f"{s.mnt}/llama-70b", ok=True)
    if example.startswith("verify --stop"):  # something to stop
        subprocess.Popen([CTL, "verify", "--rate", "1K", s.mnt], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        wait_for(lambda: "verify running" in open(f"{s.mnt}/.kvcachefs/control").read())


def command_of(example):
    mnt = peer.mnt if example.startswith("push") else s.mnt
    for word, place in PLACES:
        example = example.replace(word, mnt if place == "MNT" else place)
    # pools that are here for other reasons are not the example's to free
    hide = "unshare --mount sh -c 'mkdir -p /run/kvcachefs; " \
        'mount -t tmpfs none /run/kvcachefs; exec "$0" "$@"\' '
    return f"exec {hide if example.startswith('pools') else ''}{CTL} {example}"


bad, run_by = [], 0
for example in examples:
    prepare(example)
    if example.startswith("push"):  # not longer, because other examples need a single mount
        peer.mount()
        peer.write("llama-70b/chunk-1/layer", bytes(5000))
    p = subprocess.Popen(["bash", "-c", command_of(example)], cwd=here, text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT,
                         # a shell without job control makes background commands ignore SIGINT
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    watch = threading.Timer(HANG, p.kill)
    watch.start()
    try:
        if example in UNTIL and UNTIL[example] is not None:
            out = ""
            if example.startswith("events"):
                time.sleep(1)  # it prints events from its start on
                s.write("llama-70b/event/layer", blob(0, 20000))
            while UNTIL[example] not in out and (more := p.stdout.readline()):
                out += more
        elif example in UNTIL:  # prints nothing, or to a file, until it is ended
            out = ""
            time.sleep(1)
            assert p.poll() is None, p.stdout.read()
        if example in UNTIL:
            p.send_signal(signal.SIGINT)
            p.communicate(timeout=HANG)
            ended = p.returncode in (0, -signal.SIGINT, 130)
            good = ended and (UNTIL[example] is None or UNTIL[example] in out)
        else:
            out, _ = p.communicate(timeout=HANG)
            good = p.returncode == 0
    finally:
        watch.cancel()
        p.kill()
    run_by += 1
    if example.startswith("push"):
        peer.umount()
    if not good or not example.startswith("help") and (
            "usage" in out or re.search("see kvcachectl .*--help", out)):
        bad.append(f"kvcachectl {example}: {p.returncode} {out[-300:]}")
# the same for the tools that make and check stores, with a size and devices for this machine
for tool in ("mkfs.kvcachefs", "fsck.kvcachefs"):
    found = re.findall(rf"^  {tool} (.*)$", run(binary(tool), "--help", ok=True).stdout, re.M)
    assert len(found) == 2, (tool, found)
    for i, example in enumerate(found):
        words = example.replace("200G", "64M").replace("/var/lib/kvcache", f"{TMP}/made{i}")
        if "--device" in words:
            words = "--size 64M " + words.replace("--device /dev/", f"--file {TMP}/")
        p = run("sh", "-c", f"{binary(tool)} {words}")
        if p.returncode:
            bad.append(f"{tool} {example}: {p.returncode} {p.stdout[-300:]}")
assert not bad, "\n".join(bad)
assert run_by == 2 * len(names), run_by
assert os.path.getsize(f"{here}/chart.svg") and os.path.exists(f"{here}/bug.tar")
assert os.path.exists(f"{TMP}/new.keys")
s.umount()
