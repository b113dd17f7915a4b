# SPDX-License-Identifier: Apache-2.0
"""Checks how programs report wrong arguments: one line on stderr that begins with the program's
name and names the error, an exit status, and nothing else. Many are tried in parallel. SHOW=1
prints all lines, so that a person can check that each says how to fix the error."""
import concurrent.futures, os, re, subprocess
from kvtest import HANG, binary

# wrong values of each kind of value in --help
NUMBER = ["", "x", "-1", "5x", "99999999999", "99999999999999999999999", "1.5", " 1"]
VALUES = {
    "SIZE": ["", "lots", "-1", "1X", "1.5Z", "9999999T", "999999999999999999999999", "1 G"],
    "PCT": NUMBER + ["101"], "MS": NUMBER, "SECONDS": NUMBER, "N": NUMBER[:4],
    "NUMBER": NUMBER[:4] + ["4294967295"], "OCTAL": NUMBER[:4] + ["8", "10000"],
    "NAME": ["", "best", "lru "], "CODEC": ["", "lz4", "zstd "],
    "TIME": ["", "x", "-1", "1y", "1 h", "999999999999999999999999"],
    "URL": ["", "x" * 1100], "PATH": ["", "x", "x" * 300],
    "FILE": ["", "x", "x" * 300], "DIR": ["", "x", "x" * 300], "POLICY": ["", "x" * 300],
    "SPEC": ["", "x" * 300],
    "ADDR:PORT": ["", "9464", "localhost", "h:99999", "h:1x", "x" * 300],
    "HOST:PORT": ["", "9465", "localhost", "h:99999", "h:0", "h:1x", "h/i:1", "x" * 1100],
}


def of_kind(kind):
    """Invalid values of a kind that --help names; an unknown kind fails the case."""
    if kind in VALUES:
        return VALUES[kind]
    assert "|" in kind, f"tests/lib/wrong.py knows no wrong value of {kind}"
    return ["", "wrong", kind.upper()]


class Wrong:
    def __init__(self, code):
        """code: {program: the status with which it refuses}."""
        self.code, self.bad, self.lines, self.tries = code, [], [], []
        self.pool = concurrent.futures.ThreadPoolExecutor(4)

    def tell(self, *command, says=(), code=None, out=None, name=None, quiet=True):
        """Tries one wrong command in the background. Its line must contain all of `says`."""
        self.tries.append(self.pool.submit(self.look, command, says, code, out, name, quiet))

    def look(self, command, says, code, out, name, quiet):
        try:
            p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out or subprocess.PIPE,
                               stderr=subprocess.PIPE, timeout=HANG, text=True,
                               errors="surrogateescape")
        except subprocess.TimeoutExpired:
            self.bad.append(f"{command}: it does not end")
            return
        who = name or os.path.basename(command[0])
        codes = self.code[command[0]] if code is None else (code,)
        wrong = [w for w, is_so in (
            ("not one line", p.stderr.count("\n") != 1 or not p.stderr.endswith("\n")),
            (f"not from {who}", not p.stderr.startswith(f"{who}: ")),
            ("ends with a dot", p.stderr.endswith(".\n")),
            ("names nothing", bool(re.search(r": *(;|\n|: )", p.stderr))),
            ("much longer than its arguments", len(p.stderr) > 420 + len(max(command, key=len))),
            ("something on stdout", quiet and bool(p.stdout)),
            (f"status {p.returncode}", p.returncode not in codes),
        ) if is_so] + [f"lacks {s!r}" for s in says if s not in p.stderr]
        shown = " ".join(w if w and len(w) < 200 else f"'{w[:60]}'" for w in command)
        self.lines.append(f"{shown}\n    {p.stderr.rstrip()[:400]}")
        if wrong:
            self.bad.append(f"{shown}: {', '.join(wrong)}: {p.returncode} {p.stderr[:600]!r} "
                            f"{(p.stdout or '')[:200]!r}")

    def told(self):
        """Waits until all commands have ended."""
        for t in self.tries:
            t.result()
        self.tries.clear()

    def end(self):
        """Waits for all commands, and fails if one of them was not refused as it should."""
        self.told()
        if os.environ.get("SHOW"):
            print("\n".join(self.lines))
        print(f"{len(self.lines)} lines")
        assert not self.bad, f"{len(self.bad)} are wrong:\n" + "\n".join(self.bad)


def tree(top):
    """Size and time of each file and folder below `top`, to check that nothing changes."""
    return {os.path.join(d, n): (os.lstat(os.path.join(d, n)).st_size,
                                 os.lstat(os.path.join(d, n)).st_mtime_ns)
            for d, ds, ns in os.walk(top) for n in ns + ds if not n.endswith(("-shm", "-wal"))}
