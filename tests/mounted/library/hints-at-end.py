# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The hints of connectors at the end of requests: valid and wrong words, priorities, sessions and
what supersedes them, stores that end after their request, and a limit of known sessions."""
from kvtest import *
from tensors import *
from kvcachefs import _hints
from kvcachefs._hints import Wish


class Lookups:
    def __init__(self):
        self.told = []

    def hint(self, keys, superseded_by=None, **words):
        self.told.append((list(keys), superseded_by, words))


def told():
    found, lookups.told = lookups.told, []
    return found


def words(given=None, **more):
    return Wish.of(given, **more).words


assert words() == words({}) == words(session="s") == {}
assert words(priority=-1) == {"priority": "high"} and words(priority=2) == {"priority": "low"}
assert words(session="s", pause=9) == {"pause": 9}
assert words({"finished": True}, session="s", pause=9, priority=-1) == {"finished": True}
assert words({"tenant": "t"}, session="s", pause=9) == {"tenant": "t", "pause": 9}
assert words({"pause": 0}, session="s", pause=9) == {}  # the client wants no hint about a pause
assert words({"finished": False, "demote": True, "priority": "low"}) == \
    {"demote": True, "priority": "low"}
for wrong, word in (({"finish": True}, "'finish' is not a hint"), ({"finished": 1}, "type bool"),
                    ({"pause": "1"}, "type int"), ({"pause": True}, "type int"),
                    ({"pause": 3601}, "0 to 3600"), ({"priority": "top"}, "low, normal, high"),
                    ({"supersedes": True}, "session_id"),
                    ({"finished": True, "pause": 3}, "contradict"),
                    ({"priority": "high", "pause": 3}, "contradict"),
                    ({"demote": True, "priority": "normal"}, "contradict")):
    said = None
    try:
        Wish.of(wrong)
    except ValueError as e:
        said = str(e)
    assert said and word in said, (wrong, said)

lookups = Lookups()
h = _hints.Hints(lookups)


def request(name, wish, chains, stores=0):
    h.begin(name, wish)
    for _ in range(stores):
        h.storing(name)
    for series, keys in chains.items():
        for i in reversed(range(len(keys))):  # any order; twice
            h.chunk(name, series, 10 * (i + 1), keys[i])
            h.chunk(name, series, 10 * (i + 1), keys[i])


# given once, in the order of the prompt, after the last store and the end of the request
request("a", Wish.of({"finished": True}), {0: "xyz", 1: "pq"}, stores=2)
h.stored("a")
h.end("a")
assert not told()
h.stored("a")
assert told() == [(list("xyz"), None, {"finished": True}), (list("pq"), None, {"finished": True})]
h.stored("a"), h.end("a"), h.chunk("a", 0, 10, "x")
assert not told() and not h._requests
request("b", Wish(), {0: "xyz"})  # nothing to tell, nothing kept
h.end("b")
assert not told() and not h._requests
request("c", Wish.of(None, priority=1), {0: "x"}, stores=3)
h.end("c")
h.reset()
assert told() == [(["x"], None, {"priority": "low"})] and not h._requests

# sessions
for name, keys, wish, want in (
        ("1", "abc", Wish(session="s"), []),
        ("2", "abcd", Wish(session="s", supersedes=True), []),  # the session goes on
        ("3", "abx", Wish(session="s", supersedes=True), [(list("abcd"), "x", {})]),
        ("4", "ayz", Wish(session="s"), []),
        ("5", "k", Wish(session="other", supersedes=True), []),
        ("6", "aw", Wish({"finished": True}, "s", True),
         [(list("ayz"), "w", {}), (list("aw"), None, {"finished": True})]),
        ("7", "n", Wish(session="s", supersedes=True), [])):  # after the session's end
    request(name, wish, {0: keys})
    h.end(name)
    assert told() == want, name
many = [f"k{i}" for i in range(1000)]
for i in range(300):
    request("m", Wish(session=f"many{i}"), {0: many})
    h.end("m")
assert h._session_keys == sum(len(c[0]) for c in h._sessions.values()) <= 1 << 18
assert "s" not in h._sessions and "many299" in h._sessions
