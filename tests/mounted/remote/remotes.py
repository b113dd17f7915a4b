# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""The conformance suite of shared tiers for every driver, with real servers: alone, with a delay,
and with faults. KIND in the environment selects one of them. make check runs each driver alone, and
with a delay or with faults, chosen by SEED."""
import os, random, time
from kvtest import BUILD, LONG, TMP, beside, run, skip
import servers

SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}", flush=True)
kinds = {
    "dir": lambda: None,
    "redis": lambda: servers.Redis(password="pässword with spaces"),
    "rediss": lambda: servers.Redis("rediss", tls=True),
    "cluster": servers.Cluster,
    "s3": servers.Ceph,
    "ext": servers.Program,
    "ext-python": lambda: servers.Program("folder.py", "python"),
    "mooncake": servers.Mooncake,
    "lmcache-fs": lambda: servers.LMCache("fs"),
    "lmcache-resp": lambda: servers.LMCache("resp"),
}


def tried(kind):
    rng = random.Random(f"{SEED} {kind}")
    try:
        server = kinds[kind]()
    except SystemExit:
        print(f"not tried, packages are missing: {kind}")
        return
    shims = ["delay-get:3+delay-put:3", "faults"]
    for number, shim in enumerate([None] + (shims if LONG else [rng.choice(shims)])):
        if kind == "dir":
            os.makedirs(f"{TMP}/shared{number}")
            url = f"dir://{TMP}/shared{number}"
        else:
            url = server.url(f"try{number}")
        p = run(f"{BUILD}/bin/test-remote", url, *([shim] if shim else []))
        print(kind, shim, p.stdout.strip().splitlines()[-1:])
        assert p.returncode == 0, f"{kind} {shim}: {p.stdout}"
    if server:
        server.stop()


beside([(tried, kind) for kind in reversed(kinds) if os.environ.get("KIND", kind) == kind])
