# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""Every call of every tool on its files fails in turn: all calls of mkfs and fsck --rebuild, once
or from that call on; delays of fsck; the calls by which kvcachectl reads, sets and writes data of a
mount, its own files and the machine's files; and the start of a daemon by mount.kvcachefs. Each has
a row below; make check tries some of the calls and half of the kinds of failures, at random. The
tool completes its task, or fails with one line. No error is taken for an absence,
and a later run without faults finds all acknowledged files."""
import json, os, shutil, sqlite3
from kvtest import *
import faults



def half(which):
    """Runs one half of the case in its own process and folder."""
    os.environ["KV_CASE_TMP"] = f"{TMP}/{which}"
    os.mkdir(f"{TMP}/{which}")
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), which])


if len(sys.argv) == 1:
    beside([(half, "offline"), (half, "online")])
    sys.exit()
N = 20000
FILES = [f"m/c{i}/l{j}" for i in range(3) for j in range(3)] + ["flat.bin"]
need_mount()
TOP = faults.in_memory("memory")
MKFS, FSCK, CTL = binary("mkfs.kvcachefs"), binary("fsck.kvcachefs"), binary("kvcachectl")
s = faults.store_in_memory(TOP, cpu="32M", size="16M").mount()
for f in FILES:
    s.write(f, blob(f, N))
s.settle()
s.umount()
KEEP, OWN = f"{TOP}/keep", f"{TOP}/own"
shutil.copytree(s.path, KEEP)
os.mkdir(OWN)
NAMES = "SELECT parent, name, ino FROM names ORDER BY 1, 2"


def fresh():
    shutil.rmtree(s.path, ignore_errors=True)
    run("cp", "-a", KEEP, s.path, ok=True)


def nothing():
    shutil.rmtree(s.path, ignore_errors=True)


def names():
    db = sqlite3.connect(f"file:{s.path}/catalog.sqlite?mode=ro", uri=True)
    out = [n.decode() if isinstance(n, bytes) else n for _, n, _ in db.execute(NAMES)]
    db.close()
    return sorted(out)


fresh()
ALL = names()


def whole(what):
    """The store is whole, and has all files."""
    p = s.fsck("-n", "--data", ok=None)
    assert p.returncode == 0 and names() == ALL, (what, p.stdout)


def one_line(what, r):
    """Lines of the engine, which begin with another name, do not count."""
    said = [l for l in r.err.splitlines() if not l.startswith("kvcachefs: ")]
    assert len(said) == 1 and len(said[0]) > 20, (what, r, r.err)


# ---- checks after a run; arguments: the state before it, its result, whether it must succeed ----

def made(what, r, right):
    """After a mkfs in an empty place: a store exists, or the next mkfs makes it."""
    if not right:
        one_line(what, r)
    p = run(MKFS, "--size", "16M", s.path)
    assert p.returncode == (1 if right else 0), (what, p.stdout)
    assert s.fsck("-n", ok=None).returncode == 0, what


def replaced(what, r, right):
    """After a mkfs --force: the new store exists, or the old one with all files."""
    if not right:
        one_line(what, r)
    new = right or "the new store is created" in r.err
    if not new and "count=0" not in what[1]:
        nothing_beside(what)
    p = s.fsck("-y", ok=None)
    assert p.returncode in (0, 1), (what, p.stdout)
    assert s.fsck("-n", ok=None).returncode == 0 and names() == ([] if new else ALL), what


def refused(what, r, right):
    """After a mkfs on an existing store: the store is never taken for absent."""
    assert not right, what
    one_line(what, r)
    whole(what)


def unharmed(what, r, right):
    whole(what)


def rebuilt(what, r, right):
    """A rebuild reports the data that it could not read, and the next one finds it."""
    if right:
        whole(what)
    p = s.fsck("--rebuild", ok=None)
    assert p.returncode == 0, (what, p.stdout)
    whole(what)


def old_or_new(what, r, right):
    """A rebuild that cannot make its changes leaves a store that has all files."""
    if "count=0" not in what[1]:
        nothing_beside(what)
    p = s.fsck("-n", "--data", ok=None)
    assert p.returncode == 0, (what, p.stdout)
    p = s.fsck("-y", ok=None)  # the interrupted work is completed
    assert p.returncode in (0, 1) and names() == ALL, (what, p.stdout)
    rebuilt(what, r, right)


def same(what, r, right):
    """For a command that only prints: the same output, or an error, which is not taken for an
    absence."""
    if not right:
        one_line(what, r)
        for absence in ("no kvcachefs", "not in a kvcachefs", "unknown", "only a part",
                        "not a chunk", "not a model"):
            assert absence not in r.err, (what, r.err)


def answered(what, r, right):
    """The figures may differ, but exist."""
    same(what, r, right)
    try:
        assert not right or json.loads(r.out), (what, r)
    except ValueError:
        raise AssertionError((what, r))


def silent(what, r, right):
    same(what, r, right)
    assert not right or not r.err, (what, r)


def nothing_beside(what):
    left = [f for f in os.listdir(OWN) + os.listdir(s.path) if ".new" in f or ".mkfs" in f]
    assert not left, (what, left)


def key_file(what, r, right):
    """The file has all reported keys in complete lines, and the next key is added after them."""
    same(what, r, right)
    nothing_beside(what)
    with open(f"{OWN}/keys") as f:
        lines = f.read().splitlines()
    assert lines[0] == KEY and len(lines) == 1 + right, (what, r, len(lines))
    assert all(len(l.split()[1]) == 64 for l in lines), what
    run(CTL, "newkey", f"{OWN}/keys", ok=True)


def chart(what, r, right):
    """The new chart, or the earlier one."""
    same(what, r, right)
    nothing_beside(what)
    with open(f"{OWN}/chart") as f:
        assert f.read() == (CHART if right else "the old one\n"), (what, r)


def bundle(what, r, right):
    """A complete file, or none; then a file of that name can be made."""
    same(what, r, right)
    nothing_beside(what)
    if right:
        out = run("tar", "tf", f"{OWN}/dump", ok=True).stdout
        assert out.count("kvcachefs-dump/") == 7, (what, out)
        text = run("tar", "xOf", f"{OWN}/dump", ok=True).stdout
        assert "(empty)" not in text, (what, text)
    else:
        assert not os.path.exists(f"{OWN}/dump"), what


def recording(what, r, right):
    if not right:
        assert r.err.strip(), (what, r)


def recording_file(what, r, right):
    """The new recording, or the earlier one."""
    recording(what, r, right)
    with open(f"{OWN}/new") as f:
        assert (f.read() == "the old one\n") == (not right), (what, r)


def control():
    with open(f"{s.mnt}/.kvcachefs/control") as f:
        return f.read()


def swept(what, r, right):
    """For long work in the daemon: the command reports completion only when the work is complete. A
    command that cannot read the progress does not end the work, and no second run starts in that
    time."""
    same(what, r, right)
    assert (" done: " in r.out) == right, (what, r)
    wait_for(lambda: " running: " not in control())


def leased(what, r, right):
    """The files are printed while the answer arrives, so some may come before an error."""
    same(what, r, right)
    assert ("resident" in r.out) or not right, (what, r)


def started(what, r, right):
    """After a start: the mount serves all files, or no mount is left."""
    if right:
        wait_for(lambda: os.path.ismount(s.mnt))
        assert all(s.read(f) == blob(f, N) for f in FILES), what
        unmounted()
        whole(what)
    else:
        assert not os.path.ismount(s.mnt), (what, r)
        assert r.err.strip() or s.log(), (what, r)


# ---- the state before each run ----

def unmounted():
    """Also removes the state of the previous run, in which no call failed."""
    if os.path.ismount(s.mnt):
        run("umount", s.mnt, ok=True)
        wait_for(lambda: s.fsck("-n", ok=None).returncode == 0)
    s.drop_pool()


def fresh_unmounted():
    unmounted()
    fresh()


def keys_there():
    with open(f"{OWN}/keys", "w") as f:
        f.write(KEY + "\n")
    os.chmod(f"{OWN}/keys", 0o600)


def chart_there():
    with open(f"{OWN}/chart", "w") as f:
        f.write("the old one\n")


def old_recording():
    with open(f"{OWN}/new", "w") as f:
        f.write("the old one\n")


def no_bundle():
    if os.path.exists(f"{OWN}/dump"):
        os.unlink(f"{OWN}/dump")


def as_it_is():
    pass


STORE, INSIDE = f"path={s.path}/*", f"path={s.mnt}/.kvcachefs/*"
NEW, LOOK, OPENS = ("EIO", "EMFILE", "short", "delay:5"), ("EIO", "short", "delay:5"), ("EMFILE",)
SECOND = 8  # for commands that run for a second and poll twenty times: one poll of about 16 fails
# errors of a rename: a mount point, another filesystem, no permission to write
RENAMES = ("EBUSY", "EXDEV", "EROFS", "EACCES")
KEY = "7 " + "ab" * 32
# The sweeps: name; the state before each run; the command; the calls; the kinds of failures; the
# exit statuses of success and of failure; every Nth call; the check after each run.
OFFLINE = [
    ("mkfs", nothing, [MKFS, "--size", "16M", s.path], f"calls=read,open path={s.path}*",
     NEW, (0,), (1,), 4, made),
    ("mkfs of a store", fresh, [MKFS, "--size", "16M", s.path], f"calls=read,open path={s.path}*",
     NEW, (), (1,), 1, refused),
    ("mkfs --force", fresh, [MKFS, "--force", "--size", "24M", s.path],
     f"calls=read,open path={s.path}*", NEW, (0,), (1,), 8, replaced),
    *(("mkfs --force", fresh, [MKFS, "--force", "--size", "24M", s.path],
       f"calls=change path={s.path}*{count}", ("EIO", "ENOSPC"), (0,), (1,), 16, replaced)
      for count in ("", " count=0")),
    *(("fsck --rebuild", fresh, [FSCK, "--rebuild", s.path], f"calls=change {STORE}{count}",
       ("EIO", "ENOSPC"), (0,), (8, 9), 16, old_or_new) for count in ("", " count=0")),
    ("mkfs --force", fresh, [MKFS, "--force", "--size", "24M", s.path],
     f"calls=rename path={s.path}/*", ("EBUSY", "EROFS"), (0,), (1,), 1, replaced),
    ("fsck --rebuild", fresh, [FSCK, "--rebuild", s.path], f"calls=rename {STORE}",
     ("EBUSY", "EROFS"), (0,), (8, 9), 1, old_or_new),
    ("fsck -n", fresh, [FSCK, "-n", s.path], f"calls=all {STORE}", ("delay:5",), (0,), (), 25,
     unharmed),
    ("fsck -y", fresh, [FSCK, "-y", s.path], f"calls=all {STORE}", ("delay:5",), (0,), (), 25,
     unharmed),
    ("fsck --rebuild", fresh, [FSCK, "--rebuild", s.path], f"calls=read,open {STORE}",
     ("EIO", "ENOMEM", "short", "delay:5"), (0, 1), (8, 9), 12, rebuilt),
    ("mount.kvcachefs", fresh_unmounted, [binary("mount.kvcachefs"), s.path, s.mnt, "-o",
                                f"cpu=32M,run={TMP}/run"], f"calls=read,open,write {STORE}",
     ("EIO", "EMFILE"), (0,), (1,), 20, started),
]


def ctl(name, words, places, statuses=(0,), look=same, prepare=as_it_is, kinds=LOOK, step=1):
    """Yields two rows for each place: the reads and the opens of kvcachectl there fail."""
    for place in places:
        for calls, k in (("read", kinds), ("open", OPENS)):
            yield (f"kvcachectl {name}", prepare, [CTL, *words], f"calls={calls} path={place}", k,
                   statuses, (1,), step, look)


def setting(words, path, name, before, after):
    """A row for a command that sets values of a chunk or a model: all of them are set, or none."""
    def prepare():
        set_to(path, name, before)

    def look(what, r, right):
        same(what, r, right)
        got = value_of(path, name)
        assert (got == before) == (not right), (what, r, got)
        assert not right or after in (got, None), (what, r, got)
    return (f"kvcachectl {words[0]}", prepare, [CTL, *words, f"{s.mnt}/{path}"],
            f"calls=stat,xattr,setxattr,open,list path={s.mnt}*", ("EIO", "ENOMEM"), (0,), (1,),
            1 if LONG else 3, look)


def set_to(path, name, value):
    where = f"{s.mnt}/{path}", f"user.kvcachefs.{name}"
    if value is not None:
        os.setxattr(*where, value.encode())
    elif value_of(path, name) is not None:
        os.removexattr(*where)


def value_of(path, name):
    try:
        return s.attr(path, name)
    except OSError as e:
        assert e.errno == errno.ENODATA, e
        return None


def in_pool():
    s.read("flat.bin")
    s.closed()
    time.sleep(0.4)  # recently used chunks stay


def out_of_pool(what, r, right):
    same(what, r, right)
    assert ("cpu" in s.attr("flat.bin", "tiers").split(",")) == (not right), (what, r)


# runs kvcachectl lease, which holds the lease until a signal
UNTIL_IT_SAYS = f''':>{OWN}/lease; "$@" >{OWN}/lease & p=$!
while [ ! -s {OWN}/lease ] && kill -0 $p 2>/dev/null; do sleep 0.02; done
kill $p 2>/dev/null; wait $p; rc=$?; cat {OWN}/lease; exit $rc'''
MOUNTS, IN = "/proc/self/mountinfo", f"{s.mnt}/.kvcachefs/*"
TRACE, IDS = f"{OWN}/trace", f"{OWN}/ids"
ONLINE = [
    *ctl("config", ["config", s.mnt], (MOUNTS, IN)),
    *ctl("stats", ["stats", "--json", s.mnt], (MOUNTS, IN), look=answered),
    *ctl("status", ["status", "--json", s.mnt], (IN,), look=answered),
    *ctl("log", ["log", s.mnt], (IN,)),
    *ctl("flush", ["flush", s.mnt], (IN,), look=silent),
    *ctl("verify", ["verify", s.mnt], (IN,), look=silent),
    *ctl("prefetch", ["prefetch", f"{s.mnt}/m/c0/l0"], (MOUNTS,)),
    ("kvcachectl ls", as_it_is, [CTL, "ls", "--recursive", "--json", s.mnt],
     f"calls=open,list path={s.mnt}*", ("EIO", "EMFILE"), (0,), (1,), 2, same),
    *ctl("pools", ["pools", f"{TMP}/run"], (MOUNTS,)),
    ("kvcachectl pools", as_it_is, [CTL, "pools", f"{TMP}/run"],
     f"calls=open,list,read path={TMP}/run*", ("EIO", "EMFILE"), (0,), (1,), 1, same),
    ("kvcachectl events", as_it_is, [CTL, "events", "--for", "1s", s.mnt],
     f"calls=open,read path={IN}", ("EIO", "short"), (0,), (1,), SECOND, same),
    ("kvcachectl trace", as_it_is, [CTL, "trace", "-o", f"{OWN}/new", "--seconds", "1", s.mnt],
     f"calls=open,read path={IN}", ("EIO",), (0,), (1,), SECOND, recording),
    ("kvcachectl trace", old_recording, [CTL, "trace", "-o", f"{OWN}/new", "--seconds", "1",
                                         s.mnt], f"calls=open,change path={OWN}/new*", ("EIO",),
     (0,), (1,), 2, recording_file),
    *ctl("replay", ["replay", "--capacity", "5", TRACE], (TRACE,)),
    *ctl("hash", ["hash", "vllm-sha256_cbor:16", IDS], (IDS,)),
    *ctl("import", ["import", s.mnt], (MOUNTS, IN), look=swept),
    *ctl("rekey", ["rekey", s.mnt], (IN,), look=swept),
    *ctl("stat", ["stat", "--json", f"{s.mnt}/m/c1", f"{s.mnt}/m/c2/l0"], (MOUNTS,)),
    ("kvcachectl stat", as_it_is, [CTL, "stat", "--json", f"{s.mnt}/m/c1", f"{s.mnt}/m"],
     f"calls=stat,xattr,open,list path={s.mnt}*", ("EIO", "ENOMEM"), (0,), (1,), 3, same),
    ("kvcachectl ls", as_it_is, [CTL, "ls", "--recursive", "--json", s.mnt],
     f"calls=stat,xattr path={s.mnt}*", ("EIO", "ENOMEM"), (0,), (1,), 12, same),
    ("kvcachectl top", as_it_is, [CTL, "top", "--count", "1", "--interval", "1s", s.mnt],
     f"calls=open,read path={IN}", ("EIO", "short"), (0,), (1,), 2, same),
    ("kvcachectl lease", as_it_is, ["sh", "-c", UNTIL_IT_SAYS, "sh", CTL, "lease", s.mnt, "m/c0"],
     f"calls=open,read,write path={IN}", ("EIO", "short", "delay:5"), (143,), (1,), 1, leased),
    ("kvcachectl gpus", as_it_is, [CTL, "gpus", f"{OWN}/pci"],
     f"calls=open,list,read path={OWN}/pci*", ("EIO", "EMFILE"), (0,), (1,), 2, same),
    setting(["pin"], "m/c0", "pin", "0", "1"),
    setting(["unpin"], "m/c0", "pin", "1", "0"),
    setting(["ttl", "1h"], "m/c0", "ttl", "0", None),
    setting(["quota", "64M"], "m", "quota", "134217728", "67108864"),
    setting(["quota", "none"], "m", "quota", "134217728", None),
    setting(["policy", "mru"], "m", "policy", "lru", "mru"),
    ("kvcachectl evict", in_pool, [CTL, "evict", f"{s.mnt}/flat.bin"],
     f"calls=stat,xattr,setxattr path={s.mnt}*", ("EIO",), (0,), (1,), 1, out_of_pool),
    *ctl("newkey", ["newkey", f"{OWN}/keys"], (f"{OWN}/keys*",), look=key_file,
         prepare=keys_there),
    *ctl("dump", ["dump", "-o", f"{OWN}/dump", s.mnt], (IN, "/proc/*"), look=bundle,
         prepare=no_bundle),
    *((f"kvcachectl {words[0]}", prepare, [CTL, *words], f"calls={calls} path={OWN}/{f}*", kinds,
       (0,), (1,), 2, look) for calls, kinds in (
        ("change", ("EIO", "ENOSPC", "short", "delay:5")), ("rename", RENAMES)) for
      words, f, prepare, look in (
        (["newkey", f"{OWN}/keys"], "keys", keys_there, key_file),
        (["replay", "--capacity", "5", "--svg", f"{OWN}/chart", TRACE], "chart", chart_there,
         chart),
        (["dump", "-o", f"{OWN}/dump", s.mnt], "dump", no_bundle, bundle))),
    *((f"kvcachectl {words[0]}", as_it_is, [CTL, *words], f"calls=open,write {INSIDE}",
       ("EIO", "delay:5"), (0,), (1,), 1, silent) for words in (
        ["log", "info", s.mnt], ["flush", s.mnt], ["prefetch", f"{s.mnt}/m/c0/l0"],
        ["reload", "-o", "high=93,low=80", s.mnt])),
]
TELLS = ("config", "ls", "stat", "log", "replay", "hash", "gpus")  # always print the same


def sweep(row):
    name, prepare, command, words, kinds, well, badly, step, look = row
    right = None
    changes = "write" in words or "change" in words
    if name.startswith("kvcachectl ") and command[1] in TELLS and not changes:
        right = run(*command, ok=True).stdout
    if not LONG and not faults.ALL:
        kinds = faults.chance.sample(kinds, (len(kinds) + 1) // 2)
    for do in kinds:
        runs = failed = 0
        for n, r in faults.sweep(prepare, command, words, do, step):
            what = (name, words, do, n)
            assert r.rc in well + badly, (what, r)
            assert r.rc in well or "delay" not in do or not well, (what, r)
            assert right is None or r.rc not in well or r.out == right, (what, r, right)
            look(what, r, r.rc in well)
            failed += r.rc in badly
            runs += 1
            if step == SECOND and not faults.ALL:
                break
        print(f"{name}, {words}: {do} at {runs}, {failed} failed", flush=True)
        assert runs or "EMFILE" in do or step > 1, (name, words, do)


def bound(path, *commands):
    """A file that is itself a mount point cannot be replaced: one line says what to do."""
    with open(path, "rb") as f:
        before = f.read()
    run("mount", "--bind", path, path, ok=True)
    for command in commands:
        p = run(*command)
        assert p.returncode in (1, 8) and "bind mount" in p.stdout, (command, p)
        assert p.stdout.count(f"{os.path.basename(command[0])}: ") == 1, (command, p.stdout)
        nothing_beside(command)
    run("umount", path, ok=True)
    with open(path, "rb") as f:
        assert f.read() == before, path


with open(TRACE, "w") as f:
    f.write("".join(f'{{"hash_ids": [{i % 7}, {i % 5 + 10}]}}\n' for i in range(400)))
if sys.argv[1] == "offline":
    fresh()
    bound(f"{s.path}/catalog.sqlite", [FSCK, "--rebuild", s.path], [MKFS, "--force", s.path])
    whole("bind mounts")
    keys_there()
    bound(f"{OWN}/keys", [CTL, "newkey", f"{OWN}/keys"])
    chart_there()
    bound(f"{OWN}/chart", [CTL, "replay", "--capacity", "5", "--svg", f"{OWN}/chart", TRACE])
    for row in OFFLINE:
        os.environ["FAULTS_EXE"] = "kvcachefs" if row[0].startswith("mount") else \
            os.path.basename(row[2][0])
        sweep(row)
    sys.exit()
fresh_unmounted()
run(CTL, "newkey", f"{OWN}/sealing", ok=True)
os.mkdir(f"{TOP}/remote")
s.mount(f"settle=0,keyfile={OWN}/sealing,remote=dir://{TOP}/remote")
os.environ["FAULTS_EXE"] = "kvcachectl"
for device, told in (("0000:01:00.0", ("0x10de", "0x030200", "1")),
                     ("0000:02:00.0", ("0x8086", "0x020000", "0")),
                     ("0000:03:00.0", ("0x10de", "0x030000", None))):
    os.makedirs(f"{OWN}/pci/{device}")
    for name, text in zip(("vendor", "class", "numa_node"), told):
        if text:
            with open(f"{OWN}/pci/{device}/{name}", "w") as f:
                f.write(text + "\n")
with open(IDS, "w") as f:
    f.write(" ".join(map(str, range(3000))))
run(CTL, "replay", "--capacity", "5", "--svg", f"{OWN}/chart", TRACE, ok=True)
CHART = open(f"{OWN}/chart").read()
for row in ONLINE:
    sweep(row)
assert all(s.read(f) == blob(f, N) for f in FILES)
s.umount()
whole("at the end")
