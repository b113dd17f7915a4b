# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The Python package matches the header: it declares every struct and function as C does, or omits
it by name. The wheel is reproducible and can be installed, and its examples run. Without the
library, the import fails with one clear ImportError. The types pass mypy --strict if mypy is
installed; so do those of kvctier.py and of the programs on it that are installed."""
import ctypes, fnmatch, glob, importlib.util, os, re, shutil, subprocess, sys, zipfile
from kvtest import *
import package
from kvcachefs import _lib

with open(f"{package.TOP}/VERSION") as f:
    VERSION = f.read().strip()
mypy, types = shutil.which("mypy"), None
if mypy and MODE == "release":  # in parallel, because it is slow
    # mypy.ini: strict, except for the engines, which are not installed here
    types = subprocess.Popen([mypy, "--config-file", "mypy.ini", "--cache-dir", os.devnull,
                              "kvcachefs"], cwd=package.SOURCE, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    programs = subprocess.Popen([mypy, "--strict", "--ignore-missing-imports", "--cache-dir",
                                 os.devnull, "kvctier.py", "lmcache_l2.py",
                                 "mooncake_store.py"],
                                cwd=f"{package.TOP}/tiers/programs", text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
elif not mypy:
    print("without mypy")
headers, header = sorted(glob.glob(f"{package.TOP}/gpu/kvcachefs*.h")), ""
for path in headers:
    with open(path) as f:
        header += re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)


def left_out(name):
    return any(fnmatch.fnmatchcase(name, p) for p in _lib.LEFT_OUT)


# ---- Structs: the compiler's layout --------------------------------------------------------------

in_header = set(re.findall(r"^struct kvcachefs_(\w+)\s*\{", header, re.M))
assert {n for n in in_header if not left_out(n)} == set(_lib.STRUCTS), in_header
lines, said = [], []
for name, struct in _lib.STRUCTS.items():
    c = f"struct kvcachefs_{name}"
    lines.append(f'printf("{name} %zu\\n", sizeof({c}));')
    said.append(f"{name} {ctypes.sizeof(struct)}")
    for field, kind in struct._fields_:
        lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({c}, {field}), '
                     f"sizeof((({c} *)0)->{field}));")
        said.append(f"{name}.{field} {getattr(struct, field).offset} {ctypes.sizeof(kind)}")
    # a member that Python lacks would hide in the padding
    body = re.search(rf"^struct kvcachefs_{name}\s*\{{(.*?)^\}};", header, re.M | re.S).group(1)
    body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)
    members = re.findall(r"(\w+)(?:\[[^\]]*\])?\s*(?=[,;])", body)
    assert members == [field for field, _ in struct._fields_], (name, members)
constants = {"KVCACHEFS_KEY_MAX": _lib.KEY_MAX, "KVCACHEFS_TEXT_MAX": _lib.TEXT_MAX,
             "KVCACHEFS_PATH_MAX": _lib.PATH_MAX, "KVCACHEFS_PLANES": _lib.PLANES,
             "KVCACHEFS_QUEUE_MOST": _lib.QUEUE_MOST,
             "KVCACHEFS_UNIFIED_DIGEST": _lib.UNIFIED_DIGEST,
             "KVCACHEFS_UNIFIED_KEY_MAX": _lib.UNIFIED_KEY_MAX}
floats = re.search(r"enum kvcachefs_float \{(.*?)\}", header, re.S).group(1).split(",")
constants.update(zip(map(str.strip, floats), _lib.FLOATS.values()))
assert len(floats) == len(_lib.FLOATS)
for name, value in constants.items():
    lines.append(f'printf("{name} %d\\n", (int){name});')
    said.append(f"{name} {value}")
with open(f"{TMP}/layout.c", "w") as f:
    f.write("".join(f'#include "{os.path.basename(h)}"\n' for h in headers) +
            "#include <stdio.h>\nint main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
run("gcc", f"-I{package.TOP}/gpu", "-o", f"{TMP}/layout", f"{TMP}/layout.c", ok=True)
assert run(f"{TMP}/layout", ok=True).stdout.splitlines() == said

# ---- Functions: results and arguments of the same kind -------------------------------------------

KINDS = {"size_t": ctypes.c_size_t, "unsigned": ctypes.c_uint, "int": ctypes.c_int,
         "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
         "double": ctypes.c_double, "bool": ctypes.c_bool, "void": None}


def kind_of(text):
    if "*" in text or "[" in text:
        return "pointer"
    words = [w for w in text.split() if w != "const"]
    return ctypes.c_int if words[0] == "enum" else KINDS[words[0]]


def known(kind):
    """Pointers are all alike to the calling convention."""
    pointer = kind in (ctypes.c_void_p, ctypes.c_char_p) or hasattr(kind, "contents")
    return "pointer" if pointer else kind


prototypes = re.findall(r"^(\w[\w \t]*?[\s*]+)kvcachefs_(\w+)\(([^;]*)\);", header, re.M)
assert len(prototypes) > 40
for result, name, arguments in prototypes:
    if left_out(name):
        assert name not in _lib.FUNCTIONS, name
        continue
    assert name in _lib.FUNCTIONS, f"kvcachefs_{name} is in the header, and _lib.py lacks it"
    of, takes = _lib.FUNCTIONS[name]
    want = [] if arguments == "void" else [kind_of(a) for a in arguments.split(",")]
    assert [known(a) for a in takes] == want, (name, takes, want)
    assert known(of) == kind_of(result), (name, of, result)
assert set(_lib.FUNCTIONS) <= {name for _, name, _ in prototypes}

# ---- The wheel -----------------------------------------------------------------------------------


def wheel(folder, **env):
    return run(f"{package.TOP}/scripts/wheel", VERSION, package.LIBRARY, f"{TMP}/{folder}",
               ok=True, env=dict(os.environ, **{"AUDITWHEEL": "", **env})).stdout.splitlines()[-1]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def python(code, path, ok=True, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVCACHEFS", "PYTHON"))}
    return run(sys.executable, "-c", code, ok=ok, cwd=TMP,
               env=dict(clean, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **env)).stdout


SHOW = "import kvcachefs as k; print(k.__version__, k.__file__, len(k.schemes()))"
first = wheel("first")
assert read(first) == read(wheel("second")) and os.listdir(f"{TMP}/first") == \
    [f"kvcachefs-{VERSION}-py3-none-linux_{os.uname().machine}.whl"]
with zipfile.ZipFile(first) as z:
    names = z.namelist()
    assert not z.testzip() and {"kvcachefs/py.typed", "kvcachefs/libkvcachefs.so.0"} <= set(names)
    z.extractall(f"{TMP}/unzipped")
    metadata = z.read(f"kvcachefs-{VERSION}.dist-info/METADATA").decode()
    fields, _, description = metadata.partition("\n\n")
    assert "Project-URL" not in fields and f"\nVersion: {VERSION}\n" in fields
    with open(f"{package.TOP}/gpu/python/README.md") as f:
        assert description.startswith(f.read())
    assert "\nDescription-Content-Type: text/markdown" in fields
with zipfile.ZipFile(wheel("named", URL="https://example.org/kv")) as z:
    assert "\nProject-URL: Source, https://example.org/kv\n" in \
        z.read(f"kvcachefs-{VERSION}.dist-info/METADATA").decode()
audit = shutil.which("auditwheel")
if not audit:
    print("without auditwheel")
elif not MODE == "asan":
    many = [wheel(f, AUDITWHEEL=audit) for f in ("many1", "many2")]
    assert read(many[0]) == read(many[1])
    tag = f"py3-none-manylinux_\\d+_\\d+_{os.uname().machine}"
    assert re.fullmatch(f"kvcachefs-{VERSION}-{tag}.whl", os.path.basename(many[0])), many
    with zipfile.ZipFile(many[0]) as z:
        assert not [n for n in z.namelist() if "libcrypto" in n], z.namelist()
        z.extractall(f"{TMP}/many")
    assert python(SHOW, f"{TMP}/many").startswith(f"{VERSION} {TMP}/many/")
there = {os.path.relpath(os.path.join(d, f), package.SOURCE) for d, _, files in
         os.walk(f"{package.SOURCE}/kvcachefs") for f in files if f.endswith((".py", ".typed"))}
assert there <= set(names), there - set(names)
unloaded = "" if MODE != "asan" else "the sanitizer's library is not loaded by a plain Python"
if not unloaded:
    assert python(SHOW, f"{TMP}/unzipped").split() == \
        [VERSION, f"{TMP}/unzipped/kvcachefs/__init__.py", "14"]
    assert python("import importlib.metadata as m; print(m.version('kvcachefs'))",
                  f"{TMP}/unzipped") == f"{VERSION}\n"
if not importlib.util.find_spec("pip"):
    print("without pip")
else:
    run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile",
        "--disable-pip-version-check", "--target", f"{TMP}/pip", first, ok=True)
    if not unloaded:
        assert f"{TMP}/pip" in python(SHOW, f"{TMP}/pip")
if not unloaded and os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK):
    s = Store().mount()  # the examples of the installed package
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVCACHEFS", "PYTHON"))}
    clean["PYTHONPATH"] = f"{TMP}/unzipped"
    numpys = [p for p in (sys.executable, "/usr/bin/python3")
              if not run(p, "-c", "import numpy").returncode]
    for example, end, pythons in (("layers", "loaded again: the same\n", [sys.executable]),
                                  ("cache", "bytes\n", numpys[:1])):
        for p in pythons or print("without numpy") or []:
            said = run(p, "-m", f"kvcachefs.examples.{example}", s.mnt, ok=True, cwd=TMP,
                       env=clean).stdout
            assert said.endswith(end), said
    s.umount()

# ---- Without the library, or with one that is too old --------------------------------------------

os.unlink(f"{TMP}/unzipped/kvcachefs/libkvcachefs.so.0")
run("gcc", "-shared", "-o", f"{TMP}/old.so", "-x", "c", "/dev/null", ok=True)
for library, word in ((f"{TMP}/none.so", "cannot open"), (f"{TMP}/old.so", "kvcachefs_error")):
    out = python(SHOW, f"{TMP}/unzipped", ok=False, KVCACHEFS_LIBRARY=library)
    last = out.strip().splitlines()[-1]
    assert last.startswith("ImportError: libkvcachefs cannot be used") and word in last, out
    assert out.count("Error: ") == 1 and library in last and "KVCACHEFS_LIBRARY" in last, out
if not unloaded:  # named by the environment, or found by the linker
    for how in ({"KVCACHEFS_LIBRARY": package.LIBRARY},
                {"LD_LIBRARY_PATH": os.path.dirname(package.LIBRARY)}):
        assert python(SHOW, f"{TMP}/unzipped", **how).startswith(f"{VERSION} ")
for checker in (types, programs) if types else ():
    said = checker.communicate()[0]
    assert checker.returncode == 0, said
