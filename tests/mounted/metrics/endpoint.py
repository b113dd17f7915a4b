# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""The HTTP endpoint: the answer of each path, refused requests, the token, the warning about an
address that other machines can reach, and /readyz while the catalog cannot be written."""
import errno, json, os, socket
from kvtest import *
from prometheus import ask, check, parse, port_of

s = Store(options="metrics=127.0.0.1:0").mount()
port = port_of(s)
assert "reachable from other machines" not in s.log()

# all pages, also by HEAD, and without caching
for path, kind, has in (("/", "text/html", b"<script>"), ("/metrics", "version=0.0.4", b"# HELP"),
                        ("/status.json", "application/json", b"{"), ("/healthz", "text", b"alive"),
                        ("/readyz", "text", b"ready")):
    code, headers, body = ask(port, path)
    assert code == 200 and kind in headers["Content-Type"] and has in body, (path, code, body[:99])
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    code, headers, body = ask(port, path, "HEAD")
    assert code == 200 and int(headers["Content-Length"]) > 0 and not body, (path, code)
policy = ask(port, "/")[1]["Content-Security-Policy"]
assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
check(ask(port, "/metrics?x=1")[2].decode())

# status.json: the same numbers as stats, and the last hour
for i, model in enumerate(("m", 'o"d\\d\n', "größe")):
    s.write(f"{model}/unseen/layer-unseen", blob(i, 5000))
    os.setxattr(f"{s.mnt}/{model}/unseen/layer-unseen", "user.note", b"unseen")
    s.settle()
    for _ in range(i + 1):
        s.read(f"{model}/unseen/layer-unseen")
s.settle()
# no names of files or of folders below a model's folder
assert b"unseen" not in b"".join(ask(port, p)[2] for p in ("/", "/metrics", "/status.json"))
state = json.loads(ask(port, "/status.json")[2])
st = s.stats()
assert state["ready"] and state["why_not"] is None and state["mountpoint"] == s.mnt
assert state["hits"]["since_start"]["hits"] == st["pool_hits"] == 6
assert state["hits"]["now"]["share"] == state["hits"]["since_start"]["share"] == 1
assert [(m["name"], m["hits"], m["misses"]) for m in state["models"]] == \
    [("größe", 3, 0), ('o"d\\d\n', 2, 0), ("m", 1, 0)] and state["models_count"] == 3
rest = state["models_rest"]
# a lookup counts if the name is created only long after it, which the machine's load decides
assert rest.pop("absent") <= 3, rest
assert not any(rest["evicted"].values()) and set(rest.pop("evicted")) >= {"pool", "quota", "ttl"}
assert rest == dict.fromkeys(("found", "hits", "misses", "pool_bytes", "files", "bytes",
                              "disk_bytes", "remote_bytes"), 0), rest
assert state["models_counted"] and all(m["files"] == 1 and m["disk_bytes"] >= m["bytes"] >= 5000
                                       and m["remote_bytes"] == 0 and m["quota"] is None
                                       for m in state["models"]), state["models"]
assert [m["found"] for m in state["models"]] == [3, 2, 1]
assert all(m["absent"] <= 3 for m in state["models"]), state["models"]
assert all(m["pool_bytes"] >= 5000 for m in state["models"])
assert state["hits"]["since_start"]["found"] == 6 and state["hits"]["now"]["found_share"] == 1
cpu, disk = state["tiers"]
assert cpu["name"] == "cpu" and cpu["used_bytes"] == st["pool_used_bytes"] and \
    cpu["limit_bytes"] == st["pool_bytes"] and disk["limit_bytes"] == st["tier_disk_bytes"]
assert disk["name"] == "disk" and disk["up"] and disk["breaker"] == "closed"
assert {"open", "create"} <= {o["operation"] for o in state["slowest"]}
took = [o["seconds"] for o in state["slowest"]]
assert took == sorted(took, reverse=True) and {"m", 'o"d\\d\n', "größe"} >= \
    {o["model"] for o in state["slowest"] if o["operation"] == "create"}
reasons = {r["reason"]: r for r in state["reasons"]}
assert {k: r["evicted_chunks"] for k, r in reasons.items()} == \
    {k[len("evicted_for_"):]: v for k, v in st.items() if k.startswith("evicted_for_")}
samples = parse(ask(port, "/metrics")[2].decode())
assert {o["operation"] for o in state["latency"]["operations"]} >= {"open", "create", "spill"}
for o in state["latency"]["operations"]:
    tier = {"tier": o["tier"]} if o["tier"] else {}
    counted = samples.value("operation_seconds_count", operation=o["operation"], **tier)
    now, ever = o["recent"], o["since_start"]
    assert 0 < ever["count"] <= counted and now["count"] <= ever["count"], o
    assert 0 < ever["p50_seconds"] <= ever["p90_seconds"] <= ever["p99_seconds"], o
    assert (now["p50_seconds"] is None) == (now["count"] == 0), o
    if o["operation"] in ("open", "create"):  # none were made in the meantime
        assert ever["count"] == counted and now["count"] == ever["count"], (o, counted)
history = state["history"]
assert history["reasons"].keys() == reasons.keys()
n = len(history["ago_seconds"])
assert n >= 2 and history["ago_seconds"][-1] == 0 and history["hits"][0] == 0
assert history["hits"][-1] == 6 and all(len(v) == n for v in history.values() if type(v) is list)
assert all(len(v) == n for v in history["reasons"].values())
assert history["open_p50_seconds"][0] is None and history["open_p99_seconds"][-1] > 0
assert all(state["counters"][k] == v for k, v in st.items()
           if k in ("creates", "opens", "publishes", "corrupt"))

# refused requests
assert ask(port, "/nix")[0] == ask(port, "/metrics/")[0] == ask(port, "//")[0] == 404
for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
    code, headers, body = ask(port, "/metrics", method, b"x" * 100)
    assert code == 405 and headers["Allow"] == "GET, HEAD", (method, code)
assert ask(port, "/" + "a" * 20000)[0] in (414, 431)
assert ask(port, "/healthz", headers={"X": "a" * 20000})[0] in (400, 413, 431)
# a web page whose host name resolves to this machine (DNS rebinding) reads nothing
for host, good in (("evil.example.com", False), ("evil.example.com:80", False),
                   ("1.2.3.4.nip.io", False),
                   ("127.0.0.1.evil.com", False), ("x" * 300, False), ("[::1", False), ("", False),
                   ("127.0.0.1", True), (f"127.0.0.1:{port}", True), ("[::1]:9464", True),
                   ("10.1.2.3", True), ("localhost", True), ("LOCALHOST.:80", True),
                   ("node7", True),
                   ("kv.monitoring.svc.cluster.local", True), ("kv.monitoring.svc:9464", True),
                   (socket.gethostname(), True)):
    for path in ("/metrics", "/status.json"):
        assert (ask(port, path, headers={"Host": host})[0] == 200) == bool(good), (host, path)
    assert ask(port, "/healthz", headers={"Host": host or "x"})[0] == 200
with socket.create_connection(("127.0.0.1", port), timeout=HANG) as c:  # a host need not be named
    c.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert b"200 OK" in c.recv(100)
# a proxy names the whole URL, and its host counts
assert ask(port, f"http://127.0.0.1:{port}/metrics", headers={"Host": "evil.com"})[0] == 200
assert ask(port, "http://evil.com/metrics", headers={"Host": "127.0.0.1"})[0] == 403
assert ask(port, "http://127.0.0.1/nix")[0] == 404 and ask(port, "http://127.0.0.1")[0] == 200
with socket.create_connection(("127.0.0.1", port), timeout=HANG) as c:
    c.sendall(b"GARBAGE\x00\xff\r\n\r\n")
    c.recv(1000)
assert ask(port, "/healthz")[0] == 200
s.umount()

# reachable from other machines: a line warns, unless readers need the token
for where in ("0.0.0.0:0", "[::]:0", ":0"):
    before = s.log().count("reachable from other machines")
    s.mount(options=f"metrics={where}")
    assert s.log().count("reachable from other machines") == before + 1, where
    s.umount()
TOKEN = "0123456789abcdefX"
token = f"{TMP}/token"
for text, mode, says in (("short\n", 0o600, "16 to 255"), ("x" * 300, 0o600, "16 to 255"),
                         ("with a space in it\n", 0o600, "16 to 255"), (TOKEN, 0o644, "chmod 600"),
                         (None, 0, "No such file")):
    if text is not None:
        with open(token, "w") as f:
            os.fchmod(f.fileno(), mode)
            f.write(text)
    p = run(binary("kvcachefs"), s.path, s.mnt, "-f", "-o",
            f"cpu=64M,run={TMP}/run,metrics=127.0.0.1:0,metrics_token="
            f"{token if text is not None else TMP + '/none'}", ok=False, timeout=HANG)
    assert says in p.stdout and p.stdout.count("\n") == 1, p.stdout
with open(token, "w") as f:
    os.chmod(token, 0o600)
    f.write(f"{TOKEN}\nthe second line is nothing\n")
before = s.log().count("reachable from other machines")
s.mount(options=f"metrics=0.0.0.0:0,metrics_token={token}")
assert s.log().count("reachable from other machines") == before
assert TOKEN not in s.log() and TOKEN not in str(s.config())
port = port_of(s)
for path in ("/", "/healthz", "/readyz"):
    assert ask(port, path)[0] == 200, path
for path in ("/metrics", "/status.json"):
    for wrong in (None, "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}",
                  f"Bearer {TOKEN}x", f"Bearer {'x' * 255}", f"Bearer {'x' * 3000}"):
        code, headers, body = ask(port, path, headers={"Authorization": wrong} if wrong else {})
        assert code == 401 and headers["WWW-Authenticate"] == "Bearer" and b"kvcachefs_" not in body
    for right in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        assert ask(port, path, headers={"Authorization": right})[0] == 200

# the token changes: by a new file, in place, and by a link that Kubernetes replaces; an invalid one
# is not used
def answers(text):
    return ask(port, "/metrics", headers={"Authorization": f"Bearer {text}"})[0] == 200


assert ask(port, "/metrics", headers={"Host": "prometheus.example.com",
                                      "Authorization": f"Bearer {TOKEN}"})[0] == 200
NEXT = "fedcba9876543210Y"
with open(f"{token}.new", "w") as f:
    os.fchmod(f.fileno(), 0o600)
    f.write(NEXT)
os.rename(f"{token}.new", token)
assert answers(NEXT) and not answers(TOKEN)
with open(token, "w") as f:
    f.write("short")
assert answers(NEXT) and not answers("short") and "the previous token stays" in s.log()
assert s.log().count("the previous token stays") == 1
with open(token, "w") as f:
    f.write(TOKEN)
assert answers(TOKEN) and not answers(NEXT)
os.mkdir(f"{TMP}/v2")
with open(f"{TMP}/v2/token", "w") as f:
    os.fchmod(f.fileno(), 0o440)
    f.write(NEXT)
os.symlink("v2", f"{TMP}/data")
os.symlink("data/token", f"{token}.link")
os.rename(f"{token}.link", token)
assert answers(NEXT) and not answers(TOKEN)
os.unlink(token)
assert answers(NEXT)
assert NEXT not in s.log() and TOKEN not in s.log()
s.umount()

# not ready while the store's disk is full and the catalog accepts no changes; then ready again
os.mkdir(f"{TMP}/small")
run("mount", "-t", "tmpfs", "-o", "size=48M", "none", f"{TMP}/small", ok=True)
s = Store("t", options="metrics=127.0.0.1:0", make=False)
s.path = f"{TMP}/small/s"
run(binary("mkfs.kvcachefs"), "--size", "16M", s.path, ok=True)
s.mount()
port = port_of(s)
with open(f"{TMP}/small/fill", "wb", buffering=0) as f, fails(errno.ENOSPC):
    while True:
        f.write(bytes(4096))
made = 0


def refused():
    global made
    made += 1
    try:
        s.write(f"m/{made}", b"x")
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        return True


wait_for(refused, every=0)
wait_for(lambda: ask(port, "/readyz")[0] == 503)
assert ask(port, "/readyz")[2].count(b"\n") == 1 and b"catalog" in ask(port, "/readyz")[2]
assert ask(port, "/healthz")[0] == 200
state = json.loads(ask(port, "/status.json")[2])
assert not state["ready"] and "catalog" in state["why_not"]
os.unlink(f"{TMP}/small/fill")
wait_for(lambda: ask(port, "/readyz")[0] == 200)
s.umount()
run("umount", f"{TMP}/small", ok=True)
