# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The witness of the crash cases (tests/lib/witness.py) allows a commit the longest sync of the log
and the longest sync of the database, and counts two syncs of a file, one right after the other, as
two."""
from kvtest import *
from witness import COMMIT, Witness

w = object.__new__(Witness)
w.path = f"{TMP}/witness"
# turns of 10 ms: what is synced in each, from 100.0 s on
turns = ["-"] * 10 + ["log:7"] * 10 + ["log:9"] * 8 + ["database:9"] * 20 + ["database:30"] * 5 + \
    ["mark:31"] * 40 + ["-"] * 10
with open(w.path, "w") as f:
    for n, what in enumerate(turns):
        f.write(f"{100 + n / 100:.6f} 0.000000 {what} 1:0.000000\n")
w.read()
assert [(kind, round(b - a, 2)) for a, b, kind in w.syncs] == \
    [("log", .11), ("log", .09), ("database", .21), ("database", .06), ("mark", .41)], w.syncs
assert round(w.longest_syncs(100, 102), 2) == .32, w.longest_syncs(100, 102)
assert w.longest_syncs(100, 100.05) == 0 and w.longest_syncs(101.5, 102) == 0
assert w.may_be_lost(100, 100 + .32 + COMMIT - .001, .05, excused=0)
assert not w.may_be_lost(100, 100 + .32 + COMMIT + .001, .05, excused=0)
