# SPDX-License-Identifier: Apache-2.0
"""Fake servers whose answers a case controls."""
import http.server, os, select, socket, socketserver, ssl, threading, time

lock = threading.Lock()


def tool(folder, name, text):
    """Makes a program, a shell script, in the folder."""
    with open(f"{folder}/{name}", "w") as f:
        f.write(f"#!/bin/sh\n{text}\n")
    os.chmod(f"{folder}/{name}", 0o755)


class Redis:
    """Answers with `how(self, words, address)`, which returns bytes. If it returns None, keeps
    values as Redis does."""

    def __init__(self, how=None, tls=None):
        fake, self.values, self.seen = self, {}, []
        self.how = how or (lambda *a: None)
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)

        class Handler(socketserver.StreamRequestHandler):
            def setup(self):
                if context:
                    self.request = context.wrap_socket(self.request, server_side=True)
                super().setup()

            def handle(self):
                while (line := self.rfile.readline()):
                    words = []
                    for _ in range(int(line[1:])):
                        n = int(self.rfile.readline()[1:])
                        words.append(self.rfile.read(n))
                        self.rfile.read(2)
                    with lock:
                        fake.seen.append(words[0].upper())
                        where = self.request.getsockname()[0]
                        answer = fake.how(fake, words, where)
                        self.wfile.write(fake.usual(words) if answer is None else answer)

            def finish(self):
                try:
                    super().finish()
                except OSError:
                    pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

            def handle_error(self, *a):
                pass

        self.server = Server(("0.0.0.0", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def usual(self, words):
        name, *rest = words
        name = name.upper()
        if name == b"SET":
            old = self.values.get(rest[0])
            self.values[rest[0]] = rest[1]
            return (bulk(old) if b"GET" in rest[2:] else b"+OK\r\n")
        if name == b"GETRANGE":
            a, b = int(rest[1]), int(rest[2])
            return bulk(self.values.get(rest[0], b"")[a:b + 1])
        if name == b"UNLINK":
            return b":%d\r\n" % (self.values.pop(rest[0], None) is not None)
        return b"+OK\r\n"


def bulk(data):
    return b"$-1\r\n" if data is None else b"$%d\r\n%s\r\n" % (len(data), data)


class S3:
    """A bucket in memory, at `endpoint`. Answers with `how(self, command, path)`, which returns
    (status, body). If it returns None, answers as S3 does."""

    def __init__(self, how=None):
        fake, self.objects = self, {}
        self.how = how or (lambda *a: None)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                code, out = fake.how(fake, self.command, path) or fake.usual(self, path, body)
                self.send_response(code)
                self.send_header("x-amz-request-id", "1")
                self.send_header("Content-Length", str(len(out)))
                self.end_headers()
                self.wfile.write(out)

            do_GET = do_PUT = do_DELETE = do_POST = handle_any

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def usual(self, request, path, body):
        if request.command == "PUT":
            self.objects[path] = body
            return 200, b""
        if request.command == "DELETE":
            self.objects.pop(path, None)
            return 204, b""
        if path not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>"
        a, b = (int(x) for x in request.headers["Range"][6:].split("-"))
        return 206, self.objects[path][a:b + 1]


class Frozen:
    """A forwarded port of this machine. freeze(): existing connections stay open and carry no more
    data, as if behind a load balancer that has forgotten them; new connections work."""

    def __init__(self, to):
        self.pairs, self.last, fake = [], time.time(), self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                with socket.create_connection(("127.0.0.1", to)) as other:
                    state = {"frozen": False}
                    fake.pairs.append(state)
                    ends = {self.request: other, other: self.request}
                    while True:
                        for end in select.select(list(ends), [], [])[0]:
                            data = end.recv(65536)
                            fake.last = time.time()
                            if not data:
                                return
                            if not state["frozen"]:
                                ends[end].sendall(data)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

            def handle_error(self, *a):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def age(self):
        return time.time() - self.last

    def freeze(self):
        for state in self.pairs:
            state["frozen"] = True
