# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Malicious Redis servers. With TLS the certificate must match the configured host, also for nodes
that only a cluster names. A trailer that requests billions of deletions is ignored. A cluster whose
nodes change is followed, but only a limited number of nodes is remembered."""
import binascii, shutil, struct
from fakes import Redis as Fake, bulk
from kvtest import KiB, Store, TMP, blob, run, skip, wait_for

if not shutil.which("openssl"):
    skip("needs openssl")
run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{TMP}/key.pem", "-out",
    f"{TMP}/cert.pem", "-days", "2", "-subj", "/CN=another.example", "-addext",
    "subjectAltName=IP:127.0.0.1", ok=True)
CERTIFICATE = (f"{TMP}/cert.pem", f"{TMP}/key.pem")


def slots(*nodes):
    """The answer to CLUSTER SLOTS: each node has its part."""
    step, out = 16384 // len(nodes), []
    for i, (host, port) in enumerate(nodes):
        last = 16383 if i == len(nodes) - 1 else (i + 1) * step - 1
        out.append(b"*3\r\n:%d\r\n:%d\r\n*2\r\n%s:%d\r\n" % (i * step, last, bulk(host.encode()),
                                                             port))
    return b"*%d\r\n%s" % (len(out), b"".join(out))


def moved(words, host, port):
    """Redirects the client to this node. The key has its hash tag in braces."""
    tag = words[1].partition(b"{")[2].partition(b"}")[0]
    return b"-MOVED %d %s:%d\r\n" % (binascii.crc_hqx(tag, 0) % 16384, host.encode(), port)


made = iter(range(1000))


def mounted(url):
    return Store(f"s{next(made)}", size="32M",
                 options=f"settle=0,deadline=20000,remote={url}").mount()


# a certificate for the address is not valid for the name: for a configured server ...
tls = Fake(tls=CERTIFICATE)
for host, good in (("127.0.0.1", True), ("localhost", False)):
    s = mounted(f"rediss://{host}:{tls.port}/kv?ca={TMP}/cert.pem")
    s.write("m/l", b"x" * 5000)
    if good:
        wait_for(lambda: "redis" in s.attr("m/l", "tiers").split(","))
        assert b"SET" in tls.seen
    else:
        wait_for(lambda: s.stats()["tier_errors"] + s.stats()["tier_refusals"])
        assert not tls.seen and "certificate verify failed" in s.log(), tls.seen
    s.umount()
    tls.seen.clear()
# ... and for a server that a cluster names
for how in (
        lambda f, w, a: slots(("localhost", tls.port)) if w[0].upper() == b"CLUSTER" else None,
        lambda f, w, a: slots(("127.0.0.1", f.port)) if w[0].upper() == b"CLUSTER"
        else moved(w, "localhost", tls.port)):
    first = Fake(how, tls=CERTIFICATE)
    s = mounted(f"rediss+cluster://127.0.0.1:{first.port}/kv?ca={TMP}/cert.pem")
    s.write("m/l", b"x" * 5000)
    wait_for(lambda: s.stats()["tier_errors"] + s.stats()["tier_refusals"])
    assert b"CLUSTER" in first.seen and not tls.seen, tls.seen
    s.umount()

# the trailer of the old value claims 2^36 pieces to delete
ENDLESS = bytes(4096) + struct.pack("<QQII", 7, (1 << 48) - 1, 4096, 0)
liar = Fake(lambda f, w, a: bulk(ENDLESS) if w[0].upper() == b"SET" and b"GET" in w[3:]
            else b":1\r\n" if w[0].upper() == b"UNLINK" else None)
s = mounted(f"redis://127.0.0.1:{liar.port}/kv")
s.write("m/l", blob(1, 100 * KiB))
wait_for(lambda: "redis" in s.attr("m/l", "tiers").split(","))
s.settle()
assert liar.seen.count(b"UNLINK") == 0, liar.seen.count(b"UNLINK")
s.umount()

# a cluster that moves its keys to another node after each SET or GETRANGE, to more nodes than can
# be remembered
now = [0]


def moving(fake, words, address):
    here = f"127.0.{now[0] // 250}.{now[0] % 250 + 1}"
    if words[0].upper() == b"CLUSTER":
        return slots((here, fake.port), (here, fake.port))
    if address != here:
        return moved(words, here, fake.port)
    if words[0].upper() in (b"SET", b"GETRANGE"):
        now[0] += 1
    return None


cluster = Fake(moving)
s = mounted(f"redis+cluster://127.0.0.1:{cluster.port}/kv")
for i in range(150):
    s.write(f"m{i}", b"y" * 100)
    wait_for(lambda: "redis" in s.attr(f"m{i}", "tiers").split(","))
assert now[0] > 150 and s.stats()["breaker_opened"] == 0
s.umount()
