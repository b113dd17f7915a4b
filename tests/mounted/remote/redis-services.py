# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Redis as services run it: the password changes with its file, a replica takes over behind one
address, cluster nodes do not report their addresses, and a SCAN or an answer never ends. Invalid
options are refused."""
import os, subprocess
from fakes import Redis as Fake, bulk
from kvtest import HANG, KiB, MiB, Store, TMP, beside, binary, blob, run, wait_for
import servers


def mounted(name, url, more=""):
    return Store(name, size="32M", options=f"settle=0,deadline=4000,{more}remote={url}").mount()


def stored(s, path):
    return "redis" in s.attr(path, "tiers").split(",")


def password_rotates():
    r = servers.Redis("rotates", password="old")
    s = mounted("s1", r.url())
    s.write("m/a", b"a" * 5000)
    wait_for(lambda: stored(s, "m/a"))
    with open(f"{r.dir}/new", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write("new\n")
    r.command("config", "set", "requirepass", "new")
    os.rename(f"{r.dir}/new", f"{r.dir}/password")
    r.password = "new"
    r.command("client", "kill", "type", "normal", "skipme", "yes")
    s.write("m/b", b"b" * 5000)
    wait_for(lambda: stored(s, "m/b"))
    s.umount()
    r.stop()


def failover():
    """Connections from before the failover answer READONLY, new ones do not."""
    state = {"old": None}

    def how(fake, words, address):
        # a new connection begins with SELECT
        if words[0].upper() == b"SELECT":
            state["selects"] = state.get("selects", 0) + 1
        if words[0].upper() == b"SET" and state.get("selects") == state["old"]:
            return b"-READONLY You can't write against a read only replica.\r\n"
        return None

    fake = Fake(how)
    s = mounted("s2", f"redis://127.0.0.1:{fake.port}/kv?db=1")
    s.write("m/a", b"a" * 5000)
    wait_for(lambda: stored(s, "m/a"))
    state["old"] = state["selects"]
    s.write("m/b", b"b" * 5000)
    wait_for(lambda: stored(s, "m/b"))
    assert state["selects"] > state["old"] and s.stats()["breaker_opened"] == 0
    s.umount()


def endpoints(host):
    """host: as the RESP of the node's name in CLUSTER SLOTS."""
    fake = Fake(lambda f, w, a: b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%d\r\n" % (host, f.port)
                if w[0].upper() == b"CLUSTER" else None)
    s = mounted(f"s{host.hex()}", f"redis+cluster://127.0.0.1:{fake.port}/kv")
    s.write("m/a", b"a" * 5000)
    wait_for(lambda: stored(s, "m/a"))
    s.umount()


def resident(s):
    with open(f"/proc/{s.daemon.pid}/status") as f:
        return next(int(l.split()[1]) * KiB for l in f if l.startswith("VmHWM"))


def giant_answers(answer):
    """A lookup of an unknown name takes no more memory than the largest valid answer."""
    fake = Fake(lambda f, w, a: answer if w[0].upper() == b"GETRANGE" else None)
    s = mounted(f"g{answer[:4].hex()}{len(answer)}", f"redis://127.0.0.1:{fake.port}/kv")
    before = resident(s)
    assert not os.path.exists(f"{s.mnt}/m/unknown")
    assert b"GETRANGE" in fake.seen
    assert resident(s) - before < 24 * MiB, (before, resident(s))
    s.umount()


def endless_scan(same):
    def how(fake, words, address):
        if words[0].upper() != b"SCAN":
            return None
        fake.scans = getattr(fake, "scans", 0) + 1
        return b"*2\r\n%s*0\r\n" % bulk(b"7" if same else b"%d" % fake.scans)

    fake = Fake(how)
    s = mounted(f"s4{same}", f"redis://127.0.0.1:{fake.port}/kv")
    p = subprocess.Popen([binary("kvcachectl"), "import", s.mnt], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    wait_for(lambda: getattr(fake, "scans", 0) > 1)
    if not same:  # the daemon cannot know that the SCAN never ends, but the import can be stopped
        with open(f"{s.mnt}/.kvcachefs/control", "w") as f:
            f.write("stop import")
        p.wait(timeout=HANG)
    else:
        assert p.wait(timeout=HANG) and fake.scans < 10
    s.umount()


def refused_options():
    s = Store("s5", size="32M")
    for url, word in (("redis://127.0.0.1/kv?db=one", "db="), ("redis://127.0.0.1/kv?db=3x", "db="),
                      ("redis://127.0.0.1/kv?db=", "db="), ("redis://127.0.0.1/kv?db=-1", "db="),
                      ("redis://127.0.0.1/a{b", "prefix"), (f"redis://h/{'p' * 201}", "prefix")):
        p = run(binary("kvcachefs"), s.path, s.mnt, "-f", "-o",
                f"cpu=64M,run={TMP}/run,remote={url}")
        assert p.returncode and word in p.stdout, (url, p.stdout)


def glob_prefixes():
    """Two prefixes that differ only behind a * are different."""
    r = servers.Redis("globs")
    a, b = (mounted(n, f"redis://127.0.0.1:{r.port}/t*{n}") for n in ("ga", "gb"))
    a.write("m/a", b"a" * 5000)
    wait_for(lambda: stored(a, "m/a"))
    run(binary("kvcachectl"), "import", b.mnt, ok=True)
    assert not os.path.exists(f"{b.mnt}/m/a")
    for s in (a, b):
        s.umount()
    r.stop()


beside([(password_rotates,), (failover,), (endpoints, bulk(b"?")), (endpoints, bulk(b"")),
        (endpoints, bulk(None)), (giant_answers, b"$%d\r\n" % (1 << 40) + bytes(64 * MiB)),
        (giant_answers, b"*4000000000\r\n"), (giant_answers, b"*1\r\n" * (2 * MiB)),
        (endless_scan, True), (endless_scan, False), (refused_options,), (glob_prefixes,)], most=4)
