# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""SIGKILL of an idle daemon, where no other request makes a commit earlier: a close, rename, link,
unlink or create that ended 50 ms before the kill is in effect after the next mount (promise 1). The
time in which the machine did not run the daemon, or did not write, is added to the 50 ms, and a
commit may wait for two syncs (witness.py). A round in which the kill was earlier than that is
repeated with a later kill."""
import os, time
from kvtest import *
from witness import Witness

TURNS = 5
PROMISE, WAIT = 0.05, 0.052  # seconds; WAIT: from the changes to the kill
s = Store(size="32M", cpu="16M", options="disk=off").mount()
P = lambda name: f"{s.mnt}/{name}"


def before(turn):
    """Stores the files that change() will change."""
    for what in ("renamed", "gone", "linked", "changed"):
        s.write(f"m/{turn}/{what}", blob(what, 5000))
    s.write(f"m/{turn}/new", blob("old", 7000))
    os.mkdir(P(f"m/{turn}/empty"))


def change(turn):
    m = P(f"m/{turn}")
    s.write(f"m/{turn}/closed", blob("closed", 9000))
    os.rename(f"{m}/renamed", f"{m}/new")
    os.unlink(f"{m}/gone")
    os.link(f"{m}/linked", f"{m}/second")
    os.mkdir(f"{m}/folder")
    os.rmdir(f"{m}/empty")
    os.symlink("there", f"{m}/symbolic")
    os.chmod(f"{m}/changed", 0o604)
    os.setxattr(f"{m}/changed", "user.x", b"y")


def check(turn):
    m = P(f"m/{turn}")
    assert sorted(os.listdir(m)) == ["changed", "closed", "folder", "linked", "new", "second",
                                     "symbolic"], sorted(os.listdir(m))
    for name, what in (("closed", 9000), ("new", "renamed"), ("second", "linked")):
        want = blob("closed", what) if name == "closed" else blob(what, 5000)
        assert s.read(f"m/{turn}/{name}") == want, name
    assert os.stat(f"{m}/linked").st_nlink == 2 and os.stat(m).st_nlink == 3
    assert os.stat(f"{m}/changed").st_mode & 0o777 == 0o604
    assert os.getxattr(f"{m}/changed", "user.x") == b"y"


told, turn, wait = 0, 0, WAIT
while told < TURNS:
    turn += 1
    before(turn)
    s.settle()
    witness = Witness(s.daemon.pid, f"{TMP}/witness")
    time.sleep(0.3)
    change(turn)
    changed = time.monotonic()
    time.sleep(wait)
    killed = time.monotonic()
    s.kill()
    early = witness.end().may_be_lost(changed, killed, PROMISE)
    run("umount", "-l", s.mnt)
    s.fsck("-n")
    s.mount()
    if early:
        wait = min(wait * 1.3, 5)
        continue
    check(turn)
    told += 1
print(f"{told} turns of {turn} were conclusive, the last with a kill after {wait * 1000:.0f} ms")
s.umount()
s.fsck("-n")
