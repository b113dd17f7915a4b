# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""Two readers of .kvcachefs/events see what happens to files: stored, copied, evicted, loaded,
renamed and dropped, each with the path at that time, even if the file has been removed since. A
slow reader is told how many events it lost. Only root and the daemon's user may read."""
import json
from kvtest import *

need_mount()
s = Store(size="64M", cpu="48M", options="commit=5,settle=5")
s.mount()
EVENTS = f"{s.mnt}/.kvcachefs/events"


class Reader:
    def __init__(self):
        self.fd = os.open(EVENTS, os.O_RDONLY)
        self.text = b""

    def more(self):
        """Returns all lines that were written until now."""
        while piece := os.read(self.fd, 65536):
            self.text += piece
        lines, _, self.text = self.text.rpartition(b"\n")
        return [json.loads(l) for l in lines.splitlines()]


def told(events, **what):
    return [e for e in events if all(e.get(n) == v for n, v in what.items())]


a, b = Reader(), Reader()
assert a.more() == [], "nothing has happened yet"
began = time.time()

# a file as engines make it: under another name first
s.write("m/c0/l0.tmp", bytes(5000))
wait_for(lambda: s.stats()["files_open"] == 0)
os.rename(f"{s.mnt}/m/c0/l0.tmp", f"{s.mnt}/m/c0/l0")
s.settle()
got = a.more()
assert [e["seq"] for e in got] == list(range(len(got))), got
stored = told(got, event="stored", tier="cpu")
assert [(e["path"], e["before"] if "before" in e else None) for e in got
        if e["event"] in ("stored", "renamed") and e.get("tier") in ("cpu", None)] == [
            ("m/c0/l0.tmp", None), ("m/c0/l0", "m/c0/l0.tmp")], got
assert stored[0]["bytes"] == 5000 and stored[0]["model"] == "m" and stored[0]["chunk"] == "m/c0"
assert abs(stored[0]["time"] - began) < 600
assert told(got, event="stored", tier="disk", bytes=5000), got
assert b.more() == got, "the other has the same"

# evicted from the pool, and loaded
os.setxattr(f"{s.mnt}/m/c0", "user.kvcachefs.demote", b"cpu")
wait_for(lambda: s.attr("m/c0", "state") == "lower")
s.read("m/c0/l0")
got = a.more()
assert [(e["event"], e["tier"], e["path"]) for e in got] == [
    ("evicted", "cpu", "m/c0/l0"), ("loaded", "disk", "m/c0/l0")], got

# overwritten, replaced by a rename, and unlinked; the events are read when all files are gone
b.more()
s.write("m/c0/l0", bytes(6000))
s.write("m/c0/new", bytes(7000))
wait_for(lambda: s.stats()["files_open"] == 0)
os.rename(f"{s.mnt}/m/c0/new", f"{s.mnt}/m/c0/l0")
os.unlink(f"{s.mnt}/m/c0/l0")
os.rmdir(f"{s.mnt}/m/c0")
got = [e for e in a.more() if e.get("tier") != "disk"]
assert [(e["event"], e["path"], e.get("before"), e["bytes"]) for e in got] == [
    ("stored", "m/c0/l0", None, 6000), ("stored", "m/c0/new", None, 7000),
    ("dropped", "m/c0/l0", None, 6000), ("renamed", "m/c0/l0", "m/c0/new", 7000),
    ("dropped", "m/c0/l0", None, 7000)], got

# a folder, and names with special characters
s.write("n/x y\xff/\"a\"%", b"1")
os.rename(f"{s.mnt}/n", f"{s.mnt}/o")
s.settle()
got = a.more()
assert told(got, event="renamed", before="n", path="o", folder=True, model="o"), got
assert told(got, event="stored", tier="cpu",
            path="o/x%20y%C3%BF/%22a%22%25") or told(got, path="n/x%20y%C3%BF/%22a%22%25"), got

# drops by the cache: each file of a chunk with its path
for i in range(12):
    for l in range(2):
        s.write(f"big/c{i}/l{l}", bytes(4 * MiB))
        s.settle()
wait_for(lambda: s.stats()["dropped_chunks"] > 0)
s.settle()
got = a.more()
dropped = told(got, event="dropped")
assert told(dropped, model="big", bytes=4 * MiB), dropped
for e in dropped:
    assert not os.path.exists(f"{s.mnt}/{e['path']}"), e
assert len(told(got, event="stored", tier="cpu")) == 24, got
assert told(got, event="evicted", tier="cpu")

# a reader that reads too late
b.more()
for i in range(6000):
    s.write(f"small/{i}", b"x")
    if i % 2:
        os.unlink(f"{s.mnt}/small/{i}")
    os.utime(f"{s.mnt}/small", (i, i))
for i in range(0, 6000, 2):
    os.rename(f"{s.mnt}/small/{i}", f"{s.mnt}/small/a{i}")
    os.rename(f"{s.mnt}/small/a{i}", f"{s.mnt}/small/b{i}")
s.settle()
got = b.more()
lost = [e for e in got if e["event"] == "lost"]
assert len(lost) == 1 and got[0] == lost[0] and lost[0]["count"] > 0, got[:2]
assert [e["seq"] for e in got[1:]] == list(range(got[1]["seq"], got[1]["seq"] + len(got) - 1))
last = got[-1]["seq"]

# one reader closes, the other continues, and a later reader starts at its open
os.close(b.fd)
c = Reader()
os.unlink(f"{s.mnt}/small/b0")
assert told(c.more(), event="dropped", path="small/b0") and c.more() == []
os.close(c.fd)
os.close(a.fd)
s.write("m/later/l", b"1")

# kvcachectl events, until a signal or for a given time
p = subprocess.Popen([binary("kvcachectl"), "events", f"{s.mnt}/m"], stdout=subprocess.PIPE)
os.set_blocking(p.stdout.fileno(), False)
seen = b""


def has_begun():
    global seen
    s.write("m/again/l", b"2")
    seen += p.stdout.read() or b""
    return b"m/again/l" in seen


wait_for(has_begun)
p.send_signal(signal.SIGINT)
os.set_blocking(p.stdout.fileno(), True)
seen += p.stdout.read()
assert p.wait() == 0
assert all(json.loads(l)["event"] for l in seen.splitlines())
s.settle()
# a trim may still be under way
wait_for(lambda: not run(binary("kvcachectl"), "events", "--for", "1s", s.mnt, ok=True).stdout)
p = run(binary("kvcachectl"), "events", "--for", "soon", s.mnt)
assert p.returncode == 2 and "'soon' is not a time" in p.stdout, p

# other users cannot read the events
assert os.stat(EVENTS).st_mode & 0o777 == 0o400
os.chmod(TMP, 0o755)
os.chmod(os.path.dirname(TMP), 0o755)
pid = os.fork()
if not pid:
    os.setgid(65534)
    os.setuid(65534)
    try:
        os.open(EVENTS, os.O_RDONLY)
    except PermissionError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
s.umount()
print("ok")
