# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""keyfile=: nothing below the pool is readable. Wrong or missing keys are refused in one line. Keys
rotate while the mount is in use. Removing a model's own key makes its data, and no other,
unreadable. A frame from another place or an earlier time is refused."""
import errno, os, secrets, shutil, signal, subprocess, time
from kvtest import MiB, KiB, Store, TMP, binary, blob, fails, run, wait_for

keys = f"{TMP}/keys"
assert run(binary("kvcachectl"), "newkey", keys).returncode == 0
assert os.stat(keys).st_mode & 0o777 == 0o600
MARK = b"this is a prompt that nobody else may read. "
secret = MARK * (MiB // len(MARK))


def data_has(s, what):
    return what in open(f"{s.path}/data", "rb").read()


def refused(s, options, word):
    p = run(binary("kvcachefs"), s.path, s.mnt, "-o", f"cpu=64M,run={TMP}/run," + options)
    assert p.returncode and word in p.stdout and len(p.stdout.strip().splitlines()) == 1, p.stdout


for compress in ("none", "zstd"):
    s = Store(f"s-{compress}", options=f"settle=20,compress={compress},keyfile={keys}").mount()
    assert s.config()["sealing"] == "on"
    s.write("model/c/layer", secret)
    s.write("other/c/layer", secret[::-1])
    os.setxattr(f"{s.mnt}/model/c/layer", "user.note", b"x")
    s.settle()
    s.umount()
    assert not data_has(s, MARK) and not data_has(s, MARK[::-1])
    s.fsck("-n", "--data")
    refused(s, "", "encrypted")
    wrong = f"{TMP}/wrong"
    if os.path.exists(wrong):
        os.unlink(wrong)
    with open(wrong, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write("1 " + secrets.token_hex(32) + "\n")
    refused(s, f"keyfile={wrong}", "key 1 is not the key" if compress == "none"
            else "not encrypted with any of the keys")
    os.chmod(wrong, 0o644)
    refused(s, f"keyfile={wrong}", "chmod 600")
    refused(s, f"keyfile={TMP}/none", "cannot be opened")
    s.mount()
    assert s.read("model/c/layer") == secret and s.read("other/c/layer") == secret[::-1]
    # core dumps and /proc: other users have no access
    assert os.stat(f"/proc/{s.daemon.pid}/mem").st_uid == 0
    # rotate: add a second key, then remove the first
    s.umount()
    run(binary("kvcachectl"), "newkey", keys, ok=True)
    s.mount()
    s.write("model/c/new", secret)
    s.settle()
    p = run(binary("kvcachectl"), "rekey", s.mnt)
    assert p.returncode == 0, p.stdout
    s.settle()
    assert s.stats()["rekeyed"] == 2, s.stats()
    s.umount()
    lines = open(keys).read().splitlines()
    with open(keys, "w") as f:
        f.write(lines[-1] + "\n")
    s.mount()
    for path, d in (("model/c/layer", secret), ("other/c/layer", secret[::-1]),
                    ("model/c/new", secret)):
        assert s.read(path) == d
    s.umount()
    s.fsck()

# incompressible data of several blocks, with and without a key, is loaded from the disk unchanged
for n, options in enumerate(("compress=zstd", "compress=bf16+zstd",
                             f"compress=zstd,keyfile={keys}")):
    s = Store(f"random-{n}", options="settle=20," + options).mount()
    random = [blob(n * 10 + i, size)
              for i, size in enumerate((2 * MiB, 3 * MiB + 5, 5 * MiB + 64 * KiB))]
    for i, d in enumerate(random):
        s.write(f"m/{i}/l", d)
    s.settle()
    s.umount()
    s.mount()
    for i, d in enumerate(random):
        assert s.read(f"m/{i}/l") == d, (options, i)
    s.umount()
    s.fsck("-n", "--data")

# an interrupted rekey is run again; it also seals a store that had no keys
s = Store("clear", options="settle=20").mount()
for i in range(30):
    s.write(f"m/{i}/l", secret[i:])
s.settle()
s.umount()
assert data_has(s, MARK)
s.options += f",keyfile={keys}"
s.mount()
p = subprocess.Popen([binary("kvcachectl"), "rekey", s.mnt], stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
wait_for(lambda: s.stats()["rekeyed"] >= 3, every=0.001)
s.kill()
p.wait()
s.drop_pool()
s.mount()
p = run(binary("kvcachectl"), "rekey", s.mnt)
assert p.returncode == 0, p.stdout + s.log()[-3000:]
s.settle()
for i in range(30):
    assert s.read(f"m/{i}/l") == secret[i:]
s.umount()
# Kills leave old frames in free space; -y wipes frames without a placement.
s.fsck("-y")
s.mount()
for i in range(30):
    assert s.read(f"m/{i}/l") == secret[i:]
s.umount()

# a key for one model alone
run(binary("kvcachectl"), "newkey", keys, "private", ok=True)
s = Store("private", options=f"settle=20,keyfile={keys}").mount()
s.write("private/c/l", secret)
s.write("public/c/l", secret)
s.settle()
s.umount()
lines = open(keys).read().splitlines()
with open(keys, "w") as f:
    f.write("\n".join(l for l in lines if "private" not in l) + "\n")
s.mount()
assert s.read("public/c/l") == secret
with fails(errno.ENOKEY, errno.EIO):
    s.read("private/c/l")
assert s.stats()["unsealable"] == 1
s.umount()

# a clear frame in a shared tier is not taken in by a node that has keys, and a sealed one not by a
# node without
os.makedirs(f"{TMP}/shared")
remote = f"remote=dir://{TMP}/shared"
clear = Store("n1", options=f"settle=20,{remote}").mount()
closed = Store("n2", options=f"settle=20,{remote},keyfile={keys}").mount()
clear.write("m/clear/l", secret)
closed.write("m/closed/l", secret)
clear.settle()
closed.settle()
frames = {}
for folder, _, names in os.walk(f"{TMP}/shared"):
    for name in names:
        with open(f"{folder}/{name}", "rb") as f:
            frames[name] = f.read()
assert sum(MARK in f for f in frames.values()) == 1 < len([f for f in frames.values() if len(f)
                                                           > MiB]), "sealed there too"
for s, path in ((clear, "m/closed/l"), (closed, "m/clear/l")):
    with fails(errno.ENOENT):
        s.read(path)
clear.umount()
closed.umount()

# frames exchanged on the disk, and an older frame in place of a newer one
s = Store("swap", options=f"settle=20,keyfile={keys}").mount()
s.write("m/a/l", secret)
s.write("m/b/l", secret[::-1])
s.settle()
s.umount()
old = open(f"{s.path}/data", "rb").read()
rows = run("sqlite3", f"{s.path}/catalog.sqlite", "select at, len from placements order by ino",
           ok=True).stdout.split()
(a, n), (b, m) = (tuple(map(int, r.split("|"))) for r in rows)
assert n == m
with open(f"{s.path}/data", "r+b") as f:
    for at, frm in ((a, b), (b, a)):
        f.seek(at + 4096)  # payloads under each other's headers
        f.write(old[frm + 4096:frm + n])
s.mount()
for path in ("m/a/l", "m/b/l"):
    with fails(errno.ESTALE, errno.ENOENT, errno.EIO):
        s.read(path)
assert s.stats()["corrupt"] == 2
s.umount()

# an older, complete frame of the same file at the place of the newer one
s = Store("before", options=f"settle=20,keyfile={keys}").mount()
where = []
for content in (secret, secret[::-1]):
    s.write("m/a/l", content)
    s.settle()
    time.sleep(0.1)
    with open(f"{s.path}/data", "rb") as f:
        data = f.read()
    at, n = map(int, run("sqlite3", "-readonly", f"{s.path}/catalog.sqlite",
                         "select at, len from placements", ok=True).stdout.split("|"))
    where.append(data[at:at + n])
s.umount()
assert len(where[0]) == len(where[1]) and where[0] != where[1]
with open(f"{s.path}/data", "r+b") as f:
    f.seek(at)
    f.write(where[0])
s.mount()
with fails(errno.ESTALE, errno.ENOENT, errno.EIO):
    s.read("m/a/l")
assert s.stats()["corrupt"] == 1
with fails(errno.ENOENT):
    os.stat(f"{s.mnt}/m/a/l")
s.umount()
