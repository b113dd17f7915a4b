# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The model of power-loss.py accepts the contents that a file may have after a power loss, and no
others. A shared tier keeps an older copy over power losses, and a lookup finds it if the file is
missing. This also holds if the older copy is from before an earlier power loss."""
from kvtest import *
from replay import Model

OLD, SYNCED, NEW, NEVER = b"old", b"synced", b"new", b"never"


def model():
    """The path had OLD, and SYNCED was synced, before the power was lost at record 8. Then NEW was
    written and not synced."""
    before, m = Model(), Model()
    before.begin(1, {"x": OLD})
    before.begin(5, {"x": SYNCED}).durable = 6
    before.begin(9, {"x": NEVER})  # after the failure
    m.outlived(before, 8)
    m.begin(0, {"x": SYNCED}).durable = 1
    return m


def right(m, data, seq, shared):
    return not m.check({} if data is None else {"x": data}, {}, seq, shared)


m = model()
assert right(m, SYNCED, 3, True)
for data in (None, OLD, NEVER):
    assert not right(m, data, 3, True), data
m.begin(4, {"x": NEW})
for data in (None, SYNCED, NEW):
    assert right(m, data, 5, True) and right(m, data, 5, False), data
assert right(m, OLD, 5, True) and not right(m, OLD, 5, False)
assert not right(m, NEVER, 5, True)
# after another power loss
third = Model()
third.outlived(m, 6)
assert right(third, OLD, 1, True) and not right(third, OLD, 1, False)
assert not right(third, NEVER, 1, True)
print("ok")
