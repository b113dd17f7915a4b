# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""A misbehaving S3 server on a real socket: it refuses, hangs, resets in the middle of a body, is
slow, sends too few or too many bytes, a flipped bit, another object's frame, or errors. Each
results in a miss or a retry, never in wrong data, a hang or a leak, and the rest of the mount
continues to work."""
import errno, http.server, os, socket, threading, time
from kvtest import HANG, KiB, MiB, SLOW, Store, TMP, blob, wait_for

os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "x"
objects, mode, lock = {}, {"get": None, "put": None}, threading.Lock()
counts = {"GET": 0, "PUT": 0, "unsigned": 0}


class S3(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def misbehave(self, how, body=b""):
        """Returns true if it has answered the request."""
        if how == "hang":
            for _ in range(600):
                if mode["get"] != "hang" and mode["put"] != "hang":
                    break
                time.sleep(0.1)
            self.close_connection = True
        elif how == "reset":
            self.send_response(206)
            self.send_header("Content-Length", str(max(len(body), 10)))
            self.end_headers()
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
        elif how == "down":
            self.close_connection = True
        elif how in ("500", "503", "403"):
            self.answer(int(how), b"<Error/>")
        else:
            return False
        return True

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        counts["PUT"] += 1
        counts["unsigned"] += "AWS4-HMAC-SHA256" not in self.headers.get("Authorization", "")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.misbehave(mode["put"]):
            return
        with lock:
            objects[self.path] = body
        self.answer(200, ETag='"1"')

    def do_DELETE(self):
        with lock:
            objects.pop(self.path, None)
        self.answer(204)

    def do_GET(self):
        counts["GET"] += 1
        body = objects.get(self.path)
        if body is None:
            return self.misbehave(mode["get"]) or self.answer(
                404, b"<Error><Code>NoSuchKey</Code></Error>")
        a, b = (int(x) for x in self.headers["Range"][6:].split("-"))
        how, part = mode["get"], body[a:b + 1]
        if self.misbehave(how, part):
            return
        if how == "slow":
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            for i in range(0, len(part), 2000):
                self.wfile.write(part[i:i + 2000])
                time.sleep(0.2)
                if mode["get"] != "slow":
                    self.close_connection = True
                    return
            return
        if how == "short":
            part = part[:len(part) - 5000] if len(part) > 9000 else part[:100]
        elif how == "long":
            part = part + b"x" * 9000
        elif how == "flip":
            at = len(part) * 2 // 3
            part = part[:at] + bytes([part[at] ^ 4]) + part[at + 1:]
        elif how == "other":
            part = next(v for k, v in objects.items() if k != self.path
                        and len(v) == len(body))[a:b + 1]
        elif how == "zeros":
            part = bytes(len(part))
        elif how == "whole":  # the range is ignored
            return self.answer(200, body)
        self.answer(206, part)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), S3)
server.daemon_threads = True
server.handle_error = lambda *a: None
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"s3://bucket/p?endpoint=http://127.0.0.1:{server.server_port}"
DEADLINE = 1500 * SLOW
options = f"settle=50,deadline={DEADLINE},remote={url}"
a = Store("a", options=options).mount()
data = {f"m/c/{i}": blob(i, 200 * KiB) for i in range(40)}
for path, d in data.items():
    a.write(path, d)
a.settle()
wait_for(lambda: len(objects) >= 40 + 2)  # a late object is copied again
assert counts["unsigned"] == 0
a.umount()


def fds(store):
    return len(os.listdir(f"/proc/{store.daemon.pid}/fd"))


HANGS = HANG  # shorter times depend on the machine

# Reading: a node with only the remote. Each read returns right data or an error in time.
b = Store("b", options=options + ",disk=off").mount()
names = iter(list(data))


def healed(path):
    try:
        return b.read(path) == data[path]
    except OSError:
        return False


first = next(names)
wait_for(lambda: healed(first))
before = fds(b)
for how in ("short", "long", "flip", "other", "zeros", "whole", "500", "503", "403", "reset",
            "slow", "hang"):
    path, start = next(names), time.time()
    mode["get"] = how
    try:
        got = b.read(path)
    except OSError as e:
        got = e
        assert e.errno in (errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE,
                           errno.EACCES), (how, e)
    else:
        assert got == data[path], f"{how}: wrong bytes"
    took = time.time() - start
    assert took < 3 * DEADLINE / 1000 + HANGS, (how, took)
    # the mount continues to work
    b.write(f"own/{how}", d)
    assert b.read(f"own/{how}") == d
    mode["get"] = None
    wait_for(lambda: healed(path), every=0.2)  # the breaker lets a probe through
    print(how, "->", type(got).__name__ if isinstance(got, bytes) else got, f"{took:.1f} s")
st = b.stats()
assert st["corrupt"] >= 4 and st["tier_errors"] >= 1, st
assert fds(b) <= before + 20, (before, fds(b))

# Writing: a copy that fails waits and is retried; nothing is lost, and no call waits.
for how in ("500", "hang", "reset", "403"):
    mode["put"] = how
    start = time.time()
    for i in range(6):
        b.write(f"w/{how}/{i}", blob(100 + i, 150 * KiB))
    assert time.time() - start < HANGS, how
    time.sleep(0.5)
    for i in range(6):
        assert b.read(f"w/{how}/{i}") == blob(100 + i, 150 * KiB)
    mode["put"] = None
    wait_for(lambda: all("s3" in b.attr(f"w/{how}/{i}", "tiers") for i in range(6)), every=0.2)
    print("put", how)

# No server answers at all: loads of known names fail in time, unknown names are missing, the node's
# own files work, and the unmount ends in time.
mode["get"] = mode["put"] = "down"
server.shutdown()
server.server_close()
start = time.time()
missing = 0
for path in list(data)[30:]:
    try:
        b.read(path)
    except OSError:
        missing += 1
assert missing == 10 and time.time() - start < 2 * HANGS, (missing, time.time() - start)
assert b.stats()["breaker_opened"] >= 1
b.write("own/last", d)
assert b.read("own/last") == d
start = time.time()
b.umount()
assert time.time() - start < 2 * HANGS
