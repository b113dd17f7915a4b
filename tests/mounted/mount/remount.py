# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""mount -o remount changes Live options of a mount in use, from the command line and from fstab.
Options that cannot change are refused in one line that names each of them, and then nothing is
changed. The daemon, open files and the kernel's flags of the mount stay."""
import os, re
from kvtest import *

# mount(8) looks for its helpers in /sbin. In the namespace of this case only ours are there.
sbin, fstab = f"{TMP}/sbin", f"{TMP}/fstab"
os.mkdir(sbin)
for name in ("mount.kvcachefs", "mount.fuse.kvcachefs"):
    os.symlink(binary("mount.kvcachefs"), f"{sbin}/{name}")


def fstab_line(store, where, options):
    with open(fstab, "w") as f:
        f.write(f"{store} {where} kvcachefs {options} 0 0\n" if store else "")


def mount(*words):
    return run("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /sbin/. && exec mount "$@"',
               sbin, *words, env=dict(os.environ, LIBMOUNT_FSTAB=fstab))


def refused(p, text, before):
    assert p.returncode and p.stdout == f"mount.kvcachefs: remount: {text}\n", p
    assert s.config() == before and flags() == known, (s.config(), flags())


def flags():
    return [line.split(" - ") for line in open("/proc/self/mountinfo") if f" {s.mnt} " in line]


def cannot(*names):
    s_ = "s" * (len(names) > 1)
    return f"option{s_} {', '.join(names)} cannot change on a live mount: unmount, and mount with" \
           f" the new value{s_}"


os.mkdir(f"{TMP}/r")
fstab_line(None, None, None)
s = Store(cpu="64M", options=f"remote=dir://{TMP}/r,noatime,allow_other").mount()
known, daemon, start = flags(), s.daemon.pid, s.config()
s.write("m/c/l", blob(1, MiB))
with open(f"{s.mnt}/m/c/l", "rb") as f:
    # mount(8) adds the options of /proc/mounts
    assert not mount("-o", "remount,high=95,low=70,keep_pool", s.mnt).stdout
    now = s.config()
    assert (now["high"], now["low"], now["keep_pool"]) == ("95", "70", "1") and flags() == known
    assert {n for n in now if now[n] != start[n]} == {"high", "low", "keep_pool"}
    assert f.read() == blob(1, MiB) and s.daemon.pid == daemon
# nothing new, and options that the mount has
for words in (("-o", "remount"), ("-o", f"remount,noatime,nosuid,remote=dir://{TMP}/r,cpu=64M"),
              ("-t", "kvcachefs", "-o", "remount,high=95"),
              ("-t", "kvcachefs", "-o", "remount,high=95", s.path)):
    assert not mount(*words, s.mnt).stdout, words
assert s.config() == now

# refused, with the names of all such options
refused(mount("-o", "remount,high=91,cpu=1G,policy=lru,ro", s.mnt), cannot("cpu", "policy", "ro"),
        now)
refused(mount("-o", "remount,ro", s.mnt), cannot("ro"), now)
refused(mount("-o", "remount,relatime,exec,noexec", s.mnt), cannot("noexec", "relatime"), now)
refused(mount("-o", f"remount,remote=dir://{TMP}/x,high=92", s.mnt), cannot("remote"), now)
refused(mount("-o", "remount,high=91,low=92", s.mnt),
        "option low must be below option high: 92 is not below 91", now)
refused(mount("-o", "remount,hihg=91", s.mnt), "unknown option 'hihg' (did you mean "
        "'high'?); kvcachefs --help lists the options", now)
refused(mount("-t", "kvcachefs", "-o", "remount,high=91", TMP, s.mnt),
        f"the store on {s.mnt} is {s.path}, not {TMP}; unmount it first, or give its own mount "
        "point", now)
p = run(binary("mount.kvcachefs"), s.path, TMP, "-o", "rw,remount")
refused(p, f"{TMP} is not the mount point of a kvcachefs; findmnt -t fuse.kvcachefs lists the "
        "mounts", now)
p = run(binary("kvcachefs"), s.path, s.mnt, "-o", "remount,high=91")
assert p.returncode == 1 and "option remount is for mount -o remount,OPTIONS MOUNTPOINT" in \
    p.stdout and s.config() == now, p

# fstab: a changed line is applied without options on the command line
fstab_line(s.path, s.mnt, "cpu=64M,allow_other,noatime,nofail,high=88")
assert not mount("-o", "remount", s.mnt).stdout
assert (s.config()["high"], s.config()["low"]) == ("88", "70") and flags() == known
assert not mount("-o", "remount,low=60", s.mnt).stdout
assert s.config()["low"] == "60"
now = s.config()
fstab_line(s.path, s.mnt, "cpu=128M,allow_other,noatime,high=77,metrics=127.0.0.1:1")
refused(mount("-o", "remount", s.mnt), cannot("cpu", "metrics"), now)
# --fake changes nothing
fstab_line(s.path, s.mnt, "cpu=64M,high=77")
assert not mount("--fake", "-o", "remount", s.mnt).stdout and s.config() == now

# after the end of the daemon
assert s.read("m/c/l") == blob(1, MiB) and s.daemon.pid == daemon
s.kill()
p = mount("-t", "kvcachefs", "-o", "remount,high=91", s.path, s.mnt)
assert p.returncode and re.fullmatch(
    f"mount.kvcachefs: remount: the daemon of the mount on {s.mnt} has ended; mount its store "
    "again without remount\n", p.stdout), p
s.mount()
s.umount()
