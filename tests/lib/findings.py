# SPDX-License-Identifier: Apache-2.0
"""The findings of kvcachectl doctor, for the cases that test it."""
import json, re
from kvtest import TMP, binary, run

TMPFS = run("stat", "-f", "-c", "%T", TMP, ok=True).stdout.strip() == "tmpfs"
EVEN = {"store-on-tmpfs"} if TMPFS else set()  # findings that every store of this machine has


def doctor(s, *words, even=EVEN):
    """The findings by id, without those that every store here has, and the whole answer."""
    p = run(binary("kvcachectl"), "doctor", "--json", *(words or ("--for", "1s")), s.mnt, ok=True)
    j = json.loads(p.stdout)
    assert j["mount"] == s.mnt and all(f["text"].endswith(".") and f["remedy"].endswith(".")
                                       for f in j["findings"]), j
    weights = [f["weight"] for f in j["findings"]]
    assert weights == sorted(weights, reverse=True), j
    for f in j["findings"]:  # points are percentages of the requests
        assert all(0 < float(p) <= 100 for p in re.findall(r"([+-][\d.]+) points", f["text"])), j
    return {f["id"]: f for f in j["findings"] if f["id"] not in even}, j


def points(text):
    return float(re.search(r"\+([\d.]+) points", text)[1])
