# SPDX-License-Identifier: Apache-2.0
# ways: none
"""make dist writes the files of the last commit as a tarball with the version in its name, and its
checksum. The same commit gives the same bytes, and the tree is usable outside git: make knows the
version, and scripts/tree lists the same files. make check-long also builds, installs and tries it
there."""
import hashlib, os, shutil, tarfile
from kvtest import *

top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
if not shutil.which("git") or run("git", "-C", top, "rev-parse", "--show-toplevel").stdout.strip() \
        != top:
    skip("needs a git checkout")


def dist(name):
    out = f"{TMP}/{name}"
    run(f"{top}/scripts/dist", ok=True, env=dict(os.environ, OUT=out))
    return out


version = run("git", "-C", top, "show", "HEAD:VERSION", ok=True).stdout.strip()
one, name = dist("one"), f"kvcachefs-{version}.tar.gz"
assert sorted(os.listdir(one)) == ["SHA256SUMS", name]
with open(f"{one}/{name}", "rb") as f:
    data = f.read()
with open(f"{one}/SHA256SUMS") as f:
    assert f.read() == f"{hashlib.sha256(data).hexdigest()}  {name}\n"
with open(f"{dist('two')}/{name}", "rb") as f:
    assert f.read() == data
files = set(run("git", "-C", top, "ls-tree", "-r", "--name-only", "HEAD",
                ok=True).stdout.splitlines())
with tarfile.open(f"{one}/{name}") as t:
    members = {m.name: m for m in t.getmembers() if not m.isdir()}
    assert set(members) == {f"kvcachefs-{version}/{f}" for f in files}
    assert members[f"kvcachefs-{version}/scripts/dist"].mode & 0o111
    t.extractall(TMP)
tree = f"{TMP}/kvcachefs-{version}"
if run("git", "-C", tree, "rev-parse", "--git-dir").returncode:
    assert "needs a git checkout" in run(f"{tree}/scripts/dist", ok=False).stdout
    listed = run("sh", "-c", f"{tree}/scripts/tree | tar -t", ok=True).stdout
    assert {f.removeprefix("./") for f in listed.splitlines()} == files
env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
made = run("make", "-s", "-C", tree, "--eval", "print-version: ; @echo $(VERSION)", "print-version",
           ok=True, env=env).stdout
assert made == f"{version}\n", made
if LONG:
    said = run(f"{top}/scripts/dist-check", ok=True, env=dict(env, KV_TMP=TMP)).stdout
    assert said.startswith("dist-check: "), said
