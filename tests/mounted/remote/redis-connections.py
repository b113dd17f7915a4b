# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A Redis server on a Unix socket, one that requires a client certificate, and one that refuses
values as large as a file. Only such a file has no copy, and the log names the server's setting to
raise."""
import shutil
from kvtest import *
from servers import Redis

if not shutil.which("openssl"):
    skip("needs openssl")


def in_redis(s, path):
    return "redis" in s.attr(path, "tiers").split(",")


def stored_and_loaded(s, path, d):
    s.write(path, d)
    wait_for(lambda: in_redis(s, path))
    os.setxattr(f"{s.mnt}/{path}", "user.kvcachefs.demote", b"cpu")
    assert s.read(path) == d


def through_a_socket():
    r = Redis("sock")
    r.stop()
    r.args += ["--unixsocket", f"{r.dir}/s", "--unixsocketperm", "700"]
    r.start()
    s = Store("socket", options=f"settle=0,disk=off,remote=redis:///kv?socket={r.dir}/s").mount()
    stored_and_loaded(s, "m/c/l", blob(1, 300 * KiB))
    assert "unixsocket=1" in r.command("client", "list") or "flags=U" in r.command("client", "list")
    s.umount()
    r.stop()


def with_a_certificate():
    r = Redis("tls", tls=True)
    r.stop()
    r.args[r.args.index("--tls-auth-clients") + 1] = "yes"
    r.start()
    own = f"{TMP}/own.pem", f"{TMP}/own.key"
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", own[1], "-out",
        f"{TMP}/own.csr", "-subj", "/CN=node", ok=True)
    run("openssl", "x509", "-req", "-in", f"{TMP}/own.csr", "-CA", f"{r.dir}/cert.pem", "-CAkey",
        f"{r.dir}/key.pem", "-CAcreateserial", "-days", "2", "-out", own[0], ok=True)
    url = f"rediss://127.0.0.1:{r.port}/kv?ca={r.dir}/cert.pem"
    s = Store("certificate", options=f"settle=0,disk=off,remote={url}&cert={own[0]}&key={own[1]}")
    s.mount()
    stored_and_loaded(s, "m/c/l", blob(2, 300 * KiB))
    s.umount()
    without = Store("without", options=f"settle=0,remote={url}").mount()
    without.write("m/c/k", b"x" * 5000)
    wait_for(lambda: without.stats()["tier_errors"] + without.stats()["tier_refusals"])
    assert not in_redis(without, "m/c/k")
    without.umount()
    r.stop()


def with_a_limit():
    r = Redis("limit")
    assert r.command("config", "set", "proto-max-bulk-len", "1mb") == "OK"
    s = Store("limit", options=f"settle=0,remote=redis://127.0.0.1:{r.port}/kv").mount()
    s.write("m/large/l", blob(3, 3 * MiB))
    wait_for(lambda: "proto-max-bulk-len" in s.log())
    for i in range(20):
        stored_and_loaded(s, f"m/c{i}/l", blob(i, 9000))
    assert not in_redis(s, "m/large/l") and s.read("m/large/l") == blob(3, 3 * MiB)
    stats = s.stats()
    assert stats["tier_redis_write_up"] == 1 and stats["breaker_opened"] == 0, stats
    s.umount()
    r.stop()


beside([(through_a_socket,), (with_a_certificate,), (with_a_limit,)])
