# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl finds the mount from any path in it, or the only mount of the machine. It reports a
missing, ambiguous, partial or dead mount, and exits with 0, 1 or 2."""
import json, os, shlex, subprocess
from kvtest import *

CTL = binary("kvcachectl")


def ctl(*words, **more):
    return run(CTL, *words, **more)


def said(p, code, *words):
    assert p.returncode == code and p.stdout.count("\n") == 1, p
    assert p.stdout.startswith("kvcachectl: ") and all(w in p.stdout for w in words), p


def alone(*words, mounts=(), before="true"):
    """Runs where only these kvcachefs mounts exist."""
    keep = "|".join(map(shlex.quote, mounts)) or "-"
    return run("unshare", "-m", "bash", "-c",
               "findmnt -rno TARGET -t fuse.kvcachefs | while read -r m; do "
               "printf -v m %b \"$m\"; "
               f"case $m in {keep}) ;; *) umount -l \"$m\" ;; esac; done; "
               f"{before}; exec {CTL} {shlex.join(words)}")


a = Store("a", options="settle=0").mount()
b = Store("b").mount()
a.write("m/c/l0", blob(1, 300000))
a.settle()
os.symlink(f"{a.mnt}/m", f"{TMP}/link")

# from any path in the mount
uuid = {s: s.config()["uuid"] for s in (a, b)}
assert uuid[a] != uuid[b]
for path, s in ((a.mnt, a), (f"{a.mnt}/", a), (f"{a.mnt}/m", a), (f"{a.mnt}/m/c/l0", a),
                (f"{TMP}/link/c", a), (b.mnt, b)):
    assert f"uuid={uuid[s]}\n" in ctl("config", path, ok=True).stdout, path
assert f"uuid={uuid[a]}\n" in ctl("config", ".", cwd=f"{a.mnt}/m/c", ok=True).stdout
assert "pool_bytes" in ctl("stats", f"{a.mnt}/m/c", ok=True).stdout
said(ctl("import", f"{a.mnt}/m"), 1, "no shared tier", "remote=")
said(ctl("rekey", f"{a.mnt}/m"), 1, "no keys", "keyfile=")

# the only mount
for s in (a, b):
    p = alone("config", mounts=[s.mnt])
    assert p.returncode == 0 and f"uuid={uuid[s]}\n" in p.stdout, p
p = alone("stats", mounts=[a.mnt, b.mnt])
said(p, 1, "2 kvcachefs filesystems are mounted", a.mnt, b.mnt)
# among several, the one around the working directory
for s in (a, b):
    p = alone("config", mounts=[a.mnt, b.mnt], before=f"cd {s.mnt}")
    assert p.returncode == 0 and f"uuid={uuid[s]}\n" in p.stdout, p
said(alone("stats"), 1, "no kvcachefs is mounted")
# a mount that is mounted at two places is one mount
os.mkdir(f"{TMP}/twice")
p = alone("config", mounts=[a.mnt], before=f"mount --bind {a.mnt} {TMP}/twice")
assert p.returncode == 0 and f"uuid={uuid[a]}\n" in p.stdout, p
# the list of mounts escapes a name with a space and a backslash
os.mkdir(f"{TMP}/a b\\c")
odd = shlex.quote(f"{TMP}/a b\\c")
p = alone("stats", f"{TMP}/a b\\c/m", mounts=[a.mnt],
          before=f"mount --bind {a.mnt} {odd} && umount -l {a.mnt}")
assert p.returncode == 0 and "pool_bytes" in p.stdout, p
# a partial mount is controlled through its root, which is mounted elsewhere
for umount, code in (("true", 0), (f"umount -l {a.mnt}", 1)):
    p = alone("config", f"{TMP}/twice/c", mounts=[a.mnt],
              before=f"mount --bind {a.mnt}/m {TMP}/twice && {umount}")
    assert p.returncode == code and ("only a part" in p.stdout) == bool(code), p

# prefetch and lease: paths below the mount in the first argument, or ordinary paths
for words in ((a.mnt, "m/c"), (f"{a.mnt}/m/c",), (f"{a.mnt}/m/c/l0", f"{TMP}/link/c")):
    a.settle()
    os.setxattr(f"{a.mnt}/m/c", "user.kvcachefs.demote", b"cpu")
    assert a.attr("m/c", "tiers") == "disk"
    ctl("prefetch", *words, ok=True)
    wait_for(lambda: a.attr("m/c", "tiers") == "cpu,disk")
# a folder of folders is walked to its chunks, and the numbers are printed
for c in range(3):
    for i in range(2):
        a.write(f"deep/x/y{c}/l{i}", blob(f"{c}{i}", 20000))
a.settle()
for c in range(3):
    os.setxattr(f"{a.mnt}/deep/x/y{c}", "user.kvcachefs.demote", b"cpu")
p = ctl("prefetch", f"{a.mnt}/deep", ok=True)
assert p.stdout.startswith("prefetching 3 chunks, 117"), p
wait_for(lambda: all(a.attr(f"deep/x/y{c}", "tiers") == "cpu,disk" for c in range(3)))
j = json.loads(ctl("prefetch", "--json", a.mnt, "deep", "m/c", ok=True).stdout)
assert (j["paths"], j["chunks"], j["failed"]) == (3, 4, 0) and j["files"] >= 7, j
p = ctl("prefetch", a.mnt, "deep", "none", ok=True)
assert "1 of 7 files failed; the first is none: No such" in p.stdout, p
held = subprocess.Popen([CTL, "lease", f"{a.mnt}/deep"], stdout=subprocess.PIPE, text=True)
assert sorted(held.stdout.readline().split()[0] for _ in range(6)) == \
    [f"deep/x/y{c}/l{i}" for c in range(3) for i in range(2)]
held.terminate()
held.wait()
ctl("prefetch", "l0", cwd=f"{a.mnt}/m/c", ok=True)
said(ctl("prefetch", f"{a.mnt}/m/c", f"{b.mnt}"), 1, "is not in the mount")
said(ctl("prefetch", f"{a.mnt}/m/c", f"{a.mnt}/m/none"), 1, "No such file")
said(ctl("prefetch", a.mnt), 2, "add the paths")

# no mount, and paths outside of our mounts
said(ctl("stats", TMP), 1, "not in a kvcachefs mount")
said(ctl("stats", f"{TMP}/none"), 1, "a kvcachefs mount", "No such file")
# wrong arguments
said(ctl(), 2, "--help")
said(ctl("stat us"), 2, "unknown command 'stat us'")
said(ctl("stats", a.mnt, a.mnt), 2, "usage: kvcachectl stats")
said(ctl("hash"), 2, "usage: kvcachectl hash")
assert ctl("lease", "--help", ok=True).stdout.startswith("usage: kvcachectl lease ")

# a dead mount is reported, and ignored if another mount is alive
b.kill()
for what in (b.mnt, f"{b.mnt}/x"):
    said(ctl("stats", what), 1, "the daemon of this mount has ended", "mount its store again")
p = alone("config", mounts=[a.mnt, b.mnt])
assert p.returncode == 0 and f"uuid={uuid[a]}\n" in p.stdout, p
said(alone("stats", mounts=[b.mnt]), 1, "no kvcachefs is mounted")
b.mount()
assert f"uuid={uuid[b]}\n" in ctl("config", b.mnt, ok=True).stdout
a.umount()
b.umount()
