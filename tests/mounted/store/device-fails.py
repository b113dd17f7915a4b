# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""One device of three fails while the store is in use. Its files cannot be opened; all others are
read, and new ones are stored and synced. An fsync of a file whose copy is on it fails once; the
next one makes a new copy on another device. Nothing wrong is read. The device is named once in the
log, and in status and metrics. It is used again when it works, and it can be removed if it does
not."""
import errno, json, os
from faults import FAR, Rules
from kvtest import *

need_mount()
CTL = binary("kvcachectl")
N = 300000
PARTS = [f"{TMP}/part{i}" for i in range(3)]
BAD = PARTS[1]
s = Store("s", make=False)
run(binary("mkfs.kvcachefs"), "--size", "48M", *(w for f in PARTS for w in ("--file", f)), s.path,
    ok=True)
s.mount()
old = {f"m/c{i}/l": f"old {i}" for i in range(45)}
for f, seed in old.items():
    s.write(f, blob(seed, N))
s.settle()
s.umount()
s.drop_pool()
# all reads, writes and syncs of the device fail
rules = Rules(f"calls=read,write,sync path={BAD} nth={FAR} count={FAR} do=EIO")
rules.mount(s)


def devices():
    p = run(CTL, "devices", "--json", s.mnt, ok=True)
    return json.loads(p.stdout)["devices"]


def readable(names):
    """The files that can be read; each has its own bytes."""
    good = []
    for f, seed in names.items():
        try:
            data = s.read(f)
        except OSError:
            continue
        assert data == blob(seed, N), f
        good.append(f)
    return good


def logged(text):
    return s.log().count(f"the device {BAD} {text}")


assert [d["state"] for d in devices()] == ["up"] * 3
used = [d["used_bytes"] for d in devices()]
assert min(used) > 10 * N, used
# copies that no sync has covered yet: some are on the device that fails now
fresh = {f"m/fresh{i}/l": f"fresh {i}" for i in range(12)}
for f, seed in fresh.items():
    s.write(f, blob(seed, N))
s.settle()
rules.begin()
good = readable(old)
failed = set()
for i in range(3):  # the first sync fails, and suspends the device; the others leave it out
    for f in fresh:
        fd = os.open(f"{s.mnt}/{f}", os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as e:
            assert e.errno == errno.EIO, e
            failed.add((i, f))
        os.close(fd)
# a copy that the failed sync may have lost is made again, on another device
assert failed and {i for i, f in failed} == {0}, sorted(failed)
assert sorted(readable(fresh)) == sorted(fresh)
for f in fresh:
    os.unlink(f"{s.mnt}/{f}")
lost = sorted(set(old) - set(good))
assert 10 <= len(lost) <= 20 and len(good) + len(lost) == len(old), (len(good), len(lost))
assert devices()[1]["state"] in ("reads-fail", "fails") and devices()[1]["errors"] >= 5
# stores go to the other devices, and an fsync does not fail
new = {}
for i in range(30):
    f = f"m/new{i}/l"
    new[f] = f"new {i}"
    os.makedirs(os.path.dirname(f"{s.mnt}/{f}"))
    with open(f"{s.mnt}/{f}", "wb") as x:
        x.write(blob(new[f], N))
        x.flush()
        os.fsync(x.fileno())
for i in range(30):
    new[f"m/quiet{i}/l"] = f"quiet {i}"
    s.write(f"m/quiet{i}/l", blob(f"quiet {i}", N))
s.settle()
now = [d["used_bytes"] for d in devices()]
assert now[0] > used[0] + 10 * N and now[2] > used[2] + 10 * N, (used, now)
assert len(readable(new)) == len(new)
assert logged("fails") == 1, s.log()
with open(f"{s.mnt}/.kvcachefs/metrics") as f:
    text = f.read()
assert 'kvcachefs_device_up{device="1"} 0' in text and 'kvcachefs_device_up{device="0"} 1' in text
assert "tier_up{tier=\"disk\"} 1" in text
p = run(CTL, "status", s.mnt, ok=True)
assert BAD in p.stdout, p
# names can be stored again
again = lost[0]
os.unlink(f"{s.mnt}/{again}")
s.write(again, blob("again", N))
s.settle()
assert s.read(again) == blob("again", N)
old[again] = "again"
# it works again
rules.heal()
wait_for(lambda: len(readable(old)) == len(old))
wait_for(lambda: (s.write("m/probe/l", b"x" * N), s.settle(), devices()[1]["state"] == "up")[-1])
s.umount()
s.drop_pool()
r = s.fsck("-n", ok=None)
assert r.returncode in (0, 4), r  # headers of removed files that could not be cleared
s.fsck("-y", ok=None)
s.fsck("-n", "--data")
# it fails for good: only its files are lost with it
rules = Rules(f"calls=read,write,sync path={BAD} nth={FAR} count={FAR} do=EIO")
rules.mount(s)
both = old | new
rules.begin()
good = readable(both)
p = run(CTL, "remove", BAD, s.mnt)
assert p.returncode == 1 and "cannot be read; --force drops them" in p.stdout, p
assert devices()[1]["state"] in ("leaving", "reads-fail", "fails")
run(CTL, "remove", "--force", "1", s.mnt, ok=True)
assert [d["device"] for d in devices()] == [0, 2]
# its label cannot be read, so it might be another file under this name, and stays
assert os.path.exists(BAD) and "nothing was written to it" in s.log(), s.log()
assert [f for f in both if os.path.exists(f"{s.mnt}/{f}")] == good
assert readable(both) == good
s.umount()
s.drop_pool()
s.mount()
assert readable(both) == good
s.umount()
s.fsck("-n", "--data")
