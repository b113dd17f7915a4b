# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Names change, a rekey begins to walk the placements in the catalog, and the daemon is killed a
moment later. Each name is in its old or new place, with all of its rows. A wrong walk could commit
names before their rows."""
import ctypes, errno, os, time
from kvtest import *

libc = ctypes.CDLL(None, use_errno=True)
keys = f"{TMP}/keys"
run(binary("kvcachectl"), "newkey", keys, ok=True)
for turn in range(6):
    s = Store(f"s{turn}", size="32M", cpu="16M",
              options=f"settle=0,commit=40,keyfile={keys}").mount()
    os.makedirs(f"{s.mnt}/m")
    s.write("m/other", blob(1, 5000))
    fd = os.open(f"{s.mnt}/m", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, blob(2, 10000))
    os.fsync(fd)
    s.settle(still_open=1)
    s.committed(still_open=1)
    control = os.open(f"{s.mnt}/.kvcachefs/control", os.O_WRONLY)
    assert not libc.linkat(fd, b"", -100, f"{s.mnt}/m/named".encode(), 0x1000)
    os.mkdir(f"{s.mnt}/m/folder")
    os.rename(f"{s.mnt}/m/other", f"{s.mnt}/m/folder/moved")
    s.write("m/new", blob(3, 5000))  # the walk must see its placement
    while s.attr("m/new", "tiers") != "cpu,disk":
        pass
    os.write(control, b"rekey\n")
    time.sleep(0.001 * turn)
    s.kill()
    for d in (fd, control):
        with contextlib.suppress(OSError):
            os.close(d)
    run("umount", "-l", s.mnt)
    s.fsck("-n")
    s.mount()
    there = {p for p in ("m/other", "m/folder/moved") if os.path.exists(f"{s.mnt}/{p}")}
    assert len(there) == 1, (turn, there)
    assert s.read(there.pop()) == blob(1, 5000)
    if os.path.exists(f"{s.mnt}/m/named"):
        assert os.stat(f"{s.mnt}/m/named").st_nlink == 1
        assert s.read("m/named") == blob(2, 10000)
    s.umount()
    s.fsck("-n")
