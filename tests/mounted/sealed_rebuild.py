# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A rebuild remembers that a store is sealed: it is not mounted without keys after it, with or
without what the old catalog knew, and not with a key that the old catalog knows to be wrong."""
import os
from kvtest import *

keys, other = f"{TMP}/keys", f"{TMP}/other"
for k in (keys, other):
    run(binary("kvcachectl"), "newkey", k, ok=True)
for name, lost in (("with", False), ("without", True)):
    s = Store(name, cpu="32M", size="16M").mount(options=f"keyfile={keys}")
    for i in range(3):
        s.write(f"m/{i}", blob(i, 100000))
    s.settle()
    time.sleep(0.3)
    s.umount()
    if lost:
        os.unlink(f"{s.path}/catalog.sqlite")
    s.fsck("--rebuild", ok=True)
    s.fsck("-n", ok=True)

    def refused(*more):
        o = ",".join([f"cpu=32M,run={TMP}/run", *more])
        p = run(binary("kvcachefs"), s.path, s.mnt, "-o", o)
        assert p.returncode and p.stdout.count("\n") == 1, (name, p.stdout)
        return p.stdout
    assert "encrypted" in refused(), name
    if not lost:
        assert "not the one" in refused(f"keyfile={other}")
    for _ in range(2):
        s.mount(options=f"keyfile={keys}")
        for i in range(3):
            assert s.read(f"m/{i}") == blob(i, 100000), (name, i)
        s.umount()
    assert "not the one" in refused(f"keyfile={other}"), name
