# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A store gets an older catalog with newer data. A path never returns another file's bytes,
although inode, generation, size and place are the same. The files are sparse, sealed and plain."""
import errno, os, secrets, shutil
from kvtest import KiB, MiB, Store, TMP, blob, fails, run

with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write("1 " + secrets.token_hex(32) + "\n")
for n, extra in enumerate(("", f",keyfile={TMP}/keys")):
    s = Store(f"s{n}", size="64M", options="settle=0" + extra).mount()
    os.makedirs(f"{s.mnt}/m")
    s.settle()
    s.umount()

    def write_pair(name, seed):
        """Writes a sparse and a plain file. Returns their places."""
        s.mount()
        with open(f"{s.mnt}/m/{name}-sparse", "wb") as f:
            f.write(blob(seed, 100 * KiB))
            f.truncate(4 * MiB)
        s.settle()
        with open(f"{s.mnt}/m/{name}-plain", "wb") as f:
            f.write(blob(seed + 1, 300 * KiB))
        s.settle()
        s.umount()
        return run("sqlite3", "-readonly", f"{s.path}/catalog.sqlite",
                   "select ino, gen, at, len from placements order by ino", ok=True).stdout

    before = f"{TMP}/before"
    then = f"{TMP}/then"
    shutil.copy(f"{s.path}/catalog.sqlite", before)
    first = write_pair("alice", 1)
    shutil.copy(f"{s.path}/catalog.sqlite", then)
    # the older catalog returns (power loss, or a restored backup), and other files are written
    shutil.copy(before, f"{s.path}/catalog.sqlite")
    assert write_pair("bob", 11) == first, "the case needs both at the same places"
    shutil.copy(then, f"{s.path}/catalog.sqlite")
    assert s.fsck("-n", ok=False).stdout.count("no frame of the inode") == 2
    s.mount()
    for name in ("alice-sparse", "alice-plain"):
        with fails(errno.ENOENT, errno.ESTALE, errno.EIO):
            s.read(f"m/{name}")
    assert s.stats()["corrupt"] == 2, s.stats()
    s.umount()
    for f in (before, then):
        os.unlink(f)
