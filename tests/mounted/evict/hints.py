# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
# level: check
"""Hints about a whole prompt in one command: finished and superseded chunks leave the pool before
all others, except for the beginning that another prompt shares; chunks of a paused session or of
high priority stay while others can leave; a use or another hint ends that. Only owners give hints,
every wrong word is refused, and hints never keep a store from its space."""
import errno, shutil
from kvtest import *

need_mount()
for p in (TMP, os.path.dirname(TMP)):
    os.chmod(p, 0o755)
N = MiB
OPTIONS = "settle=0,high=90,low=80,policy=lru,allow_other"


def fresh(name, more=""):
    if name != "a":
        s.umount()
        shutil.rmtree(s.path)
    new = Store(name, size="256M", cpu="64M", options=OPTIONS + more).mount()
    os.makedirs(f"{new.mnt}/m/sub")  # so files are chunks of their own
    return new


def ask(words, *paths):
    """The state or the error of each path."""
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write("\n".join([words, *paths]).encode())
        text = b"".join(iter(lambda: f.read(65536), b"")).decode()
    return [l.rsplit(" ", 1)[1] for l in text.splitlines()]


def hint(words, *paths):
    got = ask("hint " + words, *paths)
    assert len(got) == len(paths) and not any(g.startswith("E") for g in got), got


def prompt(name, n):
    """Stores the chunks of a prompt, and reports their order with a lease."""
    paths = [f"m/{name}{i}" for i in range(n)]
    for i, p in enumerate(paths):
        s.write(p, blob(i, N))
    s.settle()
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write("\n".join(paths).encode())
        f.read()
    return paths


def press(n, tag):
    """Stores n MiB, so that the pool loses about as much."""
    for i in range(n):
        s.write(f"press/{tag}{i}", blob(i, N))
    s.settle()


def inside(paths):
    return [i for i, p in enumerate(paths) if "cpu" in s.attr(p, "tiers")]


s = fresh("a")
# the newest prompt is finished: it leaves before older ones
old = prompt("old", 16)
new = prompt("new", 16)
time.sleep(1.2)
hint("finished", *new)
before = s.stats()["finished_evictions"]
press(32, "a")
wait_for(lambda: len(inside(new)) < 10)
assert inside(old) == list(range(16)), inside(old)
gone = 16 - len(inside(new))
assert inside(new) == list(range(16 - gone)), inside(new)  # the end of the prompt leaves first
assert s.stats()["finished_evictions"] - before >= gone and s.stats()["hints"] == 1

# a use ends a hint, and so does another hint
s = fresh("u")
new, old = prompt("new", 8), prompt("old", 16)
used, normal, low = new[:3], new[3:5], new[5:]
time.sleep(1.2)
hint("finished", *new)
for p in old:
    s.read(p)
for p in used:
    s.read(p)
hint("priority=normal", *normal)
press(36, "a")
wait_for(lambda: not inside(low))
assert inside(used) == [0, 1, 2] and set(range(8)) <= set(inside(old)), (inside(used), inside(old))
assert s.stats()["finished_evictions"] == len(low), (s.stats()["finished_evictions"], len(low))

# superseded: chunks that are also in the newer prompt or in another prompt stay
s = fresh("v")
base = prompt("base", 4)
older = [f"m/older{i}" for i in range(8)]
newer = [f"m/newer{i}" for i in range(4)]
for i, p in enumerate(older + newer):
    s.write(p, blob(i, N))
s.settle()
for chain in (base + older, base + newer):
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write("\n".join(chain).encode())
        f.read()
time.sleep(1.2)
hint(f"superseded={newer[-1]}", *base, *older)
before = s.stats()["finished_evictions"]
press(41, "b")
wait_for(lambda: s.stats()["finished_evictions"] - before >= 5)
left = inside(older)
assert left == list(range(len(left))), left
assert s.stats()["finished_evictions"] - before <= len(older)
# others leave only after all of these, on a machine whose stores are faster than the evictions
assert not left or inside(newer) == inside(base) == [0, 1, 2, 3], (left, inside(newer),
                                                                   inside(base))

# a paused session, and high priority: they stay while others can leave, and only a part of the pool
s = fresh("w")
paused, high, plain = prompt("paused", 6), prompt("high", 6), prompt("plain", 12)
time.sleep(1.2)
hint("pause=600", *paused)
hint("priority=high", *high)
for p in plain:
    s.read(p)
press(60, "c")
assert inside(paused) == inside(high) == list(range(6)), (inside(paused), inside(high))
assert len(inside(plain)) < 12
s.read(paused[5])  # the session goes on: its last chunk is an ordinary chunk again
hint("priority=normal", *high)
press(70, "d")
assert not inside(high), inside(high)
assert inside(paused) == list(range(5)), inside(paused)
many = [f"press/d{i}" for i in range(70)]
hint("priority=high", *many)
press(70, "e")  # no store fails although all chunks have high priority
assert s.stats()["room_refusals"] == 0

# The attribute of the last chunk of a prompt is a hint about the whole prompt. The beginning that
# another prompt shares stays.
s = fresh("x")


def linked(before, name, n):
    """Stores chunks that continue a prompt, and reports their parents by the attribute."""
    paths = [f"m/{name}{i}" for i in range(n)]
    for i, (p, up) in enumerate(zip(paths, [*before[-1:], *paths] if before else ["", *paths])):
        s.write(p, blob(i, N))
        os.setxattr(f"{s.mnt}/{p}", "user.kvcachefs.parent", f"/{up}".encode() if up else b"")
    s.settle()
    return paths


def say(words, path):
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.hint", words.encode())


base = linked([], "base", 6)
other, new = linked(base, "other", 4), linked(base, "new", 16)
time.sleep(1.2)
before = s.stats()["hints"]
say("finished ended=turn", new[-1])
assert s.stats()["hints"] == before + 1
before = s.stats()["finished_evictions"]
press(34, "x")
wait_for(lambda: s.stats()["finished_evictions"] - before >= 5)
left = inside(new)
assert len(left) <= 11 and left == list(range(len(left))), left  # its end left first
assert inside(base) == list(range(6)) and inside(other) == list(range(4)), (
    inside(base), inside(other))
say("pause=600", other[-1])
press(60, "y")
assert inside(base) == list(range(6)) and inside(other) == list(range(4)), (
    inside(base), inside(other))
say("priority=normal", other[-1])
press(70, "z")
wait_for(lambda: not inside(base) and not inside(other))
for wrong in ("", "best", "prefetch", "demote", "tenant=none", f"superseded={new[-1]}",
              "ended=tool closed", "finished pause=5", "x" * 300):
    with fails(errno.EINVAL):
        say(wrong, other[-1])
with fails(errno.ENODATA, errno.EOPNOTSUPP):
    s.attr(other[-1], "hint")

# Both ways to hint spare the whole beginning that another prompt shares, not only the chunk at
# which the prompts part: without that chunk, older chunks still leave before the rest of it.
for way in ("lease", "attribute"):
    s = fresh(way)
    plain = prompt("plain", 12)
    base = linked([], "base", 6)
    other, new = linked(base, "other", 4), linked(base, "new", 16)
    time.sleep(1.2)
    if way == "lease":
        hint("finished", *base, *new)
    else:
        say("finished", new[-1])
    for p in [*other, base.pop()]:
        os.unlink(f"{s.mnt}/{p}")
    press(40, "w")
    wait_for(lambda: s.stats()["finished_evictions"] >= 16 and len(inside(plain)) < 12)
    assert not inside(new) and inside(base) == list(range(5)), (way, inside(new), inside(base))
    assert s.stats()["finished_evictions"] == 16, (way, s.stats()["finished_evictions"])

s = fresh("y")
paused, high, plain = prompt("paused", 6), prompt("high", 6), prompt("plain", 12)
# prefetch, demote, tenant
os.setxattr(s.mnt, "user.kvcachefs.tenants", b"acme uid=1001")
hint("prefetch tenant=acme", *high)
wait_for(lambda: inside(high) == list(range(6)))
assert os.getxattr(f"{s.mnt}/{high[0]}", "user.kvcachefs.tenant") == b"acme"
hint("demote", *high)
s.settle()
assert all("disk" in s.attr(p, "tiers") for p in high)
assert ask("hint tenant=nobody", high[0]) == ["EINVAL"]
assert ask("hint finished", "m/nothing") == ["ENOENT"]

# words
for wrong in ("", "best", "ended=x", "ended=tool closed", "returns=0", "returns=5 ended=turn",
              "returns=3601", "pause=0", "pause=x", "pause=3601", "priority=best", "superseded=",
              "finished pause=5", "priority=high priority=normal", "tenant=" + "x" * 200):
    with fails(errno.EINVAL):
        ask("hint " + wrong, high[0])
with fails(errno.ENOENT):
    ask("hint superseded=m/nothing", high[0])

# kvcachectl and the library
CTL = binary("kvcachectl")
full = [f"{s.mnt}/{p}" for p in high]
run(CTL, "hint", "--finished", *full, ok=True)
run(CTL, "hint", "--pause", "5m", "--tenant", "none", *full, ok=True)
run(CTL, "hint", "--superseded", full[-1], *full, ok=True)
run(CTL, "hint", "--ended", "tool", *full, ok=True)
run(CTL, "hint", "--returns", "5m", *full, ok=True)
with fails(errno.ENODATA):
    s.attr(high[0], "tenant")
for words, says in ((("--finished", "--pause", "1m"), "contradict"), ((), "give a hint"),
                    (("--pause", "2h"), "2h"), (("--ended", "x"), "tool, turn or closed"),
                    (("--ended", "tool", "--returns", "1m"), "one of")):
    p = run(CTL, "hint", *words, full[0])
    assert p.returncode == 2 and says in p.stdout, p
p = run(CTL, "hint", "--tenant", "nobody", *full[:2])
assert p.returncode == 1 and p.stdout.count("does not exist") == 2, p
assert all(f"kvcachectl: {path}: the tenant does" in p.stdout for path in full[:2]), p
# a message names a path as the command line does
given = [os.path.relpath(path) for path in full[:2]]
p = run(CTL, "hint", "--tenant", "nobody", *given)
assert p.returncode == 1 and p.stdout.count("\n") == 2, p
assert all(f"kvcachectl: {path}: the tenant does" in p.stdout for path in given), p
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../gpu/python"))
os.environ["KVCACHEFS_LIBRARY"] = next(
    (p for p in (os.path.join(os.path.dirname(os.path.dirname(CTL)), "lib/libkvcachefs.so.0"),
                 os.path.join(os.path.dirname(os.path.dirname(CTL)), "lib/libkvcachefs.so"))
     if os.path.exists(p)), "")
import kvcachefs
before = s.stats()["hints"]
assert kvcachefs.hint(s.mnt, high, pause=30) == 0
assert kvcachefs.hint(s.mnt, high, superseded_by=high[-1]) == 0
assert kvcachefs.hint(s.mnt, [*high, "m/nothing"], priority="high", tenant="acme") == 1
assert s.stats()["hints"] == before + 3 and s.attr(high[0], "tenant") == "acme"
for wrong in ({}, {"pause": 4000}, {"priority": "best"}, {"finished": True, "pause": 1},
              {"tenant": "a b"}):
    try:
        kvcachefs.hint(s.mnt, high, **wrong)
    except (ValueError, OSError) as e:
        assert isinstance(e, ValueError) or e.errno == errno.EINVAL, e
    else:
        raise AssertionError(wrong)

# other users
pid = os.fork()
if not pid:
    os.setgroups([]), os.setgid(1001), os.setuid(1001)
    got = ask("hint finished", high[0]) + ask("hint prefetch", high[0])
    os._exit(0 if got[0] == "EPERM" and not got[1].startswith("E") else 1)
assert os.waitpid(pid, 0)[1] == 0

# Another user cannot hint at files of others by the attribute either, not even at files that
# everyone may write. That user's hint about the end of a prompt spares the chunks of others before
# it.
s = fresh("z")
os.chmod(f"{s.mnt}/m", 0o777)
plain, base = prompt("plain", 12), linked([], "base", 12)
for p in base:
    os.chmod(f"{s.mnt}/{p}", 0o666)
pid = os.fork()
if not pid:
    os.setgroups([]), os.setgid(1001), os.setuid(1001)
    with fails(errno.EACCES):
        say("finished", plain[-1])
    with fails(errno.EPERM):
        say("finished", base[-1])
    own = linked(base, "own", 4)
    time.sleep(1.2)
    say("finished", own[-1])
    got = ask("hint finished", *base, *own)
    os._exit(0 if got[:12] == ["EPERM"] * 12 and not any(g[0] == "E" for g in got[12:]) else 1)
assert os.waitpid(pid, 0)[1] == 0
own = [f"m/own{i}" for i in range(4)]
assert all(os.stat(f"{s.mnt}/{p}").st_uid == 1001 for p in own)
before = s.stats()["finished_evictions"]
press(36, "v")
wait_for(lambda: not inside(own) and len(inside(plain)) < 12)
assert inside(base) == list(range(12)), inside(base)
assert s.stats()["finished_evictions"] - before == 4, s.stats()["finished_evictions"]

# a prefetch is a use, and its loads count in the share of the user; demote makes missing copies
s = fresh("x", ",share=25,write=back")
paths = prompt("p", 32)
# write=back copies the oldest when a quarter of the pool has no copy
assert any(s.attr(p, "tiers") == "cpu" for p in paths), [s.attr(p, "tiers") for p in paths]
hint("demote", *paths)
wait_for(lambda: all("disk" in s.attr(p, "tiers") for p in paths))
for p in paths:
    os.setxattr(f"{s.mnt}/{p}", "user.kvcachefs.demote", b"cpu")
assert not inside(paths)


def as_other_user():
    back, to = os.pipe()
    pid = os.fork()
    if not pid:
        os.setgroups([]), os.setgid(1001), os.setuid(1001)
        os.write(to, " ".join(ask("hint prefetch", *paths)).encode())
        os._exit(0)
    os.close(to)
    text = os.read(back, 65536).decode().split()
    assert os.waitpid(pid, 0)[1] == 0
    return text


got = as_other_user()
assert 14 <= len(got) - got.count("EDQUOT") <= 16 and got[0] != "EDQUOT" == got[-1], got
wait_for(lambda: inside(paths) == list(range(got.index("EDQUOT"))))
hint("prefetch", *paths)  # root has no share
wait_for(lambda: len(inside(paths)) == len(paths))
hint("finished", *paths)
hint("prefetch", *paths[:8])  # ends the hint "finished"
before = s.stats()["finished_evictions"]
press(40, "f")
wait_for(lambda: s.stats()["finished_evictions"] - before >= 16)
assert set(range(8)) <= set(inside(paths)), inside(paths)
s.umount()
print("ok")
