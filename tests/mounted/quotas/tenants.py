# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Tenants: a chunk belongs to the tenant of its folder, to the tenant of the cache salt in its
name, or to the tenant that its owner has set. A tenant above its quota loses its own oldest chunks
and no others, and no store is refused. When the pool is full, tenants above their shares lose
chunks first. An unmount and a kill change none of this. Only root creates tenants, and only the
users that root names can use them."""
import errno, shutil, time
from kvtest import *

need_mount()
for p in (TMP, os.path.dirname(TMP)):
    os.chmod(p, 0o755)
N = MiB
SALTED = lambda salt, i: f"org-SEP-m@0x01000100@0@{i:064x}@{salt}.data"


def tenants(s):
    lines = open(f"{s.mnt}/.kvcachefs/tenants").read().splitlines()
    names = lines[0].split()
    return {l.split()[-1]: dict(zip(names, l.split())) for l in lines[1:]}


def used(s, name):
    return int(tenants(s)[name]["used"])


def make(s, text):
    os.setxattr(s.mnt, "user.kvcachefs.tenants", text.encode())


def tell(s, path, name):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.tenant", name.encode())


def whose(s, path):
    try:
        return os.getxattr(f"{s.mnt}/{path}", "user.kvcachefs.tenant").decode()
    except OSError as e:
        assert e.errno == errno.ENODATA, e
        return None


def as_user(uid, what):
    """Returns the errno with which it fails, or 0."""
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(uid), os.setuid(uid)
        try:
            what()
            os._exit(0)
        except OSError as e:
            os._exit(e.errno)
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


s = Store(size="256M", cpu="64M", options="policy=lru,settle=0,high=90,low=80,allow_other").mount()

# ---- creation ----
make(s, "acme quota=16M uid=1001")
make(s, "globex share=8M")
make(s, "initech")
t = tenants(s)
assert (t["acme"]["quota"], t["acme"]["uid"]) == (str(16 * N), "1001"), t
assert (t["globex"]["share"], t["globex"]["uid"], t["globex"]["quota"]) == (str(8 * N), "-", "0"), t
make(s, "initech quota=1G")
make(s, "initech share=1G")
assert tenants(s)["initech"]["quota"] == str(1 << 30), tenants(s)
for wrong in ("", "a/b", "x quota=1", "x quota=1Q", "x uid=me", "x color=red", "x" * 129, "=",
              "x remove now", "x uid=4294967295", "x uid=4294967296", "x uid=" + "9" * 30):
    with fails(errno.EINVAL):
        make(s, wrong)
with fails(errno.ENOENT):
    make(s, "nobody remove")
assert set(tenants(s)) == {"acme", "globex", "initech"}

# ---- the tenant of a chunk ----
os.mkdir(f"{s.mnt}/m")
os.mkdir(f"{s.mnt}/m/acme")
os.mkdir(f"{s.mnt}/m/acme/deep")
s.write("m/acme/before", blob(0, N))  # the tenant of a folder applies to new chunks only
tell(s, "m/acme", "acme")
assert whose(s, "m/acme") == "acme" and whose(s, "m/acme/before") is None
s.write("m/acme/a", blob(1, N))
s.write("m/acme/deep/b", blob(2, N))
s.write("m/plain", blob(3, N))
s.settle()
assert whose(s, "m/acme/a") == whose(s, "m/acme/deep/b") == "acme", (
    whose(s, "m/acme/a"), whose(s, "m/acme/deep/b"), tenants(s))
assert whose(s, "m/plain") is None
assert used(s, "acme") == 2 * N, tenants(s)
s.write(f"l/{SALTED('initech', 1)}", blob(4, N))
s.write(f"l/{SALTED('unknown', 2)}", blob(5, N))
s.write("l/tmp", blob(6, N))
os.rename(f"{s.mnt}/l/tmp", f"{s.mnt}/l/{SALTED('initech', 3)}")
assert [whose(s, f"l/{SALTED(*x)}") for x in (("initech", 1), ("unknown", 2), ("initech", 3))] == [
    "initech", None, "initech"]
s.settle()
assert used(s, "initech") == 2 * N, tenants(s)
tell(s, "m/plain", "initech")
assert whose(s, "m/plain") == "initech" and used(s, "initech") == 3 * N
tell(s, "m/plain", "globex")
assert used(s, "initech") == 2 * N and used(s, "globex") == N
tell(s, "m/plain", "")
assert whose(s, "m/plain") is None and used(s, "globex") == 0
with fails(errno.EINVAL):
    tell(s, "m/plain", "nobody")
os.rename(f"{s.mnt}/m/plain", f"{s.mnt}/m/acme/plain")
assert whose(s, "m/acme/plain") == "acme" and used(s, "acme") == 3 * N
os.unlink(f"{s.mnt}/m/acme/plain")
wait_for(lambda: used(s, "acme") == 2 * N)
# a chunk that only the disk has
s.settle()
os.setxattr(f"{s.mnt}/m/acme/a", "user.kvcachefs.demote", b"cpu")
t = tenants(s)["acme"]
assert (int(t["used"]), int(t["pool"])) == (2 * N, N), t
tell(s, "m/acme/a", "initech")
assert (used(s, "acme"), used(s, "initech")) == (N, 3 * N), tenants(s)
tell(s, "m/acme/a", "acme")
s.read("m/acme/a")
t = tenants(s)["acme"]
assert (t["misses"], int(t["pool"])) == ("1", 2 * N), t
s.read("m/acme/a")
assert tenants(s)["acme"]["hits"] == "1"

# A folder that was one chunk becomes a container: its files are chunks of their own, and the
# tenant's sum stays the same.
for i in range(4):
    s.write(f"m/acme/split/{i}", blob(i, N))
s.settle()
s.committed()
assert used(s, "acme") == 6 * N, tenants(s)
os.mkdir(f"{s.mnt}/m/acme/split/sub")
s.settle()
assert used(s, "acme") == 6 * N, tenants(s)
shutil.rmtree(f"{s.mnt}/m/acme/split")
wait_for(lambda: used(s, "acme") == 2 * N)

# ---- permissions ----
own = f"{s.mnt}/own"
os.makedirs(f"{own}/sub")  # so its files are chunks of their own
os.chmod(own, 0o777)
theirs = f"{own}/theirs"


def store_and_tell(name):
    with open(theirs, "wb") as f:
        f.write(b"x" * 4096)
    os.setxattr(theirs, "user.kvcachefs.tenant", name)


for uid, name, want in ((1001, b"acme", 0), (1001, b"initech", errno.EPERM),
                        (1002, b"acme", errno.EPERM), (1002, b"", 0)):
    assert as_user(uid, lambda: store_and_tell(name)) == want, (uid, name)
    os.unlink(theirs)
assert as_user(1001, lambda: os.setxattr(s.mnt, "user.kvcachefs.tenants", b"evil")) in (
    errno.EPERM, errno.EACCES)
assert as_user(1001, lambda: open(f"{s.mnt}/.kvcachefs/tenants").read()) == errno.EACCES


def store_salted(salt):
    open(f"{own}/{SALTED(salt, 9)}", "wb").close()


for uid, salt, want in ((1001, "acme", "acme"), (1002, "acme", None), (1001, "initech", None)):
    assert not as_user(uid, lambda: store_salted(salt))
    assert whose(s, f"own/{SALTED(salt, 9)}") == want, (uid, salt)
    os.unlink(f"{own}/{SALTED(salt, 9)}")

# Only the owner of a folder can set its tenant. If that is not root, only the chunks of the
# tenant's user belong to the tenant.
assert as_user(1001, lambda: os.setxattr(own, "user.kvcachefs.tenant", b"acme")) == errno.EPERM
given = f"{own}/given"
assert as_user(1001, lambda: (os.mkdir(given), os.mkdir(f"{given}/sub"), os.chmod(given, 0o777),
                              os.setxattr(given, "user.kvcachefs.tenant", b"acme"))) == 0
assert whose(s, "own/given") == "acme"
for uid, want in ((1001, "acme"), (1002, None), (0, "acme")):
    assert not as_user(uid, lambda: open(f"{given}/{uid}", "wb").close())
    assert whose(s, f"own/given/{uid}") == want, uid
assert as_user(1002, lambda: os.removexattr(given, "user.kvcachefs.tenant")) == errno.EPERM
assert as_user(1001, lambda: os.removexattr(given, "user.kvcachefs.tenant")) == 0
assert whose(s, "own/given") is None
os.chmod(given, 0o777), os.chown(given, 0, 0)
tell(s, "own/given", "acme")
assert not as_user(1002, lambda: open(f"{given}/by-root", "wb").close())
assert whose(s, "own/given/by-root") == "acme"
shutil.rmtree(given)

# the number of such folders is bounded, and removed folders do not count
os.mkdir(f"{s.mnt}/many")
most = 0
try:
    while most < 5000:
        os.mkdir(f"{s.mnt}/many/{most}")
        tell(s, f"many/{most}", "globex")
        most += 1
except OSError as e:
    assert e.errno == errno.ENOSPC, e
assert 4000 < most <= 4096, most
tell(s, "many/0", "initech")  # this folder is counted already
for i in range(100):
    os.rmdir(f"{s.mnt}/many/{i}")
wait_for(lambda: not as_user(0, lambda: tell(s, f"many/{most}", "globex")))
assert whose(s, f"many/{most}") == "globex"
shutil.rmtree(f"{s.mnt}/many")

# ---- kvcachectl ----
CTL = binary("kvcachectl")
run(CTL, "tenant", "--quota", "2G", "--user", "4294967294", "tool", s.mnt, ok=True)
assert (tenants(s)["tool"]["quota"], tenants(s)["tool"]["uid"]) == (str(2 << 30), "4294967294")
run(CTL, "tenant", "--folder", own, "tool", ok=True)
assert whose(s, "own") == "tool"
run(CTL, "tenant", "--folder", own, "none", ok=True)
assert whose(s, "own") is None
for words, rc, says in ((("--user", "4294967295", "tool"), 2, "number of a user"),
                        (("--quota", "1K", "tool"), 2, "1M or more"),
                        (("--remove", "--quota", "none", "tool"), 2, "cannot be combined"),
                        (("tool remove", s.mnt), 1, "a name has"), (("", s.mnt), 1, "a name has"),
                        (("--remove", "nobody", s.mnt), 1, "does not exist"),
                        (("--folder", own, "nobody"), 1, "does not exist")):
    p = run(CTL, "tenant", *words)
    assert p.returncode == rc and says in p.stdout, (words, p)
assert as_user(1001, lambda: os._exit(run(CTL, "tenant", "tool", s.mnt).returncode)) == 1
assert "tool" in run(CTL, "tenants", s.mnt, ok=True).stdout
run(CTL, "tenant", "--remove", "tool", s.mnt, ok=True)
assert "tool" not in tenants(s) and "remove" not in tenants(s)


# ---- after an unmount and a kill ----
def same(end):
    before = {n: (t["quota"], t["share"], t["uid"], t["used"]) for n, t in tenants(s).items()}
    end()
    s.mount()
    after = {n: (t["quota"], t["share"], t["uid"], t["used"]) for n, t in tenants(s).items()}
    assert before == after, (before, after)
    assert whose(s, "m/acme/a") == whose(s, "m/acme") == "acme"
    s.write("m/acme/again", blob(7, N))
    assert whose(s, "m/acme/again") == "acme"
    os.unlink(f"{s.mnt}/m/acme/again")
    s.settle()
    wait_for(lambda: used(s, "acme") == 2 * N)


s.settle()
same(s.umount)
s.committed(uses=True)
same(lambda: (s.kill(), run("umount", "-l", s.mnt)))

# ---- the quota ----
for i in range(40):
    s.write(f"m/acme/q{i}", blob(i, N))
s.settle()
wait_for(lambda: used(s, "acme") <= 16 * N * 9 // 10)
dropped = -1
while dropped != tenants(s)["acme"]["dropped"]:  # until the quota keeper is done
    dropped = tenants(s)["acme"]["dropped"]
    time.sleep(1)
there = [i for i in range(40) if os.path.exists(f"{s.mnt}/m/acme/q{i}")]
assert there == list(range(40))[-len(there):] and len(there) >= 10, there
assert os.path.exists(f"{s.mnt}/m/acme/before")
assert os.path.exists(f"{s.mnt}/l/{SALTED('initech', 1)}")
assert int(tenants(s)["acme"]["dropped"]) >= 24, tenants(s)
assert s.stats()["quota_refusals"] == 0 and s.stats()["tenant_drops"] >= 24
for i in there:
    assert s.read(f"m/acme/q{i}") == blob(i, N)

# ---- the share ----
make(s, "hog share=8M")
os.mkdir(f"{s.mnt}/hog")
tell(s, "hog", "hog")
for i in range(30):
    s.write(f"hog/{i}", blob(i, N))
s.settle()
for i in range(24):  # used before the chunks of hog, which are read again below
    s.write(f"calm/{i}", blob(i, N))
s.settle()
time.sleep(1.2)
for i in range(30):
    s.read(f"hog/{i}")
time.sleep(1.2)
before = s.stats()["tenant_evictions"]
for i in range(16):
    s.write(f"more/{i}", blob(i, N))
s.settle()
wait_for(lambda: s.stats()["tenant_evictions"] > before)
there = [i for i in range(24) if "cpu" in s.attr(f"calm/{i}", "tiers")]
assert len(there) == 24, there
t = tenants(s)["hog"]
assert int(t["evicted"]) > 0 and int(t["pool"]) >= 4 * N, t
for i in range(30):  # the evicted chunks are still on the disk
    assert s.read(f"hog/{i}") == blob(i, N)

# ---- removal ----
make(s, "hog remove")
assert "hog" not in tenants(s) and whose(s, "hog") is None and whose(s, "hog/1") is None
s.umount()
s.fsck()
s.mount()
make(s, "hog")  # a new tenant of the same name does not get the old chunks
assert used(s, "hog") == 0 and whose(s, "hog/1") is None and whose(s, "hog") is None
metrics = open(f"{s.mnt}/.kvcachefs/metrics").read()
assert f'kvcachefs_tenant_quota_bytes{{tenant="acme"}} {16 * N}' in metrics
assert "kvcachefs_tenants 4" in metrics
for i in range(120):  # the number of samples is bounded, and so is the number of tenants
    make(s, f"t{i}")
metrics = open(f"{s.mnt}/.kvcachefs/metrics").read()
assert metrics.count("kvcachefs_tenant_used_bytes{") == 101
for i in range(120, 1020):
    make(s, f"t{i}")
with fails(errno.ENOSPC):
    make(s, "one-more")
make(s, "t5 remove")
make(s, "one-more")
s.umount()
print("ok")
