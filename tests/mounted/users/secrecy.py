# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
"""Access control. Without allow_other only the mounting user has access; with it, file modes
decide. The pool is a private tmpfs that is not swapped, and freed pool memory is zero for its next
user. Keys are in locked memory and in no core dump, and the daemon cannot be traced. Passwords and
credentials are read from private files and shown nowhere. The certificates of s3 are verified."""
import errno, http.server, mmap, os, shutil, signal, ssl, subprocess, threading
from kvtest import MODE, MiB, Store, TMP, WAY, binary, run, wait_for
import servers

os.chmod(TMP, 0o755)
os.chmod(os.path.dirname(TMP), 0o755)


def as_nobody(what):
    """Calls `what` as the user nobody. Returns the errno of its error, or 0."""
    pid = os.fork()
    if not pid:
        code = 255
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            what()
            code = 0
        except OSError as e:
            code = e.errno
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# the mounting user, and others
s = Store(cpu="32M").mount()
s.write("m/open", b"open")
s.write("m/shut", b"shut")
os.chmod(f"{s.mnt}/m/shut", 0o640)
for path in ("", "m", "m/open", ".kvcachefs/stats"):
    assert as_nobody(lambda: os.stat(f"{s.mnt}/{path}")) == errno.EACCES, path
    assert as_nobody(lambda: os.open(f"{s.mnt}/{path}", os.O_RDONLY)) == errno.EACCES, path
s.settle()
s.umount()
was = os.umask(0)
s.mount("allow_other")
os.umask(was)
assert as_nobody(lambda: s.read("m/open")) == 0
for name, flags in (("open", os.O_WRONLY), ("shut", os.O_RDONLY),
                    ("new", os.O_WRONLY | os.O_CREAT)):
    assert as_nobody(lambda: os.open(f"{s.mnt}/m/{name}", flags)) == errno.EACCES, name
os.chown(f"{s.mnt}/m/shut", 0, 65534)
assert as_nobody(lambda: s.read("m/shut")) == 0
# other users cannot read the store's files, with any umask
for name in os.listdir(s.path):
    assert os.stat(f"{s.path}/{name}").st_mode & 0o7777 == 0o600, name

# the pool
pool = s.config()["pool"]
with open("/proc/self/mountinfo") as f:
    before, after = next(l for l in f if l.split()[4] == pool).split(" - ")
kind, _, options = after.split()
assert kind == "tmpfs" and {"mode=700", "noswap"} <= set(options.split(",")), after
if s.config()["pool_huge"] == "yes":
    assert any(o.startswith("huge=") and o != "huge=never" for o in options.split(",")), after
for look in (os.listdir, os.chdir):
    assert as_nobody(lambda: look(pool)) == errno.EACCES

# Freed pages return to the kernel, and the next file's pages are zeros: in a preallocation, beyond
# a moved end, in a hole, and in a mapping.
MARK = b"this is a prompt that nobody else may read. "


def free():
    v = os.statvfs(pool)
    return v.f_bfree * v.f_frsize


s.settle()
empty = free()
for turn in range(3):
    for i in range(20):
        s.write(f"m/old{i}", MARK * (MiB // len(MARK)))
    assert free() < empty - 18 * MiB
    for i in range(20):
        os.unlink(f"{s.mnt}/m/old{i}")
    wait_for(lambda: free() >= empty - MiB)
    for i in range(20):
        fd = os.open(f"{s.mnt}/m/new", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if i % 2:
            os.posix_fallocate(fd, 0, MiB)
        os.pwrite(fd, b"x", 70000)
        os.ftruncate(fd, MiB)
        data = os.pread(fd, 2 * MiB, 0)
        assert len(data) == MiB and data.count(0) == MiB - 1 and data[70000] == ord("x")
        with mmap.mmap(fd, MiB) as mm:
            assert mm[:].count(0) == MiB - 1
        os.close(fd)
        os.unlink(f"{s.mnt}/m/new")
s.umount()

# keys in memory
keys = f"{TMP}/keys"
run(binary("kvcachectl"), "newkey", keys, ok=True)


def locked(pid):
    """The flags of each mapping that is locked and not in core dumps."""
    with open(f"/proc/{pid}/smaps") as f:
        text = f.read()
    for part in text.split("VmFlags:")[1:]:
        flags = part.split("\n")[0].split()
        if {"lo", "dd"} <= set(flags):
            yield flags


s.mount()
assert not list(locked(s.daemon.pid)), "a daemon without keys has such a mapping, too"
s.umount()
k = Store("k", cpu="32M", options=f"keyfile={keys}").mount()
# the sanitizers ignore mlock()
assert list(locked(k.daemon.pid)) or MODE in ("asan", "tsan")
k.umount()
# a crash of a daemon with keys leaves no core dump, unlike that of a daemon without keys
with open("/proc/sys/kernel/core_pattern") as f:
    pattern = f.read().strip()
if pattern.startswith(("|", "@", "/")) or not pattern or MODE != "release":
    print(f"cores go to {pattern!r} here: not tried")
else:
    os.makedirs(f"{TMP}/cores")
    for options, dumps in (("settle=0", True), (f"keyfile={keys}", False)):
        o = Store(f"core{dumps}", cpu="32M")
        d = subprocess.Popen(["sh", "-c", 'ulimit -c unlimited && exec "$@"', "sh",
                              binary("kvcachefs"), o.path, o.mnt, "-f", "-o",
                              f"cpu=32M,run={TMP}/run,{options}"], cwd=f"{TMP}/cores",
                             stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.ismount(o.mnt))
        d.send_signal(signal.SIGABRT)
        _, status = os.waitpid(d.pid, 0)
        run("umount", "-l", o.mnt)
        assert os.WTERMSIG(status) == signal.SIGABRT and os.WCOREDUMP(status) == dumps, options
    shutil.rmtree(f"{TMP}/cores")

# passwords and credentials
SECRET, TOKEN = "kD8sEcReT/9hq+not+for+others", "tOkEn/of+a+session=="
seen, objects = [], {}


class S3(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen.append(dict(self.headers))
        code, out = 200, b""
        if self.command == "PUT":
            objects[self.path] = body
        elif self.path not in objects:
            code, out = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        elif self.command == "GET":
            a, b = (int(x) for x in self.headers["Range"][6:].split("-"))
            code, out = 206, objects[self.path][a:b + 1]
        self.send_response(code)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    do_GET = do_PUT = do_DELETE = handle_any


def serve(certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), S3)
    server.handle_error = lambda *a: None
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def private(name, text, mode=0o600):
    path = f"{TMP}/{name}"
    with open(path, "w") as f:
        os.fchmod(f.fileno(), mode)
        f.write(text)
    return path


def shown(store, *secrets):
    """The secrets that appear in the daemon's log, texts or command line, or in /proc/mounts."""
    text = store.log()
    for name in ("config", "stats", "metrics"):
        with open(f"{store.mnt}/.kvcachefs/{name}") as f:
            text += f.read()
    with open(f"/proc/{store.daemon.pid}/cmdline") as f:
        text += f.read()
    with open("/proc/mounts") as f:
        text += f.read()
    return [x for x in secrets if x in text]


def refused(remote, says):
    p = run(binary("kvcachefs"), s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run,remote={remote}")
    assert p.returncode and says in p.stdout and p.stdout.count("\n") == 1, p.stdout
    assert not any(w in p.stdout for w in (SECRET, SECRET[:9], SECRET[-9:])), p.stdout
    assert not os.path.ismount(s.mnt)


plain = serve()
aws = f"aws_access_key_id = me\naws_secret_access_key = {SECRET}\naws_session_token = {TOKEN}\n"
login = private("aws", aws)
at = f"s3://bucket/p?endpoint=http://127.0.0.1:{plain.server_port}"
for name, mode in (("group", 0o660), ("all", 0o604)):
    refused(f"{at}&credentials={private(name, aws, mode)}", "chmod 600")
    refused(f"redis://127.0.0.1?password_file={private(name, SECRET, mode)}", "chmod 600")
refused("redis://me:" + SECRET.replace("/", "") + "@127.0.0.1/x", "must not contain a password")
# / and ? end the host, and @ ends the user
for odd in (SECRET, SECRET.replace("/", "?"), SECRET.replace("/", "@")):
    refused(f"redis://me:{odd}@127.0.0.1:x/y", "a URL")
for environment in (False, True):
    if environment:
        os.environ.update(AWS_ACCESS_KEY_ID="me", AWS_SECRET_ACCESS_KEY=SECRET,
                          AWS_SESSION_TOKEN=TOKEN)
    seen.clear()
    s.mount(f"settle=0,remote={at}" + ("" if environment else f"&credentials={login}"))
    s.write(f"m/s3-{environment}", b"y" * 5000)
    wait_for(lambda: "s3" in s.attr(f"m/s3-{environment}", "tiers").split(","))
    s.settle()
    assert not shown(s, SECRET, TOKEN)
    s.umount()
    # the token is sent, and is one of the signed headers
    assert seen and all(h.get("x-amz-security-token") == TOKEN for h in seen), seen[:1]
    signed = [h["Authorization"].split("SignedHeaders=")[1].split(",")[0] for h in seen]
    assert all("x-amz-security-token" in h.split(";") for h in signed), signed[:1]
for name in ("AWS_SESSION_TOKEN",):
    del os.environ[name]
seen.clear()
s.mount(f"settle=0,remote={at}")
s.write("m/no-token", b"y" * 5000)
wait_for(lambda: "s3" in s.attr("m/no-token", "tiers").split(","))
s.umount()
assert seen and all("x-amz-security-token" not in h for h in seen)
if WAY == "fast" and (shutil.which("redis-server") or shutil.which("valkey-server")):
    r = servers.Redis(password=SECRET)
    s.mount(f"settle=0,remote={r.url()}")
    s.write("m/redis", b"y" * 5000)
    wait_for(lambda: "redis" in s.attr("m/redis", "tiers").split(","))
    assert not shown(s, SECRET)
    s.umount()
    r.stop()

# https with an unknown certificate, with one of another host, and with a valid one
if shutil.which("openssl"):
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{TMP}/key.pem",
        "-out", f"{TMP}/cert.pem", "-days", "2", "-subj", "/CN=another.example", "-addext",
        "subjectAltName=IP:127.0.0.1", ok=True)
    tls = serve((f"{TMP}/cert.pem", f"{TMP}/key.pem"))
    s = Store("tls", cpu="32M")
    for n, (host, ca, good) in enumerate((("127.0.0.1", "", False),
                                          ("localhost", f"&ca={TMP}/cert.pem", False),
                                          ("127.0.0.1", f"&ca={TMP}/cert.pem", True))):
        seen.clear()
        s.mount(f"settle=0,deadline=2000,remote=s3://bucket/p?endpoint=https://{host}:"
                f"{tls.server_port}{ca}")
        s.write(f"m/tls{n}", b"z" * 5000)
        if good:
            wait_for(lambda: "s3" in s.attr(f"m/tls{n}", "tiers").split(","))
        else:
            wait_for(lambda: s.stats()["tier_errors"] + s.stats()["tier_refusals"])
            assert not seen
        s.umount()
else:
    print("needs openssl: certificates of s3 were not tried")
