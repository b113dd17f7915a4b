# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""A mapping of a file in the mount accepts a long-term pin with passthrough, and refuses it without
(EFAULT)."""
from kvtest import *

s = Store().mount()
s.write("m/c/first", blob(0, 2 * MiB))
s.settle()
s.write("m/c/l", blob(1, 2 * MiB))
p = run(binary("test-pin"), f"{s.mnt}/m/c/l")
if s.config()["served_by"] == "passthrough":
    assert p.returncode == 0 and p.stdout == "pinned\n", p.stdout
elif WAY == "fast":
    skip(s.config()["passthrough_is_off"])
else:
    assert p.returncode == 1 and p.stdout in ("EFAULT\n", "EOPNOTSUPP\n"), p.stdout
assert s.read("m/c/l") == blob(1, 2 * MiB)
s.umount()
