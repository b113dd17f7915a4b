# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A restart with a warm pool queries the pool once for each segment, and writes nothing to the
catalog about segments that match their rows. A kill during a restart, at any segment or any catalog
write, loses nothing: the next start shows every published file byte for byte, and no unpublished
file."""
import os, re, struct
from faults import Rules, chance
from kvtest import *

CHUNKS, LAYERS, FLAT, TURNS = 100, 8, 400, 3
s = Store(size="64M", cpu="64M", options="settle=0").mount()
P = lambda name: f"{s.mnt}/{name}"
there = {f"m/c{c}/l{l}": blob((c, l), 1000 + c) for c in range(CHUNKS) for l in range(LAYERS)}
there.update({f"flat/f{i}": blob(i, 500 + i) for i in range(FLAT)})
for name, data in there.items():
    s.write(name, data)


def open_files(turn):
    """Three files stay open for writing until the kill: a new file, a file that is not written, and
    a changed file, which the disk tier's copy replaces."""
    os.makedirs(P("m/new"), exist_ok=True)
    fds = [os.open(P(f"m/new/unfinished{turn}"), os.O_CREAT | os.O_WRONLY),
           os.open(P("m/c0/l0"), os.O_WRONLY), os.open(P("m/c0/l1"), os.O_WRONLY)]
    os.write(fds[0], b"x" * 5000)
    os.write(fds[2], b"y")
    s.committed(still_open=3)
    return fds


def end(fds=()):
    s.kill()
    for fd in fds:
        os.close(fd)
    run("umount", "-l", s.mnt)


def check():
    names = {f"{d[len(s.mnt) + 1:]}/{f}" for d, _, files in os.walk(s.mnt) for f in files}
    assert names == set(there), names ^ set(there)
    for name, data in there.items():
        assert s.read(name) == data, name


s.settle()
end(open_files(0))
s.mount()
assert s.stats()["recovered"] == len(there) - 1, s.stats()["recovered"]
check()  # this also loads the changed file
s.committed(uses=True)
end()

SEGMENT, WAL = "path=*/p-*", "path=*/catalog.sqlite-wal"
with open(f"{s.path}/catalog.sqlite-wal", "rb") as f:
    page = struct.unpack(">8xI", f.read(12))[0]
    frames = (os.fstat(f.fileno()).st_size - 32) // (24 + page)
r = Rules(f"calls=stat {SEGMENT} nth=0", f"calls=write {WAL} nth=0")
assert r.mount(s)
asked, written = r.met()[:2]
assert s.stats()["recovered"] == len(there), s.stats()["recovered"]
print(f"{len(there)} segments: {asked} questions to the pool, {written} writes to the log")
assert asked <= len(there) + 10, asked
threads = int(re.findall(r"in the pool \(threads: (\d+)", s.log())[-1])
assert threads == min(len(os.sched_getaffinity(0)), 5), threads  # one for each of 5 slices
# besides the log of the killed daemon, which is written again before its first sync is trusted
assert written - (frames + 1) <= len(there) / 100, (written, frames)
for turn in range(1, TURNS + 1):
    end(open_files(turn))
    for rule in (f"calls=stat {SEGMENT} nth={chance.randint(1, len(there))} do=kill",
                 f"calls=write {WAL} nth={chance.choice((0, frames + 1)) + chance.randint(1, 3)} "
                 "do=torn"):
        r = Rules(rule)
        if r.mount(s):  # the restart made fewer writes than that
            end()
        run("umount", "-l", s.mnt)
        assert r.fired()[0] or "write" in rule, rule
    s.mount()
    check()
end()
s.mount()
s.umount()
s.fsck()
