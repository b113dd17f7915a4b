# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""An error at the start of a daemon is not an absence. If one read of the catalog fails, the mount
is refused with one line or works; no file that only the pool has is taken for unknown, and no quota
or policy is forgotten."""
import os, subprocess
from kvtest import *
import faults

s = Store("s", size="64M", cpu="32M", options="write=back,settle=60000").mount()
files = {f"m/c{i}/l{j}": blob(f"{i}.{j}", 30000 + i * 1000 + j) for i in range(6) for j in range(4)}
for path, data in files.items():
    s.write(path, data)
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.quota", b"8M")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.policy", b"lfu")
s.committed()


def unharmed(what):
    for path, data in files.items():
        assert os.path.exists(f"{s.mnt}/{path}"), (what, path)
        assert s.read(path) == data, (what, path)
    assert (s.attr("m", "quota"), s.attr("m", "policy")) == (str(8 * MiB), "lfu"), what


def end():
    s.kill()
    run("umount", "-l", s.mnt)


unharmed("before")
end()
command = [binary("kvcachefs"), s.path, s.mnt, "-f", "-o",
           f"cpu={s.cpu},run={TMP}/run,{WAYS[WAY]},{s.options}"]
refused = served = 0
nth = 1
while True:
    count = f"{TMP}/count"
    if os.path.exists(count):
        os.unlink(count)
    rule = f"calls=read path={s.path}/catalog.sqlite* nth={nth} do=EIO"
    before = os.stat(TMP).st_dev
    p = subprocess.Popen(command, env=faults.environment(rule, count=count), text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    wait_for(lambda: p.poll() is not None or os.path.ismount(s.mnt))
    up = p.poll() is None
    p.kill()
    out = p.communicate()[0]
    run("umount", "-l", s.mnt)
    with open(count, "rb") as f:
        fired = int.from_bytes(f.read(16)[8:], "little")
    if not fired:
        assert up, out
        break
    refused += not up
    served += up
    assert up or out.count("kvcachefs: ") >= 1, (nth, out)
    s.mount()
    unharmed((nth, out))
    end()
    nth += 1
print(f"{nth} reads: {refused} mounts refused, {served} served")
assert refused
s.mount()
unharmed("at the end")
s.umount()
s.fsck("-n")
