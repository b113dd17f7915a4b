# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup for a case. If none can be created, the case is skipped."""
import contextlib, os
from kvtest import skip

V2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
ROOT = "/sys/fs/cgroup" if V2 else "/sys/fs/cgroup/memory"


def move(group):
    """Moves this process into the cgroup."""
    with open(f"{group}/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))


def home():
    """The cgroup of this process."""
    with open("/proc/self/cgroup") as f:
        return ROOT + next(l.strip().split(":", 2)[2] for l in f
                           if l.split(":")[1] == ("" if V2 else "memory"))


@contextlib.contextmanager
def memory_group(limit):
    """Yields the folder of a new memory cgroup. All processes must have left it at the end."""
    group = f"{ROOT}/kvt-{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError as e:
        skip(f"no memory cgroup can be made: {e}")
    try:
        try:  # the file is missing if the folder is not a cgroup
            with open(f"{group}/" + ("memory.max" if V2 else "memory.limit_in_bytes"), "r+") as f:
                f.write(str(limit))
        except OSError as e:
            skip(f"no memory cgroup can be made: {e}")
        yield group
    finally:
        os.rmdir(group)
