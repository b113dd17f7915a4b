# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""logfile= appends the log to a file with mode 0600, which kvcachectl reload opens again after a
rename. A path that cannot be used is refused before anything is mounted."""
import json, os, re, stat
from kvtest import *

KV, CTL = binary("kvcachefs"), binary("kvcachectl")
s = Store("s", size="16M", cpu="32M")
FILE, o = f"{TMP}/kv.log", f"cpu=32M,run={TMP}/run"
old = os.umask(0)
p = run(KV, s.path, s.mnt, "-o", f"{o},logfile={FILE}", ok=True)
os.umask(old)
assert p.stdout.startswith(f"mounted {s.path} on {s.mnt} (") and p.stdout.count("\n") == 1, p


def lines(path=FILE):
    with open(path) as f:
        return f.read().splitlines()


assert stat.S_IMODE(os.stat(FILE).st_mode) == 0o600
assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warn|error) \S", l)
           for l in lines()), lines()
assert any("serving by" in l for l in lines()), lines()
# the file has what the mount's own log has
assert [l[30:] for l in lines(f"{s.mnt}/.kvcachefs/log")] == [l[30:] for l in lines()]
# a rename does not change the open file; reload opens the path again
os.rename(FILE, FILE + ".1")
run(CTL, "reload", "-o", "high=91", s.mnt, ok=True)
assert not os.path.exists(FILE) and lines(FILE + ".1")[-1].endswith("options changed: high=91")
assert json.loads(run(CTL, "reload", "--json", s.mnt, ok=True).stdout) == \
    {"mount": s.mnt, "changed": "logfile"}
run(CTL, "reload", "-o", "high=92", s.mnt, ok=True)
assert lines()[-1].endswith("options changed: high=92")
assert not any("high=92" in l for l in lines(FILE + ".1"))
# if the path cannot be opened, the command fails and the log continues in the open file
os.rename(FILE, FILE + ".2")
os.symlink("/dev/null", FILE)
p = run(CTL, "reload", s.mnt)
assert p.returncode == 1 and f"cannot open the log file {FILE} again" in p.stdout, p
run(CTL, "reload", "-o", "high=93", s.mnt, ok=True)
assert lines(FILE + ".2")[-1].endswith("options changed: high=93")
os.unlink(FILE)
run("umount", s.mnt, ok=True)
wait_for(lambda: run(binary("fsck.kvcachefs"), "-n", s.path).returncode == 0)

# an existing file keeps its mode and its lines; in the foreground, stderr has warnings only
with open(FILE, "w") as f:
    f.write("earlier\n")
os.chmod(FILE, 0o640)
s.mount(f"logfile={FILE},passthrough=off", cpu="32M")
assert lines()[0] == "earlier" and any("serving by plain" in l for l in lines())
assert stat.S_IMODE(os.stat(FILE).st_mode) == 0o640 and "serving by" not in s.log()
s.umount()

# refusals
was = os.listdir(TMP)
os.mkfifo(f"{TMP}/pipe")
os.symlink(FILE, f"{TMP}/link")
for path, says in ((f"{TMP}/no/such", "folder does not exist"), (f"{TMP}/link", "symbolic link"),
                   (TMP, "folder"), (f"{TMP}/pipe", "not a regular file"),
                   (f"{s.mnt}/log", "inside the mount point"), ("log", "not an absolute path")):
    p = run(KV, s.path, s.mnt, "-o", f"{o},logfile={path}", ok=False)
    assert p.returncode == 1 and p.stdout.count("\n") == 1, p
    assert p.stdout.startswith("kvcachefs: option logfile: ") and says in p.stdout, p
    assert not os.path.ismount(s.mnt)
assert sorted(os.listdir(TMP)) == sorted(was + ["pipe", "link"]) and not os.listdir(s.mnt)
