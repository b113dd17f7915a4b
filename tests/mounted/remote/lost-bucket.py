# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
"""An S3 endpoint answers 404 to everything for a while, because the bucket belongs to another
account or an ingress lost its route to the service. No file is lost. A missing key is recognized by
the service's own answer."""
import errno, http.server, os, threading
from kvtest import KiB, Store, binary, blob, fails, run, wait_for

os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "x"
AMZ = {"x-amz-request-id": "1"}
NO_KEY = (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", AMZ)
BARE_KEY = (b"", AMZ)
ASTRAY = {"no such bucket": (b"<Error><Code>NoSuchBucket</Code></Error>", AMZ),
          "a page of an ingress": (b"<html>404 Not Found</html>", {}),
          "an empty one": (b"", {})}
objects, astray, absent = {}, None, NO_KEY


class S3(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, query = (self.path.split("?") + [""])[:2]
        code, out, headers = 200, b"", {}
        if astray:
            code, (out, headers) = 404, astray
        elif self.command == "PUT":
            objects[path] = body
        elif self.command == "DELETE":
            code = 204
            objects.pop(path, None)
        elif "list-type" in query:
            keys = (k.removeprefix("/bucket/").encode() for k in sorted(objects))
            out = b"<ListBucketResult>%s</ListBucketResult>" % b"".join(
                b"<Key>%s</Key>" % k for k in keys)
        elif path not in objects:
            code, (out, headers) = 404, absent
        else:
            a, b = (int(x) for x in self.headers["Range"][6:].split("-"))
            code, out = 206, objects[path][a:b + 1]
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    do_GET = do_PUT = do_DELETE = handle_any


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), S3)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"s3://bucket/p?endpoint=http://127.0.0.1:{server.server_port}"
options = f"settle=0,deadline=3000,remote={url}"
a = Store("a", options=options).mount()
data = {f"m/c{i}/l": blob(i, 20 * KiB) for i in range(9)}
for path, d in data.items():
    a.write(path, d)
a.settle()
wait_for(lambda: len(objects) >= len(data))
a.umount()

# A node that knows the names and has no copies.
b = Store("b", options=options + ",disk=off").mount()
run(binary("kvcachectl"), "import", b.mnt, ok=True)
waiting = iter(list(data))


def answers():
    return b.stats()["tier_s3_up"] == 1


for what, answer in ASTRAY.items():
    astray = answer
    paths = [next(waiting), next(waiting)]
    for path in paths:
        with fails(errno.ENOENT):
            b.read(path)
        os.stat(f"{b.mnt}/{path}")
    assert run(binary("kvcachectl"), "import", b.mnt).returncode != 0, what
    astray = None
    for path in paths:
        wait_for(answers)
        assert b.read(path) == data[path], what
assert "404" in b.log() and "does not concern the key" in b.log()
assert b.stats()["corrupt"] == 0
for path, d in data.items():
    assert b.read(path) == d

# A missing key is a miss, and the service is fine.
errors = b.stats()["tier_errors"]
for absent, name in ((NO_KEY, "m/none"), (BARE_KEY, "m/bare")):
    with fails(errno.ENOENT):
        b.read(name)
assert b.stats()["tier_errors"] == errors
b.umount()
c = Store("c", options=options + ",disk=off").mount()
run(binary("kvcachectl"), "import", c.mnt, ok=True)
objects.clear()
with fails(errno.ENOENT, errno.ESTALE):
    c.read("m/c0/l")
wait_for(lambda: c.stats()["corrupt"] == 1)
c.umount()
