# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The page of the HTTP endpoint in a real browser. It shows a mount without models and with
thousands of models of any names, writes nothing to the console, and asks for the token. Charts
begin at the oldest sample and show the values at the pointer. The page fits a phone, and its text
can be read in light and dark."""
import copy, json, os, re
from kvtest import *
from browser import Browser
from prometheus import ask, port_of

need_mount()
browser = Browser()


def show(port, width, dark=False):
    browser.show(f"http://127.0.0.1:{port}/", width, dark=dark)
    browser.until("document.body.dataset.shown || !document.getElementById('ask').hidden")
    assert not browser.said, browser.said


def cells(table):
    return browser.js(f"""[...document.querySelectorAll('#{table} tbody tr')].map(r =>
        [...r.cells].map(c => c.textContent))""")


def text(selector):
    return browser.js(f"document.querySelector({json.dumps(selector)}).textContent")


s = Store(cpu="64M", options="metrics=127.0.0.1:0,settle=0").mount()
show(port_of(s), 1200)
assert text("#mountpoint") == s.mnt and browser.js("!document.getElementById('main').hidden")
assert cells("models") == [["nothing was asked for yet"]]
assert cells("reasons") == [["nothing was evicted yet"]]
assert [r[:2] for r in cells("tiers")] == [["cpu", "works"], ["disk", "works"]]
assert browser.js("document.getElementById('section-devices').hidden")

# names that would be HTML, and more models than are shown
ODD = ["<img src=x onerror=console.log(1)>", "a\"b'c\\d", "&amp;<b>"]
for name in ODD:
    s.write(f"{name}/c/l", b"x")
for i in range(5000):
    os.mkdir(f"{s.mnt}/m{i}")
    s.write(f"m{i}/l", b"x")
s.settle()
for i in range(5000):
    s.read(f"m{i}/l")
for n, name in enumerate(ODD):
    for _ in range(1000 * (n + 1)):
        s.read(f"{name}/c/l")
run(binary("kvcachectl"), "evict", "--yes", *(f"{s.mnt}/{name}/c" for name in ODD), ok=True)
s.settle()
show(port_of(s), 400)
rows = cells("models")
assert [r[:3] for r in rows[:3]] == [[ODD[2], "3,000", "100.0 %"], [ODD[1], "2,000", "100.0 %"],
                                     [ODD[0], "1,000", "100.0 %"]], rows[:4]
assert not browser.js("document.images.length") and len(rows) == 13, rows
assert rows[-1][0] == "(all others)" and "of 5,003" in text("#models-note")
assert {"open", "create"} <= {r[0] for r in cells("slowest")}

# evictions by reason, and quantiles of latencies: the numbers of the mount
assert s.stats()["evicted_for_demote"] == 3 == sum(s.stats()[k] for k in s.stats()
                                                   if k.startswith("evicted_for_"))
assert [[r[0], r[1], r[-1]] for r in cells("reasons")] == [["a user requested it", "3", "0"]]
assert text("#evicted") == "3 chunks"
latency = {tuple(r[:2]): r[2:] for r in cells("latency")}
assert latency["open", "cpu"][0] == "11,000" and latency["create", "cpu"][0] == "5,003", latency
assert all(re.fullmatch(r"[\d.]+ (µs|ms|s)", v) for v in latency["open", "cpu"][1:]), latency

# bytes and quota of the models, as the mount counts them
port = port_of(s)
os.setxattr(f"{s.mnt}/{ODD[1]}", "user.kvcachefs.quota", b"1M")


def counted():
    state = json.loads(ask(port, "/status.json")[2])
    return state["models_counted"] and next(m for m in state["models"]
                                            if m["name"] == ODD[1])["quota"] and state


real = wait_for(counted)
show(port, 1200)
own = {r[0]: r for r in cells("usage")}
assert len(own) == 12 and re.fullmatch(r"[\d.]+ % of 1.0 MiB", own[ODD[1]][4]), own
assert all(re.fullmatch(r"[\d.]+ K?i?B", r[2]) for r in own.values()), own

# ---- invented answers ----
EVERY = 10


def mount_of(seconds):
    """The answer of a mount of this age. Opens and evictions grow evenly."""
    v = copy.deepcopy(real)
    v["uptime_seconds"] = seconds
    h = v["history"]
    ago = list(range(min(seconds, 3600), 0, -EVERY)) + [0]
    h["ago_seconds"] = ago
    for k, values in h.items():
        if k != "ago_seconds" and type(values) is list:
            h[k] = [0] * len(ago)
    h["hits"] = [30 * (seconds - a) for a in ago]
    h["found"] = [3 * (seconds - a) for a in ago]
    h["absent"] = [seconds - a for a in ago]
    h["open_p50_seconds"] = [None] + [0.00005] * (len(ago) - 1)
    h["open_p99_seconds"] = [None] + [0.02] * (len(ago) - 1)
    h["reasons"] = {k: [0] * len(ago) for k in h["reasons"]}
    for n, k in enumerate(h["reasons"], 1):
        h["reasons"][k] = [n * (seconds - a) for a in ago]
    for n, r in enumerate(v["reasons"], 1):
        r["evicted_chunks"], r["absent_after"] = n * seconds, n
    return v


def shown(answer, width=1200, dark=False):
    browser.answer("status.json", answer)
    show(port, width, dark)


def axis(chart):
    return browser.js(f"""[...document.querySelectorAll('#chart-{chart} text')]
        .filter(t => +t.getAttribute('y') > 120).map(t => t.textContent)""")


def first_x(chart):
    """The coordinate at which the first line of the chart begins."""
    return float(re.match(r"M([\d.]+)", browser.js(
        f"document.querySelector('#chart-{chart} path').getAttribute('d')"))[1])


# the time axis of a young mount is as long as its life
for seconds, labels in ((20, ["now", "15 s", "30 s", "45 s", "60 s ago"]),
                        (180, ["now", "60 s", "2 min", "3 min ago"]),
                        (1500, ["now", "10 min", "20 min ago"]),
                        (3600, ["now", "15 min", "30 min", "45 min", "60 min ago"]),
                        (86400, ["now", "15 min", "30 min", "45 min", "60 min ago"])):
    shown(mount_of(seconds))
    for chart in ("share", "opens", "bytes", "latency", "evicted", "pool"):
        assert axis(chart) == labels, (seconds, chart, axis(chart))
    assert seconds < 60 or first_x("opens") < 340 / 10, (seconds, first_x("opens"))
    assert browser.js("document.getElementById('card-hour').hidden") == (seconds < 3600)
    assert len(cells("reasons")[0]) == (4 if seconds < 3600 else 5)
assert text("#found-hour") == "75.0 %" and "of 14,400 chunks" in text("#found-hour-of")
assert text("#open-p99") == "20 ms" and "50 µs" in text("#open-p50")
rows = cells("reasons")
assert rows[0] == [real["reasons"][-1]["what"], "28,800", "691,200", "", "8"], rows[0]
assert text("#evicted") == f"{36 * 3600:,} chunks" and real["reasons"][-1]["what"] in \
    text("#evicted-why")
# three reasons have a line each, and the others share one; values are chunks per minute
assert browser.js("document.querySelectorAll('#chart-evicted path').length") == 4
values = browser.js("[...document.querySelectorAll('#chart-evicted b')].map(b => b.textContent)")
assert values == ["480", "420", "360", f"{60 * (1 + 2 + 3 + 4 + 5):,}"], values

# the values at the pointer; without it, the latest values
young = mount_of(180)
young["history"]["hits"] = [0] * 10 + [5 * EVERY] + [5 * EVERY + 30 * EVERY * i
                                                    for i in range(1, 9)]
shown(young)
chart = "document.querySelector('#chart-opens svg')"
assert text("#chart-opens .when") == "now" and text("#chart-opens b") == "30"
assert not browser.js(f"{chart}.querySelectorAll('circle').length")
browser.js(f"{chart}.scrollIntoView()")
left, top, width, height = browser.js(
    f"(r => [r.left, r.top, r.width, r.height])({chart}.getBoundingClientRect())")
browser.mouse(left + width * (1 - 80 / 180), top + height / 2)  # 80 s ago is sample 10
assert text("#chart-opens .when") == "80 s ago" and text("#chart-opens b") == "5"
assert browser.js(f"{chart}.querySelectorAll('circle').length") == 2
assert browser.js(f"{chart}.getAttribute('aria-label')") == "80 s ago: opens 5, creates 0"
browser.js("ask()")  # the next answer does not move the mark
assert text("#chart-opens .when") == "80 s ago" and text("#chart-opens b") == "5"
browser.mouse(left + width * (1 - 120 / 180), top + height / 2)
assert text("#chart-opens .when") == "2 min ago" and text("#chart-opens b") == "0"
browser.mouse(left + width / 2, top + height + 300)
assert text("#chart-opens .when") == "now" and text("#chart-opens b") == "30"
browser.js(f"{chart}.focus()")
for _ in range(30):  # half of the axis
    browser.key("ArrowLeft")
assert text("#chart-opens .when") == "90 s ago"
browser.js(f"{chart}.blur()")
assert text("#chart-opens .when") == "now"

# bytes and quotas of models: the largest first; a mark for the quota, and its colour near the end
sizes = mount_of(180)
for n, m in enumerate(sizes["models"], 1):
    m.update(bytes=n * MiB, pool_bytes=n * MiB // 2, quota=None, used=None)
sizes["models"][0].update(quota=200 * MiB, used=50 * MiB)
sizes["models"][-1].update(quota=100 * MiB, used=95 * MiB)
shown(sizes)
rows = cells("usage")
assert [r[2:] for r in rows] == [
    ["100 MiB", "50.0 MiB", "95.0 % of 100 MiB"],
    *([f"{n}.0 MiB", f"{n / 2:.1f} MiB", "–"] for n in range(99, 88, -1))], rows
meters = browser.js("""[...document.querySelectorAll('#usage .meter')].map(m =>
    [...m.children].map(d => [d.className, d.style.width || d.style.left]))""")
assert meters[0] == [["files", "100%"], ["in-pool", "50%"], ["quota over", "100%"]], meters
assert [len(m) for m in meters[1:]] == [2] * 11 and meters[10][0] == ["files", "90%"], meters
for m in sizes["models"]:  # not counted yet
    m["bytes"] = None
shown(sizes)
assert browser.js("document.getElementById('section-usage').hidden")

# text from the mount is never HTML
BAD = "<img src=x onerror=console.log(2)>"
bad = mount_of(600)
bad["mountpoint"] = bad["version"] = bad["why_not"] = bad["served_by"] = BAD
bad["ready"] = False
bad["devices"] = [dict(bad["devices"][0], path=BAD, state=BAD)] * 2
for values, names in ((bad["tiers"], ["name", "breaker"]), (bad["models"], ["name"]),
                      (bad["reasons"], ["what"]),
                      (bad["slowest"], ["operation", "tier", "model"]),
                      (bad["latency"]["operations"], ["operation", "tier"])):
    for v in values:
        v.update({name: BAD for name in names})
shown(bad)
assert not browser.js("document.images.length") and text("#mountpoint") == BAD
assert [r[1] for r in cells("devices")] == [BAD, BAD] and text("#evicted-why").endswith(BAD)
assert cells("latency")[0][:2] == [BAD, BAD] and cells("reasons")[0][0] == BAD
assert not browser.said, browser.said

# a phone: the page is as wide as the screen; tables scroll, and their first column stays
long = mount_of(86400)
long["models"][0]["name"] = "x" * 255
shown(long, 390)
assert browser.js("document.documentElement.scrollWidth") == 390
wide = browser.js("""[...document.querySelectorAll('.scroll')].map(d => {
    d.scrollLeft = 1e6;
    const box = d.getBoundingClientRect(), cell = d.querySelector('td').getBoundingClientRect();
    return [d.firstChild.id, d.scrollLeft, cell.left - box.left, box.right <= innerWidth]; })""")
assert {w[0] for w in wide if w[1] > 50} >= {"tiers", "models", "latency"}, wide
assert all(0 <= w[2] < 2 and w[3] for w in wide if w[0] != "devices"), wide

# contrast of the colours on a card, light and dark (WCAG: 4.5 for text, 3 for lines)
CONTRAST = """(() => {
    const rgb = name => { const e = document.createElement('i');
        e.style.color = getComputedStyle(document.documentElement).getPropertyValue(name);
        document.body.append(e);
        const v = getComputedStyle(e).color.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255);
        e.remove();
        return v.map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); };
    const light = n => (([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b)(rgb(n));
    const card = light('--card');
    return Object.fromEntries(['--text', '--soft', '--bad', '--good', '--one', '--two', '--three',
        '--four'].map(n => [n, (Math.max(card, light(n)) + 0.05) /
            (Math.min(card, light(n)) + 0.05)])); })()"""
cards = []
for dark in (False, True):
    shown(long, 1200, dark)
    got = browser.js(CONTRAST)
    assert min(got[n] for n in ("--text", "--soft", "--bad", "--good")) >= 4.5, (dark, got)
    assert min(got.values()) >= 3, (dark, got)
    cards.append(browser.js("getComputedStyle(document.querySelector('section')).backgroundColor"))
assert cards[0] != cards[1], cards
browser.call("Fetch.disable")
s.umount()

# a token
with open(f"{TMP}/token", "w") as f:
    os.chmod(f"{TMP}/token", 0o600)
    f.write("x" * 20)
s.mount(options=f"metrics=127.0.0.1:0,metrics_token={TMP}/token")
browser.show(f"http://127.0.0.1:{port_of(s)}/", 1200)
browser.until("!document.getElementById('ask').hidden")
assert browser.js("document.getElementById('main').hidden")
browser.js("document.getElementById('token').value = 'x'.repeat(20)")
browser.js("document.querySelector('#ask button').click()")
browser.until("document.body.dataset.shown && !document.getElementById('main').hidden")
assert text("#mountpoint") == s.mnt
s.umount()
browser.close()
