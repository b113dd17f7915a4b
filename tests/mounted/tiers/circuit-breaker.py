# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The circuit breaker distinguishes errors about one object from failures of a tier. A missing key,
a stale or foreign frame, or a bad sector affects one object only; errors on many objects suspend
the tier, and a probe restores it. Copies that can never succeed wait for a change, failing copies
are retried at growing intervals, and both are visible."""
import errno, os, secrets, time
from faults import FAR, Rules
from kvtest import KiB, Store, TMP, beside, blob, fails, run, wait_for

FILES = 39
bad_list = f"{TMP}/bad"


def bad(places=(), err=0):
    with open(bad_list + ".new", "w") as f:
        f.writelines(f"{at} {err}\n" for at in places)
    os.rename(bad_list + ".new", bad_list)


def key_file(name, *lines):
    with open(f"{TMP}/{name}", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write("\n".join(lines) + "\n")
    return f"{TMP}/{name}"


data = {f"m/c{i}/l": blob(i, 64 * KiB) for i in range(FILES)}
bad()
s = Store(options=f"settle=0,shim=fail-places:{bad_list}").mount()
for path, d in data.items():
    s.write(path, d)
s.settle()
s.umount()
rows = run("sqlite3", "-readonly", f"{s.path}/catalog.sqlite",
           "select p.at from placements p join names n on n.ino = p.ino join names c on c.ino = "
           "n.parent order by cast(substr(c.name, 2) as int)", ok=True).stdout.split()
at = dict(zip(data, rows))
assert len(at) == FILES


def cold():
    s.umount()
    s.mount()


def all_good(paths):
    for path in paths:
        assert s.read(path) == data[path], path


s.mount()
left = list(data)
# if a tier does not accept the name, or a sector is bad, the file is missing
told = {errno.ENAMETOOLONG: errno.ENOENT, errno.EIO: errno.ENOENT}
for err, times in ((errno.ENOKEY, 2), (errno.ENAMETOOLONG, 2), (errno.EIO, 12), (errno.ESTALE, 1),
                   (errno.EPROTO, 1)):
    # one sector, or six files
    wrong, left = (left[:1], left[1:]) if err == errno.EIO else (left[:6], left[6:])
    bad([at[p] for p in wrong], err)
    cold()
    for _ in range(times):
        for path in wrong:
            with fails(told.get(err, err), errno.ESTALE, errno.ENOENT):
                s.read(path)
    all_good(left)
    st = s.stats()
    assert st["breaker_opened"] == 0 and st["tier_disk_up"] == 1, (err, st)
    print(errno.errorcode[err], "for", len(wrong), "files:", len(left), "others can be read")

# a tier that cannot be reached, or refuses: an application gets the same error in all cases
for err in errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.EACCES, errno.EMFILE:
    bad([at[p] for p in left[:3]], err)
    for path in left[:3]:
        os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
        with fails(errno.ENOENT):
            s.read(path)
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as lease:
        lease.write(f"{left[0]}\n".encode())
        assert lease.read(999).split()[-1] == b"lower", err
    bad()
    all_good(left[:3])
    assert s.stats()["tier_disk_up"] == 1, err

# errors on many objects suspend the tier; a probe restores it, with all of its copies
assert len(left) >= 12
bad([at[p] for p in left[:8]], errno.EIO)
cold()
for path in left[:8]:
    with fails(errno.ENOENT):
        s.read(path)
assert s.stats()["breaker_opened"] == 1
bad()


def back():
    try:
        return s.read(left[0]) == data[left[0]]
    except OSError:
        return False


wait_for(back)
all_good(left)
assert s.stats()["breaker_closed"] == 1
s.umount()
s.fsck("-n")


# no key for this model: the copy is retried only after a change, and callers get an error
def without_key():
    keys = key_file("keys", f"1 {secrets.token_hex(32)} private")
    s = Store("keyless", options=f"settle=0,keyfile={keys}").mount()
    s.write("other/l", b"x" * 5000)
    s.write("private/l", b"y" * 5000)
    wait_for(lambda: s.attr("private/l", "state") == "resident+lower")
    wait_for(lambda: s.stats()["spills_given_up"] == 1)
    time.sleep(2.5)
    st = s.stats()
    assert st["spill_failures"] == 1 and st["copies_failing"] == 0 and st["breaker_opened"] == 0, st
    with fails(errno.ENOKEY):
        fd = os.open(f"{s.mnt}/other/l", os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    os.rename(f"{s.mnt}/other/l", f"{s.mnt}/private/moved")
    wait_for(lambda: s.attr("private/moved", "state") == "resident+lower")
    s.umount()
    s.mount()
    assert s.read("private/moved") == b"x" * 5000
    s.umount()


# a failing copy is retried at growing intervals, and is counted; it succeeds when the tier works
def rarely():
    flag = f"{TMP}/broken"
    s = Store("rarely", options=f"settle=0,shim=fail-while:{flag}").mount()
    open(flag, "w").close()
    s.write("m/l", b"z" * 5000)
    wait_for(lambda: s.stats()["copies_failing"] == 1)
    began, first = time.monotonic(), s.stats()["spill_failures"]
    wait_for(lambda: s.stats()["spill_failures"] >= first + 2)  # after one second, and two more
    assert time.monotonic() - began > 1.5, "the copy is retried without pauses"
    os.unlink(flag)
    wait_for(lambda: s.attr("m/l", "state") == "resident+lower")
    assert s.stats()["copies_failing"] == 0
    s.umount()
    s.fsck("-n")


# the same for a failing sync of the catalog's log: the space of deleted objects is free only after
# it
def unsynced():
    s = Store("syncs", options="settle=0")
    rules = Rules(f"calls=sync path={s.path}/catalog.sqlite* nth={FAR} count={FAR} do=EIO")
    assert rules.mount(s)
    s.write("m/l", b"z" * 5000)
    s.settle()
    rules.begin()
    os.unlink(f"{s.mnt}/m/l")
    wait_for(lambda: rules.fired()[0])
    began, first = time.monotonic(), rules.fired()[0]
    # The sync is tried again after one second, two more, and four more, and a checkpoint, with its
    # own intervals, fails once before. Each time the log is synced three times: as it is, and twice
    # after it was written again.
    wait_for(lambda: rules.fired()[0] >= first + 12)
    assert time.monotonic() - began > 6, "the sync is retried without pauses"
    assert s.stats()["unsynced_bytes"] > 0
    rules.heal()
    wait_for(lambda: not s.stats()["unsynced_bytes"])
    s.umount()
    s.fsck("-n")


beside([(unsynced,), (rarely,), (without_key,)])
