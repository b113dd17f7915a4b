# SPDX-License-Identifier: Apache-2.0
# ways: none
"""Names with escape sequences, newlines, C1 controls and invalid UTF-8 never reach a terminal or a
log unescaped: fsck, ls, stat and the daemon's log print them escaped, on one line."""
import os, re, shutil
from kvtest import *

need_mount()
NAMES = [b"\x1b]0;pwn\x07\nall errors are repaired\r", b"a\x1b[31mred", b"bad\xff\xfeutf",
         b"c1\xc2\x9b31m",
         b"del\x7f", b"cut\xe2\x82", "plain-ü-キャッシュ".encode()]
s = Store("store", cpu="32M", options="settle=0").mount()
for i, n in enumerate(NAMES):
    os.makedirs(s.mnt.encode() + b"/" + n + b"/c")
    with open(s.mnt.encode() + b"/" + n + b"/c/l", "wb") as f:
        f.write(blob(i, 5000))
s.settle()


def clean(raw, what):
    text = raw.decode()  # it is UTF-8
    bad = re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert not bad, (what, bad, text)
    return text


def tool(name, *args):
    p = subprocess.run([binary(name), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return clean(p.stdout, (name, args))


listed = tool("kvcachectl", "ls", s.mnt)
assert "plain-ü-キャッシュ" in listed
assert r"\x1B]0;pwn\x07\nall errors are repaired\x0D" in listed, listed
assert r"bad\xFF\xFEutf" in listed and r"c1\xC2\x9B31m" in listed, listed
assert len(listed.splitlines()) == len(NAMES) + 1, listed
for n in NAMES:
    tool("kvcachectl", "ls", "--recursive", s.mnt.encode() + b"/" + n)
    tool("kvcachectl", "stat", s.mnt.encode() + b"/" + n)
    tool("kvcachectl", "pin", s.mnt.encode() + b"/" + n + b"/absent")
s.umount()
# without placements fsck reports each frame with its path, and wrong links with their names
run("sqlite3", f"{s.path}/catalog.sqlite", "delete from placements; update names set kind = 40960 "
    "where kind = 32768", ok=True)
found = tool("fsck.kvcachefs", "-n", s.path)
assert found.count("has no placement") == len(NAMES), found
assert r"(\x1B]0;pwn\x07\nall errors are repaired\x0D/c/l)" in found, found
assert "\nall errors are repaired" not in found, found
for n in NAMES[:3]:
    for name in ("fsck.kvcachefs", "mkfs.kvcachefs", "kvcachefs"):
        tool(name, f"{TMP}/".encode() + n, f"{TMP}/".encode() + n)
