# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The conformance suite of shared tiers over a peers remote, as far as it applies to a tier that
only reads: the frames are stored as files on the node. Alone, with a delay, with faults,
and from a pool that does not hold all frames. (Sealed frames are not the stored bytes: remote/peers
reads them through a mount.)"""
from kvtest import BUILD, beside, need_mount, run
import nodes

need_mount()


def conforms(name, cpu, shims):
    s, = nodes.make(name, 1)
    s.options = s.options.split(",remote=")[0]
    s.cpu = cpu
    s.mount()
    url = nodes.url([nodes.local(s.port)], s.secret)
    for shim in shims:
        p = run(f"{BUILD}/bin/test-remote", url, shim, s.mnt)
        print(name, shim, p.stdout.strip().splitlines()[-1:])
        assert p.returncode == 0, f"{name} {shim}: {p.stdout}"
    print(name, s.stats()["evictions"], "files were evicted")
    assert name == "pool" or s.stats()["evictions"]
    s.umount()
    s.fsck()


beside([(conforms, "pool", "256M", ["-", "delay-get:3", "faults"]),
        (conforms, "disk", "80M", ["-"])])
