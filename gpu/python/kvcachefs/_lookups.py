# SPDX-License-Identifier: Apache-2.0
"""
Lookups for the scheduler of an engine, which asks for one chunk after another and must not wait.

ask() answers True, False or None (not known yet). The questions of a scheduling step are sent with
flush(), and their answers arrive with take(), so that a later ask() has them. No call here waits
for the mount; a mount that is slow, hung or dead gives misses.

Keys of a series continue each other in a prompt. One prefix lease finds how many of them are
cached, loads them into the pool and keeps them there. It names them in the order of the prompt, so
the mount's policy learns the chain. Other keys (sliding windows, recurrent states) are only
checked for existence in one call; hold() then leases those that the engine loads.

chain() tells the policy the parents of chunks that were stored.

A request whose keys another node still computes can wait for them (begin()): a lease waits for the
keys of a series, in a thread of its own, because the threads of a queue are few. Then all keys are
asked as usual, so those that have not arrived are misses.

A request holds its leases until loaded(), running() or end(). The bytes of all leases have a
limit, beyond which a hit is answered without a lease: the chunk can then be evicted before it is
loaded, which makes the load fail and the engine compute the chunk.

One thread may use a Lookups. Keys are hashable, and paths(key) gives the `per` files of a key.
"""
from __future__ import annotations

import collections
import contextlib
import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

from . import _lib
from .lease import Lease, exists, hint
from .queue import LeaseRequest, Queue

__all__ = ["Known", "Lookups", "Reports", "check_mount", "denied", "pool_bytes"]

SLICE = 512       # keys of one call; more follow when all of them are cached
LATE_MOST = 3     # overdue calls in a row after which one question at a time is sent
THREADS = 2       # for questions, and as many for other calls
TODO_MOST = 64
WAITS_MOST = 64   # requests that wait for keys at the same time
PARENT = "user.kvcachefs.parent"
KNOWN_MOST = 1 << 18
REPORT_S = 30.0
START_S = 10.0


def pool_bytes(mount: str) -> int:
    """The size of the mount's pool; 16 GiB if it cannot be read."""
    try:
        with open(f"{mount}/.kvcachefs/stats") as f:
            stats = dict(line.split()[:2] for line in f if line.strip())
        return int(stats["pool_bytes"])
    except (OSError, KeyError, ValueError):
        return 16 << 30


def denied(mount: str, folder: str, engine: str) -> str:
    """What to do if this process may not create files in the folder, which is below the mount and
    need not exist; else "". A mount that is read-only for all users is not an error."""
    mount = mount.rstrip("/")
    wanted = path = f"{mount}/{folder}".rstrip("/")
    while path != mount and not os.path.isdir(path):
        path = os.path.dirname(path)
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True) or \
            os.statvfs(path).f_flag & os.ST_RDONLY:
        return ""
    return (f"kvcachefs: {engine} runs as user {os.geteuid()}, who may not create files in {path}. "
            f"As root, run: install -d -o {os.geteuid()} {wanted}")


def check_mount(mount: str, folder: str, options: str, engine: str) -> None:
    """Raises RuntimeError, which says what to do, if the mount cannot be used, or if this process
    may not create files in the folder below the mount. options: where the user has named the
    mount."""
    found: list[str] = []
    refused: list[str] = []

    def look() -> None:
        try:
            os.stat(f"{mount}/.kvcachefs/stats")
            refused.append(denied(mount, folder, engine))
            found.append("")
        except OSError as e:
            found.append(e.strerror or str(e))

    thread = threading.Thread(target=look, name="kvcachefs-start", daemon=True)
    thread.start()
    thread.join(START_S)
    why = found[0] if found else f"no answer within {START_S:.0f} s"
    if why:
        raise RuntimeError(
            f"kvcachefs: {mount} is not a mount of kvcachefs that this process can use ({why}). "
            f"Mount it (mount -t kvcachefs STORE {mount}; with -o allow_other if {engine} runs as "
            f"another user or in a container), or correct \"mount\" in {options}")
    if refused[0]:
        raise RuntimeError(refused[0])


class Reports:
    """Warnings of each kind at most once in 30 seconds, with the number of those omitted."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last: dict[str, float] = {}
        self._omitted: collections.Counter[str] = collections.Counter()

    def warn(self, kind: str, text: str) -> None:
        now = time.monotonic()
        if now - self._last.get(kind, now - 2 * REPORT_S) < REPORT_S:
            self._omitted[kind] += 1
            return
        more = self._omitted.pop(kind, 0)
        self._last[kind] = now
        self._logger.warning("kvcachefs: %s%s", text, f" ({more} more like this)" if more else "")


class Known:
    """Keys that are stored, as far as this process knows: the last 262,144 that it stored or
    found, except keys that were found missing since. A key that is being stored counts as known
    until its store fails."""

    def __init__(self, most: int = KNOWN_MOST) -> None:
        self._most = most
        self._keys: collections.OrderedDict[Hashable, None] = collections.OrderedDict()
        self._storing: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def start(self, keys: Iterable[Hashable]) -> list[Any]:
        """The keys that must be stored, which are being stored from now on."""
        new = []
        for key in keys:
            if key in self._keys:
                self._keys.move_to_end(key)
            elif key not in self._storing:
                self._storing.add(key)
                new.append(key)
        return new

    def stored(self, keys: Iterable[Hashable], failed: Collection[Hashable] = ()) -> None:
        """The stores of these keys ended."""
        for key in keys:
            self._storing.discard(key)
            if key not in failed:
                self.add(key)

    def add(self, key: Hashable) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        self._keys.pop(key, None)

    def clear(self) -> None:
        self._keys.clear()
        self._storing.clear()


class _Request:
    def __init__(self, wait: float = 0) -> None:
        self.wait_end = time.monotonic() + wait if wait else 0.0  # 0: it waits for no keys
        self.waiting = 0  # calls that wait
        self.after: list[Hashable] = []  # keys without a series, to be asked after the wait
        self.answers: dict[Hashable, bool | None] = {}  # None: asked, not answered
        self.asked: dict[Hashable, list[Hashable]] = {}  # by series, not sent
        self.refused: set[Hashable] = set()  # their load failed
        self.leases: list[tuple[Lease, int]] = []  # with their bytes
        self.held: set[Hashable] = set()
        self.loading = self.over = False


class _Call:
    """A call to the mount that has not ended, for one request."""

    def __init__(self, request: _Request, keys: list[Hashable], rest: list[Hashable],
                 end: float) -> None:
        self.request, self.keys, self.rest, self.end = request, keys, rest, end
        self.answers = True  # False: a lease for a load
        self.waits = False  # for keys that do not exist yet
        self.late = False
        self.lease: LeaseRequest | None = None


class _Waited:
    """A lease that has waited. whole: it holds all files; otherwise it is closed."""

    def __init__(self, lease: Lease) -> None:
        self.lease, self.whole = lease, True
        self.bytes = sum(o.size for o in lease)


class _Aside:
    """Threads for calls that wait for the mount and have no queue: exists(), for which a request
    waits, has threads of its own, so that it does not wait for hints, parents and ends of leases.
    They are daemons: a hung mount does not hold up the end of the process."""

    def __init__(self, mount: str, per: int) -> None:
        self._mount, self._per = mount, per
        self._checks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[_Call, list[bool] | _Waited | None, Exception | None]] \
            = queue.SimpleQueue()
        for what in (self._checks, self._todo) * THREADS:
            threading.Thread(target=self._run, args=(what,), name="kvcachefs-lookups",
                             daemon=True).start()

    def ask(self, call: _Call, paths: list[str]) -> None:
        def check() -> None:
            try:
                self.done.put((call, exists(self._mount, paths, per=self._per), None))
            except Exception as e:
                self.done.put((call, None, e))

        self._checks.put(check)

    def wait(self, call: _Call, paths: list[str], seconds: float) -> None:
        """Leases files when they exist; may take all of the time."""
        def lease() -> None:
            try:
                waited = _Waited(Lease(self._mount, paths, wait=seconds))
                if len(waited.lease) != len(paths) or any(o.errno for o in waited.lease):
                    waited.lease.close()  # what has arrived is asked for as usual
                    waited.whole = False
                self.done.put((call, waited, None))
            except Exception as e:
                self.done.put((call, None, e))

        try:
            threading.Thread(target=lease, name="kvcachefs-wait", daemon=True).start()
        except RuntimeError as e:  # too many threads
            self.done.put((call, None, e))

    def close_lease(self, lease: Lease) -> None:
        self._todo.put(lease.close)

    def set_parents(self, pairs: list[tuple[str, str]]) -> None:
        """Does nothing if the threads are far behind: the policy also works without parents."""
        if self._todo.qsize() < TODO_MOST:
            self._todo.put(lambda: self._set_parents(pairs))

    def hint(self, paths: list[str], words: dict[str, Any],
             failed: Callable[[Exception], None]) -> None:
        """Gives a hint, unless the threads are far behind."""
        def tell() -> None:
            try:
                hint(self._mount, paths, **words)
            except Exception as e:  # words of clients, such as a tenant that is not UTF-8
                failed(e)

        if self._todo.qsize() < TODO_MOST:
            self._todo.put(tell)

    def _set_parents(self, pairs: list[tuple[str, str]]) -> None:
        for path, parent in pairs:
            with contextlib.suppress(OSError):  # evicted in the meantime, or the mount is away
                os.setxattr(f"{self._mount}/{path}", PARENT, parent.encode())

    @staticmethod
    def _run(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (call := calls.get()) is not None:
            try:
                call()
            except Exception:
                logging.getLogger("kvcachefs").exception("kvcachefs: an unexpected error")

    def close(self) -> None:
        for what in (self._checks, self._todo) * THREADS:
            what.put(None)


class Lookups:
    """mount: the mount. paths: paths(key) are the `per` files of a key, below the mount. timeout:
    seconds after which a question is a miss. held_most: bytes that leases may hold. counts:
    numbers since the start: "lookups" (calls to the mount), "hits" and "misses" (keys),
    "lookup_failures", "lookup_timeouts", "hints", "hint_failures", "waits" (lookups that waited for
    keys). No name is added later, so that other threads can count while the caller iterates."""

    def __init__(self, mount: str | os.PathLike[str], paths: Callable[[Any], list[str]], *,
                 per: int = 1, timeout: float = 5.0, held_most: int = 1 << 40,
                 reports: Reports | None = None) -> None:
        self._mount, self._paths, self._per = os.fspath(mount), paths, per
        self._timeout, self._held_most = timeout, held_most
        self._reports = reports or Reports(logging.getLogger("kvcachefs"))
        self._queue = Queue(self._mount, threads=1)
        self._aside = _Aside(self._mount, per)
        self._requests: dict[Hashable, _Request] = {}
        self._asking: list[_Request] = []
        self._calls: dict[_Call, None] = {}
        self._by_lease: dict[LeaseRequest, _Call] = {}
        self._late = self._waits = 0
        self.known = Known()
        self.held_bytes = 0
        self.counts: collections.Counter[str] = collections.Counter(dict.fromkeys((
            "lookups", "hits", "misses", "lookup_failures", "lookup_timeouts", "hints",
            "hint_failures", "waits"), 0))
        self._counting = threading.Lock()

    # ---- Questions ----

    def begin(self, name: Hashable, wait: float = 0) -> None:
        """wait: seconds for which the request waits for keys that do not exist yet."""
        self._requests[name] = _Request(wait)

    def ask(self, name: Hashable, key: Hashable, series: Hashable = None) -> bool | None:
        """Whether the key is cached; None: ask again in a later step. Keys of a series are asked
        in the order of the prompt. series None: the key is on its own."""
        r = self._requests.get(name)
        if r is None or key in r.refused:
            return False
        if key not in r.answers:
            r.answers[key] = None
            if not r.asked:
                self._asking.append(r)
            r.asked.setdefault(series, []).append(key)
        return r.answers[key]

    def flush(self) -> None:
        """Sends the questions since the last flush()."""
        asking, self._asking = self._asking, []
        for r in asking:
            asked, r.asked = r.asked, {}
            for series, keys in sorted(asked.items(), key=lambda a: a[0] is None):
                if r.over:
                    break
                if self._silent():
                    self._reports.warn("late", f"{self._mount} does not answer: lookups are "
                                               f"misses until it does")
                    self._answer(r, dict.fromkeys(keys, False))
                elif series is not None:
                    self._series(r, keys)
                elif r.waiting:
                    r.after += keys
                else:
                    self._check(r, keys)

    def _silent(self) -> bool:
        """The mount does not answer, and a call in flight will show when it answers again."""
        return self._late >= LATE_MOST and any(not c.late and not c.waits for c in self._calls)

    def _call(self, r: _Request, keys: list[Hashable], rest: list[Hashable]) -> _Call:
        call = _Call(r, keys, rest, time.monotonic() + self._timeout)
        self._calls[call] = None
        self.counts["lookups"] += 1
        return call

    def _files(self, keys: Iterable[Hashable]) -> list[str]:
        return [path for key in keys for path in self._paths(key)]

    def _check(self, r: _Request, keys: list[Hashable]) -> None:
        for i in range(0, len(keys), SLICE):
            some = keys[i:i + SLICE]
            self._aside.ask(self._call(r, some, []), self._files(some))

    def _series(self, r: _Request, keys: list[Hashable]) -> None:
        """Asks for keys of a series, as soon as they exist if the request still waits."""
        left = r.wait_end - time.monotonic()
        if left <= 0 or self._waits >= WAITS_MOST:
            self._prefix(r, keys)
            return
        call = self._call(r, keys[:SLICE], keys[SLICE:])
        call.waits = True
        call.end += left
        r.waiting += 1
        self._waits += 1
        self.counts["waits"] += 1
        self._aside.wait(call, self._files(call.keys), left)

    def _prefix(self, r: _Request, keys: list[Hashable]) -> None:
        self._lease(self._call(r, keys[:SLICE], keys[SLICE:]), prefix=True)

    def _lease(self, call: _Call, prefix: bool) -> None:
        try:
            call.lease = self._queue.lease(self._files(call.keys), per=self._per, prefix=prefix)
        except (_lib.Error, ValueError) as e:
            self._failed(call, e)
        else:
            self._by_lease[call.lease] = call

    # ---- Answers ----

    @property
    def pending(self) -> bool:
        """Whether a request waits for an answer."""
        return bool(self._asking) or any(c.answers and not c.late and not c.request.over
                                         for c in self._calls)

    def take(self) -> None:
        """Takes the answers that have arrived; questions that are overdue become misses."""
        if not self._calls:
            return
        for ended in self._queue.take():
            if isinstance(ended, LeaseRequest) and (call := self._by_lease.pop(ended, None)):
                self._leased(call, ended)
        while True:
            try:
                call, found, error = self._aside.done.get_nowait()
            except queue.Empty:
                break
            if call.waits:
                self._waits -= 1
                self._waited(call, found if isinstance(found, _Waited) else None)
            elif error is not None or not isinstance(found, list):
                self._failed(call, error)
            elif self._ended(call):
                self._answer(call.request, dict(zip(call.keys, found)))
        now = time.monotonic()
        for call in [c for c in self._calls if not c.late and now > c.end]:
            self._overdue(call)

    def _ended(self, call: _Call, answered: bool = True) -> bool:
        """The call has ended. Returns whether its request still waits for the answer."""
        self._calls.pop(call, None)
        if answered:
            self._late = 0
        return not call.late and not call.request.over

    def _leased(self, call: _Call, ended: LeaseRequest) -> None:
        lease, r, size = ended.lease, call.request, ended.bytes
        wanted = self._ended(call, not ended.error or ended.error.errno != errno.ECANCELED)
        if lease and (not wanted or (call.answers is False and not r.loading)
                      or self.held_bytes + size > self._held_most):
            self._aside.close_lease(lease)
        elif lease:
            r.leases.append((lease, size))
            r.held.update(call.keys[:ended.count])
            self.held_bytes += size
        if not wanted or not call.answers:
            return
        if ended.error:
            self.counts["lookup_failures"] += 1
            self._reports.warn("lookup", f"a lookup failed, which is a miss: "
                                         f"{ended.error.strerror}")
        hits = ended.count
        self._answer(r, {k: i < hits for i, k in enumerate(call.keys)})
        if hits == len(call.keys) and call.rest and not ended.error:
            self._prefix(r, call.rest)
        else:
            self._answer(r, dict.fromkeys(call.rest, False))

    def _waited(self, call: _Call, waited: _Waited | None) -> None:
        """The wait is over. If a file has not arrived, all keys are asked as usual, and errors are
        those of that call."""
        r, wanted = call.request, self._ended(call, waited is not None)
        whole = waited if waited and waited.whole else None
        if whole and wanted and self.held_bytes + whole.bytes <= self._held_most:
            r.leases.append((whole.lease, whole.bytes))
            r.held.update(call.keys)
            self.held_bytes += whole.bytes
        elif whole:
            self._aside.close_lease(whole.lease)
        if not wanted:
            return
        if not whole:
            self._prefix(r, [*call.keys, *call.rest])
        else:
            self._answer(r, dict.fromkeys(call.keys, True))
            if call.rest:
                self._series(r, call.rest)
        self._wait_over(r)

    def _wait_over(self, r: _Request) -> None:
        r.waiting -= 1
        if not r.waiting and r.after:
            after, r.after = r.after, []
            self._check(r, after)

    def _failed(self, call: _Call, error: Exception | None) -> None:
        if self._ended(call) and call.answers:
            self.counts["lookup_failures"] += 1
            self._reports.warn("lookup", f"a lookup failed, which is a miss: {error}")
            self._answer(call.request, dict.fromkeys([*call.keys, *call.rest], False))

    def _overdue(self, call: _Call) -> None:
        call.late = True
        self._late += 1
        if call.lease:
            call.lease.cancel()
        if call.answers and not call.request.over:
            self.counts["lookup_timeouts"] += 1
            self._reports.warn("timeout", f"a lookup took longer than {self._timeout:g} s, which "
                                          f"is a miss: the chunks are computed")
            # not dropped from the known keys: they may be stored all the same
            call.request.answers.update(dict.fromkeys([*call.keys, *call.rest], False))
            if call.waits:
                self._wait_over(call.request)

    def _answer(self, r: _Request, answers: dict[Hashable, bool]) -> None:
        r.answers.update(answers)
        for key, hit in answers.items():
            self.known.add(key) if hit else self.known.drop(key)
        hits = sum(answers.values())
        self.counts["hits"] += hits
        self.counts["misses"] += len(answers) - hits

    def chain(self, pairs: Iterable[tuple[Hashable, Hashable | None]]) -> None:
        """Tells the mount's policy the parents of stored keys; None: the key begins a prompt. Each
        file of a key is the parent of the key's next file, and the key's last file is the parent
        of the next key's first file."""
        said = []
        for key, parent in pairs:
            last = "/" + self._paths(parent)[-1] if parent is not None else ""
            for path in self._paths(key):
                said.append((path, last))
                last = f"/{path}"
        if said:
            self._aside.set_parents(said)

    def hint(self, keys: Iterable[Hashable], superseded_by: Hashable | None = None,
             **words: Any) -> None:
        """Tells the mount's policy whether the chunks of a prompt will be needed. keys: the keys
        from the beginning of the prompt. words: arguments of kvcachefs.hint(). superseded_by: the
        last key of a newer state. Does not wait; an error is logged."""
        paths = self._files(keys)
        if superseded_by is not None:
            words["superseded_by"] = self._paths(superseded_by)[-1]
        if paths:
            self.counts["hints"] += 1
            self._aside.hint(paths, words, lambda e: self._hint_failed(e, words))

    def _hint_failed(self, error: Exception, words: dict[str, Any]) -> None:
        """Counts and logs the error. Called in a thread of _Aside."""
        self.count_hint_failure()
        why = (isinstance(error, OSError) and error.strerror) or error
        self._reports.warn("hint", f"the hint {' '.join(sorted(words))} failed: {why}")

    def count_hint_failure(self) -> None:
        with self._counting:
            self.counts["hint_failures"] += 1

    # ---- The life of a request ----

    def hold(self, name: Hashable, keys: Iterable[Hashable]) -> None:
        """The engine is about to load these keys: those without a lease get one, without waiting
        and as far as possible. The leases of the request stay until loaded()."""
        r = self._requests.get(name)
        if r is None:
            return
        r.loading = True
        bare = [k for k in keys if k not in r.held]
        for i in range(0, 0 if self._silent() else len(bare), SLICE):
            call = self._call(r, bare[i:i + SLICE], [])
            call.answers = False
            self._lease(call, prefix=False)

    def loaded(self, name: Hashable) -> None:
        """The load ended: the leases end, and later questions are sent to the mount again."""
        r = self._requests.get(name)
        if r:
            r.loading = False
            self._release(r)
            r.answers = {k: a for k, a in r.answers.items() if a is None}

    def running(self, name: Hashable) -> None:
        """The request runs without loading its hits."""
        r = self._requests.get(name)
        if r and not r.loading:
            self._release(r)

    def forget(self, name: Hashable) -> None:
        """Later questions of the request are sent to the mount again."""
        self.loaded(name)

    def refuse(self, name: Hashable, keys: Iterable[Hashable]) -> None:
        """The load of these keys failed: they are misses for the rest of this request, and not
        known."""
        r = self._requests.get(name)
        for key in keys:
            self.known.drop(key)
            if r:
                r.refused.add(key)

    def end(self, name: Hashable) -> None:
        r = self._requests.pop(name, None)
        if r:
            r.over = True
            self._release(r)

    def _release(self, r: _Request) -> None:
        for lease, size in r.leases:
            self.held_bytes -= size
            self._aside.close_lease(lease)
        r.leases.clear()
        r.held.clear()

    def close(self) -> None:
        """Ends all requests. Does not wait: a lease that the mount has not answered is cancelled,
        and ends when the mount answers or the process exits."""
        for name in list(self._requests):
            self.end(name)
        for request in self._by_lease:
            request.cancel()
        for ended in self._queue.take():
            if isinstance(ended, LeaseRequest) and (lease := ended.lease):
                self._aside.close_lease(lease)
        self._by_lease.clear()
        self._calls.clear()
        self._aside.close()
