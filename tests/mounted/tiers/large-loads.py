# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Large objects, plain and sealed, whose pieces are read from the disk tier by several threads. If
the read of a piece fails, is short or finds a changed byte, the content is still right: it comes
from a shared tier. A changed byte is counted, and the copy in the disk tier is made again."""
import contextlib, os, secrets, sqlite3
from kvtest import *
import faults

SIZES = (4 * MiB, 4 * MiB + 1, 6 * MiB - 4096, 5 * MiB + 12345)
PIECES = 6
with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write("1 " + secrets.token_hex(32) + "\n")


def again(s, *rules):
    """Mounts it without the content of the pool."""
    s.settle()
    s.umount()
    s.drop_pool()
    r = faults.Rules(*rules)
    assert r.mount(s)
    return r


def flip(s, name, off):
    """Changes a byte of the payload of an unmounted store."""
    with contextlib.closing(sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro",
                                            uri=True)) as c:
        (at,), = c.execute("SELECT at FROM placements JOIN names USING(ino) "
                           "WHERE tier = 0 AND name = ?", (name,))
    with open(f"{s.path}/data", "r+b") as f:
        f.seek(at + 4096 + off)
        old = f.read(1)
        f.seek(at + 4096 + off)
        f.write(bytes([old[0] ^ 16]))


for kind, extra in ("plain", ""), ("sealed", f",keyfile={TMP}/keys"):
    top = faults.in_memory(kind)
    os.mkdir(f"{top}/remote")
    s = faults.store_in_memory(top, size="192M", cpu="128M", options=(
        f"settle=0,unit=file,remote=dir://{top}/remote{extra}"))
    READS = f"calls=read path={s.path}/data* nth={faults.FAR}"
    s.mount()
    content = {f"f{i}": blob(f"{kind}{i}", size) for i, size in enumerate(SIZES)}
    for name, data in content.items():
        s.write(f"m/{name}", data)
    s.settle()
    wait_for(lambda: all(s.attr(f"m/{name}", "tiers") == "cpu,disk,dir" for name in content))

    again(s)
    for name, data in content.items():
        assert s.read(f"m/{name}") == data, name
    st = s.stats()
    assert st["loads"] == len(SIZES) and not st["corrupt"] and not st["load_failures"], st

    r = again(s, f"{READS} count={faults.FAR} do=short")
    r.begin()
    for name, data in content.items():
        assert s.read(f"m/{name}") == data, name
    assert r.fired()[0] >= sum(size // MiB for size in SIZES), r.fired()
    assert not s.stats()["corrupt"]

    # one read fails, and the other tier serves the object
    fired = 0
    for piece in range(PIECES + 2):
        r = again(s, f"{READS} count=1 do=EIO")
        r.begin(after=piece)
        assert s.read("m/f3") == content["f3"], piece
        assert not s.stats()["corrupt"], piece
        fired += r.fired()[0]
    assert fired >= PIECES, fired

    # a byte at the beginning, in the middle or at the end of a piece has changed
    for n, off in enumerate([0, MiB - 1, MiB, 2 * MiB + 777, 4 * MiB - 1, 5 * MiB,
                             SIZES[3] - 1]):
        s.settle()
        s.umount()
        s.drop_pool()
        flip(s, "f3", off)
        s.mount()
        assert s.read("m/f3") == content["f3"], off
        assert s.stats()["corrupt"] == 1, off
        s.settle()
        wait_for(lambda: s.attr("m/f3", "tiers") == "cpu,disk,dir")
    again(s)
    for name, data in content.items():
        assert s.read(f"m/{name}") == data, name
    assert not s.stats()["corrupt"]
    s.umount()
    s.fsck("-n", "--data")
