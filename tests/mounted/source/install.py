# SPDX-License-Identifier: Apache-2.0
# ways: none
"""make install puts every file where programs look for it, below /usr/local by default, and
uninstall removes the same files. A program builds and runs with the flags from pkg-config, and the
packages contain each file. Nothing is rebuilt for that."""
import contextlib, fnmatch, os, sys
from debian import installing
from kvtest import *

top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
version = open(f"{top}/VERSION").read().strip()
cuda = open(f"{BUILD}/flags").read().split()[-1]


def make(target, *variables):
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return run("make", "-s", "-C", top, target, f"MODE={MODE}", f"CUDA={cuda}", *variables, ok=True,
               env=env).stdout


def there(root):
    return {os.path.join(d, f)[len(root):] for d, _, files in os.walk(root) for f in files}


man = {f"/share/man/man{p[-1]}/{p}" for p in os.listdir(f"{top}/man")}
tools = {"kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "mount.kvcachefs", "kvcachectl"}
shared = man | {f"/sbin/{t}" for t in tools} | {
    *(f"/include/kvcachefs{part}.h" for part in ("", "_gpu", "_keys", "_layout", "_names",
                                                 "_rope")),
    "/include/kvctier.h", "/share/doc/kvcachefs/programs/folder.c",
    "/share/doc/kvcachefs/programs/folder.py",
    *(f"/lib/kvcachefs/{p}.py" for p in ("kvctier", "lmcache_l2", "mooncake_store")),
    "/share/bash-completion/completions/kvcachectl",
    "/share/zsh/site-functions/_kvcachectl", "/lib/systemd/system/kvcachefs@.service"} | {
    f"/lib/{d}/kvcachefs.conf" for d in ("tmpfiles.d", "modules-load.d")} | {
    f"/share/doc/kvcachefs/systemd/{e}" for e in ("NAME.conf", "memory.conf", "fstab",
                                                  "mnt-kv.mount", "uring.conf")}
shared |= {f"/share/doc/kvcachefs/{f}" for f in ("README.md", "SECURITY.md")} | {
    f"/share/doc/kvcachefs/{d}{f}" for d in ("monitoring", "kubernetes")
    for f in there(f"{top}/scripts/{d}")}
library = {f"/{f}" for f in ("libkvcachefs.a", "libkvcachefs.so", "libkvcachefs.so.0",
                             "pkgconfig/kvcachefs.pc")}
helpers = {"/sbin/mount.kvcachefs", "/sbin/mount.fuse.kvcachefs", "/sbin/fsck.kvcachefs"}
root, other = f"{TMP}/root", f"{TMP}/packaged"


def below(prefix, lib="/lib"):
    return {prefix + f for f in shared | {lib + f for f in library}}


alone = contextlib.ExitStack()  # until the end of the case
alone.enter_context(installing())
# the defaults: /usr/local, and the links in /sbin for mount(8) and fsck(8)
make("install-built", f"DESTDIR={root}")
assert there(root) == below("/usr/local") | helpers, there(root) ^ (below("/usr/local") | helpers)
with open(f"{root}/usr/local/lib/systemd/system/kvcachefs@.service") as f:
    assert "ExecStart=/usr/local/sbin/kvcachefs " in f.read()
for h in helpers:
    assert os.readlink(root + h) == "/usr/local" + h.replace(".fuse", "")
make("uninstall", f"DESTDIR={root}")
assert not there(root), there(root)
# the paths of a package: /sbin is /usr/sbin there
multi, dist = "/lib/a-triplet", "/usr/lib/python3/dist-packages"
python = {f"{dist}/kvcachefs{n}" for n in there(f"{top}/gpu/python/kvcachefs")
          if n.endswith((".py", ".typed"))} | {
        f"{dist}/kvctier.py", f"{dist}/kvcachefs-{version}.dist-info/METADATA"}
packaged = ("PREFIX=/usr", f"LIBDIR=/usr{multi}", f"PYTHONDIR={dist}")
make("install-built", f"DESTDIR={other}", *packaged)
wanted = below("/usr", multi) | python | {"/usr/sbin/mount.fuse.kvcachefs"}
assert there(other) == wanted, there(other) ^ wanted
with open(f"{other}/usr{multi}/pkgconfig/kvcachefs.pc") as f:
    text = f.read()
    assert "\nlibdir=${prefix}/lib/a-triplet\n" in text and text.startswith("prefix=/usr\n"), text
if MODE not in ("asan", "tsan"):  # a plain Python cannot load their library
    said = run(sys.executable, "-c", "import kvcachefs as k, importlib.metadata as m; "
               "print(k.__file__, k.version().split()[0], m.version('kvcachefs'))",
               cwd=TMP, ok=True,
               env=dict(os.environ, PYTHONPATH=other + dist, PYTHONDONTWRITEBYTECODE="1",
                        LD_LIBRARY_PATH=f"{other}/usr{multi}")).stdout.split()
    assert said == [f"{other}{dist}/kvcachefs/__init__.py", version, version], said
# each file is in one package, and no package lists a missing file
packages = {}
for name in os.listdir(f"{top}/scripts/debian"):
    if name.endswith(".install"):
        for line in open(f"{top}/scripts/debian/{name}").read().split("\n"):
            if line and not line.startswith("#"):
                packages[line.replace("/*/", multi[4:] + "/")] = name
files = {f.replace("site-functions", "vendor-completions") for f in there(other)}
for f in files:
    hits = {packages[p] for p in packages if fnmatch.fnmatchcase(f, "/" + p)}
    assert len(hits) == 1, f"{f} is in {len(hits)} packages: {hits}"
for p in packages:
    assert fnmatch.filter(files, "/" + p), f"scripts/debian/{packages[p]}: there is no {p}"
make("uninstall", f"DESTDIR={other}", *packaged)
assert not there(other), there(other)

# the build does not depend on its folder: two trees give the same bytes
for t in sorted(tools) + ["../lib/libkvcachefs.so.0", "../lib/libkvcachefs.a"]:
    with open(binary(t), "rb") as f:
        assert os.fsencode(top) not in f.read(), f"{t} has {top} in it"

# in use: any prefix
prefix = f"{TMP}/any/prefix"
make("install-built", f"PREFIX={prefix}", f"DESTDIR={TMP}/dest")
os.rename(f"{TMP}/dest{prefix}", f"{TMP}/prefix")
os.makedirs(os.path.dirname(prefix))
os.rename(f"{TMP}/prefix", prefix)
helper = f"{TMP}/dest/sbin/mount.kvcachefs"
assert os.path.samefile(helper, f"{prefix}/sbin/mount.kvcachefs")
# through the link, the helper starts the daemon next to the link's target, which refuses a folder
# that is not a store
p = run(helper, TMP, TMP, ok=False, env=dict(os.environ, PATH="/nonexistent"))
assert p.stdout.startswith("kvcachefs: ") and p.stdout.count("\n") == 1, p.stdout
for t in sorted(tools):
    assert run(f"{prefix}/sbin/{t}", "--version", ok=True).stdout.split()[0] == t
for page in os.listdir(f"{top}/man"):
    p = run("man", "-M", f"{prefix}/share/man", "-w", page[-1], page[:-2])
    assert p.stdout.strip() == f"{prefix}/share/man/man{page[-1]}/{page}", p.stdout
if MODE not in ("asan", "tsan"):
    env = dict(os.environ, PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig")
    with open(f"{TMP}/user.c", "w") as f:
        f.write("#include <kvcachefs_names.h>\n#include <kvcachefs_layout.h>\n#include <stdio.h>\n"
                "int main(void) { puts(kvcachefs_version()); return 0; }\n")
    version = run(f"{prefix}/sbin/kvcachefs", "--version").stdout.split()[1]
    for how in ([], ["--static"]):
        flags = run("pkg-config", "--cflags", "--libs", *how, "kvcachefs", env=env, ok=True).stdout
        flags = flags.split() if not how else [
            f"{prefix}/lib/libkvcachefs.a" if f == "-lkvcachefs" else f for f in flags.split()]
        run("gcc", "-o", f"{TMP}/user", f"{TMP}/user.c", *flags, ok=True)
        p = run(f"{TMP}/user", env=dict(os.environ, LD_LIBRARY_PATH=f"{prefix}/lib"), ok=True)
        assert p.stdout.split()[0] == version, p.stdout
# each install writes the library's .pc; write that of this build again
make(f"build/{MODE}/lib/kvcachefs.pc")
make(f"build/{MODE}/lib/kvcachefs@.service")
