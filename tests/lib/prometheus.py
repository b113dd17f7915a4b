# SPDX-License-Identifier: Apache-2.0
"""Parses Prometheus' text format as strictly as Prometheus does, and checks its conventions."""
import http.client, math, os, re

PREFIX = "kvcachefs_"
OF_PROCESS = "process_"  # the names of Prometheus' client libraries
SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')
UNITS = ("milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "kilobytes",
         "megabytes", "kib", "mib", "gib", "percent", "bits", "ms", "us")


def unescape(text):
    return re.sub(r'\\(["\\n])', lambda m: {"n": "\n"}.get(m[1], m[1]), text)


class Metrics:
    def __init__(self):
        self.types, self.helps, self.samples, self.by = {}, {}, [], {}

    def value(self, name, **labels):
        return self.by[PREFIX + name, tuple(sorted(labels.items()))]

    def labels(self, name, label):
        return {l[label] for n, l, v in self.samples if n == PREFIX + name}

    def family(self, name):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        return base if self.types.get(base) == "histogram" else name


def parse(text):
    assert text.endswith("\n"), "the last line is not terminated"
    m, seen, last = Metrics(), set(), None
    for line in text[:-1].split("\n"):
        meta = re.fullmatch(r"# (HELP|TYPE) (\S+) (.+)", line)
        if meta:
            table = m.helps if meta[1] == "HELP" else m.types
            assert meta[2] not in table, f"{meta[1]} twice: {line}"
            assert meta[2] not in seen, f"{meta[1]} after samples: {line}"
            table[meta[2]] = meta[3]
            continue
        got = SAMPLE.fullmatch(line)
        assert got, f"not a sample: {line!r}"
        labels = {k: unescape(v) for k, v in LABEL.findall(got[2] or "")}
        key = got[1], tuple(sorted(labels.items()))
        assert key not in m.by, f"repeated: {line}"
        m.by[key] = float(got[3])
        m.samples.append((got[1], labels, float(got[3])))
        family = m.family(got[1])
        assert family == last or family not in seen, f"samples of {family} are apart"
        seen.add(family)
        last = family
    return m


def check(text):
    """Fails whenever promtool check metrics would complain, and in more cases."""
    m = parse(text)
    for name, _, value in m.samples:
        family = m.family(name)
        assert family in m.types and family in m.helps, f"{family} lacks TYPE or HELP"
        assert name.startswith((PREFIX, OF_PROCESS)), name
        assert value >= 0 and not math.isnan(value), (name, value)
    for name, kind in m.types.items():
        assert any(m.family(n) == name for n, _, _ in m.samples), f"{name} has no sample"
        assert (kind == "counter") == name.endswith("_total"), (name, kind)
        assert kind in ("counter", "gauge", "histogram"), (name, kind)
        assert not re.search(r"_(bucket|sum|count|counter|gauge|histogram)$", name), name
        words = name.split("_")
        assert not [w for w in words if w in UNITS], f"{name}: not a base unit"
        unit = [w for w in ("bytes", "seconds") if w in words]
        assert not unit or words[-1 - (kind == "counter")] in unit, f"{name}: unit not last"
        if kind == "histogram":
            histogram(m, name)
    return m


def histogram(m, name):
    series = {}
    for n, labels, v in m.samples:
        if n == name + "_bucket":
            key = tuple(sorted((k, x) for k, x in labels.items() if k != "le"))
            series.setdefault(key, []).append((float(labels["le"].replace("+", "")), v))
    for key, buckets in series.items():
        bounds, values = zip(*buckets)
        assert list(bounds) == sorted(set(bounds)) and bounds[-1] == math.inf, (name, key)
        assert list(values) == sorted(values), (name, key, values)
        assert m.by[name + "_count", key] == values[-1], (name, key)
        assert m.by[name + "_sum", key] <= bounds[-1] and (values[-1] or not m.by[name + "_sum",
                                                                                  key])


def port_of(store):
    """The port on which the store's daemon listens, with metrics=ADDR:0."""
    inodes = set()
    for fd in os.listdir(f"/proc/{store.daemon.pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{store.daemon.pid}/fd/{fd}"))
        except OSError:
            pass
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as f:
            for line in f.readlines()[1:]:
                word = line.split()
                if word[3] == "0A" and f"socket:[{word[9]}]" in inodes:
                    return int(word[1].split(":")[1], 16)
    raise AssertionError("the daemon does not listen")


def ask(port, path, method="GET", body=None, headers={}, timeout=240):
    """Status, headers and body of the answer."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    c.request(method, path, body, headers)
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, r.headers, data
