# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""If a name server never answers, a remote whose host is a name causes misses, and neither a mount
nor an unmount waits for the name server."""
from kvtest import *


def part(name, remote):
    s = Store(name, options=f"settle=0,deadline=2000,remote={remote}")
    os.environ.update(LD_PRELOAD=f"{BUILD}/lib/names.so", AWS_ACCESS_KEY_ID="id",
                      AWS_SECRET_ACCESS_KEY="secret")
    try:
        s.mount()
    finally:
        del os.environ["LD_PRELOAD"]
    s.write("m/f", b"x")
    with fails(errno.ENOENT):
        s.read("m/none")
    s.umount()  # waits for the daemon's end, for 60 s


beside([(part, scheme.split(":")[0].replace("+", "-"), scheme)
        for scheme in ("redis://cache.example.internal:6379/kv",
                       "redis+cluster://cache.example.internal:6379/kv",
                       "s3://b/kv?endpoint=http://s3.example.internal:9000")])
