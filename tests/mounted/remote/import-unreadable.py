# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl import of a shared tier that cannot be read completely: a folder whose listing ends
early, a frame that gives EIO, a server that refuses some keys. It takes in all other names and
reports that the import is incomplete. A frame that is damaged, or removed in the meantime, is not
an error. A tier that fails, or cannot list, does not keep the import from the other tiers."""
import http.server, os, threading
from kvtest import KiB, Store, TMP, binary, blob, run, wait_for
import frames, servers
from faults import FAR, Rules

os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "x"
shared = f"{TMP}/shared"
os.makedirs(shared)
data = {f"m/f{i}": blob(i, 5 * KiB) for i in range(8)}
bad = list(data)[3]
hexed = frames.name_of(bad)
place = f"{shared}/{hexed[:2]}/{hexed}"


def filled(name, url, **more):
    s = Store(name, size="32M", options=f"settle=0,remote={url}", **more).mount()
    for path, d in data.items():
        s.write(path, d)
    s.settle()
    s.umount()


def imported(s, good, there):
    p = run(binary("kvcachectl"), "import", s.mnt)
    assert (p.returncode == 0) == good, p.stdout
    # the kernel remembers a listing for a second
    wait_for(lambda: set(os.listdir(f"{s.mnt}/m")) == there)


names = {os.path.basename(p) for p in data}
most = names - {os.path.basename(bad)}
filled("a", f"dir://{shared}")

for rule in (0, 1):
    b = Store(f"b{rule}", size="32M", options=f"settle=0,disk=off,remote=dir://{shared}")
    rules = Rules(f"calls=read path={place} nth={FAR} count={FAR} do=EIO",
                  f"calls=list path={os.path.dirname(place)} nth={FAR} count={FAR} do=ESTALE")
    rules.mount(b)
    rules.begin(rule)
    imported(b, False, most)
    assert rules.fired()[rule]
    rules.heal(rule)
    imported(b, True, names)
    b.umount()
with open(place, "r+b") as f:
    f.truncate(100)
b = Store("b2", size="32M", options=f"settle=0,disk=off,remote=dir://{shared}").mount()
imported(b, True, most)
b.umount()


class S3(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects, code = {}, None  # code: the status for `bad`; None: success

    def log_message(self, *a):
        pass

    def do_PUT(self):
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_GET(self):
        if "list-type" in self.path:
            keys = (k.removeprefix("/b/").encode() for k in sorted(self.objects))
            return self.answer(200, b"<ListBucketResult>%s</ListBucketResult>" % b"".join(
                b"<Key>%s</Key>" % k for k in keys))
        if self.path.endswith(hexed) and self.code:
            return self.answer(self.code, b"<Error><Code>NoSuchKey</Code></Error>")
        body = self.objects.get(self.path)
        if body is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        a, b = (int(x) for x in self.headers["Range"][6:].split("-"))
        self.answer(206, body[a:b + 1])

    def answer(self, code, body=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), S3)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"s3://b/p?endpoint=http://127.0.0.1:{server.server_port}"
filled("c", url)
d = Store("d", size="32M", options=f"settle=0,deadline=3000,disk=off,remote={url}").mount()
S3.code = 403
imported(d, False, most)
S3.code = 404
imported(d, True, most)
S3.code = None
imported(d, True, names)
d.umount()

# the first of two tiers cannot list, or its listing fails
program = servers.Program("""
import kvctier


class Memory:
    def __init__(self, options):
        self.values = {}

    def get(self, key, offset, room):
        part = self.values[key][offset:offset + len(room)]
        room[:len(part)] = part
        return len(part)

    def put(self, key, data, expiry_ms):
        self.values[key] = bytes(data)


kvctier.serve(Memory)
""", "memory")
S3.code = None
for n, first in enumerate((program.url(), f"dir://{TMP}/gone")):
    os.makedirs(f"{TMP}/gone", exist_ok=True)
    e = Store(f"e{n}", size="32M",
              options=f"settle=0,deadline=3000,disk=off,remote={first},remote={url}").mount()
    if n:
        os.rmdir(f"{TMP}/gone")
    imported(e, False, names)
    assert "cannot list its files, and is left out" in e.log(), e.log()  # the first one
    e.umount()
