#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/lib/stores/make.py NAME BIN: a store as the daemon in the folder BIN makes it, as
NAME.tar.xz here; the case formats mounts it. A NAME that ends with -killed is left by SIGKILL; one
with -sealed is compressed and encrypted.

What is here was built from the last commit of each format: 172f173 catalog 1, 1b430db catalog 2,
76ba7f1 catalog 3, 53bb591 catalog 4; all of them frames 1 and superblock 1."""
import hashlib, os, random, signal, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
# path, seed, bytes; even seeds are random bytes, odd ones a pattern
FILES = [("model/c1/0.bin", 2, 600), ("model/c1/1.bin", 3, 300000), ("model/c2/0.bin", 7, 4097),
         ("flat/a.kv", 6, 300), ("flat/b.kv", 5, 65536), ("deep/er/and/deeper", 8, 1),
         ("deep/empty", 10, 0), ("root.kv", 12, 200)]
KEYS = "1 " + hashlib.sha256(b"the stores of tests/lib/stores").hexdigest() + "\n"


def content(seed, size):
    if seed % 2:
        return (b"%08d" % seed * (size // 8 + 1))[:size]
    return random.Random(seed).randbytes(size)


def fill(mnt):
    for path, seed, size in FILES + [("flat/gone.kv", 14, 100)]:
        os.makedirs(os.path.dirname(f"{mnt}/{path}"), exist_ok=True)
        with open(f"{mnt}/{path}", "wb") as f:
            f.write(content(seed, size))
            os.fsync(f.fileno())
    os.link(f"{mnt}/flat/a.kv", f"{mnt}/flat/link.kv")
    os.symlink("flat/a.kv", f"{mnt}/symlink")
    os.setxattr(f"{mnt}/flat/a.kv", "user.note", b"kept")
    os.setxattr(f"{mnt}/model/c1", "user.kvcachefs.ttl", b"5000000000")
    os.chmod(f"{mnt}/flat/b.kv", 0o640)
    os.chown(f"{mnt}/flat/b.kv", 1234, 4321)
    os.utime(f"{mnt}/flat/b.kv", ns=(10**18 + 1, 10**18 + 2))
    os.rename(f"{mnt}/model/c2", f"{mnt}/model/renamed")
    os.unlink(f"{mnt}/flat/gone.kv")
    for path in ("", "flat", "model"):
        fd = os.open(f"{mnt}/{path}", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    time.sleep(2)  # the daemon writes by itself what it writes late


def make(name, bin_):
    with tempfile.TemporaryDirectory() as tmp:
        store, mnt = f"{tmp}/store", f"{tmp}/mnt"
        os.mkdir(mnt)
        with open(f"{tmp}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(KEYS)
        more = f",compress=zstd,keyfile={tmp}/keys" if "-sealed" in name else ""
        subprocess.run([f"{bin_}/mkfs.kvcachefs", "--size", "16M", store], check=True)
        daemon = subprocess.Popen([f"{bin_}/kvcachefs", store, mnt, "-f", "-o",
                                   f"cpu=16M,run={tmp}/run{more}"])
        while not os.path.ismount(mnt):
            time.sleep(0.1)
        fill(mnt)
        daemon.send_signal(signal.SIGKILL if name.endswith("-killed") else signal.SIGTERM)
        daemon.wait()
        subprocess.run(["umount", "-l", mnt], stderr=subprocess.DEVNULL)
        subprocess.run(f"umount -l {tmp}/run/*", shell=True, stderr=subprocess.DEVNULL)
        subprocess.run(f"cd {tmp} && tar --sparse -c store | xz -9e > {here}/{name}.tar.xz",
                       shell=True, check=True)


if __name__ == "__main__":
    make(*sys.argv[1:])
