# SPDX-License-Identifier: Apache-2.0
"""Mounts that read each other's objects (peer_listen= and remote=peers://), requests as a node
signs them, and a proxy between two nodes that changes the bytes."""
import base64, hashlib, hmac, http.client, http.server, os, re, secrets, select, socket, threading
import time
import urllib.parse

from kvtest import Store, TMP
import servers

PAGE = 4096
EPOCHS = {}  # of daemons, by their pids


def secret_file(name, text=None):
    path = f"{TMP}/{name}"
    with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write((text or secrets.token_hex(16)) + "\n")
    return path


def key_file(name, number=1, key=None):
    return secret_file(name, f"{number} {key or secrets.token_hex(32)}")


def url(nodes, secret):
    return "peers://?nodes=" + "+".join(nodes) + f"&secret={secret}"


def lease(s, command, paths):
    """Writes a list to .kvcachefs/lease, and reads the answer. Returns the descriptor, and the
    words of each line."""
    fd = os.open(f"{s.mnt}/.kvcachefs/lease", os.O_RDWR)
    os.write(fd, (command + "\n".join(paths)).encode())
    text, part = b"", b"x"
    while part:
        part = os.read(fd, 1 << 20)
        text += part
    return fd, [line.split() for line in text.decode().splitlines()]


def local(port):
    return f"127.0.0.1:{port}"


def make(name, n, extra="", secret=None):
    """n stores, each with all the others as peers. They are not mounted yet."""
    ports = [servers.free_port() for _ in range(n)]
    secret, all = secret or secret_file(f"{name}.secret"), []
    for i in range(n):
        others = url([local(p) for p in ports[:i] + ports[i + 1:]], secret)
        s = Store(f"{name}.{i}", options=f"settle=50,peer_listen={local(ports[i])},"
                                         f"peer_secret={secret},remote={others}{extra}")
        s.port, s.secret = ports[i], secret
        all.append(s)
    return all


def serve_as(s, *ports):
    """The store also accepts requests for these ports: proxies listen there and pass them on."""
    s.options += ",peer_name=" + "+".join(local(p) for p in ports)


def mounted(name, n, extra=""):
    all = make(name, n, extra)
    for s in all:
        s.mount()
    return all


def ask_epoch(store):
    """Asks without the epoch, as a node does at first."""
    status, body = Request(store, "m", epoch="0" * 32).send()
    assert status == 425 and re.fullmatch(b"[0-9a-f]{32}", body), (status, body)
    return EPOCHS.setdefault(store.daemon.pid, body.decode())


def peers_key(secret):
    """The key of signatures, from the file with the secret."""
    with open(secret) as f:
        text = f.readline().strip().encode()
    prk = hmac.new(b"\0" * 32, text, hashlib.sha256).digest()
    return hmac.new(prk, b"kvcachefs peers 1\x01", hashlib.sha256).digest()


def directory_id(secret, path):
    """The name of an object in a directory of peers."""
    mac = hmac.new(peers_key(secret), b"directory object\n" + os.fsencode(path), hashlib.sha256)
    return base64.b64encode(mac.digest()[:12], b"-_").decode()


def directory_node(secret, name):
    """The name of a node's entry there."""
    mac = hmac.new(peers_key(secret), f"directory node\n{name}".encode(), hashlib.sha256)
    return "n:" + mac.hexdigest()[:32]


class Request:
    """A request as a node sends it. Each argument can be wrong."""

    def __init__(self, store, path, first=0, last=PAGE - 1, when=None, nonce=None, key=None,
                 node=None, epoch=None):
        self.port, self.path, self.node = store.port, path, node or local(store.port)
        self.key = key or peers_key(store.secret)
        self.nonce = nonce or secrets.token_hex(16)
        self.range = f"{first}-{last}"
        self.time = int(time.time() * 1000) if when is None else when
        self.epoch = epoch or EPOCHS.get(store.daemon.pid) or ask_epoch(store)
        self.sign = self.mac(f"request\nGET\n{self.range}\n{self.time}\n{self.nonce}\n"
                             f"{self.node}\n{self.epoch}\n".encode() + os.fsencode(path))

    def mac(self, data):
        return hmac.new(self.key, data, hashlib.sha256).hexdigest()[:32]

    def headers(self):
        return {"Range": f"bytes={self.range}", "X-Kvcachefs-Time": str(self.time),
                "X-Kvcachefs-Nonce": self.nonce, "X-Kvcachefs-Node": self.node,
                "X-Kvcachefs-Epoch": self.epoch, "X-Kvcachefs-Sign": self.sign}

    def url(self):
        return "/v1/" + urllib.parse.quote(os.fsencode(self.path))

    def text(self):
        """The bytes of the request, for a caller that has its own socket."""
        lines = [f"GET {self.url()} HTTP/1.1", "Host: node"]
        lines += [f"{name}: {value}" for name, value in self.headers().items()]
        return "\r\n".join(lines + ["", ""]).encode()

    def send(self, **headers):
        """Returns status and body, after a check of the answer's signature."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", self.url(), headers={**self.headers(), **headers})
        r = c.getresponse()
        body = r.read()
        c.close()
        if r.status != 403:
            first = r.status == 206 and self.range.startswith("0-")
            head = body[:PAGE if first else 32 if r.status == 425 else 0]
            text = f"answer\n{self.nonce}\n{r.status}\n{len(body)}\n".encode()
            assert r.headers["X-Kvcachefs-Sign"] == self.mac(text + head), r.status
        return r.status, body


class Have(Request):
    """POST /have for many names, as a node sends it. Each argument can be wrong."""
    word, place = "POST", "/have"

    def __init__(self, store, names, body=None, **other):
        super().__init__(store, "", **other)
        self.body = b"".join(os.fsencode(n) + b"\0" for n in names) if body is None else body
        self.of = self.mac(f"names\n{self.nonce}\n".encode() + self.body)
        self.sign = self.mac(f"request\n{self.word}\n0-{len(self.body) - 1}\n{self.time}\n"
                             f"{self.nonce}\n{self.node}\n{self.epoch}\n{self.of}".encode())

    def ask(self, body=None, **headers):
        """Returns the status and the bytes of the answer, after a check of its signature."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        mine = {k: v for k, v in self.headers().items() if k != "Range"}
        c.request("POST", self.place, self.body if body is None else body,
                  {**mine, "X-Kvcachefs-Body": self.of, **headers})
        r = c.getresponse()
        got = r.read()
        c.close()
        if r.status != 403:
            text = f"answer\n{self.nonce}\n{r.status}\n{len(got)}\n".encode()
            assert r.headers["X-Kvcachefs-Sign"] == self.mac(
                text + (got if r.status in (200, 425) else b"")), r.status
        return r.status, got

    def post(self, body=None, **headers):
        """Returns the status and the set of numbers of the names that the node may have."""
        status, bits = self.ask(body, **headers)
        return status, {i for i in range(8 * len(bits)) if status == 200
                        and bits[i // 8] >> i % 8 & 1}


class Offer(Have):
    """POST /offer: the names of objects that the sender has."""
    word, place = "OFFER", "/offer"


class Where(Have):
    """POST /where: which tiers of the node have these paths."""
    word, place = "WHERE", "/where"


class Status(Have):
    """POST /status: the state of the node."""
    word, place = "STATUS", "/status"

    def __init__(self, store, **other):
        super().__init__(store, [""], **other)


class Change(Have):
    """POST /change: sets an attribute (the first name) of the chunks at the other names."""
    word, place = "CHANGE", "/change"


class Hostile:
    """A node that knows the secret, and answers as it likes: answer(path) gives the status, the
    body, and whether it is signed."""

    def __init__(self, secret, answer):
        key = peers_key(secret)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                status, body, signed = answer(self.path)
                head = f"answer\n{self.headers['X-Kvcachefs-Nonce']}\n{status}\n{len(body)}\n"
                sign = hmac.new(key, head.encode() + body, hashlib.sha256).hexdigest()[:32]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-Kvcachefs-Sign", sign if signed else "0" * 32)
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    pass

            def do_GET(self):
                self.send_error(404)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Proxy:
    """Passes connections on to a port. change(data) gets each part of an answer and returns the
    bytes to send instead."""

    def __init__(self, to, change=lambda data: data):
        self.to, self.change, self.passed, self.open = to, change, 0, []
        self.port = servers.free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            try:
                b = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # nobody listens there now
                a.close()
                continue
            self.open += [a, b]
            threading.Thread(target=self.relay, args=(a, b), daemon=True).start()

    def relay(self, a, b):
        try:
            while True:
                for s in select.select([a, b], [], [])[0]:
                    data = s.recv(1 << 16)
                    if not data:
                        raise OSError
                    if s is b:
                        self.passed += len(data)
                        data = self.change(data)
                    (a if s is b else b).sendall(data)
        except (OSError, ValueError):
            a.close()
            b.close()

    def close(self):
        self.listener.close()
        for s in self.open:
            s.close()
