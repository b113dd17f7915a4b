# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Other nodes find folders and files of any name, also with a leading dot or .tmp. The temporary
files of engines cost no request to a shared tier."""
import os, uuid
from kvtest import KiB, Store, TMP, blob, wait_for

shared = f"{TMP}/shared"
os.makedirs(shared)
a, b = (Store(n, size="64M", options=f"settle=0,disk=off,remote=dir://{shared}").mount()
        for n in "ab")


def copied(path):
    wait_for(lambda: "dir" in a.attr(path, "tiers").split(","))


folders = (".cache/lmcache/model", ".hidden", "qwen.tmpl/chunk", "v1.tmp-model/chunk", "x.tmp/c",
           "m/x.tmp/c", ".tmp", ".tmpdir/c", "m/a.tmp.b/c", "m/.dot/.tmp.5/c", "m/v.tmp1",
           "m/.x.tmp")
for i, d in enumerate(folders):
    a.write(f"{d}/k", blob(i, 20 * KiB))
a.write("m/.file", blob("dot", 20 * KiB))
a.write("m/t.tmpl", blob("tmpl", 20 * KiB))
a.write("left/page.tmp", b"of a killed engine")
a.write("left/page", b"whole")
for path in [f"{d}/k" for d in folders] + ["m/.file", "m/t.tmpl", "left/page.tmp", "left/page"]:
    copied(path)
for i, d in enumerate(folders):
    assert b.read(f"{d}/k") == blob(i, 20 * KiB), d
assert b.read("m/.file") == blob("dot", 20 * KiB)
assert b.read("m/t.tmpl") == blob("tmpl", 20 * KiB)

# Another node's unfinished file does not matter.
fd = os.open(f"{b.mnt}/left/page.tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.close(fd)
assert b.read("left/page") == b"whole"

# The temporary names of the engines, in folders of several depths.
key = "084547b6c40ed5b05ba8cd0305db5bf74d5617673948d9ed193ab7d6cbc484d4"
engines = (f"Qwen@1@0@{key}@bfloat16.tmp", f"Qwen@0x01000100@0@{key}.data.tmp.71.3",
           f"{key}.kvcache.safetensors.tmp1f2e3d4c", f"{key}.bin_4831903214906834311.tmp",
           f"{key}_m.bin.tmp.71.72.{uuid.uuid4()}", f".{key}.tmp", f"{key}.safetensors.tmp",
           ".o_direct_probe_8318491349.tmp")
for d in ("", "m", "m/08/45", "new"):
    os.makedirs(f"{b.mnt}/{d}", exist_ok=True)
before = b.stats()["asks"]
for d in ("", "m", "m/08/45", "new"):
    for name in engines:
        fd = os.open(f"{b.mnt}/{d}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.close(fd)
assert b.stats()["asks"] == before, b.stats()["asks"] - before
# One request per model for names without digits.
for d in ("new2", "new2/chunk", "new2/chunk/deep"):
    os.makedirs(f"{b.mnt}/{d}")
before = b.stats()["asks"]
for d in ("new2", "new2/chunk", "new2/chunk/deep"):
    for name in ("page.tmp", "page.tmp.7", ".layer.tmp", "arena.meta.tmp"):
        b.write(f"{d}/{name}", b"x")
assert b.stats()["asks"] <= before + 1, b.stats()["asks"] - before
assert b.stats()["corrupt"] == 0
a.umount()
b.umount()
