# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Files with keys and passwords follow one rule. newkey adds no key to another user's file. A mount
refuses such a file and a file that others can read, but accepts a Kubernetes secret that root
shares with a group."""
import os
from kvtest import *

need_mount()
keys = f"{TMP}/keys"
run(binary("kvcachectl"), "newkey", keys, ok=True)
with open(keys) as f:
    before = f.read()
s = Store(options=f"settle=20,keyfile={keys}")


def refused(*words):
    """newkey and a mount refuse the file in one line, and newkey leaves it as it is."""
    for command in ((binary("kvcachectl"), "newkey", keys),
                    (binary("kvcachefs"), s.path, s.mnt, "-o",
                     f"cpu=64M,run={TMP}/run,{s.options}")):
        p = run(*command)
        assert p.returncode and len(p.stdout.strip().splitlines()) == 1, p.stdout
        assert keys in p.stdout and all(w in p.stdout for w in words), p.stdout
    with open(keys) as f:
        assert f.read() == before


os.chown(keys, 4444, 0)
refused("another user", "chown")
os.chown(keys, 0, 0)
os.chmod(keys, 0o644)
refused("chmod 600")
os.chmod(keys, 0o460)
refused("chmod 600")

# a secret volume: a link to a file of root, mode 0440, in a group of the daemon
os.chmod(keys, 0o440)
os.chown(keys, 0, os.getegid())
os.rename(keys, f"{keys}.data")
os.symlink(f"{keys}.data", keys)
s.mount()
s.write("m/c/l", b"x" * 5000)
s.umount()
