# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""user.kvcachefs.layout on a folder: a layout is stored in its shortest form and survives a
remount; a wrong one is refused with EINVAL and changes nothing; files and the root do not have the
attribute. The nearest folder above a file decides. kvcachectl codec uses the attribute for the
files of the model, and names the mistake of a wrong layout."""
import errno, json, os
from kvtest import *

CTL, NAME = binary("kvcachectl"), "user.kvcachefs.layout"
s = Store(options="settle=0").mount()
size = 2 * 2 * 64 * 2 * 64 * 2  # l2 k2 t64 h2 d64 of 2 bytes
s.write("m/c/layer", bytes(size))
s.write("other/c/layer", blob(1, 5000))
model = f"{s.mnt}/m"


def value(path=None):
    try:
        return os.getxattr(path or model, NAME).decode()
    except OSError as e:
        return errno.errorcode[e.errno]


def put(text, path=None):
    try:
        os.setxattr(path or model, NAME, text.encode())
    except OSError as e:
        return errno.errorcode[e.errno]


assert value() == "ENODATA"
assert put("  bf16 l2  k2 t64 h2 d64 @0") is None
assert value() == "bf16 l2 k2 t64 h2 d64", value()
assert NAME in os.listxattr(model) and NAME not in os.listxattr(f"{s.mnt}/other")
for wrong in ("", "bf16", "fp8 t1 d16", "bf16 t1 d15", "bf16 h8 d128", "bf16 t1 d16\n", "x" * 500):
    assert put(wrong) == "EINVAL", wrong
    assert value() == "bf16 l2 k2 t64 h2 d64", (wrong, value())
for elsewhere in (s.mnt, f"{model}/c/layer"):
    assert put("bf16 t1 d16", elsewhere) == "EINVAL", elsewhere
    assert value(elsewhere) == "ENODATA", elsewhere

j = json.loads(run(CTL, "codec", "--json", f"{model}/c/layer", ok=True).stdout)
assert j["layout"] == "bf16 l2 k2 t64 h2 d64" and len(j["codecs"]) == 6, j
j = json.loads(run(CTL, "codec", "--json", f"{s.mnt}/other/c/layer", ok=True).stdout)
assert j["layout"] is None, j
p = run(CTL, "codec", "--layout", "bf16 t1 d15", f"{model}/c/layer")
assert p.returncode == 1 and "a vector has 16 to 1024 elements" in p.stdout, p

inner = f"{model}/a/b"
os.makedirs(inner)
assert put("bf16 t64 d64", inner) is None and value(inner) == "bf16 t64 d64"
assert value() == "bf16 l2 k2 t64 h2 d64" and value(f"{model}/a") == "ENODATA"
assert put("bf16 t1 d15", inner) == "EINVAL" and value(inner) == "bf16 t64 d64"
os.mkdir(f"{model}/e")
assert put("bf16 t64 d64", f"{model}/e") is None
os.removexattr(f"{model}/e", NAME)
assert value(f"{model}/e") == "ENODATA"
os.rename(f"{model}/a", f"{model}/moved")
s.write("m/moved/b/c/layer", bytes(8192))
j = json.loads(run(CTL, "codec", "--json", f"{model}/moved/b/c/layer", ok=True).stdout)
assert j["layout"] == "bf16 t64 d64", j

s.umount()
s.mount()
assert value(f"{model}/moved/b") == "bf16 t64 d64"
assert value() == "bf16 l2 k2 t64 h2 d64", value()
assert put("fp16 t* d64 @28") is None and value() == "fp16 t* d64 @28"
os.removexattr(model, NAME)
assert value() == "ENODATA" and NAME not in os.listxattr(model)
s.umount()
