# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The pool of a killed daemon holds the only copy of its files. If one call on the pool, its files
or its mark (.store, which names the owner) fails at the next start, that mount is refused with one
line or serves all files: the owner of the pool and its contents are never guessed."""
import os, subprocess
from kvtest import *
import faults

RUN = f"{TMP}/run"
s = Store("s", size="64M", cpu="32M", options="write=back,settle=60000")
files = {f"m/c{i}/l{j}": blob(f"{i}.{j}", 30000 + i * 1000 + j) for i in range(6) for j in range(4)}
command = [binary("kvcachefs"), s.path, s.mnt, "-f", "-o",
           f"cpu={s.cpu},run={RUN},{WAYS[WAY]},{s.options}"]


def start(*rules):
    """Returns whether the mount is refused, and how many calls met each rule."""
    count = f"{TMP}/count"
    if os.path.exists(count):
        os.unlink(count)
    p = subprocess.Popen(command, env=faults.environment(*rules, count=count),
                         text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    wait_for(lambda: p.poll() is not None or os.path.ismount(s.mnt))
    refused = p.poll() is not None
    if not refused:
        unharmed(rules)
    p.kill()
    out = p.communicate()[0]
    run("umount", "-l", s.mnt)
    with open(count, "rb") as f:
        fired = int.from_bytes(f.read(16)[8:], "little")
    if refused:
        assert p.returncode == 1 and out.count("kvcachefs: ") == 1, (rules, out)
    return refused, fired, out


def unharmed(what):
    for path, data in files.items():
        assert os.path.exists(f"{s.mnt}/{path}"), (what, path)
        assert s.read(path) == data, (what, path)


def end():
    s.kill()
    run("umount", "-l", s.mnt)


def sweep(words, do, step=1):
    refused = served = 0
    nth = 1
    while True:
        no, fired, out = start(f"{words} nth={nth} do={do}")
        if not fired:
            assert not no, out
            break
        refused += no
        served += not no
        s.mount()
        unharmed((words, do, nth, out))
        end()
        nth += step
    print(f"{words} {do}: {refused} mounts refused, {served} served")
    return refused


s.mount()
for path, data in files.items():
    s.write(path, data)
s.committed()
assert s.stats()["objects_resident"] >= len(files), s.stats()
end()
# the mark
for calls in "open", "read":
    for do in ("EIO", "EMFILE", "ENOMEM"):
        assert sweep(f"calls={calls} path={RUN}/*/.store", do), (calls, do)
# listings and stats
assert sweep(f"calls=list path={RUN}/*", "EIO", 5)
assert sweep(f"calls=open path={RUN}/*/.", "EMFILE")
assert sweep(f"calls=open,rename path={RUN}/*/.store.new", "EMFILE")
assert sweep(f"calls=open path={RUN}/*", "EMFILE", 9)
assert sweep(f"calls=stat path={RUN}/*", "EIO", 3)
assert sweep(f"calls=open path={RUN}", "EMFILE")
s.mount()
unharmed("at the end")
s.umount()
s.fsck("-n")
# a refused mount removes the files that it made
for words in (f"calls=open path={RUN}/*/.store.new", f"calls=list path={RUN}/*"):
    assert start(f"{words} nth=1 do=EIO")[:2] == (True, 1), words
    assert not os.path.exists(RUN) or not os.listdir(RUN), os.listdir(RUN)
