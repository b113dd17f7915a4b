# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The conformance suite of shared tiers over every driver, against real servers: alone, behind a
delay, and with faults. KIND in the environment picks one of them."""
import os, subprocess, sys
from kvtest import BUILD, TMP, run
import servers

kinds = {
    "dir": lambda: None,
    "redis": lambda: servers.Redis(password="pässword with spaces"),
    "rediss": lambda: servers.Redis("rediss", tls=True),
    "cluster": servers.Cluster,
    "s3": servers.Ceph,
}
missing = []
for kind, make in kinds.items():
    if os.environ.get("KIND", kind) != kind:
        continue
    try:
        server = make()
    except SystemExit as e:
        missing.append(kind)
        continue
    for number, shim in enumerate([None, "delay-get:3+delay-put:3", "faults"]):
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
if missing:
    print("not tried, packages are missing: " + " ".join(missing))
    sys.exit(77 if len(missing) == len(kinds) - 1 else 0)
