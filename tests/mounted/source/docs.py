# SPDX-License-Identifier: Apache-2.0
# ways: none
"""make docs writes a page for each manual and a landing page. Each link leads to a page or a place
that exists, each manual is named on the landing page with its description and is linked wherever
another manual names it, and no page loads anything from the network. The version is the same in
VERSION, the manuals, the manifests and CHANGES, and scripts/version changes all of them."""
import html.parser, os, shutil, urllib.parse
from kvtest import *

top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
if not shutil.which("mandoc"):
    skip("needs mandoc")
out = f"{TMP}/docs"
assert run(f"{top}/scripts/docs", out, ok=True).stdout == f"{out}/index.html\n"


class Page(html.parser.HTMLParser):
    def __init__(self, name):
        super().__init__()
        self.links, self.ids, self.loads, self.text, self.inside = [], set(), [], "", []
        self.plain = ""  # text that is not part of a link
        with open(f"{out}/{name}") as f:
            self.feed(f.read())
        self.close()

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if "id" in a:
            self.ids.add(a["id"])
        if tag == "a":
            self.links.append(a["href"])
            self.inside.append(tag)
        if tag != "a":
            self.loads += [a[n] for n in ("src", "href") if n in a]

    def handle_endtag(self, tag):
        if tag == "a":
            self.inside.pop()

    def handle_data(self, data):
        self.text += data
        self.plain += "" if self.inside else data


pages = {n: Page(n) for n in sorted(os.listdir(out)) if n.endswith(".html")}
manuals = {n for n in os.listdir(f"{top}/man")}
assert set(pages) == {f"{m}.html" for m in manuals} | {"index.html", "CHANGES.html"}
links = 0
for name, page in pages.items():
    assert set(page.loads) == {"style.css"}, (name, page.loads)
    for link in page.links:
        u = urllib.parse.urlsplit(link)
        assert not u.scheme and not u.netloc, (name, link)
        target = u.path or name
        assert target in pages, f"{name}: {link} does not exist"
        if u.fragment:
            assert urllib.parse.unquote(u.fragment) in pages[target].ids, f"{name}: {link}"
        links += not u.fragment
    if name.removesuffix(".html") in manuals:
        assert "index.html" in page.links, name
        missed = {m for m in re.findall(r"([\w.]*kvcache[\w.-]*)\(([1-9])\)", page.plain)
                  if ".".join(m) in manuals and f"{m[0]}.{m[1]}.html" != name}
        # the title line of a page is not a link
        assert not missed, (name, missed)
index = pages["index.html"]
assert {l for l in index.links} == set(pages) - {"index.html"} and links > 200, links
for m in manuals:
    with open(f"{top}/man/{m}") as f:
        about = re.search(r"\n\.SH NAME\n(.*?)\n\.SH", f.read(), re.S)[1].replace("\\-", "-")
    assert " ".join(about.split()).partition(" - ")[2] in index.text, m

# ---- The version --------------------------------------------------------------------------------

with open(f"{top}/VERSION") as f:
    version = f.read().strip()
assert run(f"{top}/scripts/version", ok=True).stdout == f"{version}\n"
assert run(binary("kvcachefs"), "--version").stdout.split()[1] == version
copy = f"{TMP}/copy"
for path in ("man", "scripts"):
    shutil.copytree(f"{top}/{path}", f"{copy}/{path}", symlinks=True)
for path in ("VERSION", "CHANGES"):
    shutil.copy(f"{top}/{path}", copy)
p = run(f"{copy}/scripts/version", "9.8.7", ok=False)  # CHANGES has no such heading
assert p.stdout == "9.8.7\nCHANGES: the first heading is not 9.8.7\n", p.stdout
with open(f"{copy}/CHANGES") as f:
    text = f.read()
with open(f"{copy}/CHANGES", "w") as f:
    f.write(text.replace(f"\n{version} (not released)\n", "\n9.8.7 (not released)\n"))
assert run(f"{copy}/scripts/version", ok=True).stdout == "9.8.7\n"
left = run("grep", "-rnE", rf"kvcachefs[: ]{re.escape(version)}\b", f"{copy}/man",
           f"{copy}/scripts/kubernetes")
assert left.returncode == 1, left.stdout
with open(f"{copy}/man/kvcachectl.8") as f:
    text = f.read()
with open(f"{copy}/man/kvcachectl.8", "w") as f:
    f.write(text.replace("kvcachefs 9.8.7", "kvcachefs 9.8.6"))
assert "man/kvcachectl.8: 9.8.6" in run(f"{copy}/scripts/version", ok=False).stdout
run(f"{copy}/scripts/version", "1.2", ok=False)
