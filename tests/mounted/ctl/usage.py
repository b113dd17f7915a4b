# SPDX-License-Identifier: Apache-2.0
# ways: none
"""Every command of kvcachectl prints its usage with --help at any position, and refuses an unknown
option with one line and exit status 2. The manual lists the options that the usage lists."""
import os, re
from kvtest import *

CTL = binary("kvcachectl")
man = open(os.path.join(os.path.dirname(__file__), "../../../man/kvcachectl.8")).read()
man = man.replace("\\\n", "").replace("\\-", "-")
names = re.findall(r"^  ([a-z-]+)(?: |$)", run(CTL, "--help", ok=True).stdout, re.M)
assert len(names) >= 21 and len(set(names)) == len(names), names
assert {"trace", "replay", "hash", "status", "help"} <= set(names), names
for name in names:
    first = run(CTL, name, "--help", ok=True).stdout
    assert first.startswith(f"usage: kvcachectl {name}"), first
    usage, body = first.split("\n", 1)
    # each option of the usage is explained by one line; two examples; the syntax of values
    explained = re.findall(r"^  (--?[a-z]+)(?: (\S+))?  +\S", body, re.M)
    in_usage = re.findall(r"(?<![\w-])(--?[a-z]+)(?: ([A-Za-z][^]\s]*))?",
                          usage.replace("[:DISK]", ""))
    assert sorted(o for o, _ in explained) == sorted({o for o, _ in in_usage}), (name, explained)
    for option, value in in_usage:
        assert dict(explained)[option] == value, (name, option, value)
    examples = re.findall(r"^  kvcachectl ([a-z-]+) ?(.*)$", body, re.M)
    assert [e[0] for e in examples] == [name, name] and examples[0] != examples[1], (name, examples)
    for _, words in examples:
        for option in re.findall(r"(?<![\w-])(--?[a-z]+)", words):
            assert option in dict(explained), (name, words)
    # each operand is explained, by a line of its own or by a common paragraph
    rest = re.sub(r"(?<![\w-])--?[a-z]+( [A-Za-z][^]\s]*)?", "", usage.replace("[:DISK]", ""))
    for operand in re.findall(r"(?<![\w|-])[A-Z][\w|=-]*", rest.split(f" {name}", 1)[1]):
        assert re.search(rf"^(  )?{re.escape(operand)} ", body, re.M), (name, operand)
    assert ("A SIZE is" in body) == ("SIZE" in usage) and ("A TIME is" in body) == ("TIME" in usage)
    assert all(len(l) <= 100 for l in body.splitlines()), body
    assert run(CTL, name, "x", "-h", "y", "z", ok=True).stdout == first, name
    for words in (("--wrong",), ("a", "b", "--wrong=1"), ("-W", "x")):
        p = run(CTL, name, *words)
        assert p.returncode == 2 and p.stdout.count("\n") == 1, (name, p)
        option = [w for w in words if "-" in w][0]
        assert f"{name} does not have the option {option.split('=')[0]}" in p.stdout, (name, p)
        assert p.stdout.endswith(f"; see kvcachectl {name} --help\n"), (name, p)
    entry = re.findall(rf"^\.TP\n\.(?:BI|BR|B) \"?{name}\b.*?(?=^\.TP\n\.(?:BI|BR) \"?[a-z]|^\.SH)",
                       man, re.M | re.S)
    assert entry, f"kvcachectl.8 lacks {name}"
    for option in re.findall(r"--?[a-z]+", first.splitlines()[0]):
        assert any(option in e for e in entry), f"kvcachectl.8: {name} lacks {option}"
assert run(CTL, "help", ok=True).stdout == run(CTL, "--help", ok=True).stdout
for flag in ("-h", "--help"):
    assert run(CTL, "help", flag, ok=True).stdout.startswith("usage: kvcachectl help [COMMAND]\n")
assert run(CTL, "help", "ls", ok=True).stdout == run(CTL, "ls", "--help", ok=True).stdout
for words, says in ((("nothing",), "unknown command 'nothing'; see kvcachectl --help"),
                    (("ls", "stat"), "unexpected argument stat;")):
    p = run(CTL, "help", *words)
    assert p.returncode == 2 and says in p.stdout, p
for words, meant in ((("staus",), "status"), (("evcit",), "evict"), (("ls", "--recusrive"),
                     "--recursive"), (("help", "tennants"), "tenants")):
    p = run(CTL, *words)
    assert p.returncode == 2 and f"(did you mean '{meant}'?)" in p.stdout, p
p = run(CTL, "ls", "--wrong")
assert p.returncode == 2 and "did you mean" not in p.stdout, p
# letters in one word: flags, and at the end an option with a value
assert "not in a kvcachefs mount" in run(CTL, "ls", "-lr", TMP).stdout
for words, letter in ((("ls", "-lrx"), "-x"), (("ls", "-xlr"), "-x"), (("trace", "-xo"), "-x")):
    p = run(CTL, *words)
    assert p.returncode == 2 and f"does not have the option {letter};" in p.stdout, p
p = run(CTL, "dump", f"-o{TMP}/x.tar", "--", TMP, "-x")
assert p.returncode == 2 and "unexpected argument -x;" in p.stdout, p
p = run(CTL, "prefetch", "--", "--help")
assert p.returncode == 1 and "--help: No such file" in p.stdout, p
