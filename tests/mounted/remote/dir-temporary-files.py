# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Temporary files in the folder of a dir:// tier. The next start removes those of the store's
killed daemons, and any daemon removes those of any node after a day. Files that a living node
writes, and all other files, stay. Names are never reused, even by a restarted container. A file
that could not be removed is removed later, and stale handles are retried."""
import os, shutil, time
from kvtest import BUILD, KiB, MiB, TMP, Store, need_mount, run, wait_for
from s3 import Tier
import faults, frames

need_mount()
MARK = ".kvcachefs-remote"
DAY = 86400


def share(name):
    path = f"{TMP}/{name}"
    os.makedirs(path)
    return path


def store(name):
    path = f"{TMP}/{name}.store"
    os.makedirs(path, exist_ok=True)
    return path


def rules(*texts):
    env = faults.environment(*texts)
    return {k: env[k] for k in ("LD_PRELOAD", "FAULTS")}


def tier(path, name=None, *texts):
    t = Tier(f"dir://{path}", store=name and store(name), env=rules(*texts) if texts else None)
    assert t.opened == "0"
    return t


def temps(path):
    """The temporary files of frames. A kill may also leave another: a pass makes one to read the
    server's clock."""
    return sorted(f"{top}/{f}" for top, _, files in os.walk(path) for f in files
                  if ".tmp." in f)


def age(path, days):
    at = time.time() - days * DAY
    os.utime(path, (at, at), follow_symlinks=False)


def killed(path, name, frame="k", wrap=None):
    """Kills a daemon of that store before its rename. Returns its temporary file."""
    before = temps(path)
    t = tier(path, name, f"calls=rename path={path}/*/*.tmp.* nth=1 do=kill")
    assert t("start") == "0"
    assert t("put", frame, 20 * KiB) == ""
    assert t.process.wait() == -9
    new = [f for f in temps(path) if f not in before]
    assert len(new) == 1, new
    return new[0]


def passed(path, name):
    """A daemon of that store after its pass over all folders."""
    old = f"{path}/ff/{'f' * 32}.tmp.x.{time.time()}"
    os.makedirs(os.path.dirname(old), exist_ok=True)
    with open(old, "w"):
        age(old, 1.01)
    t = tier(path, name)
    assert t("start") == "0"
    wait_for(lambda: not os.path.exists(old))
    return t


def own_files():
    path = share("own")
    left = killed(path, "own")
    passed(path, "other").end()
    assert temps(path) == [left], "another node's file that is new"
    # a store that was copied while its daemon was alive
    shutil.copytree(store("own"), store("copy"), dirs_exist_ok=True)
    passed(path, "copy").end()
    assert temps(path) == [left], "the file of the store that was copied"
    t = passed(path, "own")
    assert temps(path) == [], "the store's own"
    assert t("put", "k", 20 * KiB) == t("get", "k", 20 * KiB) == "0"
    t.end()
    # files of several daemons; damaged notes have no effect
    for i in range(3):
        killed(path, "own", f"n{i}")
    tier(path, "own").end()
    # a daemon may be killed before its pass has removed the file of its predecessor
    assert 1 <= len(temps(path)) <= 3
    passed(path, "own").end()
    assert temps(path) == []
    top = f"{store('own')}/dir-remotes"
    notes = [f"{top}/{f}" for f in os.listdir(top) if f.endswith(".temps")]
    assert len(notes) == 1 and os.path.getsize(notes[0]) < 64 * KiB
    for wrong in (b"", b"x" * 5000, b"\xff" * 100000):
        killed(path, "own")
        with open(notes[0], "r+b") as f:
            f.seek(128)
            f.truncate()
            f.write(wrong)
        passed(path, "own").end()
        assert len(temps(path)) == 1
        os.unlink(temps(path)[0])


def living():
    """A put that takes long, during the passes of other daemons."""
    path = share("living")
    r = faults.Rules(f"calls=rename path={path}/*/*.tmp.* nth=1 do=hold")
    t = Tier(f"dir://{path}", deadline=100000, store=store("living"),
             env={k: r.env[k] for k in ("LD_PRELOAD", "FAULTS", "FAULTS_COUNT")})
    assert t.opened == "0" and t("start") == "0"
    t.process.stdin.write(f"put slow {1 * MiB}\n")
    t.process.stdin.flush()
    wait_for(lambda: r.met()[0])
    one = temps(path)
    for other in ("a", "b"):
        passed(path, other).end()
    assert temps(path) == one, (temps(path), one)
    r.heal()
    assert t.process.stdout.readline().strip() == "0"
    assert temps(path) == [] and t("get", "slow", 1 * MiB) == "0"
    t.end()


def hostile():
    """After a day temporary files of any node are removed, and nothing else."""
    path = share("hostile")
    t = tier(path, "first")
    assert t("put", "k", 20 * KiB) == "0"
    t.end()
    away = share("elsewhere")
    hex32 = frames.name_of("k")
    sub = f"{path}/{hex32[:2]}"
    old, new = f"{sub}/{hex32}.tmp.node.1.7", f"{sub}/{hex32}.tmp.node.1.8"
    mark = f"{path}/{MARK}.{'a' * 32}"
    stay = [new, f"{sub}/{hex32}", f"{sub}/{hex32}.bak", f"{sub}/notes.tmp.txt",
            f"{sub}/{hex32.upper()}.tmp.x", f"{sub}/{hex32}0.tmp.x", f"{path}/README",
            f"{path}/{hex32}.tmp.x", f"{path}/{MARK}.backup", f"{away}/{hex32}.tmp.node.1.7"]
    for f in [old, mark] + stay:
        with open(f, "a"):
            pass
        age(f, 0.9 if f == new else 30)
    age(f"{path}/{MARK}", 30)
    taken = next(f"{path}/{i:02x}" for i in range(256) if not os.path.exists(f"{path}/{i:02x}"))
    os.symlink(away, taken)
    os.symlink(f"{away}/{hex32}.tmp.node.1.7", f"{sub}/{hex32}.tmp.link")
    age(f"{sub}/{hex32}.tmp.link", 30)
    os.mkdir(f"{sub}/{hex32}.tmp.folder")
    age(f"{sub}/{hex32}.tmp.folder", 30)
    os.mkfifo(f"{sub}/{hex32}.tmp.fifo")
    age(f"{sub}/{hex32}.tmp.fifo", 30)
    stay += [taken, f"{sub}/{hex32}.tmp.link", f"{sub}/{hex32}.tmp.folder",
             f"{sub}/{hex32}.tmp.fifo", f"{path}/{MARK}"]
    t = passed(path, "second")
    assert not os.path.exists(old) and not os.path.exists(mark)
    for f in stay:
        assert os.path.lexists(f), f
    assert t("get", "k", 20 * KiB) == "0"
    wait_for(lambda: "removed" in t.log())  # written after the files are gone
    t.end()


def names():
    """The same process id twice, as in a container."""
    path = share("names")
    left = []
    os.environ["FAULTS_EXE"] = "test-tier"
    for _ in range(2):
        r = faults.Run(["unshare", "--pid", "--fork", "sh", "-c",
                        f"echo put k 5000 | {BUILD}/bin/test-tier dir://{path} 4000"],
                       f"calls=rename path={path}/*/*.tmp.* nth=1 do=kill")
        left.append(set(temps(path)))
    assert len(left[0]) == 1 and len(left[1]) == 2 and left[0] < left[1], (left, r)
    del os.environ["FAULTS_EXE"]


def later():
    """A server fails before a temporary file is removed."""
    path = share("later")
    t = tier(path, "later", f"calls=sync path={path}/*.tmp.* nth=1 do=EIO",
             f"calls=unlink path={path}/*/*.tmp.* nth=1 count=2 do=ETIMEDOUT")
    assert t("start") == "0"
    assert t("put", "k", 20 * KiB) == "EIO"
    wait_for(lambda: not temps(path))
    assert t("put", "k", 20 * KiB) == t("get", "k", 20 * KiB) == "0"
    t.end()


def stale():
    path = share("stale")
    where = f"{path}/{frames.name_of('k')[:2]}"
    t = tier(path)
    assert t("put", "k", 20 * KiB) == "0"
    t.end()
    for glob in (path, where, f"{where}/*"):
        for words in ("put k 20480", "get k 20480", "get-unknown k 20480", "remove k", "list"):
            t = tier(path, None, f"calls=open,unlink path={glob} nth=2 count=1 do=ESTALE")
            got = t(*words.split())
            assert got in ("0", "0 1"), (glob, words, got)
            if words == "remove k":
                assert t("put", "k", 20 * KiB) == "0"
            t.end()


def many():
    """An unmount does not wait for a pass over many names."""
    path = share("many")
    t = tier(path, "many")
    assert t("put", "k", 20 * KiB) == "0"
    t.end()
    os.makedirs(f"{path}/00", exist_ok=True)
    for i in range(20000):
        os.close(os.open(f"{path}/00/{i:032x}", os.O_CREAT | os.O_WRONLY))
    t = tier(path, "many")
    assert t("start") == "0" and t("get", "k", 20 * KiB) == "0"
    t.end()
    assert len(os.listdir(f"{path}/00")) >= 20000


def mounted():
    """A daemon that is killed while it copies, and mounted again."""
    path = share("mounted")
    s = Store("s", size="64M", options=f"settle=0,disk=off,remote=dir://{path}")
    r = faults.Rules(f"calls=rename path={path}/*/*.tmp.* nth={faults.FAR} do=kill")
    assert r.mount(s)
    s.write("m/k/l", b"x" * 50000)
    wait_for(lambda: s.attr("m/k/l", "tiers").split(",")[-1] == "dir")
    s.committed()
    r.begin()
    s.write("m/k/l2", b"x" * 50000)
    s.daemon.wait()
    run("umount", "-l", s.mnt, ok=True)
    assert len(temps(path)) == 1
    s.mount()
    wait_for(lambda: not temps(path))
    assert s.read("m/k/l") == b"x" * 50000
    s.umount()


for part in (own_files, living, hostile, names, later, stale, many, mounted):
    began = time.time()
    part()
    print(part.__name__, round(time.time() - began, 1))
