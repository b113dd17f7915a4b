# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The page of the HTTP endpoint in a real browser. It shows a mount without models and with
thousands of models of any names, writes nothing to the console, and asks for the token."""
import html, os, re, shutil
from kvtest import *
from prometheus import port_of

need_mount()
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)
if not BROWSER:
    skip("needs chromium")


def show(port, width):
    """Returns the page after it has settled, and checks that the console is empty."""
    log = open(f"{TMP}/browser.log", "w+")
    p = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu",
                        "--disable-dev-shm-usage", f"--user-data-dir={TMP}/browser",
                        f"--window-size={width},900", "--virtual-time-budget=4000", "--dump-dom",
                        "--enable-logging=stderr", f"http://127.0.0.1:{port}/"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                       timeout=300, env=os.environ | {"HOME": TMP})
    log.seek(0)
    said = [l for l in log if ":CONSOLE" in l]
    assert p.returncode == 0 and not said, (p.returncode, said)
    return p.stdout


def cells(page, table):
    body = re.search(rf'<table id="{table}">(.*?)</table>', page, re.S)[1]
    return [[html.unescape(re.sub(r"<[^>]+>", "", c)) for c in re.findall(r"<td.*?</td>", r, re.S)]
            for r in re.findall(r"<tr>.*?</tr>", body, re.S) if "<td" in r]


s = Store(cpu="64M", options="metrics=127.0.0.1:0,settle=0").mount()
page = show(port_of(s), 1200)
assert 'data-shown="yes"' in page and s.mnt in page
assert cells(page, "models") == [["nothing was asked for yet"]]
assert [r[:2] for r in cells(page, "tiers")] == [["cpu", "works"], ["disk", "works"]]

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
page = show(port_of(s), 400)
rows = cells(page, "models")
assert [r[:3] for r in rows[:3]] == [[ODD[2], "3,000", "100.0 %"], [ODD[1], "2,000", "100.0 %"],
                                     [ODD[0], "1,000", "100.0 %"]], rows[:4]
assert "<img" not in page and len(rows) == 13 and rows[-1][0] == "(all others)", rows
assert "of 5,003" in page and {"open", "create"} <= {r[0] for r in cells(page, "slowest")}
s.umount()

# a token
with open(f"{TMP}/token", "w") as f:
    os.chmod(f"{TMP}/token", 0o600)
    f.write("x" * 20)
s.mount(options=f"metrics=127.0.0.1:0,metrics_token={TMP}/token")
page = show(port_of(s), 1200)
assert '<form id="ask">' in page and 'id="main" hidden' in page
s.umount()
