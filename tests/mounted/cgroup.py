# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""A writer in a memory cgroup of 64 MiB stores 200 MiB and lives: prepared pages are the
daemon's."""
import os, sys
from kvtest import *

need_mount()
v2 = "/sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else None
root = v2 or "/sys/fs/cgroup/memory"
group = f"{root}/kvt-{os.getpid()}"
try:
    os.mkdir(group)
    with open(f"{group}/" + ("memory.max" if v2 else "memory.limit_in_bytes"), "w") as f:
        f.write(str(64 * MiB))
except OSError as e:
    if os.path.isdir(group):
        os.rmdir(group)
    skip(f"no memory cgroup can be made: {e}")
try:
    s = Store(cpu="256M", size="512M").mount()
    s.write("m/c/first", bytes(2 * MiB))
    s.settle()
    pid = os.fork()
    if not pid:
        with open(f"{group}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
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
finally:
    os.rmdir(group)
