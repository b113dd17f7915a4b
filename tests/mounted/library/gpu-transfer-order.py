# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The order of a transfer on a device, under tests/fakecuda. Each wait between its streams, and
between them and the staging thread, is omitted once, and the resulting error must be detected. The
case also runs with a driver whose streams cannot wait for a number in memory, so that host
functions wait."""
import os, re, subprocess
from kvtest import *

EVENT, VALUE, NUMBER = range(3)  # the omitted wait: enum fake_order
s = Store(cpu="64M").mount()


# a sanitizer may find the error first: its report ends the trial, and is expected
WRONG = os.environ | {name: re.sub("log_path=[^:]*", f"log_path={TMP}/found", os.environ[name])
                      for name in ("ASAN_OPTIONS", "TSAN_OPTIONS") if name in os.environ}


def trial(pages, way, kind, at):
    try:
        return run(binary("test-gpu-fake"), "trial", s.mnt, pages, way, str(kind), str(at),
                   env=WRONG if at else os.environ, timeout=20 * SLOW if at else HANG)
    except subprocess.TimeoutExpired as e:
        # without a wait, a number may be overwritten by its predecessor; then the wait for the next
        # number never ends
        assert at, (pages, way, e.stdout)
        return subprocess.CompletedProcess(e.cmd, 1, e.stdout)


for pages, kinds in (("pinned", [EVENT]), ("direct", [EVENT]),
                     ("staged", [VALUE, NUMBER]), ("functions", [VALUE, NUMBER])):
    for way in ("store", "load"):
        for kind in kinds:
            p = trial(pages, way, kind, 0)
            assert p.returncode == 0 and p.stdout.endswith("ok\n"), (pages, way, p.stdout)
            n = int(p.stdout.split()[kind])
            assert n > 5, (pages, way, kind, p.stdout)
            for at in range(1, n + 1):
                p = trial(pages, way, kind, at)
                assert p.returncode, f"{pages} {way}: no error without wait {at} of kind {kind}"
# a program that returns from main() during a transfer does not hang, and leaves no file
for how in ([], ["functions"]):
    p = run(binary("test-gpu-fake"), "leave", s.mnt, *how, timeout=HANG)
    assert p.returncode == 0 and p.stdout == "left\n", p.stdout
    assert not os.path.exists(f"{s.mnt}/staged/leave")
s.umount()
s.fsck()
