#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hit rates that kvcachectl replay prints for the public traces (tests/lib/traces) and for the
traces of stress.py, and the table and curves in kvcachefs-policies(7) that show them. The case
`evict/hit-rates` checks that the table matches.

    tests/lib/curves.py build/release

rewrites table and curves after a change that moves a hit rate."""
import concurrent.futures, json, lzma, os, re, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
MANUAL = os.path.join(here, "../../man/kvcachefs-policies.7")
PUBLIC = ("conversation", "synthetic", "agents")
SIZES = (1000, 5000, 10000, 20000)
# The columns of the manual's table. "learned" is prefix with a chain that is learned from calls,
# "optimum" is Belady's policy.
COLUMNS = ("lru", "fifo", "lfu", "mru", "s3fifo", "arc", "gdsf", "leaf", "prefix", "learned",
           "optimum")


def unpack(folder):
    """{name: path} of the public traces."""
    paths = {}
    for name in PUBLIC:
        paths[name] = f"{folder}/{name}.jsonl"
        with lzma.open(f"{here}/traces/{name}.jsonl.xz") as f, open(paths[name], "wb") as out:
            out.write(f.read())
    return paths


class Replay:
    """Runs kvcachectl replay. Result: share[chunks][policy or "optimum"], and for a learned chain
    also wrong[chunks][policy] and unseen[chunks][policy], as shares of the parents. clients,
    threads: the number of concurrent clients and of their threads, from which the chain is
    learned."""

    def __init__(self, ctl, path, chain, sizes, policies, clients=1, threads=1):
        words = ["--policy", ",".join(policies)] if policies else []
        p = subprocess.run([ctl, "replay", "--json", "--verbose", "--chain", chain, "--capacity",
                            ",".join(map(str, sizes)), "--clients", str(clients),
                            "--threads", str(threads), *words, path],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        assert p.returncode == 0, p.stderr
        self.share, self.wrong, self.unseen = {}, {}, {}
        for row in json.loads(p.stdout)["traces"][0]["shares"]:
            self.share[row["pool_chunks"]] = {
                "optimum": row["optimum"],
                **{name: s["pool"] for name, s in row["policies"].items()}}
        for said in re.split(r"^(?=\w+ at \d+: )", p.stderr, flags=re.M):
            learned = re.search(r"parents, ([0-9.]+) wrong, ([0-9.]+) not seen", said)
            if learned:
                name, chunks = re.match(r"(\w+) at (\d+)", said).groups()
                self.wrong.setdefault(int(chunks), {})[name] = float(learned.group(1))
                self.unseen.setdefault(int(chunks), {})[name] = float(learned.group(2))


def replay(ctl, jobs):
    """`jobs`: name -> the arguments of Replay (policies None: all). Returns name -> Replay."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        under_way = {name: pool.submit(Replay, ctl, *job) for name, job in jobs.items()}
        return {name: u.result() for name, u in under_way.items()}


def of_table(done):
    """{trace: {chunks: {column: share}}}, from the replays of (trace, chain)."""
    return {t: {n: {**share, "learned": done[t, "learned"].share[n]["prefix"]}
                for n, share in done[t, "told"].share.items()} for t in PUBLIC}


def line(first, cells):
    return f"{first:>6}" + "".join(f"{c:>{max(len(n), 4) + 1}}" for n, c in zip(COLUMNS, cells))


def table(shares):
    """The lines of the manual's table."""
    lines = [line("chunks", COLUMNS)]
    for t in PUBLIC:
        lines.append(t)
        lines += [line(n, (f"{shares[t][n][c]:.3f}".removeprefix("0") for c in COLUMNS))
                  for n in SIZES]
    return lines


# The letter of each column's curve. If two curves meet, the later letter is shown.
MARKS = {"fifo": "f", "s3fifo": "s", "arc": "a", "gdsf": "g", "lru": "l", "prefix": "P",
         "optimum": "O"}
STEPS = 60  # characters for a share of 1


def plot(shares):
    """The lines of the manual's curves: a line for each size, a share of 1 is STEPS wide."""
    lines = []
    for t in PUBLIC:
        lines.append(t)
        for n in SIZES:
            row = [" "] * (STEPS + 1)
            for name, mark in MARKS.items():
                row[int(shares[t][n][name] * STEPS + .5)] = mark
            lines.append(f"{n:>6} |{''.join(row)}".rstrip())
    return lines + [" " * 7 + "".join(f"{f'.{i}' if i < 10 else '1':<{STEPS // 5}}"
                                      for i in range(0, 11, 2)).rstrip()]


TABLE = r"^chunks +lru.*$"
PLOT = r"^conversation\n +1000 \|"


def parts(first=TABLE):
    """The manual in three parts: the text before the table, the table's lines, and the text after
    it. `first` matches the table's first line."""
    with open(MANUAL) as f:
        text = f.read()
    begin = re.search(first, text, re.M).start()
    end = text.index(".fi\n", begin)
    return text[:begin], text[begin:end].splitlines(), text[end:]


def read_plot():
    return parts(PLOT)[1]


def write(first, lines):
    before, _, after = parts(first)
    with open(MANUAL, "w") as f:
        f.write(before + "\n".join(lines) + "\n" + after)


def read_table():
    """The manual's {trace: {chunks: {column: share}}}."""
    head, *lines = parts()[1]
    assert tuple(head.split()) == ("chunks", *COLUMNS), head
    shares = {}
    for text in lines:
        name, *cells = text.split()
        if not cells:
            of = shares[name] = {}
        else:
            assert len(cells) == len(COLUMNS), text
            of[int(name)] = dict(zip(COLUMNS, map(float, cells)))
    return shares


def main(build):
    with tempfile.TemporaryDirectory(dir=os.environ.get("KV_TMP")) as folder:
        paths = unpack(folder)
        done = replay(f"{build}/bin/kvcachectl", {
            (t, chain): (paths[t], chain, SIZES, None if chain == "told" else ("prefix",))
            for t in PUBLIC for chain in ("told", "learned")})
    write(TABLE, table(of_table(done)))
    write(PLOT, plot(read_table()))
    print("\n".join(table(of_table(done))))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
