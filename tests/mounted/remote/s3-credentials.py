# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The s3 tier's credentials change while it is open: in a file, from a web identity, a container
and an instance, before they expire and after a refusal. Long credentials are read completely or
refused, the right profile is used, and the log contains none of them."""
import datetime, http.server, json, os, threading, time, urllib.parse
from kvtest import TMP, beside, wait_for
from s3 import Bucket, Tier, error

PLAIN = {"PATH": os.environ["PATH"]}


def private(name, text, mode=0o600):
    path = f"{TMP}/{name}"
    with open(path + ".new", "w") as f:
        os.fchmod(f.fileno(), mode)
        f.write(text)
    os.rename(path + ".new", path)
    return path


def section(name, key, secret, token=""):
    return (f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key={secret}\n"
            + (f"aws_session_token = {token}\n" if token else ""))


def file():
    b = Bucket()
    b.keys = {"one": ("secret-one", "token-one/+=")}
    path = private("rotated", section("default", "one", "secret-one", "token-one/+="))
    t = Tier(b.url(more=f"&credentials={path}"), env=PLAIN)
    assert t("put", "a", 5000) == "0"
    for how in ("replaced", "late", "broken"):
        key = f"key-{how}"
        b.keys = {key: (f"secret-{how}", f"token-{how}")}
        if how == "late":  # the old key is refused before the file changes
            assert t("put", "b", 5000) == "EACCES"
        if how == "broken":
            private("rotated", "[default]\naws_access")
            assert t("put", "b", 5000) == "EACCES"
        private("rotated", section("default", *(key, *b.keys[key])))
        wait_for(lambda: t("put", "b", 5000) == "0")
    assert "ExpiredToken" in t.log() or "InvalidAccessKeyId" in t.log()
    assert not any(w in t.log() for w in ("secret-", "token-")), t.log()
    t.end()


def profiles():
    b = Bucket()
    long = "t" * 900 * 3
    b.keys = {"good": ("s1", ""), "other": ("s2", long)}
    text = "# all of ours\n" + section("default", "good", "s1") + "\n" + "".join(
        section(f"p{i}", "bad", "s2", long) for i in range(40)) + section(
            "profile other", "other", "s2", long) + section("last", "bad", "s3")
    assert len(text) > 100000
    path = private("aws", text)
    for more, env in ((f"&credentials={path}", {}), (f"&credentials={path}&profile=other", {}),
                      ("", {"AWS_SHARED_CREDENTIALS_FILE": path}),
                      ("&profile=other", {"AWS_SHARED_CREDENTIALS_FILE": path}),
                      ("", {"AWS_SHARED_CREDENTIALS_FILE": path, "AWS_PROFILE": "other"}),
                      ("", {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "s2",
                            "AWS_SESSION_TOKEN": long})):
        t = Tier(b.url(more=more), env={**PLAIN, **env})
        assert t("put", "a", 5000) == t("get", "a", 5000) == "0", (more, env)
        t.end()
    ours = private("plain", "aws_access_key_id = good\naws_secret_access_key = s1\n")
    t = Tier(b.url(more=f"&credentials={ours}"), env=PLAIN)
    assert t("put", "a", 5000) == "0"
    t.end()
    huge = private("huge", section("default", "good", "s1", "t" * 20000))
    none = private("none", section("default", "", ""))
    bad = private("bad", section("default", "good", "s1"), 0o644)
    for more, word in ((f"&credentials={huge}", "too long"), (f"&credentials={none}", "has no"),
                       (f"&credentials={bad}", "chmod 600"),
                       (f"&credentials={path}&profile=x", "profile 'x'"),
                       (f"&credentials={TMP}/absent", "cannot be opened"), ("", "needs AWS_")):
        t = Tier(b.url(more=more), env=PLAIN)
        assert word in t.opened and t.process.wait() == 1, (more, t.opened)
    group = private("group", section("default", "good", "s1"), 0o440)
    t = Tier(b.url(more=f"&credentials={group}"), env=PLAIN)
    assert t.opened == "0"  # as a Kubernetes secret with fsGroup: root's, and our group's
    t.end()


class Services:
    """STS and the metadata services. Each answer has a new key, good for `life` seconds."""

    def __init__(self, bucket):
        self.bucket, self.life, self.number, self.asked, self.good = bucket, 3600, 0, [], True
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                status, out = fake.answer(self, dict(urllib.parse.parse_qsl(body)))
                fake.asked.append((self.command, self.path, status))
                self.send_response(status)
                self.send_header("Content-Length", str(len(out)))
                self.end_headers()
                self.wfile.write(out.encode())

            do_GET = do_PUT = do_POST = handle_any

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.at = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def keys(self):
        self.number += 1
        key = f"role{self.number}", f"secret{self.number}", "T" * 3000 + str(self.number)
        self.bucket.keys = {key[0]: key[1:]}
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.life)
        return *key, end.strftime("%Y-%m-%dT%H:%M:%SZ")

    def answer(self, r, form):
        if not self.good:
            return 500, "{}"
        names = "AccessKeyId", "SecretAccessKey", "Token", "Expiration"
        if r.command == "POST":
            if form.get("WebIdentityToken") != "jwt-1.2/3+" or form["Action"] != \
                    "AssumeRoleWithWebIdentity" or form["RoleArn"] != "arn:aws:iam::1:role/r":
                return 400, error("InvalidIdentityToken").decode()
            names = "AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"
            return 200, "<R>" + "".join(f"<{n}>{v}</{n}>" for n, v in zip(names, self.keys()))
        if r.path == "/latest/api/token":
            good = r.command == "PUT" and r.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return (200, "imds==") if good else (400, "")
        if r.path.startswith("/latest/"):
            if r.headers["X-aws-ec2-metadata-token"] != "imds==":
                return 401, ""
            if r.path.endswith("/security-credentials/"):
                return 200, "the-role"
            assert r.path.endswith("/the-role")
        elif r.headers["Authorization"] != "pod-token":
            return 403, json.dumps({"code": "AccessDenied", "message": "no"})
        return 200, json.dumps({"Code": "Success", **dict(zip(names, self.keys()))})


def role(kind):
    b = Bucket()
    s = Services(b)
    token = private(f"token-{kind}", "jwt-1.2/3+\n" if kind == "web" else "pod-token\n", 0o644)
    env = {"web": {"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
                   "AWS_ENDPOINT_URL_STS": s.at},
           "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{s.at}/v1/credentials",
                         "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token},
           "instance": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": s.at + "/",
                        "AWS_EC2_METADATA_DISABLED": "false"}}[kind]
    # a proxy for all hosts but this node: metadata services are never asked through it
    t = Tier(b.url(), env={**PLAIN, **env, "no_proxy": "127.0.0.0/8", "http_proxy":
                           "http://127.0.0.1:1"})
    assert t.opened == "0" and not s.asked  # the mount waits for no network
    assert t("put", "a", 5000) == "0" and s.number == 1
    for _ in range(3):
        assert t("get", "a", 5000) == "0"
    assert s.number == 1
    b.may_list = False  # a 403 that may have another cause: the source is asked once at most
    asked = s.number
    for i in range(20):
        assert t("get-unknown", f"none{i}", 0) == "ENOENT"
        time.sleep(0.08)
    assert s.number <= asked + 1
    b.may_list = True
    asked = s.number
    b.keys = {"elsewhere": ("x", "")}  # revoked: new ones are asked for at once
    time.sleep(1.1)
    s.life = 4
    assert t("get", "a", 5000) == "0" and s.number == asked + 1
    before = len(b.log)
    wait_for(lambda: t("get", "a", 5000) == "0" and s.number >= asked + 2, every=0.2)
    # before they expired: none was refused
    assert all(status < 400 for *_, status in b.log[before:]), b.log[before:]
    # the service is down for a while: the last ones stay in use
    for good, words in ((False, "cannot get new credentials"),
                        (True, "credentials are available again")):
        s.good = good
        while words not in t.log():
            assert t("get", "a", 5000) == "0"
            time.sleep(0.1)
    assert not any(w in t.log() for w in ("secret1", "TTTT", "jwt-", "pod-token", "imds"))
    t.end()


def far_container():
    """A container's token is not sent in the clear to another host."""
    b = Bucket()
    for uri in ("http://example.com/x", "http://127.0.0.1.example.com/", "http://a@127.0.0.1/",
                "ftp://127.0.0.1/"):
        t = Tier(b.url(more="&auth=container"),
                 env={**PLAIN, "AWS_CONTAINER_CREDENTIALS_FULL_URI": uri,
                      "AWS_CONTAINER_AUTHORIZATION_TOKEN": "pod-token"})
        assert t("put", "a", 5000) == "EACCES" and "an address of this node" in t.log(), uri
        t.end()
    t = Tier(b.url(more="&auth=none"), env=PLAIN)
    assert t("put", "a", 5000) == "EACCES" and "unsigned" in t.log()
    t.end()


beside([(file,), (profiles,), (far_container,)] + [(role, k) for k in ("web", "container",
                                                                        "instance")])
