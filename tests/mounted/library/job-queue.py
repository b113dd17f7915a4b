# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""libkvcachefs's queue on a real mount: stores and loads layer by layer, from the pool and from a
tier; prefixes, plain buffers, and a limited number of kept mappings; a killed daemon. The unit test
covers the queue's states, and tests/tools/gpu_queue.cuh its order on a device."""
import os, subprocess
from kvtest import *

s = Store(size="256M", cpu="64M", options="settle=20").mount()


def tool(*args):
    p = run(binary("test-queue"), *args)
    assert p.returncode == 0, p.stdout
    return p.stdout


assert "fine" in tool("more", s.mnt)
tool("load", s.mnt)
p = run(f"{BUILD}/bin/example_layers", s.mnt)
assert p.returncode == 0 and "the same" in p.stdout, p.stdout
assert run(f"{BUILD}/bin/example_layers", "/nonexistent").returncode == 1
assert not [f for _, _, files in os.walk(s.mnt) for f in files if ".tmp." in f], \
    "a temporary file is left"
# evicted to the tier: still a prefix, and loaded step by step
keys = [f"q/chunk{c}/l{l}" for c in range(4) for l in range(4)]


def evict():
    """Asks for it: a full pool may keep these chunks, which were used more often than others."""
    s.settle()
    for key in keys:
        os.setxattr(f"{s.mnt}/{key}", "user.kvcachefs.demote", b"cpu")
    wait_for(lambda: all(s.attr(key, "state") == "lower" for key in keys))


evict()
os.unlink(f"{s.mnt}/{keys[9]}")
assert tool("prefix", s.mnt, *keys).split() == ["9", "9", "9"]
assert tool("prefix", s.mnt, keys[9], *keys).split() == ["0", "0", "0"]
tool("store", s.mnt)
evict()
tool("load", s.mnt)
# a daemon that is killed while a program goes on
p = subprocess.Popen([binary("test-queue"), "dead", s.mnt], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, text=True)
assert p.stdout.readline() == "ready\n"
s.kill()
out, _ = p.communicate("go\n", timeout=HANG)
assert p.returncode == 0 and "fine" in out, out
run("umount", "-l", s.mnt, ok=True)
s.mount()
tool("load", s.mnt)
s.umount()
s.fsck()
