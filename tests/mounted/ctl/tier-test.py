# SPDX-License-Identifier: Apache-2.0
# ways: none
"""kvcachectl tier-test passes the samples in C and in Python, and names the check that a wrong
program fails. It removes what it has stored and leaves other values alone. make check runs half of
the wrong programs, chosen by SEED."""
import json, os, random, time
from kvtest import LONG, TMP, beside, binary, run
import servers

CTL = binary("kvcachectl")
# One change to the sample each, and a check that must fail.
WRONG = {
    "return len(room)": ("get", "a frame of 1 bytes is stored"),
    "return super().get(key, offset + 1, room)":
        ("get", "a frame of 4095 bytes is read back whole"),
    "return super().get(key, offset, room[:5000])":
        ("get", "a frame of 65536 bytes is read back whole"),
    "super().put(key, bytes(data)[:1 << 20], expiry)":
        ("put", "a frame of 4194309 bytes is read back whole"),
    "len(data) < 5000 and super().put(key, data, expiry)":
        ("put", "a frame of 4096 bytes is read back whole"),
    "raise OSError(28, 'full')": ("put", "a frame of 0 bytes is stored"),
    "pass  # deletes nothing": ("delete", "a removed frame is missing"),
    "raise OSError(5, 'delete fails')": ("delete", "a removed frame is missing"),
    "return iter([])": ("list", "each stored frame is listed once"),
    "return (k for k in list(super().list()) if k[0] < 128)":
        ("list", "each stored frame is listed once"),
    "raise RuntimeError('list fails')": ("list", "each stored frame is listed once"),
}
ARGUMENTS = {"get": "key, offset, room", "put": "key, data, expiry", "delete": "key", "list": ""}


def good(source):
    program = servers.Program(source, source)
    where = program.url()
    other = f"{program.dir}/kv/{'5a' * 16}"
    with open(other, "w") as f:
        f.write("somebody's value")
    p = run(CTL, "tier-test", where[6:])
    last = p.stdout.splitlines()[-1]
    assert p.returncode == 0 and last == "32 checks, 0 failed" and "FAIL" not in p.stdout, p.stdout
    assert open(other).read() == "somebody's value"
    # threads that replace one frame at the same moment may leave parts of it, each of 300,000 bytes
    left = [n for n in os.listdir(f"{program.dir}/kv") if n not in other]
    assert all(os.stat(f"{program.dir}/kv/{n}").st_size == 300000 for n in left), left
    # a relative path, and JSON
    p = run(CTL, "tier-test", "--json", "./program?folder=" + f"{program.dir}/kv", cwd=program.dir)
    j = json.loads(p.stdout)
    assert p.returncode == 0 and j["failed"] == 0 and len(j["checks"]) == 32, p.stdout
    assert all(c["passed"] for c in j["checks"])


def wrong(n, body, what, check):
    program = servers.Program(f"""
import folder, kvctier


class Wrong(folder.Folder):
    def {what}(self, {ARGUMENTS[what]}):
        {body}


kvctier.serve(Wrong)
""", f"wrong{n}")
    p = run(CTL, "tier-test", program.url()[6:])
    assert p.returncode == 1 and f"FAIL  {check}\n" in p.stdout, (body, p.stdout)
    assert " 0 failed" not in p.stdout.splitlines()[-1], p.stdout


def lacking():
    """Abilities are optional: without list and delete the other checks pass."""
    program = servers.Program("""
import kvctier


class Memory:
    def __init__(self, options):
        self.values = {}

    def get(self, key, offset, room):
        part = self.values[key][offset:offset + len(room)]
        room[:len(part)] = part
        return len(part)

    def put(self, key, data, expiry_ms):
        self.values[key] = bytes(data)


kvctier.serve(Memory)
""", "memory")
    p = run(CTL, "tier-test", program.path)
    assert p.returncode == 0 and "\n31 checks, 0 failed" in p.stdout, p.stdout
    assert "listed" not in p.stdout


SEED = int(os.environ.get("SEED", time.time_ns() % 10**6))
print(f"SEED={SEED}")
tried = [(wrong, n, body, *what) for n, (body, what) in enumerate(WRONG.items())]
if not LONG:
    tried = random.Random(SEED).sample(tried, len(tried) // 2)
beside([(good, "folder.c"), (good, "folder.py"), (lacking,)] + tried)
