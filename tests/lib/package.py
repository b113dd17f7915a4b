# SPDX-License-Identifier: Apache-2.0
"""The Python package from the source tree with the library of this build, for cases that import
kvcachefs. A library with the address sanitizer must be loaded before the interpreter's malloc, so
such a case starts itself again with the sanitizer preloaded. Its child processes get the original
environment."""
import os, subprocess, sys
from kvtest import BUILD, MODE, skip

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
SOURCE = f"{TOP}/gpu/python"
LIBRARY = f"{BUILD}/lib/libkvcachefs.so.0"

if MODE == "tsan":
    skip("the thread sanitizer does not know Python's locks")
if MODE == "asan" and "KV_ASAN_WAS" not in os.environ:
    path = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    options = os.environ.get("ASAN_OPTIONS", "")
    env = dict(os.environ, LD_PRELOAD=os.path.realpath(path), KV_ASAN_WAS=options,
               ASAN_OPTIONS=f"{options}:detect_leaks=0")  # the interpreter itself leaks
    os.execve(sys.executable, [sys.executable, *sys.argv], env)
if MODE == "asan":
    os.environ.pop("LD_PRELOAD", None)
    os.environ["ASAN_OPTIONS"] = os.environ["KV_ASAN_WAS"]
os.environ["KVCACHEFS_LIBRARY"] = LIBRARY
sys.path.insert(0, SOURCE)
