# SPDX-License-Identifier: Apache-2.0
"""A fake S3 service that checks signatures by the specification, with switches for the behaviour of
other services; and a single tier that text commands control."""
import datetime, hashlib, hmac, http.server, os, subprocess, threading, urllib.parse
from kvtest import BUILD, HANG, SLOW, TMP


def error(code, message="", more=""):
    return (f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}"
            "</Error>").encode()


def escaped(text):
    return urllib.parse.quote(text, safe="-_.~")


def xml(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Bucket:
    """A bucket "b". `keys`: key id -> (secret, token). Answers with `how(request)`, which returns
    (status, body, headers). If it returns None, answers as S3 does. Switches are attributes."""

    def __init__(self, how=None):
        self.how = how or (lambda r: None)
        self.keys = {"id": ("secret", "")}
        self.objects, self.uploads, self.log, self.headers = {}, {}, [], []
        self.initiated, self.upload_id, self.ended = {}, "upload-%d", []
        self.page, self.token = 1000, "%d"
        self.may_list = self.ranges = True
        self.virtual = self.equal_parts = False
        self.lock = threading.Lock()
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def handle_any(self):
                self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.target, _, query = self.path.partition("?")
                self.pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
                self.query = dict(self.pairs)
                with fake.lock:
                    status, out, *more = (fake.how(self) or fake.refused(self)
                                          or fake.usual(self))
                    fake.log.append((self.command, self.path, status))
                    fake.headers.append(dict(self.headers))
                self.send_response(status)
                for k, v in {"x-amz-request-id": "1", "Content-Length": str(len(out)),
                             **(more[0] if more else {})}.items():
                    self.send_header(k, v)
                self.end_headers()
                self.wfile.write(out)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *a: None
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, prefix="kv", more="", host="127.0.0.1"):
        return f"s3://b/{prefix}?endpoint=http://{host}:{self.port}{more}"

    def refused(self, r):
        """Checks the signature. Returns an error answer, or None."""
        given = r.headers.get("Authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            return 403, error("AccessDenied", "unsigned")
        parts = dict(p.strip().split("=", 1) for p in given[17:].split(","))
        key, *scope = parts["Credential"].rsplit("/", 4)
        if key not in self.keys:
            return 403, error("InvalidAccessKeyId", "no such key")
        secret, token = self.keys[key]
        if r.headers.get("x-amz-security-token", "") != token:
            return 400, error("ExpiredToken", "The provided token has expired.")
        names = parts["SignedHeaders"].split(";")
        assert names == sorted(names) and "host" in names and "x-amz-date" in names, names
        for name in r.headers:
            if name.lower().startswith("x-amz-") and name.lower() not in names:
                return 403, error("AccessDenied", f"{name} is not signed")
        canonical = "\n".join(
            [r.command, urllib.parse.quote(urllib.parse.unquote(r.target), safe="/-_.~"),
             "&".join(f"{escaped(k)}={escaped(v)}" for k, v in sorted(r.pairs)),
             *(f"{n}:{' '.join(r.headers.get(n, '').split())}" for n in names), "",
             ";".join(names), r.headers["x-amz-content-sha256"]])
        text = "\n".join(["AWS4-HMAC-SHA256", r.headers["x-amz-date"], "/".join(scope),
                          hashlib.sha256(canonical.encode()).hexdigest()])
        k = ("AWS4" + secret).encode()
        for word in scope:
            k = mac(k, word)
        if mac(k, text).hex() != parts["Signature"]:
            return 403, error("SignatureDoesNotMatch", "the signature differs")
        return None

    def usual(self, r):
        path = urllib.parse.unquote(r.target)
        if self.virtual:
            if not r.headers["Host"].startswith("b."):
                return 403, error("SecondLevelDomainForbidden", "use virtual hosted style")
            path = "/b" + path
        bucket, _, key = path[1:].partition("/")
        if bucket != "b":
            return 404, error("NoSuchBucket")
        if "uploads" in r.query or "uploadId" in r.query:
            return self.multipart(r, key)
        if r.command == "PUT":
            self.objects[key] = r.body
            return 200, b"", {"ETag": '"1"'}
        if r.command == "DELETE":
            self.objects.pop(key, None)
            return 204, b""
        if not key:
            return self.listed(r)
        if key not in self.objects:
            return (404, error("NoSuchKey")) if self.may_list else (403, error("AccessDenied"))
        data = self.objects[key]
        if not self.ranges or "Range" not in r.headers:
            return 200, data
        first, last = (int(x) for x in r.headers["Range"][6:].split("-"))
        return (206, data[first:last + 1]) if first < len(data) else (416, error("InvalidRange"))

    def multipart(self, r, key):
        if r.command == "GET":
            return 200, ("<ListMultipartUploadsResult>" + "".join(
                f"<Upload><Key>{k}</Key><UploadId>{xml(i)}</UploadId><Initiated>{at}</Initiated>"
                "</Upload>" for i, (k, at) in self.initiated.items() if i in self.uploads)
                + "<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>").encode()
        if "uploads" in r.query:
            upload = self.upload_id % len(self.log)
            self.uploads[upload] = {}
            now = datetime.datetime.now(datetime.timezone.utc)
            self.initiated[upload] = (key, now.strftime("%Y-%m-%dT%H:%M:%S.000Z"))
            return 200, f"<R><UploadId>{xml(upload)}</UploadId></R>".encode()
        upload = r.query["uploadId"]
        if upload not in self.uploads:
            return 404, error("NoSuchUpload", upload)
        parts = self.uploads[upload]
        if r.command == "PUT":
            parts[int(r.query["partNumber"])] = r.body
            return 200, b"", {"ETag": f'"{hashlib.md5(r.body).hexdigest()}&"'}
        del self.uploads[upload]
        self.ended.append(upload)
        if r.command == "DELETE":
            return 204, b""
        order = [parts[n] for n in sorted(parts)]
        if self.equal_parts and len({len(p) for p in order[:-1]}) > 1:
            return 400, error("InvalidPart", "All non-trailing parts must have the same length.")
        self.objects[key] = b"".join(order)
        return 200, b"<CompleteMultipartUploadResult/>"

    def listed(self, r):
        if not self.may_list:
            return 403, error("AccessDenied", "s3:ListBucket")
        keys = sorted(k for k in self.objects if k.startswith(r.query["prefix"]))
        before, after = self.token.split("%d")
        at = r.query.get("continuation-token")
        if at is not None and not (at.startswith(before) and at.endswith(after)):
            return 400, error("InvalidArgument", "the token")
        at = int(at[len(before):len(at) - len(after)]) if at else 0
        end = at + self.page
        more = ("<IsTruncated>true</IsTruncated><NextContinuationToken>"
                f"{xml(self.token % end)}</NextContinuationToken>" if end < len(keys)
                else "<IsTruncated>false</IsTruncated>")
        return 200, ("<ListBucketResult>" + "".join(f"<Contents><Key>{xml(k)}</Key></Contents>"
                                                    for k in keys[at:end])
                     + more + "</ListBucketResult>").encode()


class Tier:
    """A tier in its own process. A call returns "0" or the name of an errno."""

    def __init__(self, url, deadline=4000, store=None, env=None):
        self.errors = f"{TMP}/tier{os.urandom(4).hex()}.log"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        with open(self.errors, "w") as f:
            self.process = subprocess.Popen(
                [f"{BUILD}/bin/test-tier", url, str(deadline * SLOW)]
                + ([store] if store else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=f, text=True, env={**clean, "AWS_EC2_METADATA_DISABLED": "true",
                                          **({"AWS_ACCESS_KEY_ID": "id",
                                              "AWS_SECRET_ACCESS_KEY": "secret"}
                                             if env is None else env)})
        self.opened = self.process.stdout.readline().strip()

    def __call__(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def log(self):
        with open(self.errors) as f:
            return f.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(HANG) == 0, self.log()
