# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A quota and a policy are set on a model with many files. The call returns at once, the rest
happens in the background and is visible, other calls continue, and the sum is exact although files
are created, grow, move and disappear during the count. After a kill during it, the next mount
continues."""
import os, random, subprocess, threading, time
from kvtest import *
from kvtest import BUILD
import faults

N = 60000 if LONG else 25000
s = Store("survey", cpu="64M", size="256M")
scale = f"{BUILD}/bin/test-scale"
subprocess.run([scale, "size", s.path, str(4 << 30)], check=True)
subprocess.run([scale, "make", s.path, str(N)], check=True)
s.mount()
model = f"{s.mnt}/model"
chunks = sorted(os.listdir(model))
other = f"{s.mnt}/other"
os.mkdir(other)


def took():
    """The bytes of the model's files, as du counts them."""
    out = subprocess.run(["du", "-s", "--block-size=512", model], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    folders = sum(os.lstat(r).st_blocks for r, _, _ in os.walk(model))
    return (int(out.split()[0]) - folders) * 512


def survey():
    try:
        return os.getxattr(model, "user.kvcachefs.survey").decode()
    except OSError:
        return None


def used():
    return int(os.getxattr(model, "user.kvcachefs.used"))


stop = False
errors = []


def change(seed):
    rnd = random.Random(seed)
    mine = []
    try:
        for i in range(1 << 30):
            if stop:
                return
            what = rnd.randrange(5)
            chunk = f"{model}/{rnd.choice(chunks)}"
            if what == 0 or not mine:
                mine.append(f"{chunk}/new-{seed}-{i}")
                with open(mine[-1], "wb") as f:
                    f.write(bytes(rnd.randrange(1, 20000)))
            elif what == 1:
                with open(rnd.choice(mine), "ab") as f:
                    f.write(bytes(rnd.randrange(1, 20000)))
            elif what == 2:
                os.unlink(mine.pop(rnd.randrange(len(mine))))
            elif what == 3:  # delete an old file
                names = [n for n in os.listdir(chunk) if n.startswith("layer")]
                if names:
                    os.unlink(f"{chunk}/{names[0]}")
            else:  # move a file out of the model, or back into it
                at = rnd.randrange(len(mine))
                to = (f"{other}/x-{seed}-{i}" if mine[at].startswith(model) else
                      f"{chunk}/back-{seed}-{i}")
                os.rename(mine[at], to)
                mine[at] = to
    except FileNotFoundError:
        errors.append("a file is missing that no other thread deletes")
    except OSError as e:
        errors.append(str(e))


def started():
    """Sets the quota again and again until the count is seen in progress, because it may end before
    this process looks. Returns the text of user.kvcachefs.survey."""
    def one():
        os.setxattr(model, "user.kvcachefs.quota", b"200G")
        text = survey()
        while text and text.startswith("0 "):  # the count begins after a commit
            text = survey()
        if not text:
            os.removexattr(model, "user.kvcachefs.quota")
        return text
    return wait_for(one)


def with_changes(call):
    global stop
    stop = False
    changes = threading.Thread(target=change, args=(len(shown),))
    changes.start()
    call()
    wait_for(lambda: survey() is None)
    stop = True
    changes.join()
    assert not errors, errors


shown = []


with_changes(lambda: shown.append(started()))
assert " of " in shown[0], f"the call itself counted all files: {shown}"
assert used() == took(), (used(), took())
with_changes(lambda: os.removexattr(model, "user.kvcachefs.quota"))
with_changes(lambda: os.setxattr(model, "user.kvcachefs.policy", b"lfu"))
# a second setting during the count: no file counts twice
os.setxattr(model, "user.kvcachefs.quota", b"200G")
os.setxattr(model, "user.kvcachefs.policy", b"fifo")
wait_for(lambda: survey() is None)
assert used() == took(), (used(), took())
# a kill in the middle
os.removexattr(model, "user.kvcachefs.quota")
started()
s.kill()
s.mount()
wait_for(lambda: survey() is None)
assert used() == took(), (used(), took())
# and a clean unmount in the middle
os.removexattr(model, "user.kvcachefs.quota")
started()
s.umount()
s.mount()
wait_for(lambda: survey() is None)
assert used() == took(), (used(), took())
s.umount()


# In a small store the call waits a moment for the survey; other callers on the same CPU do not.
def others_go_on():
    path, count, stop = f"{t.mnt}/other/f", [0], threading.Event()
    t.write("other/f", b"x")

    def opens():
        while not stop.is_set():
            os.close(os.open(path, os.O_RDONLY))
            count[0] += 1

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    thread = threading.Thread(target=opens)
    thread.start()
    most = 0  # opens during one call
    for _ in range(200):
        before = count[0]
        os.setxattr(f"{t.mnt}/model", "user.kvcachefs.quota", b"100M")
        most = max(most, count[0] - before)
        os.removexattr(f"{t.mnt}/model", "user.kvcachefs.quota")
        if most > 2:
            break
    stop.set()
    thread.join()
    assert most > 2, "other callers waited for each call"


t = Store("small", cpu="64M", size="256M")
slow = faults.Rules(f"calls=write path={t.path}/catalog.sqlite-wal count=0 nth=1 do=delay:30")
slow.mount(t)
os.mkdir(f"{t.mnt}/model")
t.write("model/a", b"a")
others_go_on()
t.umount()
