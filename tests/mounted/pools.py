# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Two stores never share a pool: a copy of a store, which has its uuid, gets one of its own, and
what was in the original's pool alone is cleanly gone there. Pools of dead daemons and of stores
that are no more are told by kvcachectl pools, and freed by it and by mkfs --force."""
import os, shutil
from kvtest import *

CTL = binary("kvcachectl")
N = 300000
RUN = f"{TMP}/run"


def pools(*words):
    return {l.split()[0]: l for l in run(CTL, "pools", *words).stdout.splitlines()
            if l.startswith(RUN)}


# the original: some files are on its disk, later ones only in the pool when its daemon dies
a = Store("a", cpu="32M", size="24M").mount()
for i in range(4):
    a.write(f"m/old{i}", blob(f"old{i}", N))
a.settle()
time.sleep(0.3)
a.umount()
a.mount(options="settle=60000")
for i in range(4):
    a.write(f"m/late{i}", blob(f"late{i}", N))
    a.write(f"m/old{i}", blob(f"newer{i}", N))
time.sleep(0.5)
a.kill()
run("umount", "-l", a.mnt)
assert len(pools()) == 1 and "kept for the store" in list(pools().values())[0], pools()

# its copy, mounted beside what the original has left
b = Store("b", cpu="32M", make=False)
run("cp", "-a", a.path, b.path, ok=True)
b.mount()
assert "is a copy of the one at" in b.log() and b.log().count("is a copy") == 1, b.log()
for i in range(4):
    assert not os.path.exists(f"{b.mnt}/m/late{i}")
    if os.path.exists(f"{b.mnt}/m/old{i}"):
        assert b.read(f"m/old{i}") in (blob(f"old{i}", N), blob(f"newer{i}", N))
for i in range(4):
    b.write(f"m/late{i}", blob(f"of b {i}", N))
# and the original, at the same time: all that was acknowledged is there
a.mount()
for i in range(4):
    assert a.read(f"m/late{i}") == blob(f"late{i}", N), i
    assert a.read(f"m/old{i}") == blob(f"newer{i}", N), i
    assert b.read(f"m/late{i}") == blob(f"of b {i}", N), i
assert a.config()["pool"] != b.config()["pool"]
assert all("in use" in l for l in pools().values()) and len(pools()) == 2, pools()
# each finds its own again, in whatever order, also after it was moved within its filesystem
a.settle(), b.settle()
for s in (a, b):
    s.umount()
    s.mount(options="settle=60000")
    s.write("m/only", blob(f"only {s.path}", N))
    time.sleep(0.5)
    s.kill()
    run("umount", "-l", s.mnt)
os.rename(b.path, f"{TMP}/moved")
b.path = f"{TMP}/moved"
b.mount()
assert b.read("m/only") == blob(f"only {TMP}/b", N)
a.mount()
assert a.read("m/only") == blob(f"only {TMP}/a", N)
# nobody takes what is in use
held = a.config()["pool"]
p = run(CTL, "pools", "--free", held)
assert p.returncode and "not freed" in p.stdout and a.read("m/only"), p.stdout
b.umount()
assert list(pools()) == [held], pools()

# a store that is no more
a.write("m/x", blob("x", N))
a.kill()
run("umount", "-l", a.mnt)
run(CTL, "pools", "--free", ok=True)
assert list(pools()) == [held], "a pool is freed that its store wants"
shutil.rmtree(a.path)
line = pools()[held]
assert "of no store" in line and a.path in line and "iB of" in line, line
assert run(CTL, "pools", "--free", ok=True).stdout.count(f"{held} ") == 1
assert not pools() and not os.path.exists(held)

# a store that is made anew
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

# a folder that is not there
p = run(CTL, "pools", f"{TMP}/nowhere")
assert p.returncode and "nowhere" in p.stdout, p
