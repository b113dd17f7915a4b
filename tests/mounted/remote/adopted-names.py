# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A node takes in names from a shared tier safely. With keys, the owner and the name of a frame are
verified first: a user who can write to the remote can never become the owner of a sealed file or
folder. Without keys, adopt_uid=, adopt_gid= and adopt_mode= decide the owner and mode, and set-id
bits are never taken over. An import does the same, and does not bring back files that were deleted
here."""
import contextlib, errno, os, secrets
from kvtest import KiB, Store, TMP, binary, blob, fails, run, wait_for
import frames

with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
    f.write("1 " + secrets.token_hex(32) + "\n2 " + secrets.token_hex(32) + " private\n")
secret = blob(1, 100 * KiB)


def frame(path):
    hexed = frames.name_of(path)
    return f"{TMP}/{shared}/{hexed[:2]}/{hexed}"


def patched(path, **fields):
    """Changes fields in the frame of a path. Returns the old frame."""
    with open(frame(path), "r+b") as f:
        was = f.read(frames.PAGE)
        f.seek(0)
        f.write(frames.header(was, **fields))
    return was


def restore(path, page):
    with open(frame(path), "r+b") as f:
        f.write(page)


def of(s, path):
    st = os.stat(f"{s.mnt}/{path}")
    return st.st_uid, st.st_gid, st.st_mode & 0o7777


def missing(s, path):
    with fails(errno.ENOENT):
        os.stat(f"{s.mnt}/{path}")


def comes(s, path):
    """Waits for the file, since a miss is remembered for a moment."""
    return wait_for(lambda: os.path.exists(f"{s.mnt}/{path}"), every=0.2)


def write_as(s, path, d, uid, mode):
    os.makedirs(f"{s.mnt}/{os.path.dirname(path)}", exist_ok=True)
    with open(f"{s.mnt}/{path}", "wb") as f:
        os.fchown(f.fileno(), uid, uid)
        os.fchmod(f.fileno(), mode)
        f.write(d)


def umount(*stores):
    for s in stores:
        s.umount()


# with keys
shared = "sealed"
os.makedirs(f"{TMP}/{shared}")
options = f"settle=0,remote=dir://{TMP}/{shared}"
a = Store("a", size="64M", options=f"{options},keyfile={TMP}/keys").mount()
b = Store("b", size="64M", options=f"{options},keyfile={TMP}/keys").mount()
for folder in ("m", "m/c", "private"):
    os.mkdir(f"{a.mnt}/{folder}", 0o750)
    os.chown(f"{a.mnt}/{folder}", 1001, 1001)
for path in ("m/c/one", "m/c/two", "m/c/three", "private/x"):
    write_as(a, path, secret, 1001, 0o600)
a.settle()
# a folder first: claiming to own it does not give access to its contents
was = patched("m/c", uid=1002, mode=0o40777)
missing(b, "m/c")
restore("m/c", was)
comes(b, "m/c")
assert of(b, "m") == of(b, "m/c") == (1001, 1001, 0o750), of(b, "m/c")
# a file that would belong to the attacker during the adoption
was = patched("m/c/one", uid=1002, gid=1002, mode=0o100666)
missing(b, "m/c/one")
restore("m/c/one", was)
comes(b, "m/c/one")
assert of(b, "m/c/one") == (1001, 1001, 0o600)
assert b.read("m/c/one") == secret
# the version of frames that had no proofs
was = patched("m/c/two", version=1, uid=1002, mode=0o100666)
missing(b, "m/c/two")
restore("m/c/two", was)
comes(b, "m/c/two")
assert of(b, "m/c/two") == (1001, 1001, 0o600)
# another file's frame under a name that was never stored
os.makedirs(os.path.dirname(frame("m/c/four")), exist_ok=True)
with open(frame("m/c/three"), "rb") as f, open(frame("m/c/four"), "wb") as g:
    g.write(f.read())
missing(b, "m/c/four")
# a model with its own key
assert b.read("private/x") == secret and of(b, "private/x") == (1001, 1001, 0o600)
assert b.stats()["breaker_opened"] == 0
# changed after it was adopted: it is not read
with open(frame("m/c/two"), "r+b") as f:
    page = f.read(frames.PAGE)
    f.seek(0)
    f.write(frames.header(page, uid=1002))
with fails(errno.ENOENT, errno.ESTALE, errno.EIO):
    b.read("m/c/two")
# import: the same; a deleted one stays deleted; folders have their owners
c = Store("c", size="64M", options=f"{options},keyfile={TMP}/keys").mount()
was = patched("m/c/three", uid=1002, mode=0o100666)
os.stat(f"{c.mnt}/m/c/one")
os.unlink(f"{c.mnt}/m/c/one")
p = run(binary("kvcachectl"), "import", c.mnt)
assert not os.path.exists(f"{c.mnt}/m/c/three") and not os.path.exists(f"{c.mnt}/m/c/one")
assert of(c, "private") == (1001, 1001, 0o750) and of(c, "private/x") == (1001, 1001, 0o600)
umount(a, b, c)

# without keys
shared = "clear"
os.makedirs(f"{TMP}/{shared}")
options = f"settle=0,remote=dir://{TMP}/{shared}"
a = Store("d", size="64M", options=options).mount()
os.makedirs(f"{a.mnt}/m/c", 0o777)
os.chown(f"{a.mnt}/m", 1001, 1001)
for path in ("m/c/one", "m/c/two", "m/c/three"):
    write_as(a, path, secret, 1001, 0o644)
a.settle()
patched("m/c/two", mode=0o106755, uid=0)
for name, more, uid, gid, mode in (
        ("e", "", os.geteuid(), os.getegid(), 0o600),
        ("f", ",adopt_uid=1003,adopt_gid=1004,adopt_mode=0640", 1003, 1004, 0o640)):
    b = Store(name, size="64M", options=options + more).mount()
    for path in ("m/c/one", "m/c/two"):
        assert b.read(path) == secret and of(b, path) == (uid, gid, mode), of(b, path)
    folder = mode | (mode & 0o444) >> 2
    assert of(b, "m") == of(b, "m/c") == (uid, gid, folder), of(b, "m")
    os.unlink(f"{b.mnt}/m/c/one")
    p = run(binary("kvcachectl"), "import", b.mnt)
    assert p.returncode == 0, p.stdout
    assert sorted(os.listdir(f"{b.mnt}/m/c")) == ["three", "two"]
    assert of(b, "m/c/three") == (uid, gid, mode)
    b.umount()
    b.fsck("-n")
a.umount()

# files that the node stored itself keep their owner; a frame with other bytes is another file
own = Store("own", size="64M", cpu="16M", options=f"{options},disk=off").mount()
for n in range(2):
    write_as(own, f"m/own{n}", blob(n, 50 * KiB), 1001, 0o604)
own.settle()
own.umount()
uuid = frames.get(open(frame("m/own0"), "rb").read(), "store")
for n in range(2):
    with open(frame(f"m/own{n}"), "r+b") as f:
        page = f.read(frames.PAGE)
        f.seek(0)
        if n:  # the same frame with another owner
            f.write(frames.header(page, uid=1002, mode=0o104777))
        else:  # other bytes, with a valid header
            fields = {k: frames.get(page, k) for k in ("ino", "gen", "flags", "mode", "uid", "gid")}
            f.write(frames.made_up(uuid, "m/own0", blob(9, 50 * KiB), **fields))
own.mount()
was = os.stat(f"{own.mnt}/m/own0").st_ino
with contextlib.suppress(OSError):
    own.read("m/own0")
assert own.stats()["replaced"] >= 1, own.stats()
# the file is gone, and a frame under its name is taken in like any other
with contextlib.suppress(FileNotFoundError):
    assert own.read("m/own0") == blob(9, 50 * KiB)
    assert os.stat(f"{own.mnt}/m/own0").st_ino != was
    assert of(own, "m/own0") == (os.geteuid(), os.getegid(), 0o600)
for _ in range(2):
    assert of(own, "m/own1") == (1001, 1001, 0o604)
    with contextlib.suppress(FileNotFoundError):
        assert own.read("m/own1") == blob(1, 50 * KiB)
own.umount()
p = run(binary("kvcachefs"), a.path, a.mnt, "-o", "adopt_mode=4755")
assert p.returncode and "adopt_mode" in p.stdout and len(p.stdout.splitlines()) == 1, p.stdout
