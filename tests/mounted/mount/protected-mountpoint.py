# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""With protect_mountpoint nobody can write into the folder below the mount while nothing is
mounted: it is immutable, also for root and with the capabilities of the unit, or has mode 0000 on
filesystems without that attribute. The store can be mounted again there, by kvcachefs and by
mount.kvcachefs, after an unmount and after a kill, with and without the option. A mount without the
option changes nothing; a read-only folder is left alone; a user who is not root is refused."""
import os, shutil, stat, subprocess
from kvtest import *
from manager import unit

need_mount()
if not shutil.which("lsattr"):
    skip("needs e2fsprogs")
apart()
OPTION = "protect_mountpoint"
POINTS = f"{TMP}/points"
os.mkdir(POINTS)


def filesystem(kind):
    path = f"{POINTS}/{kind}"
    os.mkdir(path)
    run("mount", "-t", kind, "points", path, ok=True)
    os.mkdir(f"{path}/mnt")
    os.chmod(f"{path}/mnt", 0o777)
    return f"{path}/mnt"


def immutable(path):
    p = run("lsattr", "-d", path)
    return p.returncode == 0 and "i" in p.stdout.split()[0]


def free(path):
    """Ends the protection, as the manual says."""
    run("chattr", "-i", path)
    os.chmod(path, 0o755)


def cannot_write(path, uid):
    """Creating a file, a folder and a link fail."""
    for script in ("echo x >f", "mkdir d", "ln -s /x l"):
        p = run("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "sh", "-c",
                'cd "$0" && ' + script, path)
        assert p.returncode != 0, (path, uid, script)
    assert os.listdir(path) == []


def on(path, options=OPTION, how="kvcachefs"):
    s.mnt = path
    if how == "kvcachefs":
        s.mount(options)  # this compares device numbers, and the mount point has its own
        wait_for(lambda: os.path.exists(f"{path}/.kvcachefs/config") or s.daemon.poll() is not None)
        assert s.daemon.poll() is None, s.log()
    else:
        run(binary("mount.kvcachefs"), s.path, path, "-o",
            ",".join(filter(None, [f"cpu={s.cpu},run={TMP}/run,log=1M", options])), ok=True)


s = Store()
os.chmod(TMP, 0o755)
plain = f"{TMP}/plain"
os.mkdir(plain, 0o777)
on(plain, "")
s.write("m/c", b"x")
s.umount()
assert not immutable(plain) and stat.S_IMODE(os.stat(plain).st_mode) != 0, "without the option"

tried = set()
for kind in "tmpfs", "ramfs":
    path = filesystem(kind)
    can = run("chattr", "+i", path).returncode == 0
    run("chattr", "-i", path)
    tried.add(can)
    for end in "umount", "kill", "umount":
        on(path)
        assert s.read("m/c") == b"x" and s.config()[OPTION] == "1", s.config()
        s.write(f"m/{kind}{end}", b"y")  # the mount itself can be written
        if end == "kill":
            s.kill()
            run("umount", "-l", path, ok=True)
        else:
            s.umount()
        assert immutable(path) == can
        if not can:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0
        for uid in (0, 12345) if can else (12345,):
            cannot_write(path, uid)
    on(path, "")  # without the option the folder stays as it is
    s.umount()
    cannot_write(path, 12345)
    assert immutable(path) == can
    on(path, OPTION, "mount.kvcachefs")
    run("umount", path, ok=True)
    wait_for(s.ending)
    cannot_write(path, 12345)
    free(path)
    assert not immutable(path)
    run("sh", "-ec", 'cd "$0"; echo x >f; rm f', path, ok=True)
assert False in tried, "ramfs has the attribute; use another filesystem for mode 0000"
if True not in tried:
    print("without a filesystem with immutable folders")

# the privileges of the unit are sufficient
if True in tried:
    path = f"{POINTS}/tmpfs/mnt"
    caps = ",".join("+" + c[4:].lower() for c in unit()["CapabilityBoundingSet"].split())
    for have, want in ((caps, True), (caps.replace(",+linux_immutable", ""), False)):
        p = subprocess.Popen(["setpriv", "--inh-caps=-all", f"--bounding-set=-all,{have}",
                              binary("kvcachefs"), s.path, path, "-f", "-o",
                              f"cpu={s.cpu},run={TMP}/run,{OPTION}"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_for(lambda: p.poll() is not None or os.path.exists(f"{path}/.kvcachefs/config"))
        assert p.poll() is None, p.stdout.read()
        run("umount", path, ok=True)
        said = p.communicate(timeout=HANG)[0]
        assert p.returncode == 0, said
        assert immutable(path) is want, have
        assert stat.S_IMODE(os.stat(path).st_mode) == (0o755 if want else 0), have
        assert ("is immutable now" if want else "has mode 0000 now") in said, said
        free(path)

# a read-only filesystem needs no protection
path = filesystem("tmpfs") if not os.path.exists(f"{POINTS}/tmpfs") else f"{POINTS}/tmpfs/mnt"
run("mount", "-o", "remount,ro", f"{POINTS}/tmpfs", ok=True)
on(path)
s.umount()
assert not immutable(path)
# a user who is not root: one line, and nothing is changed
run("mount", "-t", "tmpfs", "-o", "mode=755", "his", "/mnt", ok=True)
helper = shutil.which("fusermount3")
if helper and os.stat(helper).st_mode & stat.S_ISUID and os.stat("/dev/fuse").st_mode & 0o006:
    os.mkdir("/mnt/his")
    os.chown("/mnt/his", 12345, 12345)
    for program in "kvcachefs", "mkfs.kvcachefs":
        shutil.copy(binary(program), "/mnt")

    def his(*command, ok):
        return run("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups",
                   "--inh-caps=-all", *command, ok=ok)
    his("/mnt/mkfs.kvcachefs", "--size", "64M", "/mnt/his/store", ok=True)
    his("mkdir", "/mnt/his/mnt", ok=True)
    p = his("/mnt/kvcachefs", "/mnt/his/store", "/mnt/his/mnt", "-o", f"cpu=16M,{OPTION}", ok=False)
    assert f"option {OPTION}: only root can protect" in p.stdout and p.stdout.count("\n") == 1, p
    assert stat.S_IMODE(os.stat("/mnt/his/mnt").st_mode) != 0
else:
    print("without fusermount3")
