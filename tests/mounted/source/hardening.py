# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The programs and the library of the release build are position independent, bind all symbols at
the start, make their tables read-only after that, and have no executable stack. Their code and the
libraries that scripts/setup builds are compiled with stack canaries, stack probes, checked copies
and, if the processor has it, branch tracking. The first make on a new machine, which has no
compiler yet, uses the same flags."""
import glob, platform
from kvtest import *

top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
flags, early = (run(f"{top}/scripts/hardening", ok=True, env=dict(os.environ, CC=cc)).stdout
                for cc in ("gcc", "a-compiler-that-is-not-installed"))
assert early == flags, (early, flags)
if MODE != "release":
    skip("only the release build is hardened")
programs = [binary(n) for n in ("kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "mount.kvcachefs",
                                "kvcachectl")]
library = f"{BUILD}/lib/libkvcachefs.so.0"
for f in (*programs, library):
    text = run("readelf", "-W", "-h", "-l", "-d", f, ok=True).stdout
    assert "DYN (" in text, (f, "not position independent")
    assert f == library or "Flags: NOW PIE" in text, (f, "not linked as a program")
    assert "GNU_RELRO" in text, (f, "no RELRO")
    assert any("FLAGS" in line and "NOW" in line for line in text.splitlines()), (f, "lazy binding")
    stack = [line for line in text.splitlines() if "GNU_STACK" in line]
    assert len(stack) == 1 and "RWE" not in stack[0], (f, stack)
    imports = run("nm", "-D", "--undefined-only", f, ok=True).stdout
    assert "__stack_chk_fail" in imports, (f, "no stack canaries")
    assert "__snprintf_chk" in imports, (f, "no checked copies")


def tracked(f):
    """Whether each object in the file says that its branches are tracked."""
    text = run("readelf", "-W", "-h", "-n", f, ok=True).stdout
    wanted = {"x86_64": r"x86 feature: .*IBT.*SHSTK", "aarch64": r"AArch64 feature: .*BTI.*PAC"}
    return len(re.findall(wanted.get(platform.machine(), "ELF Header:"), text)) \
        == text.count("ELF Header:") > 0


# Not the kernels of the GPU: nvcc compiles them. A compiler notes its flags in each object.
sources = [f"{d}/*.c" for d in ("engine/*", "fs", "mkfs", "mkfs/*", "tiers", "gpu")]
objects = [f"{BUILD}/obj/{os.path.relpath(f, top)[:-1]}o" for s in sources
           for f in glob.glob(f"{top}/{s}")]
objects = [f for f in objects if os.path.exists(f)]  # objects such as cuda_none.c's may be missing
assert len(objects) > 200, len(objects)
for f in objects:
    with open(f, "rb") as o:
        code = o.read()
    for flag in (b"-fstack-protector-strong", b"-fstack-clash-protection"):
        assert flag in code, (f, "was compiled without", flag)
    assert tracked(f), (f, "has branches that are not tracked")
for f in glob.glob(f"{BUILD}/../deps/lib/*.a"):
    assert "__stack_chk_fail" in run("nm", f).stdout, (f, "no stack canaries")
    assert tracked(f), (f, "has branches that are not tracked")
