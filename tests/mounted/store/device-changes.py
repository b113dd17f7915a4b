# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Devices are added, grown and removed while the store is in use and full of files that are read,
renamed, deleted and stored meanwhile. df follows. Nothing is lost by a remove, and no file has
other bytes than its own. A remove can be stopped, continued and taken back. A failed change leaves
the store as it was."""
import json, os, re, subprocess, threading
from kvtest import *

need_mount()
CTL = binary("kvcachectl")
N = 300000
A, B, C = (f"{TMP}/{n}" for n in "abc")
s = Store("s", size="48M", cpu="64M").mount()
MNT = s.mnt


def ctl(*words, ok=True):
    return run(CTL, *words, ok=ok)


def refused(*words, says, rc=1):
    before = devices()
    p = ctl(*words, ok=None)
    assert p.returncode == rc and says in p.stdout and p.stdout.count("\n") == 1, (words, p)
    assert devices() == before, words
    return p


def devices():
    return [(d["device"], d["path"], d["state"], d["bytes"])
            for d in json.loads(ctl("devices", "--json", MNT).stdout)["devices"]]


def df():
    v = os.statvfs(MNT)
    return v.f_blocks * v.f_frsize


names = {}
for i in range(60):
    names[f"m/c{i}/l"] = f"first {i}"
    s.write(f"m/c{i}/l", blob(f"first {i}", N))
s.settle()


def whole():
    for f, seed in names.items():
        assert s.read(f) == blob(seed, N), f


OWN = f"{s.path}/data"
assert devices() == [(0, OWN, "up", 48 * MiB)]
small = df()
# add
refused("add", A, MNT, says="give --size")
refused("add", "--size", "1M", A, MNT, says="at least 16M", rc=2)
refused("add", "/dev/no-such-device", MNT, says="there is no device")
refused("add", "--size", "16M", OWN, MNT, says="is not a block device")
refused("add", "--size", "900T", f"{TMP}/huge", MNT, says="add: ")
# nothing is allocated that does not fit: it would fill the filesystem until the error
p = refused("add", "--size", "200T", f"{TMP}/huge", MNT, says="needs 200 TiB more")
assert " free; give a smaller --size" in p.stdout, p
refused("grow", "--size", "200T", MNT, says=f"{OWN} needs 200 TiB more")
refused("add", "--size", "32M", f"{MNT}/data", MNT, says="is in the mount whose data it would hold")
refused("add", "--size", "32M", f"{MNT}/m/data", MNT, says="give a path outside of")
assert not os.path.exists(f"{TMP}/huge")
refused("add", "--size", "32M", f"{TMP}/no/such", MNT, says="No such file")
ctl("add", "--size", "32M", A, MNT)
assert [d[:3] for d in devices()] == [(0, OWN, "up"), (1, A, "up")]
assert df() > small + 20 * MiB
refused("add", "--size", "32M", A, MNT, says="is not a block device")
for i in range(60, 90):
    names[f"m/c{i}/l"] = f"second {i}"
    s.write(f"m/c{i}/l", blob(f"second {i}", N))
s.settle()
assert json.loads(ctl("devices", "--json", MNT).stdout)["devices"][1]["used_bytes"] > 5 * N
# grow: to a size, and to the present size of a file that somebody has extended
refused("grow", "--device", A, "--size", "16M", MNT, says="must be from 32.0 MiB")
refused("grow", "--device", f"{TMP}/x", "--size", "64M", MNT, says="is not a device of this store")
before = df()
ctl("grow", "--device", A, "--size", "64M", MNT)
assert devices()[1][3] == 62 * MiB and os.path.getsize(A) == 64 * MiB  # without the label's space
assert df() > before + 20 * MiB
os.truncate(OWN, 64 * MiB)
ctl("grow", MNT)
assert devices()[0][3] == 64 * MiB and os.stat(OWN).st_blocks * 512 >= 64 * MiB
ctl("grow", "--device", "0", MNT)
whole()
s.again("kill")
s.drop_pool("/nothing")
assert [(d[1], d[3]) for d in devices()] == [(OWN, 64 * MiB), (A, 62 * MiB)]
whole()
# remove, while files are loaded, stored, renamed and deleted
ctl("add", "--size", "64M", B, MNT)
stop, wrong, done = threading.Event(), [], [0]


def busy():
    i = 0
    while not stop.is_set():
        f = f"busy/c{i % 12}/l"
        try:
            s.write(f + ".tmp", blob(f"busy {i}", N))
            os.rename(f"{MNT}/{f}.tmp", f"{MNT}/{f}")
            if s.read(f) != blob(f"busy {i}", N):
                wrong.append(f)
            g = list(names)[i * 7 % len(names)]
            if s.read(g) != blob(names[g], N):
                wrong.append(g)
            if i % 3 == 0:
                os.unlink(f"{MNT}/{f}")
        except OSError as e:
            wrong.append(f"{f}: {e}")
        i += 1
        done[0] = i


worker = threading.Thread(target=busy)
worker.start()
wait_for(lambda: done[0] > 5)
p = ctl("remove", OWN, MNT)
stop.set()
worker.join()
assert not wrong, wrong[:5]
assert [d[:3] for d in devices()] == [(1, A, "up"), (2, B, "up")] and not os.path.exists(OWN)
s.settle()
run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
whole()
s.umount()
s.drop_pool()
s.fsck("-n", "--data")
s.mount()
whole()
# stop, status, a mount in between, take back, and complete
p = subprocess.Popen([CTL, "remove", A, MNT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                     text=True)
wait_for(lambda: devices()[0][2] == "leaving" or p.poll() is not None)
ctl("remove", "--stop", A, MNT, ok=None)
p.wait()
if len(devices()) == 1:  # it was quicker
    left = B
else:
    assert devices()[0][2] == "leaving"
    s.again("kill")
    assert devices()[0][2] == "leaving"
    with open(f"{MNT}/.kvcachefs/metrics") as f:
        assert 'kvcachefs_device_leaving{device="1"} 1' in f.read()
    ctl("remove", "--cancel", "1", MNT)
    assert devices()[0][2] == "up"
    ctl("remove", A, MNT)
    assert [d[1] for d in devices()] == [B] and not os.path.exists(A)
    left = B
whole()
if len(devices()) == 1:
    refused("remove", left, MNT, says="is the last device")
# the number of a removed device is used again, and files are not mistaken
ctl("add", "--size", "40M", C, MNT)
assert sorted(d[1] for d in devices()) == sorted({B, C})
for i in range(90, 120):
    names[f"m/c{i}/l"] = f"third {i}"
    s.write(f"m/c{i}/l", blob(f"third {i}", N))
s.settle()
whole()
s.umount()
s.drop_pool()
s.fsck("-n", "--data")
s.mount()
whole()
# the other devices are too small for all: the coldest chunks are evicted, and the others moved
for i in range(160):
    s.write(f"more/c{i}/l", blob(f"more {i}", N))
s.settle()
p = refused("remove", B, MNT, says="give --yes to confirm")
with open(f"{MNT}/.kvcachefs/devices") as f:
    state = {w[-1]: (int(w[2]), int(w[3])) for w in map(str.split, f.read().splitlines()[1:])}
lack = state[B][1] - (state[C][0] - state[C][1])
chunks, size = re.search(r"evicts about (\d+) chunks, ([0-9.]+) MiB, that do not fit elsewhere",
                         p.stdout).groups()
assert abs(float(size) * MiB - lack) <= MiB // 10, (size, lack)
assert abs(int(chunks) - lack / N) <= 0.2 * lack / N, (chunks, lack / N)
out = ctl("remove", "--yes", B, MNT).stdout
assert int(re.search(r"(\d+) chunks were evicted", out)[1]) > 20, out
assert [d[1] for d in devices()] == [C]
there = sum(s.read(f"more/c{i}/l") == blob(f"more {i}", N) for i in range(160)
            if os.path.exists(f"{MNT}/more/c{i}/l"))
assert there > 20, there
# the file of a device cannot be extended: the message names the file
tiny = f"{TMP}/tiny"
os.mkdir(tiny)
run("mount", "-t", "tmpfs", "-o", "size=24m", "none", tiny, ok=True)
ctl("add", "--size", "16M", f"{tiny}/d", MNT)
refused("grow", "--device", f"{tiny}/d", "--size", "64M", MNT,
        says=f"grow: {tiny}/d needs ")
ctl("remove", f"{tiny}/d", MNT)
run("umount", tiny, ok=True)
s.umount()
s.drop_pool()
s.fsck("-n", "--data")
