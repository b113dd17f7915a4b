# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""ls, stat, df, du and getfattr are right for both tiers, .kvcachefs/ is readable, and the log
reports each decision once."""
import os, re
from kvtest import *

s = Store(cpu="48M", size="256M").mount()
for i in range(4):
    s.write(f"m/c/l{i}", blob(i, MiB))
s.settle()


def fill():
    for i in range(60):
        s.write(f"fill/{i % 60}/x", bytes(MiB))
    s.settle()


def look():
    rows = run("ls", "-l", f"{s.mnt}/m/c", ok=True).stdout
    assert re.search(r"total 4096\n", rows) and rows.count(" 1048576 ") == 4, rows
    assert run("du", "-s", "-B1", f"{s.mnt}/m/c", ok=True).stdout.split()[0] == str(4 * MiB)
    assert run("stat", "-c", "%s %b %F", f"{s.mnt}/m/c/l1",
               ok=True).stdout == "1048576 2048 regular file\n"

    def df():
        """Whether df agrees with stats, which it does once the space of replaced copies is free."""
        before = s.stats()["tier_disk_used_bytes"]
        out = run("df", "-B1", "--output=size,used,avail", s.mnt, ok=True).stdout.splitlines()[1]
        size, used, avail = map(int, out.split())
        assert size == 256 * MiB // 100 * 90 // 4096 * 4096 and avail == size - used, out
        return used == before

    wait_for(df)
    out = run("getfattr", "-d", "-m", "user.kvcachefs", f"{s.mnt}/m/c/l1", ok=True).stdout
    got = dict(re.findall(r'user\.kvcachefs\.(\w+)="(.*)"', out))
    # attributes that can be set; the others are read by name
    assert set(got) == {"pin", "ttl"}, out
    for name in ("checksum", "hits", "state", "tiers"):
        out = run("getfattr", "-n", f"user.kvcachefs.{name}", f"{s.mnt}/m/c/l1", ok=True).stdout
        got |= dict(re.findall(r'user\.kvcachefs\.(\w+)="(.*)"', out))
    assert set(got) == {"checksum", "hits", "pin", "state", "tiers", "ttl"}, out
    assert len(got["checksum"]) == 32
    return got


assert look()["tiers"] == "cpu,disk"
fill()
got = look()
assert got["tiers"] == "disk" and got["state"] == "lower"
assert s.attr("m/c", "tiers") == "disk"
with fails(errno.ENODATA):
    s.attr("m", "tiers")
os.setxattr(f"{s.mnt}/m", "user.kvcachefs.unit", b"file")
assert s.attr("m", "unit") == "file"
s.write("m/c/own", bytes(4096))
s.settle()
assert s.attr("m/c/own", "hits") == "0"

config = s.config()
assert config["cpu"] == str(48 * MiB) and config["policy"] == "prefix" and config["store"] == s.path
assert config["served_by"] in ("passthrough", "plain requests") \
    and config["requests_by"] in ("io_uring", "/dev/fuse")
if WAY == "fast" and os.geteuid() == 0:  # all that the kernel offers is used
    kernel = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))
    if kernel >= (6, 9) and "user namespace" not in config.get("passthrough_is_off", ""):
        assert config["served_by"] == "passthrough", config["passthrough_is_off"]
    with open("/sys/module/fuse/parameters/enable_uring" if kernel >= (6, 14) else os.devnull) as f:
        if f.read().strip() == "Y":
            assert config["requests_by"] == "io_uring", config["io_uring_is_off"]
if config["requests_by"] == "io_uring":
    queues, depth, payload = (
        int(config[f"ring_{k}"]) for k in ("queues", "depth", "payload_bytes"))
    # one queue for each CPU; the total size is bounded, and an entry can hold the largest attribute
    assert queues == os.sysconf("SC_NPROCESSORS_CONF") and 16 <= depth <= 2047, config
    taken = queues * depth * (payload + os.sysconf("SC_PAGESIZE"))
    assert int(config["ring_bytes"]) == taken and (taken <= 2048 * MiB or depth == 16), config
    assert s.log().count(f"io_uring: {queues} queues") == 1, s.log()
big = blob(1, 64 * KiB)
os.setxattr(f"{s.mnt}/m/c/l0", "user." + "n" * 250, big)
assert os.getxattr(f"{s.mnt}/m/c/l0", "user." + "n" * 250) == big
os.removexattr(f"{s.mnt}/m/c/l0", "user." + "n" * 250)
if WAY == "plain":
    assert config["passthrough_is_off"] == "passthrough=off" \
        and config["io_uring_is_off"] == "io_uring=off"
before = s.stats()["evictions"]
metrics = open(f"{s.mnt}/.kvcachefs/metrics").read()
for line in metrics.splitlines():
    labels = r"(\{\w+=\"[^\"]*\"(,\w+=\"[^\"]*\")*\})?"
    assert re.fullmatch(r"# (HELP|TYPE) (kvcachefs|process)_\w+ .+|"
                        rf"(kvcachefs|process)_\w+{labels} \d+(\.\d+)?", line), line
told = int(re.search(r"^kvcachefs_evictions_total (\d+)$", metrics, re.M)[1])
assert before <= told <= s.stats()["evictions"]
with fails(errno.EACCES):
    os.open(f"{s.mnt}/.kvcachefs/stats", os.O_WRONLY)
assert sorted(os.listdir(f"{s.mnt}/.kvcachefs")) == [
    "cluster", "config", "control", "devices", "events", "lease", "locks", "log", "metrics",
    "models", "policies", "slowest", "stats", "tenants", "tiers", "trace"]
assert s.log().count("serving by") == 1, s.log()
s.umount()
