# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Invalid input of any kind produces one clear line on stderr and a non-zero exit status, and
changes nothing."""
import os, shutil, struct
from frames import sum128
from kvtest import *

need_mount()
kv, mkfs, fsck = binary("kvcachefs"), binary("mkfs.kvcachefs"), binary("fsck.kvcachefs")
mnt, store = f"{TMP}/mnt", f"{TMP}/store"
os.mkdir(mnt)
run(mkfs, "--size", "16M", store, ok=True)
o = f"run={TMP}/run,cpu=32M"


def tree():
    return {os.path.join(d, n): (os.lstat(os.path.join(d, n)).st_size,
                                 os.lstat(os.path.join(d, n)).st_mtime_ns)
            for d, ds, ns in os.walk(TMP) for n in ns + ds if not n.endswith(("-shm", "-wal"))}


def refused(*command, says, code=1):
    before = tree()
    p = run(*command)
    assert p.returncode == code, f"{command}: {p.returncode}: {p.stdout}"
    assert p.stdout.count("\n") == 1 and says in p.stdout, f"{command}: {p.stdout!r} lacks {says!r}"
    after = tree()
    assert before == after, (command, [k for k in before | after if before.get(k) != after.get(k)])
    assert not os.path.ismount(mnt)


refused(kv, f"{TMP}/nothing", mnt, says="no store at")
refused(kv, "/etc", mnt, says="not a kvcachefs store")
refused(kv, store, f"{TMP}/nowhere", says="mount point")
refused(kv, store, "/etc/passwd", says="not a folder")
refused(kv, store, mnt, "-o", f"{o},cpu=9000G", says="more than this machine's free memory")
refused(kv, store, mnt, "-o", f"{o},cpu=1M", says="option cpu")
refused(kv, store, mnt, "-o", f"{o},cpu=lots", says="is not a size")
refused(kv, store, mnt, "-o", f"{o},polcy=lru", says="unknown option 'polcy'")
refused(kv, store, mnt, "-o", f"{o},policy=best", says="lru, fifo, lfu, mru")
refused(kv, store, mnt, "-o", f"{o},high=50,low=60", says="low must be below")
refused(kv, store, mnt, "-o", f"{o},settle=soon", says="not a time")
refused(kv, store, mnt, "-o", f"{o},cpu=4GB", says="write 4G (4 GiB)")
refused(kv, store, mnt, "-o", f"{o},write=maybe", says="through, back")
refused(kv, store, mnt, "-o", f"{o},keep_pool=7", says="does not take a value")
refused(kv, store, mnt, "-o", f"{o},protect_mountpoint=1x", says="does not take a value")
for bad in ("uid=nobody", "uid=", "uid=-1", "uid=4294967295", "gid=1x", "gid"):
    refused(kv, store, mnt, "-o", f"{o},{bad}", says="is not the number of a user or group")
for bad in ("mode=rwx", "mode=", "mode=10000", "mode=789", "mode"):
    refused(kv, store, mnt, "-o", f"{o},{bad}", says="is not an octal mode")
refused(kv, store, mnt, "-o", f"{o},shim=explode:1", says="is not valid")
PEERS = f"peers://?nodes=h:1&secret={TMP}/secret"
with open(f"{TMP}/secret", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write("a secret of the peers\n")
for remote, says in (("foo", "is not a URL"), ("/srv/kv", "give dir:///srv/kv"),
                     ("ftp://x", "unknown kind 'ftp'"),
                     ("redis://u:p@h", "a URL must not contain a password"),
                     ("redis://", "needs a host"), ("redis://h?pass=x", "no parameter 'pass'"),
                     ("redis://h?password_file=/nonexistent", "cannot be opened"),
                     ("redis://h:99999/x", "is not a URL"),
                     ("redis://h?compress=lz4", "compress=lz4 is not one of"),
                     ("s3:///x", "needs a bucket"),
                     ("s3://b?credentials=/nonexistent", "cannot be opened"),
                     ("s3://b?endpoint=h", "http:// or https://"), ("dir://host/x", "dir:///PATH"),
                     ("dir:///nonexistent", "not a readable folder"),
                     ("rediss://h?ca=/nonexistent", "TLS"), ("ext://host/x", "ext:///PATH"),
                     ("ext:///nonexistent", "does not exist"),
                     ("ext:///etc/passwd", "is not an executable file"),
                     ("ext:///etc", "is not an executable file"),
                     ("ext:///usr/bin/env?x", "is not NAME=VALUE"),
                     ("ext:///usr/bin/env?arena=5M", "is not a multiple of 4M"),
                     ("ext:///usr/bin/env?arena=1G", "from 4M to 256M"),
                     ("peers://h:1/", "peers://?nodes="), ("peers://?secret=/x", "nodes="),
                     ("peers://?nodes=h:1", "secret=FILE"),
                     ("peers://?nodes=h:1&secret=/nonexistent", "/nonexistent"),
                     ("peers://?nodes=h&secret=/x", "'h' is not HOST:PORT"),
                     ("peers://?nodes=h:1+[::1:2&secret=/x", "is not HOST:PORT"),
                     ("peers://?nodes=h:99999&secret=/x", "is not HOST:PORT"),
                     ("peers://?nodes=" + "+".join(f"h:{i}" for i in range(1, 66)) +
                      "&secret=/x", "more than 64 nodes"),
                     ("peers://?nodes=h:1&secret=/x&node=2", "no parameter 'node'"),
                     (PEERS + "&directory=", "directory= must be redis://"),
                     (PEERS + "&directory=redis+cluster://h/p", "directory= must be redis://"),
                     (PEERS + "&directory=redis://", "needs a host"),
                     (PEERS + "&directory=redis://u:p@h/p", "must not contain a password"),
                     (PEERS + "&directory=redis://h/p?db=1", "with & between them"),
                     (PEERS + "&directory=redis://h/p&db=x", "not the number of a database"),
                     (PEERS + "&directory=redis://h/{p}", "cannot contain { or }"),
                     (PEERS + "&directory=redis://h/p&password_file=/nonexistent",
                      "/nonexistent")):
    refused(kv, store, mnt, "-o", f"{o},remote={remote}", says=says)
os.mkdir(f"{TMP}/dir")
refused(kv, store, mnt, "-o", f"{o},remote=dir://{TMP}/dir,remote=dir://{TMP}/dir",
        says="is given twice")
refused(kv, store, mnt, "-o", ",".join([o] + [f"remote=redis://h/{n}" for n in range(4)]),
        says="give at most 3")
refused(kv, store, mnt, "-o", f"{o},compress=lz4", says="none, zstd, bf16+zstd")
refused(kv, store, mnt, "-o", f"{o},level=0", says="1 to 19")
refused(kv, store, mnt, "-o", f"{o},metrics=9464", says="ADDR:PORT")
refused(kv, store, mnt, "-o", f"{o},keyfile=/nonexistent", says="cannot be opened")
refused(kv, store, says="a store and a mount point")
p = run(kv, "--wrong", ok=False)
assert "--help" in p.stdout
# a newer format, a damaged superblock
good = open(f"{store}/superblock", "rb").read()
newer = bytearray(good)
newer[8:12] = struct.pack("<I", 99)
newer[4080:] = sum128(bytes(newer[:4080]))
damaged = good[:8] + b"\x01\0\0\0\xff" + good[13:]
for page, says in ((newer, "use a newer kvcachefs"), (damaged, "damaged")):
    with open(f"{store}/superblock", "wb") as f:
        f.write(page)
    refused(kv, store, mnt, "-o", o, says=says)
    with open(f"{store}/superblock", "wb") as f:
        f.write(good)
# the folder of a remote is not in the mount
os.mkdir(f"{mnt}/sub")
for folder in mnt, f"{mnt}/sub?compress=zstd":
    refused(kv, store, mnt, "-o", f"{o},remote=dir://{folder}",
            says=f"is inside the mount point {mnt}; give")
os.rmdir(f"{mnt}/sub")
# options that do not follow -o
refused(kv, store, mnt, "cpu=64M", says="unexpected argument cpu=64M; give a store, a mount point")
refused(kv, store, mnt, "--cpu=64M", says="mount options follow -o")
refused(kv, store, says="give a store and a mount point")
# the tools
refused(mkfs, store, says="--force")
refused(mkfs, "--size", "1M", f"{TMP}/new", says="too small")
refused(mkfs, "--size", "900T", f"{TMP}/new", says="more than")
refused(mkfs, "--size", "much", f"{TMP}/new", says="not a size")
refused(mkfs, "--size", "16M", f"{TMP}/a/b/c", says="cannot make")
refused(mkfs, "--device", f"{store}/data", f"{TMP}/new", says="not a block device")
refused(mkfs, "--device", "/dev/nothing", f"{TMP}/new", says="cannot open the device")
refused(mkfs, says="one store")
refused(fsck, f"{TMP}/nothing", says="no store at", code=8)
refused(fsck, says="one store", code=8)
# commands for a mount, on a folder that is not a mount
for words in (("stats",), ("config",), ("import",), ("rekey",), ("prefetch", "a"), ("lease", "a")):
    refused(binary("kvcachectl"), words[0], mnt, *words[1:], says="is not in a kvcachefs mount")
    refused(binary("kvcachectl"), words[0], f"{TMP}/nowhere", *words[1:],
            says="give a path in a kvcachefs mount")
# a folder with files of those names, which stay unchanged
os.mkdir(f"{mnt}/.kvcachefs")
for name in ("stats", "control", "lease"):
    with open(f"{mnt}/.kvcachefs/{name}", "w") as f:
        f.write("somebody's\n")
for words in (("stats",), ("import",), ("rekey",), ("prefetch", "a"), ("lease", "a")):
    refused(binary("kvcachectl"), words[0], mnt, *words[1:], says="is not in a kvcachefs mount")
shutil.rmtree(f"{mnt}/.kvcachefs")

# without the right to mount
def as_nobody(*command):
    return run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command)


os.chmod(TMP, 0o755)
p = as_nobody(mkfs, "--size", "16M", f"{TMP}/new")
if "setpriv" not in p.stdout:
    assert p.returncode == 1 and "ermission" in p.stdout and p.stdout.count("\n") == 1, p.stdout
    p = as_nobody(kv, store, mnt, "-o", o)
    assert p.returncode == 1 and p.stdout.count("\n") == 1, p.stdout
# without /dev/fuse
p = run("unshare", "-m", "sh", "-c", f"mount -t tmpfs none /dev && exec {kv} {store} {mnt} -o {o}")
if p.stdout.startswith("unshare:"):
    print("no mount namespace can be made here: not tried without /dev/fuse")
else:
    assert p.returncode and "/dev/fuse" in p.stdout, p.stdout
run(kv, store, mnt, "-o", o, ok=True)
run("umount", mnt, ok=True)
wait_for(lambda: run(fsck, "-n", store).returncode == 0)
# on a device, if a loop device can be created
p = run("losetup", "--find", "--show", f"{store}/data")
if p.returncode == 0:
    dev = p.stdout.strip()
    try:
        run(mkfs, "--device", dev, f"{TMP}/ondev", ok=True)
        s = Store("ondev", make=False).mount()
        s.write("m/c/l", blob(1, MiB))
        s.settle()
        s.umount()
        s.mount()
        assert s.read("m/c/l") == blob(1, MiB)
        s.umount()
        s.fsck("-n", "--data")
    finally:
        run("losetup", "-d", dev)
