# SPDX-License-Identifier: Apache-2.0
"""Makes a Debian package kvcachefs from the files that this build installs, with the contents that
scripts/debian lists, so that dpkg can install and purge it below another root. make deb builds the
real packages."""
import contextlib, fcntl, os, shutil
from kvtest import BUILD, MODE, TMP, run

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
NAMES = ("kvcachefs.install",)


@contextlib.contextmanager
def installing():
    """Excludes other cases that run make install in this build: an install writes its folders into
    files of the build (kvcachefs.pc, kvcachefs@.service), and then copies these files."""
    with open(f"{BUILD}/installing", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def build(version, skip):
    """Path of the .deb; skip(reason) if this machine has no dpkg."""
    if not shutil.which("dpkg-deb"):
        skip("needs dpkg")
    tree, out = f"{TMP}/{version}.tree", f"{TMP}/kvcachefs-{version}.deb"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    with open(f"{BUILD}/flags") as f:
        cuda = f.read().split()[-1]
    with installing():
        run("make", "-s", "-C", TOP, "install-built", f"MODE={MODE}", f"CUDA={cuda}", "PREFIX=/usr",
            "ZSHDIR=/usr/share/zsh/vendor-completions", f"DESTDIR={tree}.all", env=env, ok=True)
        for p in (f"build/{MODE}/lib/kvcachefs.pc", f"build/{MODE}/lib/kvcachefs@.service"):
            run("make", "-s", "-C", TOP, p, f"MODE={MODE}", f"CUDA={cuda}", env=env, ok=True)
    os.mkdir(tree)
    for name in NAMES:
        with open(f"{TOP}/scripts/debian/{name}") as f:
            run("sh", "-c", f'cd "{tree}.all" && cp -r --parents ' + " ".join(f.read().split())
                + f' "{tree}"', ok=True)
    os.mkdir(f"{tree}/DEBIAN")
    with open(f"{tree}/DEBIAN/control", "w") as f:
        f.write(f"Package: kvcachefs\nVersion: {version}\nArchitecture: all\n"
                "Maintainer: nobody <nobody@localhost>\nDescription: KV caches as files\n")
    run("dpkg-deb", "--build", "--root-owner-group", "-Znone", tree, out, ok=True)
    shutil.rmtree(tree)
    shutil.rmtree(f"{tree}.all")
    return out


class Root:
    """A root that contains only the files that are installed there."""

    def __init__(self):
        self.path = f"{TMP}/root"
        os.makedirs(f"{self.path}/var/lib/dpkg/updates")
        os.makedirs(f"{self.path}/var/lib/dpkg/info")
        for name in "status", "available":
            open(f"{self.path}/var/lib/dpkg/{name}", "w").close()

    def dpkg(self, *words):
        run("dpkg", f"--root={self.path}", f"--log={TMP}/dpkg.log", "--force-not-root",
            "--force-script-chrootless", *words, ok=True)

    def files(self):
        return {os.path.join(d, f)[len(self.path):] for d, _, names in os.walk(self.path)
                for f in names if "/var/lib/dpkg" not in d}
