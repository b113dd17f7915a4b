# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A folder with thousands of files that are not in memory moves to another model. Only its files
are visited: the figures of other models stay known. Files and folders below it are read, removed,
renamed, and moved again while its files are visited; in the end each file is counted once, in the
model of its path, as a count of all files after a kill confirms. A file deeper than 4096 folders is
counted in no model, whichever way the daemon looks for its model."""
import ctypes, random
from kvtest import *

FOLDERS, FILES = 80, 30
s = Store(options="settle=0", cpu="64M", size="256M").mount()
libc = ctypes.CDLL(None, use_errno=True)
rng = random.Random(3)


def models():
    with open(f"{s.mnt}/.kvcachefs/models") as f:
        head, *rest = [l.split() for l in f]
    counting = head[-1] == "counting"
    head = head[:head.index("name")]
    return counting, {l[-1]: dict(zip(head, l)) for l in rest}


def told():
    counting, all_ = models()
    return None if counting else {n: (int(m["files"]), int(m["bytes"]), int(m["disk_bytes"]))
                                  for n, m in all_.items() if int(m["files"])}


def wanted():
    all_ = {}
    for top in sorted(os.listdir(s.mnt)):
        for where, _, names in os.walk(f"{s.mnt}/{top}"):
            for n in names:
                at = os.getxattr(f"{where}/{n}", "user.kvcachefs.tier_bytes").decode()
                disk = int(dict(w.split("=") for w in at.split(","))["disk"])
                files, size, d = all_.get(top, (0, 0, 0))
                all_[top] = (files + 1, size + stored(f"{where}/{n}"), d + disk)
    return all_


def agree(what):
    s.settle()
    s.committed()
    views = {}

    def same():
        views["wanted"], views["told"] = wanted(), told()
        return views["wanted"] == views["told"]
    try:
        wait_for(same, every=0.2)
    except AssertionError:
        raise AssertionError((what, views))
    return views["wanted"]


def fresh():
    """Mounts again, so that no file is in memory."""
    s.umount()
    s.mount()
    wait_for(lambda: told() is not None)


def exchange(a, b):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), 2):  # RENAME_EXCHANGE
        raise OSError(ctypes.get_errno(), "exchange")


for i in range(FOLDERS):
    os.makedirs(f"{s.mnt}/a/big/{i % 10}/{i}")
    for j in range(FILES):
        with open(f"{s.mnt}/a/big/{i % 10}/{i}/f{j}", "wb") as f:
            f.write(b"x" * (1 + 4096 * (j % 3)))
os.mkdir(f"{s.mnt}/b")
s.write("c/f", blob(1, 20000))
s.write("b/f", blob(1, 30000))
agree("stored")

# only what moved is visited
fresh()
for _ in range(50):  # until the walk is seen
    os.rename(f"{s.mnt}/a/big", f"{s.mnt}/b/big")
    counting, all_ = models()
    if counting:
        break
    os.rename(f"{s.mnt}/b/big", f"{s.mnt}/a/big")
    fresh()
assert counting and all_["a"]["files"] == all_["b"]["files"] == "-", all_
assert all_["c"]["files"] == "1" and int(all_["c"]["disk_bytes"]) >= 20000, all_
want = agree("moved")
assert want["b"][0] == 1 + FOLDERS * FILES and "a" not in want, want


# while the files are visited, the tree below changes
def at(i):
    return f"{base}/{i % 10}/{i}"


def change(kind):
    i = rng.randrange(FOLDERS)
    try:
        if kind == "read":
            with open(f"{at(i)}/f{rng.randrange(FILES)}", "rb") as f:
                f.read()
        elif kind == "remove":
            os.unlink(f"{at(i)}/f{rng.randrange(FILES)}")
        elif kind == "make":
            with open(f"{at(i)}/new{rng.randrange(9)}", "wb") as f:
                f.write(b"y" * 9000)
        elif kind == "file":
            os.rename(f"{at(i)}/f{rng.randrange(FILES)}",
                      f"{at(rng.randrange(FOLDERS))}/g{rng.randrange(99)}")
        elif kind == "out":
            os.rename(f"{at(i)}/f{rng.randrange(FILES)}", f"{s.mnt}/c/{rng.randrange(99)}")
        elif kind == "folder":
            exchange(at(i), at(rng.randrange(FOLDERS)))
        elif kind == "apart":
            os.rename(at(i), f"{s.mnt}/c/d{rng.randrange(9999)}")
        elif kind == "near":
            os.rename(at(i), f"{os.path.dirname(base)}/n{rng.randrange(9999)}")
        elif kind == "back":
            away = [n for n in os.listdir(f"{s.mnt}/c") if n[0] == "d"]
            if away:
                os.rename(f"{s.mnt}/c/{rng.choice(away)}", f"{base}/r{rng.randrange(9999)}")
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL), (kind, e)


KINDS = ("read", "remove", "make", "file", "out", "folder", "apart", "near", "back")
base = f"{s.mnt}/b/big"
for turn in range(4):
    fresh()
    for to in ("a", "e", "a/../e/f/..") if turn % 2 else ("a",):
        os.makedirs(f"{s.mnt}/{to}", exist_ok=True)
        new = f"{s.mnt}/{os.path.normpath(to)}/big{turn}"
        os.rename(base, new)
        base = new
        for kind in (rng.choice(KINDS) for _ in range(40)):
            change(kind)
    if turn == 3:  # the root of a move moves with its model
        os.rename(f"{s.mnt}/e", f"{s.mnt}/c/e")
        base = f"{s.mnt}/c/e/big{turn}"
    want = agree(f"turn {turn}")
s.kill()
s.mount()
assert agree("kill") == want
os.rename(base, f"{s.mnt}/last")
s.umount()  # also while files are visited
s.mount()
agree("unmounted at once")

# a file that is deeper than supported is counted in no model, by each way to look for its model
os.mkdir(f"{s.mnt}/deep")
cwd = os.getcwd()
os.chdir(f"{s.mnt}/deep")
for i in range(4100):
    os.mkdir("d")
    os.chdir("d")
    if i in (4094, 4095, 4096, 4097):
        try:
            with open("f", "wb") as f:
                f.write(b"z" * 5000)
        except OSError as e:
            assert e.errno == errno.ELOOP and i >= 4096, (i, e)
os.chdir(cwd)
s.settle()
s.committed()
wait_for(lambda: told() is not None)
before = told()
s.kill()
s.mount()
wait_for(lambda: told() is not None)
assert told() == before, (told(), before)
s.umount()
