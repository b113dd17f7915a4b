# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Large objects with a codec, clear and sealed. Several threads read their blocks from the disk and
decode them, to the same bytes as those of the copy in a shared tier, which one thread decodes.
If a read fails or finds a changed byte, the object comes from that tier. Without that tier, a
damaged block is an error of its file only. A file that is deleted while it is loaded, and a kill of
the daemon at that time, do no harm."""
import contextlib, os, shutil, sqlite3, threading
from kvdata import LAYOUT, error, kv
from kvtest import *
import faults

SIZES = {"f0": 4 * MiB, "f1": 4 * MiB + 1, "f2": 7 * MiB + 12345}
BIG = "f2"
SEALED = f",keyfile={TMP}/keys"
run(binary("kvcachectl"), "newkey", f"{TMP}/keys", ok=True)


def again(s, *rules):
    """Mounts it without the content of the pool."""
    s.settle()
    s.umount()
    s.drop_pool()
    r = faults.Rules(*rules)
    assert r.mount(s)
    return r


def flip(s, name, off):
    """Changes a byte of the payload of an unmounted store; off < 0 counts from its end, and a
    float is a fraction of its length."""
    with contextlib.closing(sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro",
                                            uri=True)) as c:
        (at, length), = c.execute("SELECT at, len FROM placements JOIN names USING(ino) "
                                  "WHERE tier = 0 AND name = ?", (name,))
    length -= 4096
    off = int(off * length) if isinstance(off, float) else off
    at += 4096 + (off if off >= 0 else length + off)
    with open(f"{s.path}/data", "r+b") as f:
        f.seek(at)
        old = f.read(1)
        f.seek(at)
        f.write(bytes([old[0] ^ 16]))


def reading(s, rule, *names):
    """Starts to read files, and returns when the daemon reads one of them from the disk."""
    found = {}

    def one(name):
        try:
            found[name] = s.read(f"m/{name}")
        except OSError as e:
            found[name] = e

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in names]
    rule.begin()
    for t in threads:
        t.start()
    wait_for(lambda: rule.fired()[0])
    return threads, found


for codec, extra in ("zstd", ""), ("bf16+zstd", ""), ("bf16+zstd", SEALED), ("kvq-mid", SEALED):
    kind = codec + extra[:4].replace(",", "-")
    top = faults.in_memory(kind)
    os.mkdir(f"{top}/remote")
    s = faults.store_in_memory(top, size="192M", cpu="128M", options=(
        f"settle=0,unit=file,remote=dir://{top}/remote,compress={codec}{extra}"))
    READS = f"calls=read path={s.path}/data* nth={faults.FAR}"
    s.mount()
    os.mkdir(f"{s.mnt}/m")
    os.setxattr(f"{s.mnt}/m", "user.kvcachefs.layout", LAYOUT.encode())
    content = {name: kv(i, size) for i, (name, size) in enumerate(SIZES.items())}
    for name, data in content.items():
        s.write(f"m/{name}", data)
    s.settle()
    wait_for(lambda: all(s.attr(f"m/{n}", "tiers") == "cpu,disk,dir" for n in content))

    # the disk fails: one thread decodes the copies of the shared tier
    r = again(s, f"{READS} count={faults.FAR} do=EIO")
    r.begin()
    alone = {name: s.read(f"m/{name}") for name in content}
    if "kvq" in codec:
        assert all(0 < error(content[n], alone[n]) < 0.1 for n in content)
    else:
        assert alone == content
    assert r.fired()[0] >= 1
    r.heal()

    again(s)
    for name, data in alone.items():
        assert s.read(f"m/{name}") == data, name
    st = s.stats()
    assert st["loads"] == len(SIZES) and not st["corrupt"] and not st["load_failures"], st
    r = again(s, f"{READS} count={faults.FAR} do=short")
    r.begin()
    assert s.read(f"m/{BIG}") == alone[BIG] and r.fired()[0] >= 8 and not s.stats()["corrupt"]

    # one read fails: the header, the table and blocks
    for n in 0, 1, 2, 6:
        r = again(s, f"{READS} count=1 do=EIO")
        r.begin(after=n)
        assert s.read(f"m/{BIG}") == alone[BIG] and r.fired()[0], n
        assert not s.stats()["corrupt"], n
    # a changed byte in the first, a later and the last block, and in the table
    for off in 0, .4, -4096 - 4096, -4096:
        s.settle()
        s.umount()
        s.drop_pool()
        flip(s, BIG, off)
        s.mount()
        assert s.read(f"m/{BIG}") == alone[BIG], off
        assert s.stats()["corrupt"] == 1, off
        s.settle()
        wait_for(lambda: s.attr(f"m/{BIG}", "tiers") == "cpu,disk,dir")

    # deleted, and the daemon killed, while blocks are read
    r = again(s, f"{READS} count={faults.FAR} do=hold")
    threads, found = reading(s, r, *SIZES)
    os.unlink(f"{s.mnt}/m/f1")
    r.heal()
    for t in threads:
        t.join()
    assert found["f0"] == alone["f0"] and found[BIG] == alone[BIG], found.keys()
    assert found["f1"] == alone["f1"] or isinstance(found["f1"], OSError)
    r = again(s, f"{READS} count={faults.FAR} do=hold")
    threads, found = reading(s, r, "f0", BIG)
    s.kill()
    for t in threads:
        t.join()
    s.mount()
    assert s.read("m/f0") == alone["f0"] and s.read(f"m/{BIG}") == alone[BIG]
    assert not s.stats()["corrupt"]
    s.settle()
    s.umount()
    s.fsck("-n", "--data")

    # without the other tier only the damaged file cannot be read
    s.drop_pool()
    shutil.rmtree(f"{top}/remote")
    os.mkdir(f"{top}/remote")
    flip(s, BIG, .3)
    s.options = s.options.replace(f"remote=dir://{top}/remote,", "")
    s.mount()
    try:
        s.read(f"m/{BIG}")
        raise AssertionError("a damaged file was read")
    except OSError:
        pass
    assert s.read("m/f0") == alone["f0"] and s.stats()["corrupt"] == 1
    s.umount()
