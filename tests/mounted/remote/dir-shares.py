# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Shares of a dir:// tier in real deployments: not mounted at the start, replaced on purpose,
read-only, used by several users, and with folders that cannot be read."""
import errno, os, subprocess, time
from kvtest import KiB, Store, TMP, beside, binary, blob, fails, need_mount, run, wait_for
from s3 import Tier
import faults, frames

need_mount()
MARK = ".kvcachefs-remote"
for p in (TMP, os.path.dirname(TMP)):
    os.chmod(p, 0o755)


def folder(name, mode=0o700):
    path = f"{TMP}/{name}"
    os.makedirs(path)
    os.chmod(path, mode)
    return path


def new(name, path, **more):
    return Store(name, size="64M", options=f"settle=0,deadline=3000,disk=off,remote=dir://{path}",
                 **more)


def copied(s, path):
    wait_for(lambda: "dir" in s.attr(path, "tiers").split(","))


def lower(s, path):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    assert s.attr(path, "state") == "lower"


def readable(s, path, data):
    def same():
        try:
            return s.read(path) == data
        except FileNotFoundError:
            return False
    wait_for(same, every=0.2)


def absent_at_start(how):
    """The share is not mounted when the daemon starts: nothing is stored in the bare folder, and no
    file is lost. `how`: another filesystem, or a folder of the same one."""
    bare, real = folder(f"{how}.bare"), folder(f"{how}.real")
    if how == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", "mode=0700", "kvtest", real, ok=True)
    run("mount", "--bind", real, bare, ok=True)
    s = new(f"{how}.s", bare).mount()
    data = {f"m/c{i}/l": blob(i, 20 * KiB) for i in range(3)}
    for path, d in data.items():
        s.write(path, d)
        copied(s, path)
    s.umount()
    for again in range(2):
        run("umount", bare, ok=True)
        s.mount()
        s.write(f"m/new{again}/l", b"n" * 5000)
        for path in data:
            with fails(errno.ENOENT):
                s.read(path)
            assert os.path.exists(f"{s.mnt}/{path}"), "the file is lost"
        time.sleep(0.2)
        assert os.listdir(bare) == [], "something was stored in the bare folder"
        assert run(binary("kvcachectl"), "import", s.mnt).returncode != 0
        assert "mount the share there" in s.log()
        run("mount", "--bind", real, bare, ok=True)
        for path, d in data.items():
            readable(s, path, d)
            lower(s, path)
        copied(s, f"m/new{again}/l")
        s.umount()
    # Replaced on purpose: the store is told to forget the old one.
    run("umount", bare, ok=True)
    run("rm", "-r", f"{s.path}/dir-remotes", ok=True)
    s.mount()
    s.write("m/fresh/l", b"f" * 5000)
    copied(s, "m/fresh/l")
    assert os.path.exists(f"{bare}/{MARK}")
    s.umount()


def moved_away():
    """The folder is renamed under a running daemon and another is at its path."""
    path = folder("moving")
    s = new("moving.s", path).mount()
    s.write("m/k", b"k" * 5000)
    copied(s, "m/k")
    lower(s, "m/k")
    os.rename(path, f"{path}.old")
    os.mkdir(path)
    with fails(errno.ENOENT):
        s.read("m/k")
    failed = s.stats()["tier_errors"]
    s.write("m/new", b"n" * 5000)
    wait_for(lambda: s.stats()["tier_errors"] > failed or os.listdir(path))
    assert os.path.exists(f"{s.mnt}/m/k") and os.listdir(path) == []
    os.rmdir(path)
    os.rename(f"{path}.old", path)
    readable(s, "m/k", b"k" * 5000)
    copied(s, "m/new")
    # The mark is removed: a daemon that knows the folder makes it again.
    with open(f"{path}/{MARK}") as f:
        mark = f.read()
    os.unlink(f"{path}/{MARK}")

    def marked():
        s.write("m/k", b"k" * 6000)
        return os.path.exists(f"{path}/{MARK}")
    wait_for(marked, every=0.2)
    with open(f"{path}/{MARK}") as f:
        assert f.read() == mark
    s.umount()


def read_only():
    """Loads from a read-only share succeed while copies to it wait."""
    real, path = folder("ro.real"), folder("ro")
    run("mount", "--bind", real, path, ok=True)
    a = new("ro.a", real).mount()
    data = {f"m/k{i}": blob(i, 20 * KiB) for i in range(20)}
    for name, d in data.items():
        a.write(name, d)
    for name in data:
        copied(a, name)
    run("mount", "-o", "remount,bind,ro", path, ok=True)
    b = new("ro.b", path).mount()
    for i, (name, d) in enumerate(data.items()):
        b.write(f"m/own{i}", b"o" * 5000)
        assert b.read(name) == d, name
    st = b.stats()
    assert st["breaker_opened"] == 0 and st["corrupt"] == 0, st
    assert "read-only" in b.log()
    # When it is writable again, it accepts the copies.
    run("mount", "-o", "remount,bind,rw", path, ok=True)
    copied(b, "m/own0")
    a.umount()
    b.umount()
    run("umount", path, ok=True)


def driver(user, group, groups, path):
    """A tier of another user, in a process of its own."""
    t = Tier.__new__(Tier)
    t.errors = f"{TMP}/tier.{user}.log"
    with open(t.errors, "a") as f:
        t.process = subprocess.Popen(
            ["setpriv", f"--reuid={user}", f"--regid={group}", groups, binary("test-tier"),
             f"dir://{path}", "4000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=f,
            text=True)
    t.opened = t.process.stdout.readline().strip()
    assert t.opened == "0", t.opened
    return t


def users():
    """Users that share a group, and users that share nothing but a folder that all may write to:
    each reads, replaces and removes the frames of the others."""
    for mode, owner, groups in ((0o2770, 5000, "--groups=5000"), (0o777, 0, "--clear-groups")):
        path = folder(f"users{mode:o}")
        os.chown(path, 0, owner)
        os.chmod(path, mode)
        os.umask(0o077)
        one, two = (driver(u, u, groups, path) for u in (4001, 4002))
        os.umask(0o022)
        names = [f"k{i}" for i in range(8)]
        for n in names:
            assert one("put", n, 20 * KiB) == "0"
            assert two("get", n, 20 * KiB) == "0", (mode, n)
            assert two("put", n, 20 * KiB) == "0"
            assert one("get", n, 20 * KiB) == "0"
        assert one("list") == two("list") == f"0 {len(names)}"
        assert one("remove", names[0]) == "0" and two("get", names[0], 20 * KiB) == "ENOENT"
        with open(f"{path}/{MARK}") as f:
            assert len(f.read()) == 33
        assert os.stat(f"{path}/{MARK}").st_mode & 0o444 == 0o444
        for t in (one, two):
            t.end()
    # A folder that only its owner may write to: nobody else sees the frames.
    path = folder("private", 0o755)
    os.chown(path, 4001, 4001)
    one = driver(4001, 4001, "--clear-groups", path)
    two = driver(4002, 4002, "--clear-groups", path)
    assert one("put", "k", 20 * KiB) == "0"
    assert two("get", "k", 20 * KiB) != "0" and two("put", "k2", 20 * KiB) == "EACCES"
    assert one("get", "k", 20 * KiB) == "0"
    for t in (one, two):
        t.end()


def lists():
    """A folder that cannot be read makes the listing fail, after all others were listed."""
    path = folder("lists")
    t = Tier(f"dir://{path}")
    names = [f"k{i}" for i in range(12)]
    for n in names:
        assert t("put", n, 5000) == "0"
    assert t("list") == f"0 {len(names)}"
    t.end()
    subs = sorted({frames.name_of(n)[:2] for n in names})
    for sub in (subs[0], subs[-1]):
        there = sum(frames.name_of(n)[:2] == sub for n in names)
        for calls, error in (("open", "EACCES"), ("open", "EIO"), ("list", "EIO")):
            env = faults.environment(f"calls={calls} path={path}/{sub} nth=1 count=0 do={error}")
            t = Tier(f"dir://{path}", env={k: env[k] for k in ("LD_PRELOAD", "FAULTS")})
            assert (got := t("list")) == f"{error} {len(names) - there}", (sub, calls, error, got)
            t.end()


beside([(absent_at_start, "tmpfs"), (absent_at_start, "bind"), (moved_away,), (read_only,),
        (users,), (lists,)], most=3)
