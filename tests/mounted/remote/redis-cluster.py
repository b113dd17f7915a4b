# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A Redis cluster as a shared tier: a master is killed while two nodes store and load. Stored
objects are found, and objects that could not be stored are stored after a replica took over. A
server that restarts empty causes misses, and a ttl also expires in the cluster."""
import errno, os, time
from kvtest import KiB, Store, blob, need_mount, wait_for
import frames, servers

need_mount()
c = servers.Cluster()
options = f"settle=20,deadline=4000,remote={c.url()}"
a = Store("a", options=options).mount()
data = {f"m/{i}/l": blob(i, 100 * KiB + i) for i in range(60)}
for path in list(data)[:30]:
    a.write(path, data[path])
a.settle()
# Replicas must have what the masters acknowledged, or a failover loses it (Redis replicates
# asynchronously).
for n in c.masters():
    wait_for(lambda: n.command("wait", "1", "3000") == "1")
dead = c.masters()[0]
dead.stop()
for path in list(data)[30:]:
    a.write(path, data[path])
    assert a.read(path) == data[path]
wait_for(lambda: all("redis" in a.attr(p, "tiers") for p in data), every=0.2)
b = Store("b", options=options + ",disk=off").mount()
for path in data:
    assert b.read(path) == data[path], path
st = b.stats()
assert st["corrupt"] == 0 and st["load_failures"] == 0, st
b.umount()
# the lost node comes back, as a replica of the one that took over
dead.start()
wait_for(lambda: "role:slave" in dead.command("info", "replication")
         or "slave" in dead.command("role"))
a.write("m/after/l", b"x" * 5000)
a.settle()
a.umount()
c.stop()

r = servers.Redis()
options = f"settle=20,deadline=10000,remote={r.url()}"
a = Store("c", options=options).mount()
b = Store("d", options=options + ",disk=off").mount()
a.write("m/c/l", b"y" * 70000)
a.settle()
assert b.read("m/c/l") == b"y" * 70000
# restarted empty
r.stop()
r.start()
a.write("m/d/l", b"z" * 70000)
wait_for(lambda: "redis" in a.attr("m/d/l", "tiers"), every=0.1)
assert a.read("m/c/l") == b"y" * 70000
wait_for(lambda: os.path.exists(f"{b.mnt}/m/d/l"), every=0.2)  # a miss is remembered for a second
assert b.read("m/d/l") == b"z" * 70000
# a ttl that was set before the copy expires in the cluster, too
os.makedirs(f"{a.mnt}/m/e")
with open(f"{a.mnt}/m/e/l", "wb") as f:
    f.write(b"t" * 90000)
    os.setxattr(f"{a.mnt}/m/e", "user.kvcachefs.ttl", b"600")


def keys_of(path):
    return [k for k in r.command("keys", "kv:*").splitlines() if frames.name_of(path) in k]


a.settle()
assert any(0 < int(r.command("pttl", k)) <= 600000 for k in keys_of("m/e/l"))
os.makedirs(f"{a.mnt}/m/f")
with open(f"{a.mnt}/m/f/l", "wb") as f:
    f.write(b"t" * 90000)
    os.setxattr(f"{a.mnt}/m/f", "user.kvcachefs.ttl", b"2")
a.settle()
wait_for(lambda: not keys_of("m/f/l"), every=0.2)
a.umount()
b.umount()
r.stop()
