# SPDX-License-Identifier: Apache-2.0
"""Real servers for the remote tiers, on loopback, from Debian's packages. skip() names a missing
package."""
import contextlib, errno, glob, json, os, random, shutil, socket, subprocess
from kvtest import BUILD, TMP, binary, run, skip, wait_for

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tiers/programs")


def in_ext(s, path):
    """Does the ext:// tier have a copy of the file?"""
    return "ext" in s.attr(path, "tiers").split(",")


def read_or_miss(s, path):
    """The bytes of the file, or None if it is a miss."""
    try:
        return s.read(path)
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE), (path, e)
        return None


def refusal(s, remote):
    """Why a mount with this program is refused. The mount succeeds if the program needs more than
    two seconds to start, as on a machine that stalls: then it is tried again."""
    while True:
        got = run(binary("kvcachefs"), s.path, s.mnt, "-o",
                  f"cpu=64M,run={TMP}/run,disk=off,remote={remote}")
        if got.returncode:
            return got.stdout
        with open(f"{s.mnt}/.kvcachefs/log") as f:
            said = f.read()
        assert "is not ready yet" in said, said
        run("umount", s.mnt, ok=True)  # the next mount waits for the daemon's end


def free_port():
    """Returns a port that the kernel does not give to connections, if possible. The same holds for
    the port 10000 above it, which a cluster node uses, too. No other process of the case gets this
    port or one of the nine after it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        end = int(f.read().split()[0]) // 10 * 10 - 10000
    first, end = (max(end - 10000, 5000), end) if end > 6000 else (20000, 30000)
    while True:
        port = random.SystemRandom().randrange(first, end, 10)
        with contextlib.suppress(OSError), socket.socket() as s:
            os.close(os.open(f"{TMP}/port{port}", os.O_CREAT | os.O_EXCL))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            return port


def answers(port):
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex(("127.0.0.1", port)) == 0


class Redis:
    """One server. tls: with its own certificate; cluster: as a node of a cluster."""

    def __init__(self, name="redis", password=None, tls=False, cluster=False, port=None):
        self.binary = shutil.which("redis-server") or shutil.which("valkey-server")
        self.cli = shutil.which("redis-cli") or shutil.which("valkey-cli")
        if not self.binary:
            skip("needs redis-server or valkey-server")
        self.dir, self.port = f"{TMP}/{name}", port or free_port()
        self.tls, self.password = tls, password
        os.makedirs(self.dir, exist_ok=True)
        self.args = ["--bind", "127.0.0.1", "--dir", self.dir, "--save", "", "--appendonly", "no",
                     "--enable-debug-command", "yes", "--set-proc-title", "no"]
        if tls:
            self.certificate()
            self.args += ["--port", "0", "--tls-port", str(self.port), "--tls-cert-file",
                          f"{self.dir}/cert.pem", "--tls-key-file",
                          f"{self.dir}/key.pem", "--tls-ca-cert-file", f"{self.dir}/cert.pem",
                          "--tls-auth-clients", "no"]
        else:
            self.args += ["--port", str(self.port)]
        if password:
            self.args += ["--requirepass", password]
            with open(f"{self.dir}/password", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(password + "\n")
        if cluster:
            self.args += ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500",
                          "--cluster-config-file", f"{self.dir}/nodes.conf"]
        self.start()

    def certificate(self):
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout",
            f"{self.dir}/key.pem", "-out", f"{self.dir}/cert.pem", "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", ok=True)

    def start(self):
        log = open(f"{self.dir}/log", "ab")
        self.process = subprocess.Popen([self.binary] + self.args, stdin=subprocess.DEVNULL,
                                        stdout=log, stderr=log)
        wait_for(lambda: answers(self.port))

    def stop(self):
        self.process.kill()
        self.process.wait()

    def command(self, *words):
        extra = (["--tls", "--cacert", f"{self.dir}/cert.pem"] if self.tls
                 else []) + (["-a", self.password, "--no-auth-warning"] if self.password else [])
        return run(self.cli, "-p", str(self.port), *extra, *words).stdout.strip()

    def url(self, prefix="kv"):
        u = f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}/{prefix}"
        q = ([f"password_file={self.dir}/password"] if self.password
             else []) + ([f"ca={self.dir}/cert.pem"] if self.tls else [])
        return u + ("?" + "&".join(q) if q else "")


class Cluster:
    """Three masters and three replicas."""

    def __init__(self):
        self.nodes = [Redis(f"cluster{i}", cluster=True) for i in range(6)]
        p = run(self.nodes[0].cli, "--cluster", "create",
                *[f"127.0.0.1:{n.port}" for n in self.nodes], "--cluster-replicas", "1",
                "--cluster-yes")
        assert p.returncode == 0, p.stdout
        wait_for(lambda: all("cluster_state:ok" in n.command("cluster", "info")
                             for n in self.nodes))

    def url(self, prefix="kv"):
        first, *also = [f"127.0.0.1:{self.nodes[n].port}" for n in (0, 1, 5)]
        return f"redis+cluster://{first}/{prefix}?also={'+'.join(also)}"

    def masters(self):
        return [n for n in self.nodes if n.process.poll() is None
                and n.command("role").startswith("master")]

    def stop(self):
        for n in self.nodes:
            n.stop()


class Ceph:
    """A Ceph cluster of one node in memory, with its S3 gateway."""

    def __init__(self):
        for p in ("ceph-mon", "ceph-osd", "ceph-mgr", "radosgw", "radosgw-admin", "uuidgen",
                  "curl"):
            if not shutil.which(p):
                skip(f"needs {p} (ceph-mon ceph-osd ceph-mgr radosgw ceph-common)")
        self.dir = f"{TMP}/ceph"
        self.script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ceph-rgw.sh")
        p = run("bash", self.script, "up", self.dir, str(free_port()))
        assert p.returncode == 0, p.stdout
        words = dict(w.split("=", 1) for w in p.stdout.strip().splitlines()[-1].split())
        self.endpoint, self.bucket = words["S3_ENDPOINT"], words["S3_BUCKET"]
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            os.environ[name] = words[name]

    def url(self, prefix="kv"):
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def stop(self):
        run("bash", self.script, "down", self.dir)


class Program:
    """A program that implements a tier (ext://), in a folder that only root can change: the sample
    in C or in Python, a shipped program, or the text of a program in Python."""

    def __init__(self, source="folder.c", name="c"):
        self.dir = f"{TMP}/program-{name}"
        os.makedirs(self.dir, mode=0o755, exist_ok=True)
        self.path = f"{self.dir}/program"
        for module in ("kvctier.py", "folder.py"):
            shutil.copy(f"{PROGRAMS}/{module}", self.dir)
        if source == "folder.c":
            shutil.copy(f"{BUILD}/bin/tier-folder", self.path)
        elif "\n" not in source:
            shutil.copy(f"{PROGRAMS}/{source}", self.path)
        else:
            with open(self.path, "w") as f:
                f.write(f"#!/usr/bin/env python3\n{source}")
        os.chmod(self.path, 0o755)

    def url(self, prefix="kv"):
        os.makedirs(f"{self.dir}/{prefix}", exist_ok=True)
        return f"ext://{self.path}?folder={self.dir}/{prefix}"

    def stop(self):
        pass


class StandIn(Program):
    """mooncake_store.py with a stand-in for Mooncake's client (lib/stand_in), or lmcache_l2.py with
    one for LMCache and its adapter `adapter`."""

    def __init__(self, name="moon", adapter=None):
        super().__init__("lmcache_l2.py" if adapter else "mooncake_store.py", name)
        shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in"),
                        self.dir, dirs_exist_ok=True)
        self.adapter = adapter
        with open(f"{self.dir}/config.json", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            json.dump({"type": adapter}, f)

    def url(self, prefix="kv", more="&insecure=1"):
        if self.adapter:
            return f"ext://{self.path}?config={self.dir}/config.json&model={prefix}{more}"
        return f"ext://{self.path}?master=127.0.0.1:1&prefix={prefix}/{more}"

    def mood(self, text):
        with open(f"{self.dir}/mood.new", "w") as f:
            f.write(text)
        os.rename(f"{self.dir}/mood.new", f"{self.dir}/mood")


class Mooncake(Program):
    """Mooncake's master and a process with memory for the objects, from the virtual environment
    that KV_MOONCAKE names."""

    OWNER = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]) << 20, 16 << 20, "tcp", "",
                   sys.argv[1])
print("ready" if code == 0 else f"failed {code}", flush=True)
time.sleep(1e6)
"""

    @staticmethod
    def find():
        venv = os.environ.get("KV_MOONCAKE", "")
        found = venv and glob.glob(f"{venv}/lib/python3*/site-packages/mooncake/mooncake_master")
        if not found:
            skip("needs mooncake-transfer-engine in the virtual environment KV_MOONCAKE")
        return venv, found[0]

    def __init__(self, name="mooncake", megabytes=256):
        self.venv, self.binary = self.find()
        super().__init__("mooncake_store.py", name)
        self.port, self.admin, self.megabytes = free_port(), free_port(), megabytes
        self.start_master()
        self.start_owner()

    def start_master(self):
        self.master = self.spawn("master", self.binary, f"--rpc_port={self.port}",
                                 "--rpc_address=127.0.0.1", f"--metrics_port={self.admin}",
                                 "--metrics_host=127.0.0.1", "--client_ttl=3", "--logtostderr")
        wait_for(lambda: answers(self.port) and answers(self.admin))

    def start_owner(self):
        self.owner = self.spawn("owner", f"{self.venv}/bin/python", "-c", self.OWNER,
                                f"127.0.0.1:{self.port}", str(self.megabytes))
        wait_for(lambda: "ready" in self.said("owner").splitlines())

    def spawn(self, name, *command):
        with open(f"{self.dir}/{name}.log", "wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    cwd=self.dir)

    def said(self, name):
        with open(f"{self.dir}/{name}.log", errors="replace") as f:
            return f.read()

    def url(self, prefix="kv", more="&insecure=1"):
        return (f"ext://{self.path}?master=127.0.0.1:{self.port}&admin=127.0.0.1:{self.admin}"
                f"&prefix={prefix}/&venv={self.venv}{more}")

    def stop(self):
        for process in (self.owner, self.master):
            process.kill()
            process.wait()


class LMCache(Program):
    """lmcache_l2.py with an adapter of LMCache, from the environment of the engines
    (KV_ENGINES_ENV): resp, with a Redis server, or fs. Each has a name of its own."""

    def __init__(self, kind, name="lmcache"):
        self.venv = os.environ.get("KV_ENGINES_ENV") or f"{os.path.dirname(BUILD)}/engines/env"
        if not glob.glob(f"{self.venv}/lib/python3*/site-packages/lmcache/v1/distributed/"
                         "l2_adapters"):
            skip("needs lmcache 0.5.6 or later in the virtual environment KV_ENGINES_ENV")
        super().__init__("lmcache_l2.py", f"{name}-{kind}")
        self.redis = Redis(f"{name}-{kind}-server") if kind == "resp" else None
        self.config = f"{self.dir}/config.json"
        self.configure({"type": "resp", "host": "127.0.0.1", "port": self.redis.port}
                       if self.redis else {"type": "fs", "base_path": f"{self.dir}/values"})

    def configure(self, config):
        with open(self.config, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            json.dump(config, f)

    def url(self, prefix="kv"):
        return f"ext://{self.path}?config={self.config}&model={prefix}&venv={self.venv}"

    def stop(self):
        if self.redis:
            self.redis.stop()
