# SPDX-License-Identifier: Apache-2.0
# ways: none
"""bash and zsh complete every command of kvcachectl with exactly the options in its help."""
import os, re, shutil
from kvtest import *

CTL = binary("kvcachectl")
root = os.path.join(os.path.dirname(__file__), "../../..")
BASH = f"{root}/scripts/completion/kvcachectl.bash"
ZSH = f"{root}/scripts/completion/_kvcachectl"


def complete(*words):
    """The completions that bash offers for the last word."""
    script = (f"source {BASH}; compopt() {{ :; }}; COMP_WORDS=({CTL} \"$@\"); "
              f"COMP_CWORD={len(words)}; _kvcachectl; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    return set(run("bash", "-c", script, "-", *words, ok=True, cwd=TMP).stdout.split())


def complete_zsh(*words):
    # zsh continues a child that stops, and asan's leak check stops the child at its end: then zsh
    # waits forever
    script = ("export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0; "
              f"compadd() {{ print -l -- ${{(P)2}} }}; _files() {{ print FILES }}; "
              f"words=({CTL} \"$@\"); CURRENT={len(words) + 1}; f() {{ {open(ZSH).read()} }}; f")
    return set(run("zsh", "-fc", script, "-", *words, ok=True, cwd=TMP).stdout.split())


names = set(re.findall(r"^  ([a-z-]+)(?: |$)", run(CTL, "--help", ok=True).stdout, re.M))
shells = [complete] + [complete_zsh] * bool(shutil.which("zsh"))
for c in shells:
    assert c("") == names | {"--help", "--version"}, c("")
    for name in sorted(names):
        usage = run(CTL, name, "--help", ok=True).stdout.splitlines()[0]
        options = {o for o in re.findall(r"(?<![\w-])--?[a-z]+", usage)}
        assert c(name, "-") == options | {"--help"}, (name, c(name, "-"), options)
assert complete("pi") == {"pin", "pins"} and complete("verify", "--ra") == {"--rate"}
open(f"{TMP}/a-file", "w").close()
assert complete("stat", "a-") == {"a-file"} and complete("trace", "-o", "a-") == {"a-file"}
assert complete("log", "w") == {"warn"} and complete("replay", "--chain", "to") == {"told"}
assert complete("verify", "--tier", "d") == {"disk", "dir"} and not complete("pin", "--for", "")
assert not complete("nonesuch", "-")
for c in shells:
    assert {"pin", "pins"} <= c("help", "pi") <= names and not c("help", "pin", ""), c("help", "pi")
