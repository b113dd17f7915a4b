# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""SIGKILL of an idle daemon, whose commits nothing hastens: files that were closed, renamed,
linked, unlinked or created 50 ms before are exactly so after the next mount (promise 1). A round in
which the machine did not run the daemon, or did not write, is repeated."""
import os, time
from kvtest import *
from witness import Witness

TURNS, LATE = 5, 0.015
s = Store(size="32M", cpu="16M", options="disk=off").mount()
P = lambda name: f"{s.mnt}/{name}"


def before(turn):
    """Older files."""
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


told = 0
for turn in range(40 * TURNS):
    before(turn)
    s.settle()
    witness = Witness(s.daemon.pid, f"{TMP}/witness")
    time.sleep(0.3)
    change(turn)
    changed = time.monotonic()
    time.sleep(0.052)
    killed = time.monotonic()
    s.kill()
    worst = witness.end().excused(changed, killed) + killed - changed - 0.052
    run("umount", "-l", s.mnt)
    s.fsck("-n")
    s.mount()
    if worst > LATE:
        continue
    check(turn)
    told += 1
    if told == TURNS:
        break
print(f"{told} turns of {turn + 1} told something")
assert told == TURNS, "this machine stood still all the time"
s.umount()
s.fsck("-n")
