# SPDX-License-Identifier: Apache-2.0
"""Shared code of the engine cases: a mount, the file calls of the engines, and a final check that
reads and compares everything after the spill to the disk and after a restart."""
import ctypes, mmap
from kvtest import *

libc = ctypes.CDLL(None, use_errno=True)


def aligned(data):
    b = mmap.mmap(-1, (len(data) + 4095) // 4096 * 4096)
    b[:len(data)] = data
    return b


def through_the_tiers(s, check):
    check()
    s.settle()
    for i in range(100):
        s.write(f"filler/{i}/x", bytes(MiB))
    s.settle()
    check()
    s.umount()
    s.fsck("-n")
    s.mount()
    check()
    s.umount()


def store():
    return Store(cpu="48M", size="512M").mount()
