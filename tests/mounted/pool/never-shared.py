# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Two stores never share a pool. A copy of a store has the same uuid and gets its own pool; files
that only the original's pool had are cleanly missing there. The same holds for a snapshot of a
mounted store beside the original. kvcachectl pools lists the pools of dead daemons and of removed
stores, and it and mkfs --force can free them."""
import json, os, shutil, signal
from kvtest import *
import faults

CTL = binary("kvcachectl")
N = 300000
RUN = f"{TMP}/run"


def pools(*words):
    return {l.split()[0]: l for l in run(CTL, "pools", *words).stdout.splitlines()
            if l.startswith(RUN)}


def told(path):
    """The entries of this pool in the JSON output."""
    return [p for p in json.loads(run(CTL, "pools", "--json", ok=True).stdout)["pools"]
            if p["path"] == path]


# the original: some files are on its disk, later ones only in the pool when its daemon dies
a = Store("a", cpu="32M", size="24M").mount()
for i in range(4):
    a.write(f"m/old{i}", blob(f"old{i}", N))
a.settle()
a.umount()
a.mount(options="settle=60000")
for i in range(4):
    a.write(f"m/late{i}", blob(f"late{i}", N))
    a.write(f"m/old{i}", blob(f"newer{i}", N))
a.committed()
a.kill()
run("umount", "-l", a.mnt)
assert len(pools()) == 1 and "kept for the store" in list(pools().values())[0], pools()
# the pool has the only copies of acknowledged files: no command frees it
held, = pools()
(p,) = told(held)
assert p["is"] == "kept" and p["store"] == a.path and p["mounted"], p
assert p["objects"] == 8 and 8 * N <= p["bytes"] <= 32 * MiB and 0 <= p["age_s"] < 600, p
assert " 8 objects, last changed " in pools()[held], pools()
for words in ((), ("--yes",)):
    p = run(CTL, "pools", "--free", *words, held)
    assert p.returncode == 1 and "mount and unmount that store" in p.stdout, p
run(CTL, "pools", "--free", "--yes", ok=True)
assert list(pools()) == [held], "a pool is freed that its store needs"

# a copy of the store is mounted while the original's pool still exists
b = Store("b", cpu="32M", make=False)
run("cp", "-a", a.path, b.path, ok=True)
b.mount()
assert "is a copy of the store at" in b.log() and b.log().count("is a copy") == 1, b.log()
for i in range(4):
    assert not os.path.exists(f"{b.mnt}/m/late{i}")
    if os.path.exists(f"{b.mnt}/m/old{i}"):
        assert b.read(f"m/old{i}") in (blob(f"old{i}", N), blob(f"newer{i}", N))
for i in range(4):
    b.write(f"m/late{i}", blob(f"of b {i}", N))
# then the original is mounted too: all acknowledged files are there
a.mount()
for i in range(4):
    assert a.read(f"m/late{i}") == blob(f"late{i}", N), i
    assert a.read(f"m/old{i}") == blob(f"newer{i}", N), i
    assert b.read(f"m/late{i}") == blob(f"of b {i}", N), i
assert a.config()["pool"] != b.config()["pool"]
assert all("in use" in l for l in pools().values()) and len(pools()) == 2, pools()
# each store finds its own pool again, in any order, also after it was moved within its filesystem
a.settle(), b.settle()
for s in (a, b):
    s.umount()
    s.mount(options="settle=60000")
    s.write("m/only", blob(f"only {s.path}", N))
    s.committed()
    s.kill()
    run("umount", "-l", s.mnt)
os.rename(b.path, f"{TMP}/moved")
b.path = f"{TMP}/moved"
b.mount()
assert b.read("m/only") == blob(f"only {TMP}/b", N)
a.mount()
assert a.read("m/only") == blob(f"only {TMP}/a", N)
# no command frees a pool in use
held = a.config()["pool"]
assert told(held)[0]["is"] == "used"
p = run(CTL, "pools", "--free", "--yes", held)
assert p.returncode == 1 and "in use by the daemon" in p.stdout and a.read("m/only"), p.stdout
# nor a pool whose state cannot be determined
p = run(CTL, "pools", "--free", "--yes", held,
        env=faults.environment(f"calls=open path={held}/.store nth=2 do=EMFILE"))
assert p.returncode == 1 and "in use by the daemon" in p.stdout and a.read("m/only"), p.stdout
b.umount()
assert list(pools()) == [held], pools()

# a snapshot of a store in use, including its log, as LVM makes one: the daemon is stopped meanwhile
c = Store("snapshot", cpu="32M", make=False)
o = Store("original", cpu="32M", size="24M", options="settle=0").mount()
for i in range(4):
    o.write(f"m/old{i}", blob(f"old{i}", N))
o.settle()
o.committed()
o.umount()
o.mount(options="settle=60000")
for i in range(4):
    o.write(f"m/pool{i}", blob(f"pool{i}", N))  # no tier has it
    o.write(f"m/old{i}", blob(f"newer{i}", N))
o.committed()
freeze(o.daemon.pid)
try:
    run("cp", "-a", "--reflink=auto", "--sparse=always", o.path, c.path, ok=True)
finally:
    o.daemon.send_signal(signal.SIGCONT)
assert os.path.getsize(f"{c.path}/catalog.sqlite-wal") > 4096
said = len(c.log())
c.mount()
assert c.log()[said:].count("is a copy of the store at") == 1, c.log()[said:]
for turn in range(3):
    assert o.config()["pool"] != c.config()["pool"]
    if not turn:
        for i in range(4):
            assert not os.path.exists(f"{c.mnt}/m/pool{i}"), i
            if os.path.exists(f"{c.mnt}/m/old{i}"):
                assert c.read(f"m/old{i}") in (blob(f"old{i}", N), blob(f"newer{i}", N)), i
        for i in range(4):  # the same paths and inode numbers, different contents
            for x in (o, c):
                x.write(f"m/pool{i}", blob(f"{x.path} {i}", N))
                x.write(f"m/late{i}", blob(f"{x.path} late {i}", N))
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{x.mnt}/m/old{i}")
    for x in (o, c):
        for i in range(4):
            assert x.read(f"m/pool{i}") == blob(f"{x.path} {i}", N), (turn, x.path, i)
            assert x.read(f"m/late{i}") == blob(f"{x.path} late {i}", N), (turn, x.path, i)
            assert not os.path.exists(f"{x.mnt}/m/old{i}"), (turn, x.path, i)
        x.committed()
    if turn == 2:
        break
    for x in (c, o):  # first killed, so that both pools are left; then unmounted
        if turn:
            x.umount()
        else:
            x.kill()
            run("umount", "-l", x.mnt)
    for x in (c, o):
        x.mount(options="settle=60000" if turn == 0 else None)
for x in (o, c):
    x.umount()
    x.fsck("-n", "--data")
assert list(pools()) == [held], pools()

# a store that does not exist any more
a.write("m/x", blob("x", N))
a.kill()
run("umount", "-l", a.mnt)
run(CTL, "pools", "--free", "--yes", ok=True)
assert list(pools()) == [held], "a pool is freed that its store needs"
# a store that is missing, and returns before the question is answered
os.rename(a.path, f"{TMP}/away")
code, seen = asked(b"y\n", CTL, "pools", "--free", held,
                   meanwhile=lambda: os.rename(f"{TMP}/away", a.path))
assert code == 1 and "its store exists again" in seen and list(pools()) == [held], seen
os.rename(a.path, f"{TMP}/away")
code, seen = asked(b"y\n", CTL, "pools", "--free", held,
                   meanwhile=lambda: (os.rename(f"{TMP}/away", a.path), a.mount()))
assert code == 1 and "it is in use" in seen, seen
assert a.read("m/only") == blob(f"only {TMP}/a", N)
a.kill()
run("umount", "-l", a.mnt)
shutil.rmtree(a.path)
line = pools()[held]
assert "its store no longer exists" in line and a.path in line and "iB, " in line, line
assert told(held)[0]["is"] == "free"
# it prints the planned action and asks
p = run(CTL, "pools", "--free", held)
assert p.returncode == 1 and held in p.stdout and "--yes" in p.stdout, p
for answer in (b"n\n", b"\n", b"yess\n"):
    code, seen = asked(answer, CTL, "pools", "--free", held)
    assert code == 1 and a.path in seen and "[y/N]" in seen and "nothing is changed" in seen, seen
assert list(pools()) == [held]
p = run(CTL, "pools", "--free", "--yes", held, f"{RUN}/none")
assert p.returncode == 1 and "none is not a pool" in p.stdout and list(pools()) == [held], p
code, seen = asked(b"y\n", CTL, "pools", "--free", held)
assert code == 0 and f"{held} freed" in seen, (code, seen)
assert not pools() and not os.path.exists(held)
p = run(CTL, "pools", "--free", held)
assert p.returncode == 1 and "is not a pool" in p.stdout, p
# --yes asks no question
d = Store("d", cpu="32M", size="24M").mount(options="settle=60000")
d.write("m/x", blob("x", N))
held = d.config()["pool"]
d.kill()
run("umount", "-l", d.mnt)
shutil.rmtree(d.path)
p = run(CTL, "pools", "--yes", held, "--free", ok=True)
assert p.stdout.count(f"{held} ") == 2 and not os.path.exists(held), p

# pools without a tmpfs of their own, in several folders, are freed if they are named
d = Store("d", cpu="32M", size="24M").mount(options="settle=60000")
held = d.config()["pool"]
copies = [f"{RUN}/apart{i}/pool" for i in range(2)]
for path in copies:
    os.mkdir(os.path.dirname(path))
    shutil.copytree(held, path)
d.umount()
shutil.rmtree(d.path)
run(CTL, "pools", "--free", "--yes", ok=True)
assert all(os.path.exists(p) for p in copies)
run(CTL, "pools", "--free", "--yes", *copies, ok=True)
assert not any(os.path.exists(p) for p in copies) and not pools()

# a store that is created again
c = Store("c", cpu="32M", size="24M").mount(options="settle=60000")
c.write("m/x", blob("x", N))
held = c.config()["pool"]
c.kill()
run("umount", "-l", c.mnt)
p = run(binary("mkfs.kvcachefs"), "--force", "--size", "24M", c.path, ok=True)
assert "is freed" in p.stdout and not pools() and not os.path.exists(held), p.stdout
c.mount()
assert os.listdir(c.mnt) == []
c.umount()
assert not pools()

# a folder that does not exist
p = run(CTL, "pools", f"{TMP}/nowhere")
assert p.returncode == 1 and "nowhere" in p.stdout, p
# arguments that do not go together
for words in ((TMP, TMP), ("--yes",), ("--free", "--json"), ("--fre",), ("--free=1",), ("-f",)):
    p = run(CTL, "pools", *words)
    assert p.returncode == 2 and p.stdout.count("\n") == 1 and "--help" in p.stdout, p
