# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl dump writes a readable tar file with the diagnostic data, without keys, contents, URL
credentials, and (unless requested) names of models."""
import io, os, stat, tarfile
from kvtest import *

CTL = binary("kvcachectl")
with open(f"{TMP}/keys", "w") as f:
    f.write("1 " + "5ec2e7" * 10 + "abcd\n")
os.chmod(f"{TMP}/keys", 0o600)
s = Store(options=f"settle=0,keyfile={TMP}/keys,remote=redis://hugo-und-hans@127.0.0.1:1/").mount()
s.write("famous-model-70b/prompt/layer", b"what-somebody-asked" * 1000)
s.write("in-the-root", b"x")
wait_for(lambda: s.stats()["spills"] >= 2)


def members(path):
    with tarfile.open(path, format=tarfile.USTAR_FORMAT) as t:
        return {m.name: t.extractfile(m).read().decode() for m in t}


p = run(CTL, "dump", "-o", f"{TMP}/one.tar", s.mnt, ok=True)
assert p.stdout == f"{TMP}/one.tar\n" and stat.S_IMODE(os.stat(f"{TMP}/one.tar").st_mode) == 0o600
all_ = members(f"{TMP}/one.tar")
names = {n[len("kvcachefs-dump/"):-len(".txt")]: t for n, t in all_.items()}
assert set(names) == {"machine", "config", "counters", "models", "store", "policies", "log"}, names
assert os.uname().release in names["machine"] and "MemTotal" in names["machine"]
assert f"store={s.path}\n" in names["config"]
assert "remote=redis://***@127.0.0.1:1/" in names["config"]
assert "pool_used_bytes " in names["counters"] and "idle" in names["counters"]
assert "serving by" in names["log"] and "catalog.sqlite " in names["store"], names
assert names["models"].count("model-") == 1 and "/models:\n" in names["models"], names
whole = open(f"{TMP}/one.tar", "rb").read()
for word in (b"famous", b"prompt", b"in-the-root", b"what-somebody", b"5ec2e7", b"hugo"):
    assert word not in whole, word
# as tar(1) sees it, and from standard output, with names
assert run("tar", "-tf", f"{TMP}/one.tar", ok=True).stdout.count("kvcachefs-dump/") == 7
out = subprocess.run([CTL, "dump", "--names", "-o", "-", s.mnt], stdout=subprocess.PIPE,
                     check=True).stdout
with tarfile.open(fileobj=io.BytesIO(out)) as t:
    assert b"famous-model-70b" in t.extractfile("kvcachefs-dump/models.txt").read()
assert b"hugo" not in out
# each dump numbers the models differently; an existing file is not overwritten; the given path is
# used
run(CTL, "dump", "-o", f"{TMP}/two.tar", s.mnt, ok=True)
number = names["models"].split("model-")[1].split()[0]
assert number not in members(f"{TMP}/two.tar")["kvcachefs-dump/models.txt"]
p = run(CTL, "dump", "-o", f"{TMP}/two.tar", s.mnt)
assert p.returncode == 1 and "File exists" in p.stdout, p
for where, error in ((f"{TMP}/none/x", "No such file"), ("/dev/full", "File exists")):
    p = run(CTL, "dump", "-o", where, s.mnt)
    assert p.returncode == 1 and error in p.stdout and p.stdout.count("\n") == 1, p
p = run("sh", "-c", f"{CTL} dump -o - {s.mnt} >/dev/full")
assert p.returncode == 1 and "No space" in p.stdout, p
# a dead mount: the superblock and the files of the store, and the configuration and log file of
# the daemon if a file in /etc/kvcachefs names the store
os.makedirs(f"{TMP}/etc")
for name, text in (("kv.conf",
                    f"STORE={s.path}\nOPTIONS=remote=s3://hugo@h,logfile={TMP}/kv.log\n"),
                   ("other.conf", "STORE=/somewhere\nOPTIONS=cpu=77G\n")):
    with open(f"{TMP}/etc/{name}", "w") as f:
        f.write(text)
with open(f"{TMP}/kv.log", "w") as f:
    f.write("2026-11-28T00:00:00.000Z warn the last words\n")
s.kill()
p = run("unshare", "-m", "sh", "-c", f"mkdir -p /etc/kvcachefs && mount --bind {TMP}/etc "
        f"/etc/kvcachefs && exec {CTL} dump -o {TMP}/dead.tar {s.mnt}/m/x", ok=True)
assert p.stdout == f"{TMP}/dead.tar\n", p
dead = {n[len("kvcachefs-dump/"):-len(".txt")]: t for n, t in members(f"{TMP}/dead.tar").items()}
assert set(dead) == set(names) and "has ended" in dead["counters"], dead
assert f"The daemon of the mount {s.mnt} has ended" in dead["config"], dead["config"]
assert f"store={s.path}\nuuid=" in dead["config"] and "device_0_size=" in dead["config"]
assert "remote=s3://***@h" in dead["config"] and "77G" not in dead["config"], dead["config"]
assert "warn the last words" in dead["log"] and "catalog.sqlite " in dead["store"], dead
assert b"hugo" not in open(f"{TMP}/dead.tar", "rb").read()
run("umount", s.mnt, ok=True)
p = run(CTL, "dump", "-o", f"{TMP}/none.tar", s.mnt)
assert p.returncode == 1 and "not in a kvcachefs mount" in p.stdout, p
