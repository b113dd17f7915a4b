# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The programs and the library of the release build are position independent, bind all symbols at
the start, make their tables read-only after that, and have no executable stack."""
import glob, os
from kvtest import *

if os.path.basename(os.path.dirname(os.path.dirname(binary("kvcachefs")))) != "release":
    skip("only the release build is hardened")
programs = [binary(n) for n in ("kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "mount.kvcachefs",
                                "kvcachectl")]
library = os.path.join(os.path.dirname(programs[0]), "../lib/libkvcachefs.so.0")
for f in (*programs, library):
    text = run("readelf", "-W", "-h", "-l", "-d", f, ok=True).stdout
    assert "DYN (" in text, (f, "not position independent")
    assert "GNU_RELRO" in text, (f, "no RELRO")
    assert any("FLAGS" in line and "NOW" in line for line in text.splitlines()), (f, "lazy binding")
    stack = [line for line in text.splitlines() if "GNU_STACK" in line]
    assert len(stack) == 1 and "RWE" not in stack[0], (f, stack)
