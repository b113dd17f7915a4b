# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A deleted name is remembered while other nodes may have it, and uses no memory afterwards. A name
that no shared tier ever had leaves nothing behind."""
import os, sqlite3, time
from kvtest import *


def gone(s):
    with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
        # the search for expired names (once a second) visits no other names
        for query in ("SELECT min(until_ns) FROM gone", "DELETE FROM gone WHERE until_ns <= 1"):
            (plan,) = c.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
            assert "INDEX gone_until" in plan[-1], plan
        return c.execute("SELECT count(*) FROM gone").fetchone()[0]


os.mkdir(f"{TMP}/remote")
s = Store("s", options=f"remote=dir://{TMP}/remote,settle=60000").mount()
for n in range(50):  # as engines write: under a temporary name, then under the final one
    s.write(f"m/c{n % 5}/t{n}.tmp", blob(n, 9000))
    os.rename(f"{s.mnt}/m/c{n % 5}/t{n}.tmp", f"{s.mnt}/m/c{n % 5}/t{n}")
    if n % 2:
        os.unlink(f"{s.mnt}/m/c{n % 5}/t{n}")
s.umount()
assert gone(s) == 0, gone(s)
s.options = f"remote=dir://{TMP}/remote,settle=0"
s.mount()
s.settle()
os.unlink(f"{s.mnt}/m/c0/t0")
os.rename(f"{s.mnt}/m/c0/t10", f"{s.mnt}/m/c0/t11")
assert s.read("m/c0/t11") == blob(10, 9000)
for n in (0, 10):
    assert not os.path.exists(f"{s.mnt}/m/c0/t{n}"), n
s.write("m/c0/x", b"x")  # is copied; later y replaces it, and y is deleted before its copy
s.settle()
s.umount()
assert gone(s) == 2, gone(s)
s.options = f"remote=dir://{TMP}/remote,settle=60000"
s.mount()
s.write("m/c0/y", b"y")
os.rename(f"{s.mnt}/m/c0/y", f"{s.mnt}/m/c0/x")
os.unlink(f"{s.mnt}/m/c0/x")
time.sleep(1)
assert not os.path.exists(f"{s.mnt}/m/c0/x")
s.umount()
assert gone(s) == 3, gone(s)
print("ok")
