# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The manuals are well formed and agree with the option table, --help, the schema, the names of the
statistics, and the names of the cases."""
import os, re
from kvtest import *

man = os.path.join(os.path.dirname(__file__), "../../../man")
pages = {n: open(f"{man}/{n}").read().replace("\\\n", "") for n in os.listdir(man)}
assert set(pages) == {"kvcachefs.8", "mkfs.kvcachefs.8", "fsck.kvcachefs.8", "mount.kvcachefs.8",
                      "kvcachectl.8", "kvcachefs-format.5",
                      "kvcachefs-design.7", "kvcachefs-tiers.7", "kvcachefs-security.7",
                      "libkvcachefs.3", "kvcachefs-gpu.7", "kvcachefs-python.7",
                      "kvcachefs-engines.7", "kvcachefs-policies.7", "kvcachefs-metrics.7",
                      "kvcachefs-performance.7", "kvcachefs-tutorial.7",
                      "kvcachefs-troubleshooting.7", "kvcachefs-attributes.7", "kvcachefs-files.5",
                      "kvcachefs-errors.7", "kvcachefs-sizing.7", "kvcachefs-ext.7",
                      "kvcachefs-codecs.7", "kvcachefs-peers.7"}
for name in pages:
    p = run("mandoc", "-T", "lint", "-W", "error", f"{man}/{name}")
    assert p.returncode == 0, p.stdout
    text = run("mandoc", "-T", "utf8", f"{man}/{name}", ok=True).stdout
    assert len(text) > 400
    if re.search(r"^\.TS$", pages[name], re.M):
        assert pages[name].startswith("'\\\" t\n"), f"{name} has tables: man must call tbl for it"
    assert not re.search(r"^\.RI \[ |tests/run", pages[name], re.M), \
        f"{name} names tests: they belong in tests/PROMISES"
    for ref, section in re.findall(r"^\.BR (\S*kvcachefs\S*) \((\d)\)", pages[name], re.M):
        assert f"{ref}.{section}" in pages, f"{name} refers to {ref}({section})"
    if name == "kvcachectl.8":
        for command in re.findall(r"^  ([a-z-]+) [^ ]",
                                  run(binary("kvcachectl"), "--help", ok=True).stdout, re.M):
            assert re.search(rf"^\.(B|BI|BR) {command} ", pages[name], re.M), \
                f"kvcachectl.8 lacks {command}"
    elif name.endswith(".8"):
        tool = name[:-2]
        out = run(binary(tool), "--help", ok=True).stdout
        assert run(binary(tool), "--version", ok=True).stdout.split()[0] == tool
        for option in re.findall(r"--[a-z-]+", out):
            assert option.replace("-", r"\-") in pages[name] or option in pages[name], \
                f"{name} does not know {option}"
table = re.findall(r"^  (\w+)(=\S+)? ",
                   run(binary("kvcachefs"), "--help",
                       ok=True).stdout.split("options (default):")[1], re.M)
assert len(table) >= 17
for option, value in table:
    if option == "ro":
        continue
    if value:
        assert f".BI {option}= {value[1:]}" in pages["kvcachefs.8"].replace("\\-", "-"), \
            f"kvcachefs.8 lacks {option}{value}"
    else:
        assert f".B {option}\n" in pages["kvcachefs.8"], f"kvcachefs.8 lacks {option}"
for option in re.findall(r"^\.BI (\w+)= ", pages["kvcachefs.8"], re.M):
    assert option in dict(table), f"kvcachefs.8 has {option}, the table does not"
for tool in ("kvcachefs", "mkfs.kvcachefs", "fsck.kvcachefs", "mount.kvcachefs", "kvcachectl"):
    wide = [l for l in run(binary(tool), "--help", ok=True).stdout.splitlines() if len(l) > 100]
    assert not wide, f"{tool} --help has lines of more than 100 columns: {wide}"
rows = re.sub(r"\n {10,}", " ", run(binary("kvcachefs"), "--help", ok=True).stdout)
defaults = dict(re.findall(r"^  (\w+)=\S+ .*\((\S+)\)$", rows, re.M))
assert len(defaults) > 25, defaults
for option, value in defaults.items():
    entry = pages["kvcachefs.8"].split(f".BI {option}= ")[1].split(".TP")[0]
    assert value in entry, f"kvcachefs.8 does not say that {option} is {value} by default"
schema = open(os.path.join(man, "../engine/catalog/catalog.c")).read()
for t, columns in re.findall(r"CREATE TABLE (\w+)\((.*?)\)(?: WITHOUT ROWID)?;",
                             re.sub(r'"\s*"', "", schema), re.S):
    names = [c.split()[0] for c in columns.split(", ") if c.split()[0].islower()]
    names = [n for n in names if re.fullmatch(r"[a-z_]+", n)]
    assert f".B {t}({', '.join(dict.fromkeys(names))})" in pages["kvcachefs-format.5"], (t, names)
gpu = os.path.join(man, "../gpu")
header = "".join(open(os.path.join(gpu, f)).read() for f in sorted(os.listdir(gpu))
                 if f.startswith("kvcachefs") and f.endswith(".h"))
for call in re.findall(r"^\.BR (kvcachefs_\w+) \(\)", pages["libkvcachefs.3"], re.M):
    assert f"{call}(" in header, f"libkvcachefs.3 has {call}"
# tests/PROMISES links the promises of the manuals to the tests that check them.
tests = os.path.join(man, "../tests")
known = {f"{kind} {os.path.relpath(os.path.join(folder, f), f'{tests}/{kind}').rsplit('.', 1)[0]}"
         for kind, suffix in (("mounted", ".py"), ("unit", ".c"), ("fuzz", ".c"))
         for folder, _, files in os.walk(f"{tests}/{kind}") for f in files if f.endswith(suffix)}
text = re.sub(r"\n +", " ", open(f"{tests}/PROMISES").read())
records = [line for line in text.split("\n") if line and not line.startswith("#")]
promises = []
for record in records:
    m = re.fullmatch(r"(\S+\.\d): (\S.*\.) \| (\S.*)", record)
    assert m, f"PROMISES: not of the form 'PAGE: Promise. | test, test': {record}"
    page, promise, named = m.group(1), m.group(2), m.group(3).split(", ")
    assert page in pages, f"PROMISES: no manual has the name {page}"
    assert len(set(named)) == len(named), f"PROMISES: the same test twice: {record}"
    for case in named:
        assert case in known, f"PROMISES: no test has the name '{case}': {record}"
    promises.append((page, promise))
assert len(set(promises)) == len(promises), \
    f"PROMISES: twice: {[p for p in promises if promises.count(p) > 1]}"
assert [p for p, _ in promises] == sorted(p for p, _ in promises), "PROMISES: not sorted by page"
for page in ("kvcachefs-design.7", "kvcachefs-security.7"):
    assert len([p for p, _ in promises if p == page]) >= 30, f"PROMISES: too few for {page}"
numbered = pages["kvcachefs-design.7"].split(".SH PROMISES")[1].split(".SH")[0]
assert len(re.findall(r"^\.IP \d", numbered, re.M)) == 9
# kvcachefs-attributes(7) has the attributes of the table. The attribute of the root (tenants) is a
# part of kvcachectl tenant.
source = open(os.path.join(man, "../engine/ops/virtuals.c")).read()
attributes = re.findall(r'^\t\{ "(\w+)", ON_(?!ROOT)[^{]*\},$', source, re.M)
described = re.findall(r"^\.B user\.kvcachefs\.(\w+)$", pages["kvcachefs-attributes.7"], re.M)
assert len(attributes) > 15 and set(attributes) == set(described), \
    f"kvcachefs-attributes.7: {set(attributes) ^ set(described)}"
# kvcachectl stat and ls show each of them that can be read
readable = set(re.findall(r'^\t\{ "(\w+)", ON_[^{,]*, (?!NULL)\w+, \w+ \},$', source, re.M))
shown = set(re.findall(r'\{ "(\w+)", [A-Z]+ \}',
                       open(os.path.join(man, "../mkfs/ctl/chunk.c")).read()))
assert len(readable) > 15 and readable == shown, f"mkfs/ctl/chunk.c: {readable ^ shown}"
# kvcachefs-files(5) has the virtual files; it marks those that only root and the daemon can read
source = open(os.path.join(man, "../fs/virtual.c")).read()
files = {n: int(mode, 8) for n, mode in
         re.findall(r'^\t\[V_\w+\] = \{ "(\w+)", S_IFREG \| (\d+)', source, re.M)}
section = pages["kvcachefs-files.5"].split(".SH VIRTUAL FILES\n")[1].split(".SH")[0]
described = {n: bool(private) for n, private in
             re.findall(r"^\.TP\n\.I (\w+)\n(\(private\) )?", section, re.M)}
assert len(files) > 10 and described == {n: not mode & 0o044 for n, mode in files.items()}, \
    f"kvcachefs-files.5: {described}, {files}"
# .BR and its like join their arguments: a sentence that follows in the same line loses its spaces
for name, t in pages.items():
    for line in re.findall(r"^\.(?:BR|RB|IR|RI|BI|IB) .*", t, re.M):
        assert not re.search(r"[.,;:] [A-Za-z]", re.sub(r'"[^"]*"|\\ ', "", line)), \
            f"{name}: words without spaces: {line}"
# references to sections
sections = {n: set(re.findall(r'^\.S[SH] "?(.*?)"?$', t, re.M)) for n, t in pages.items()}
references = 0
for name, t in pages.items():
    flat = re.sub(r"\n(?!\.)", " ", t)
    for words, page, number in re.findall(
            r"^(?!\.).*?\b([A-Z_]{2,}(?: [A-Z]+)*)(?: in| of)?\n\.BR (\S+) \((\d)\)", flat,
            re.M):
        references += 1
        assert words in sections[f"{page}.{number}"], f"{name}: {page}({number}) has no {words}"
    for words in re.findall(r"\b[Ss]ee ([A-Z_]{2,}(?: [A-Z]+)*)(?: below| above)?[.,;)]", flat):
        references += 1
        assert words in sections[name], f"{name} has no section {words}"
assert references > 15, references
