# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Every program except kvcachectl (see ctl/argument-errors) reports each wrong argument in one line
(tests/lib/wrong.py) and changes nothing: invalid values of every option, and invalid stores and
mount points. The options are read from --help, so new options are tested too."""
import os, re
from kvtest import *
import nodes
from wrong import Wrong, of_kind, tree, VALUES

need_mount()
KV, MKFS, FSCK, MOUNT, *EXAMPLES = (binary(n) for n in (
    "kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "mount.kvcachefs", "example_offload",
    "example_layers"))
w = Wrong({KV: (1,), MOUNT: (1,), MKFS: (1,), FSCK: (8,)} | dict.fromkeys(EXAMPLES, (1,)))
s = Store("s", size="16M", cpu="32M")
EMPTY, FILE, OTHER = f"{TMP}/empty", f"{TMP}/file", f"{TMP}/other"
SECRET = nodes.secret_file("peers.secret")
os.mkdir(EMPTY)
os.mkdir(OTHER)
for path in (f"{OTHER}/theirs", FILE):
    with open(path, "w") as f:
        f.write("somebody's\n")
o = f"cpu=32M,run={TMP}/run"
before = tree(TMP)


def unchanged(was):
    is_now = tree(TMP)
    if was != is_now:
        w.bad.append(f"changed: {[p for p in was | is_now if was.get(p) != is_now.get(p)]}")
        w.end()


def mount(*words, says=()):
    """Tries a mount while no other command runs, because a mount locks the store."""
    w.tell(KV, *words, says=says)
    w.told()


# each option of the table
table = re.findall(r"^  ([a-z_]+)(?:=(\S+))? ", run(KV, "--help", ok=True).stdout
                   .split("options (default):")[1], re.M)
table = [(n, v) for n, v in table if n != "ro"]
assert len(table) > 35, table
for name, value in table:
    for v in of_kind(value) + [None] if value else ["", "7", "yes"]:
        w.tell(KV, s.path, s.mnt, "-o", o + "," + name + ("" if v is None else f"={v}"),
               says=[f"option {name}"] + ([f"'{v}'"] if value and v and len(v) < 99 else []))
    if value:
        w.tell(KV, s.path, s.mnt, "-o", f"{name}=,polcy=lru", says=[f"option {name}"])
for v in ("polcy=lru", "polcy", "=", "=1"):
    w.tell(KV, s.path, s.mnt, "-o", f"{o},{v}", says=["--help", f"'{v.split('=')[0]}'"])
w.tell(KV, s.path, s.mnt, "-o", f"{o},high=50,low=60", says=["low must be below"])
w.told()
unchanged(before)
# if an option is given twice, the last counts, as in mount(8)
mount(s.path, s.mnt, "-o", f"{o},policy=lru,cpu=32M,cpu=8000G", says=["cpu=7.8 TiB"])
# errors that only the start detects
for option, says in (("remote=foo", "'foo' is not a URL"), ("remote=ftp://x", "'ftp'"),
                     ("remote=dir:///nonexistent", "/nonexistent"),
                     ("keyfile=/nonexistent", "/nonexistent"), ("keyfile=" + EMPTY, EMPTY),
                     ("metrics=192.0.2.1:9464", "192.0.2.1:9464"), ("metrics=h:9464", "h:9464"),
                     ("metrics=127.0.0.1:0,metrics_token=/nonexistent", "/nonexistent"),
                     ("peer_listen=h:9465,peer_secret=/x", "h:9465"),
                     ("peer_listen=127.0.0.1:0", "peer_secret=FILE"),
                     ("peer_listen=127.0.0.1:0,peer_secret=/nonexistent", "/nonexistent"),
                     ("peer_listen=127.0.0.1:0,peer_secret=" + EMPTY, EMPTY),
                     (f"peer_listen=127.0.0.1:0,peer_secret={SECRET},peer_name=h:1+h",
                      "'h' is not HOST:PORT"),
                     (f"peer_listen=0.0.0.0:0,peer_secret={SECRET}", "add peer_name=HOST:PORT"),
                     (f"peer_listen=[::]:0,peer_secret={SECRET}", "add peer_name=HOST:PORT"),
                     (f"peer_listen=:0,peer_secret={SECRET}", "add peer_name=HOST:PORT"),
                     ("peer_name=" + "h" * 1024, "peer_name"),
                     ("numa=nonsense", "nonsense"), (f"run={FILE}", FILE),
                     ("run=/proc/nothing", "/proc/nothing"),
                     (f"run={TMP}/no/such", f"{TMP}/no does not exist"),
                     (f"run={TMP}/no/such/", f"{TMP}/no does not exist"),
                     ("shim=explode:1", "explode:1"),
                     ("cpu=9000G", "cpu="), ("policy=l\nru", "l?ru")):
    mount(s.path, s.mnt, "-o", f"{o},{option}", says=[says])

# earlier refusals leave no trace at all
before = tree(TMP)

# the arguments of each program, from --help
for program, operand in ((KV, s.path), (MOUNT, s.path), (MKFS, f"{TMP}/new"), (FSCK, s.path)):
    name = "kvcachefs" if program == MOUNT else None
    for words, says in (("--wrong", "--wrong"), ("-W", "-W"), ("-hW"[::2], "-W")):
        w.tell(program, words, operand, says=[says, "--help"], name=name)
    w.tell(program, says=["--help"], name=name)
    w.tell(program, operand, "more", "words", says=["--help"], name=name)
    text = run(KV if program == MOUNT else program, "--help", ok=True).stdout
    options = re.findall(r"^ +(?:-(\w))?(?:, )?(?:--([a-z-]+))?(?: ([A-Z]+))?  ", text, re.M)
    assert len(options) >= 4, text
    for letter, word, value in options:
        for given in filter(None, (letter and "-" + letter, word and "--" + word)):
            if value:
                w.tell(program, operand, given, says=[given, "--help"], name=name)
            elif given.startswith("--"):
                w.tell(program, operand, given + "=x", says=[f"{given} does not", "--help"],
                       name=name)
for v in VALUES["SIZE"] + ["0"]:
    w.tell(MKFS, "--size", v, f"{TMP}/new", says=[f"'{v}'"] if v and v[0] != "9" else [])
w.told()
for words, says in ((("--size", "1M"), "1.0 MiB"), (("--device", ""), "--device"),
                    (("--device", FILE), FILE), (("--device", "/dev/nothing"), "/dev/nothing"),
                    (("--device", "/dev/null"), "/dev/null")):
    w.tell(MKFS, *words, f"{TMP}/new", says=[says])
    w.told()
for program, word, meant in ((MKFS, "--froce", "--force"), (MKFS, "--sizes=1G", "--size"),
                             (FSCK, "--rebiuld", "--rebuild"), (KV, "--foregruond",
                                                                "--foreground")):
    w.tell(program, word, f"{TMP}/new", says=[f"(did you mean '{meant}'?)"])
w.tell(FSCK, "-n", "-y", s.path, says=["-n", "-y"])
w.tell(FSCK, "--rebuild", "-n", s.path, says=["-n", "--rebuild"])
w.tell(FSCK, "--device", "/dev/nothing", OTHER, says=[OTHER])
for EXAMPLE in EXAMPLES:
    w.tell(EXAMPLE, says=["MOUNT"], code=2)
    w.tell(EXAMPLE, s.mnt, "one", says=["one"], code=2)
    w.tell(EXAMPLE, s.mnt, "-1", "more", says=["MOUNT"], code=2)
    for m in (s.mnt, f"{TMP}/nothing", FILE, ""):
        w.tell(EXAMPLE, m, says=[m])

# invalid stores and mount points
LONG = "/x" * 2100
for store in (f"{TMP}/nothing", "", FILE, EMPTY, OTHER, "/dev/null", f"{FILE}/below", LONG):
    says = [store] if store and store != LONG else ["path of the store"] if store else ["empty"]
    for program in (KV, MOUNT):
        w.tell(program, store, s.mnt, "-o", o, says=says if store else ["empty"],
               name="kvcachefs")
    w.tell(FSCK, store, says=says)
for store, says in ((FILE, FILE), ("", "empty"), (f"{TMP}/a/b", f"{TMP}/a/b"),
                    ("/dev/null", "/dev/null"), (s.path, "--force"), (LONG, "too long"),
                    (f"{FILE}/below", f"{FILE}/below"), ("/proc/self", "/proc/self")):
    w.tell(MKFS, "--size", "16M", store, says=[says])
for at in (f"{TMP}/nothing", "", FILE, f"{FILE}/below", LONG):
    w.tell(KV, s.path, at, "-o", o, says=["mount point", at[:100]])
w.told()
# the store, folders in it and folders above it are not mount points either
os.mkdir(f"{s.path}/in")
inside = tree(TMP)
for at in (s.path, f"{s.path}/in", TMP, "/"):
    mount(s.path, at, "-o", o, says=[s.path])
unchanged(inside)
os.rmdir(f"{s.path}/in")
os.utime(s.path, ns=(before[s.path][1],) * 2)
unchanged(before)

# the mount point of another store, and a store that is mounted already; names/stale-after-restart
# covers stale mounts
two = Store("two", size="16M", cpu="32M").mount()
mount(s.path, two.mnt, "-o", o, says=[two.mnt, "unmount"])
mount(two.path, s.mnt, "-o", o, says=[two.path, "in use", "unmount"])
for command in ((FSCK, "-n", two.path), (MKFS, "--force", "--size", "16M", two.path)):
    w.tell(*command, says=[two.path, "unmount"])
w.told()
two.write("m/c/l", b"x")
two.umount()

# a folder that is not empty is accepted, with a warning about its contents
p = run(KV, two.path, OTHER, "-o", o, ok=True)
assert f"mount point {OTHER} is not empty" in p.stdout and os.listdir(OTHER) == ["m"], p
run("umount", OTHER, ok=True)
assert os.listdir(OTHER) == ["theirs"]
wait_for(lambda: run(FSCK, "-n", two.path).returncode == 0)

# filesystems that are full, read-only, or somebody else's
small = f"{TMP}/small"
os.mkdir(small)
run("mount", "-t", "tmpfs", "-o", "size=40m,mode=755", "none", small, ok=True)
w.tell(MKFS, "--size", "64M", f"{small}/s", says=[f"{small}/s", "free space"])
w.told()
run(MKFS, "--size", "16M", f"{small}/s", ok=True)
with open(f"{small}/fill", "wb") as f, fails(errno.ENOSPC):
    while True:
        f.write(bytes(1 << 20))
w.tell(MKFS, "--size", "16M", f"{small}/t", says=[f"{small}/t"])
w.told()
run("mount", "-o", "remount,ro", small, ok=True)
mount(f"{small}/s", s.mnt, "-o", o, says=[f"{small}/s", "read-write"])
w.tell(FSCK, "-y", f"{small}/s", says=[f"{small}/s", "read-write"])
w.tell(MKFS, "--size", "16M", f"{small}/t", says=[f"{small}/t", "read-write"])
w.tell(MKFS, "--size", "16M", "--force", f"{small}/s", says=[f"{small}/s", "read-write"])
w.told()
run("umount", small, ok=True)
os.chmod(TMP, 0o755)
nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
if run(*nobody, "true").returncode == 0:
    # the user's own mount point: any other is refused before the store is checked
    os.mkdir(f"{TMP}/own")
    os.chown(f"{TMP}/own", 65534, 65534)
    for program, words in ((KV, (s.path, f"{TMP}/own", "-o", o)),
                           (MKFS, ("--size", "16M", f"{TMP}/n")),
                           (MKFS, ("--force", "--size", "16M", s.path)), (FSCK, ("-n", s.path))):
        w.tell(*nobody, program, *words, says=["ermission denied"], code=w.code[program][0],
               name=os.path.basename(program))
else:
    print("cannot become another user here: errors of missing rights are not tested")
w.end()
assert not os.path.ismount(s.mnt)
s.fsck("-n")
