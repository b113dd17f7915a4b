# SPDX-License-Identifier: Apache-2.0
# ways: none
"""--version of every program lists all linked libraries with the versions that run, and marks the
statically linked ones. kvcachefs-security(7) names each of these and says how to update it."""
import pathlib, sqlite3, ssl
from kvtest import *

top = pathlib.Path(__file__).resolve().parents[3]
manual = (top / "man/kvcachefs-security.7").read_text()
updates = manual.split(".SH SECURITY UPDATES")[1].split(".SH ")[0]
explained = set(re.findall(r"^\.TP\n\.B (.*)$", updates, re.M))
# the names of libraries that report a version, by their file names; libssl is a part of OpenSSL
NAMES = {"libcurl": "curl", "libcrypto": "OpenSSL", "libssl": "libssl", "libsqlite3": "SQLite",
         "libzstd": "zstd", "libxxhash": "xxHash", "libmicrohttpd": "libmicrohttpd",
         "libblkid": "libblkid", "libzmq": "ZeroMQ", "libhiredis": "hiredis",
         "libhiredis_ssl": "libhiredis_ssl", "libfuse3": "libfuse", "libc": "glibc"}
OF_LIBC = {"libm", "libdl", "libpthread", "librt", "libresolv", "ld-linux-x86-64",
           "ld-linux-aarch64"}
OWN = {"kvcachefs": {"libfuse", "libmicrohttpd"}, "mkfs.kvcachefs": {"libblkid"},
       "fsck.kvcachefs": set(), "mount.kvcachefs": set(), "kvcachectl": {"ZeroMQ", "msgpack-c"}}
COMMON = {"SQLite", "OpenSSL", "zstd", "xxHash", "curl", "hiredis", "glibc"}
built = {p.name[:-3] for p in (top / "build/deps/lib/pkgconfig").glob("*.pc")}
static = set()
for program, own in OWN.items():
    lines = run(binary(program), "--version", ok=True).stdout.splitlines()
    assert re.fullmatch(rf"{re.escape(program)} \d+\.\d+\.\d+", lines[0]), lines
    told = {l.split(",")[0].split()[0]: l for l in lines[1:]}
    assert len(told) == len(lines) - 1, lines
    assert COMMON | own <= set(told), (program, (COMMON | own) - set(told))
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", binary(program), ok=True).stdout)
    for name in {n.split(".so")[0] for n in needed} - OF_LIBC:
        known = NAMES.get(name, name)
        assert any(t == known or t.split(".so")[0] == known for t in told), (program, name, told)
    marked = {n for n, l in told.items() if l.endswith(", linked statically")}
    assert not marked & {NAMES.get(n.split(".so")[0]) for n in needed}, (marked, needed)
    for file, name in (("hiredis", "hiredis"), ("fuse3", "libfuse")):
        assert name not in told or (name in marked) == (file in built), (told, built)
    for name in built & {"hiredis", "fuse3"}:
        pc = (top / f"build/deps/lib/pkgconfig/{name}.pc").read_text()
        version = re.search(r"^Version: (\S+)", pc, re.M).group(1)
        line = told.get("libfuse" if name == "fuse3" else name, version)
        assert version in line.split(",")[0].split(), (line, version)
    assert told["SQLite"] == f"SQLite {sqlite3.sqlite_version}", told
    assert ssl.OPENSSL_VERSION.split()[1] == told["OpenSSL"].split()[1], told
    static |= marked
assert static - explained == set(), ("kvcachefs-security(7) does not name", static - explained)
assert explained - static <= {"libfuse", "hiredis", "CUDA runtime"}, explained - static
setup = (top / "scripts/setup").read_text()
for package in ("fuse3", "hiredis"):
    assert f"fetch {package}" in setup and package in updates
