# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Other programs can write to the folder of a dir:// tier. A symbolic link in place of a frame or a
folder of frames is not followed, and a fifo or a folder blocks nobody. Each is a miss, and all
other frames are found."""
import os, subprocess, sys
from kvtest import HANG, KiB, Store, TMP, blob, run, wait_for
import frames

shared = f"{TMP}/shared"
os.makedirs(shared)
a = Store("a", size="64M", options=f"settle=0,remote=dir://{shared}").mount()
data = {f"f{i}": blob(i, 20 * KiB) for i in range(5)}
for path, d in data.items():
    a.write(path, d)
a.settle()
a.umount()


def place(path):
    hexed = frames.name_of(path)
    return f"{shared}/{hexed[:2]}", f"{shared}/{hexed[:2]}/{hexed}"


assert len({place(p)[0] for p in data}) == 5, "the case needs a folder for each"
outside = f"{TMP}/outside"
os.makedirs(outside)
os.rename(place("f0")[1], f"{outside}/frame")
os.symlink(f"{outside}/frame", place("f0")[1])
os.rename(place("f1")[0], f"{outside}/folder")
os.symlink(f"{outside}/folder", place("f1")[0])
os.unlink(place("f2")[1])
os.mkfifo(place("f2")[1])
os.unlink(place("f3")[1])
os.mkdir(place("f3")[1])
b = Store("b", size="64M", options=f"settle=0,remote=dir://{shared}").mount()
LOOK = "import os, sys; print(os.path.exists(sys.argv[1]))"
for path in ("f0", "f1", "f2", "f3"):
    seen = subprocess.run([sys.executable, "-c", LOOK, f"{b.mnt}/{path}"], check=True, text=True,
                          stdout=subprocess.PIPE, timeout=HANG).stdout.strip()
    assert seen == "False", path
assert b.read("f4") == data["f4"]
st = b.stats()
assert st["breaker_opened"] == 0 and st["tier_dir_up"] == 1, st
# a store under such a name replaces the link or is not made; nothing is written through the link
b.write("f0", b"new" * 1000)
wait_for(lambda: "dir" in b.attr("f0", "tiers").split(","))
assert not os.path.islink(place("f0")[1]) and os.path.getsize(f"{outside}/frame") > 20 * KiB
b.write("f1", b"new" * 1000)
wait_for(lambda: b.stats()["copies_failing"] == 1)
assert len(os.listdir(f"{outside}/folder")) == 1
b.umount()
