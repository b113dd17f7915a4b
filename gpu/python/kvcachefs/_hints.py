# SPDX-License-Identifier: Apache-2.0
"""
The hints that connectors give to the mount's policy at the end of a request, about the chunks of
its prompt.

A Wish has the arguments of kvcachefs.hint(). They are in the parameters of the request, or follow
from its priority and its session. Hints collects the chunks of each running request, and gives the
hint after the request and its last store have ended. Nothing here waits for the mount or raises.

If a request supersedes the previous request of its session, the chunks of the previous request that
the new one does not have are reported as superseded. The last 262,144 keys of all sessions are
known.

One thread may use a Hints.
"""
from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from ._lookups import Lookups

__all__ = ["Hints", "Wish"]

PAUSE_MOST = 3600
SESSION_KEYS_MOST = 1 << 18
WORDS: dict[str, type] = {"finished": bool, "demote": bool, "supersedes": bool, "priority": str,
                          "pause": int, "tenant": str, "ended": str, "returns": int}
PRIORITIES = ("low", "normal", "high")
ENDS = ("tool", "turn", "closed")


@dataclasses.dataclass
class Wish:
    """The hint for the end of a request. words: arguments of kvcachefs.hint(); empty: no hint."""
    words: dict[str, Any] = dataclasses.field(default_factory=dict)
    session: str | None = None
    supersedes: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any] | None, *, session: str | None = None, priority: int = 0,
           pause: int = 0) -> Wish:
        """told: the hints that the client gave. Without a hint about the future, a priority below 0
        (urgent) means high, above 0 low, and a session is expected to go on within `pause` seconds.
        ValueError: a wrong word."""
        words = dict(told or {})
        for name, value in words.items():
            kind = WORDS.get(name)
            if kind is None:
                raise ValueError(f"'{name}' is not a hint; there are {', '.join(WORDS)}")
            if type(value) is not kind:
                raise ValueError(f"the hint {name} must be of type {kind.__name__}, not {value!r}")
        if words.get("priority", "low") not in PRIORITIES:
            raise ValueError(f"the hint priority must be one of {', '.join(PRIORITIES)}, not "
                             f"{words['priority']!r}")
        if not 0 <= words.get("pause", 0) <= PAUSE_MOST:
            raise ValueError(f"the hint pause must be 0 to {PAUSE_MOST} seconds")
        if words.get("ended", "tool") not in ENDS:
            raise ValueError(f"the hint ended must be one of {', '.join(ENDS)}, not "
                             f"{words['ended']!r}")
        if not 0 <= words.get("returns", 0) <= PAUSE_MOST:
            raise ValueError(f"the hint returns must be 0 to {PAUSE_MOST} seconds")
        if words.get("ended") and words.get("returns"):
            raise ValueError("give one of the hints ended and returns")
        supersedes = words.pop("supersedes", False)
        if supersedes and session is None:
            raise ValueError("the hint supersedes needs a session_id")
        if not words.keys() - {"tenant", "ended", "returns"}:
            if priority:
                words["priority"] = "high" if priority < 0 else "low"
            elif session is not None and pause:
                words["pause"] = pause
        words = {name: value for name, value in words.items() if value}
        leaves = words.get("finished") or words.get("demote") or words.get("priority") == "low"
        keeps = [w for w in ("pause", "priority") if w in words and words[w] != "low"]
        if len(keeps) > 1 or (leaves and keeps):
            raise ValueError("these hints contradict each other: finished, demote and priority low "
                             "let chunks leave; pause, priority high and priority normal do not")
        return cls(words, session, supersedes)


class _Request:
    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.chains: dict[Hashable, dict[int, Hashable]] = {}  # for each series: end of chunk: key
        self.storing = 0
        self.over = False


class Hints:
    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._requests: dict[str, _Request] = {}
        self._sessions: collections.OrderedDict[str, dict[Hashable, list[Hashable]]] = \
            collections.OrderedDict()
        self._session_keys = 0

    def begin(self, name: str, wish: Wish) -> None:
        if wish.words or wish.session is not None:
            self._requests[name] = _Request(wish)

    def chunk(self, name: str, series: Hashable, end: int, key: Hashable) -> None:
        """A chunk of the request's prompt, which ends at this token."""
        r = self._requests.get(name)
        if r:
            r.chains.setdefault(series, {})[end] = key

    def storing(self, name: str) -> None:
        """A store of chunks of the request begins."""
        r = self._requests.get(name)
        if r:
            r.storing += 1

    def stored(self, name: str) -> None:
        r = self._requests.get(name)
        if r and r.storing:
            r.storing -= 1
            self._tell(name, r)

    def end(self, name: str) -> None:
        """The request has ended; its stores may go on."""
        r = self._requests.get(name)
        if r:
            r.over = True
            self._tell(name, r)

    def reset(self) -> None:
        """The ends of stores that have begun will not be reported."""
        for name, r in list(self._requests.items()):
            r.storing = 0
            self._tell(name, r)

    def _tell(self, name: str, r: _Request) -> None:
        if not r.over or r.storing:
            return
        del self._requests[name]
        chains = {series: [keys[end] for end in sorted(keys)] for series, keys in r.chains.items()}
        if r.wish.session is not None:
            before = self._remember(r.wish.session, {} if r.wish.words.get("finished") else chains)
            if r.wish.supersedes:
                self._supersede(before, chains)
        for keys in chains.values() if r.wish.words else ():
            self._lookups.hint(keys, **r.wish.words)

    def _supersede(self, before: Mapping[Hashable, list[Hashable]],
                   chains: Mapping[Hashable, list[Hashable]]) -> None:
        for series, old in before.items():
            new = chains.get(series)
            if new and set(old).difference(new):
                self._lookups.hint(old, superseded_by=new[-1])

    def _remember(self, session: str, chains: dict[Hashable, list[Hashable]]
                  ) -> dict[Hashable, list[Hashable]]:
        """Keeps the chunks of a session's last request; returns those of the one before."""
        before = self._forget(session)
        if chains:
            self._sessions[session] = chains
            self._session_keys += _count(chains.values())
            while self._session_keys > SESSION_KEYS_MOST:
                self._forget(next(iter(self._sessions)))
        return before

    def _forget(self, session: str) -> dict[Hashable, list[Hashable]]:
        before = self._sessions.pop(session, {})
        self._session_keys -= _count(before.values())
        return before


def _count(lists: Iterable[list[Hashable]]) -> int:
    return sum(map(len, lists))
