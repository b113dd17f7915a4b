# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""Memory cgroups: a writer in a cgroup of 64 MiB can store 200 MiB, because preallocated pages are
charged to the daemon. A mount refuses a pool that exceeds its daemon's cgroup. If another
process has used most of that cgroup, prefault= stops before the kernel kills anything. The sizes
of a cgroup in kvcachefs-sizing(7) are enough for the pool, the default of memory= and 192M."""
import os, subprocess, sys
from kvtest import *
from cgroups import *

need_mount()

# a writer
with memory_group(64 * MiB) as group:
    s = Store(cpu="256M", size="512M").mount()
    s.write("m/c/first", bytes(2 * MiB))
    s.settle()
    pid = os.fork()
    if not pid:
        move(group)
        data = bytes(2 * MiB)
        for i in range(100):
            with open(f"{s.mnt}/m/c/l{i}", "wb", buffering=0) as f:
                assert f.write(data) == len(data)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the writer ended with status {status}"
    s.settle()
    assert len(os.listdir(f"{s.mnt}/m/c")) == 101 and s.stats()["room_refusals"] == 0
    s.umount()

# a pool that exceeds the cgroup
with memory_group(48 * MiB) as group:
    p = subprocess.run([binary("kvcachefs"), s.path, s.mnt, "-f", "-o", f"cpu=64M,run={TMP}/run"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, preexec_fn=lambda: move(group), timeout=HANG)
    assert p.returncode == 1 and "memory cgroup allows (48.0 MiB)" in p.stdout, p

# a pool that the cgroup allows, while another process uses most of its memory
left = 192 * MiB * (1 if MODE in ("release", "debug") else 4)
pool, back = 3 * left, home()
with memory_group(pool + left) as group:
    ballast = None
    try:
        move(group)
        ballast = subprocess.Popen([sys.executable, "-c", f"x = b'x' * {pool}; "
                                    "print(1, flush=True); input()"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        ballast.stdout.read(1)
        s.mount("prefault=on", cpu=str(pool))
        move(back)
        wait_for(lambda: "ended early: memory gets short" in s.config()["prefault_is"])
        st = s.stats()
        assert st["prefault_held"] == 0 and st["prefault_bytes"] < st["prefault_total"], st
        s.write("m/after", blob(9, MiB))
        assert s.read("m/after") == blob(9, MiB)
        s.umount()
    finally:
        move(back)
        if ballast:
            ballast.kill()
            ballast.wait()

# the sizes without the option memory=, with as many remotes as a mount can have
with open(f"{TMP}/peer-secret", "w") as f:
    os.fchmod(f.fileno(), 0o600)
    f.write("0123456789abcdef\n")
remotes = [f"remote=dir://{TMP}/remote{i}" for i in range(3)]
for i in range(3):
    os.mkdir(f"{TMP}/remote{i}")
peers = f"peer_listen=127.0.0.1:0,peer_secret={TMP}/peer-secret"
rules = [(768, remotes), (768, [peers, *remotes])]
if WAY == "fast":
    rules += [(512, remotes), (768, ["passthrough=off", *remotes])]
for more, options in rules:
    if os.sysconf("SC_NPROCESSORS_CONF") > 128:
        break  # the queues are larger
    limit = 64 * MiB + more * MiB
    with memory_group(limit) as group:
        try:
            move(group)
            s.mount(",".join(options), cpu="64M")
        finally:
            move(back)
        st = s.stats()
        used = st["pool_bytes"] + st["memory_bytes"] + 192 * MiB
        assert used <= limit, (more, options, st["memory_bytes"], st["memory_fixed_bytes"])
        assert st["memory_bytes"] - st["memory_fixed_bytes"] == max(128, more // 4) * MiB, st
        s.umount()
