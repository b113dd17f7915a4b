# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""An engine deletes a file that it could not load. If the load failed because a shared tier did not
answer, the name is looked up again after seconds. A file that was deleted for another reason stays
hidden for a day."""
import contextlib, errno, os, sqlite3
from kvtest import KiB, Store, TMP, blob, fails, wait_for

remote, flag = f"{TMP}/remote", f"{TMP}/fails"
os.mkdir(remote)
s = Store("s", size="64M", options=f"settle=0,deadline=3000,disk=off,remote=dir://{remote},"
                                   f"shim=fail-while:{flag}+only:dir").mount()


def gone():
    """Returns until when each deleted name is hidden, in seconds since 1970."""
    with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
        return sorted(row[0] / 1e9 for row in c.execute("SELECT until_ns FROM gone"))


data = {f"m/k{i}": blob(i, 20 * KiB) for i in range(4)}
for path, d in data.items():
    s.write(path, d)
for path in data:
    wait_for(lambda: "dir" in s.attr(path, "tiers").split(","))
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    assert s.attr(path, "state") == "lower"
with open(flag, "w"):
    pass
for path in ("m/k0", "m/k1"):
    with fails(errno.ENOENT):
        s.read(path)
    os.unlink(f"{s.mnt}/{path}")  # the engine's reaction
os.unlink(flag)
wait_for(lambda: s.stats()["tier_dir_up"] == 1)


def again():
    try:
        return s.read("m/k2") == data["m/k2"]
    except FileNotFoundError:
        return False


wait_for(again, every=0.2)
os.unlink(f"{s.mnt}/m/k3")
wait_for(lambda: not s.stats()["catalog_pending_bytes"])
s.umount()
soon = gone()
assert len(soon) == 3 and soon[1] - soon[0] < 3600, soon
assert soon[2] - soon[1] > 20 * 3600, soon
# Once that time is over, a node finds them again by their names.
with contextlib.closing(sqlite3.connect(f"{s.path}/catalog.sqlite")) as c:
    c.execute("UPDATE gone SET until_ns = until_ns - 20000000000")
    c.commit()
s.options = f"settle=0,disk=off,remote=dir://{remote}"
s.mount()
for path in ("m/k0", "m/k1"):
    assert s.read(path) == data[path], path
assert not os.path.exists(f"{s.mnt}/m/k3")
s.umount()
