#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Any L2 adapter of LMCache (0.5.6 or later) as a shared tier of kvcachefs:

    remote=ext:///usr/lib/kvcachefs/lmcache_l2.py?config=/etc/kvcachefs/l2.json&venv=/opt/lmcache

kvcachefs-ext(7), SHIPPED PROGRAMS, describes the options. The file has the JSON object of LMCache's
option --l2-adapter, for example {"type": "resp", "host": "cache.example", "port": 6379}.

Adapters differ from a plain store in three ways. A load needs the size of the value. A store may
skip a key that exists, because LMCache's keys are hashes of the contents. A load and a lookup say
that a key is missing, or that the store does not answer, with the same bit. So:

- A value is an object of FIRST bytes (its length, a tag and its first bytes), and an object with
  the rest, whose key contains the tag. The first object is written last.
- An existing first object is deleted before it is stored again. In between, the value is missing.
- With each key the key of the mark is looked up. The mark is an object that the program itself has
  stored; if it can neither be found nor be stored, the store does not work.

LMCache and PyTorch take seconds to import, so a thread does that after the program is ready. It
also makes another adapter after a failure of the store, because some do not connect again."""
import contextlib, errno, importlib.util, json, os, secrets, select, struct, threading, time
from collections.abc import Callable, Iterator
from typing import Any
import kvctier

FIRST = 8192
HEAD = struct.Struct("<8sQQ")  # MAGIC, bytes of the value, tag of the rest (0: it has none)
MAGIC = b"KVCLM\0\0\1"
ROOM = FIRST - HEAD.size
MARK = b"kvcachefs"  # shorter than the other keys
THREADS = 8
AGAIN_S, AGAIN_MOST_S = 1.0, 10.0  # between two attempts to make the adapter


class Adapter:
    """An adapter of LMCache, with calls that wait for the result, for at most `patience` seconds.
    `broken` is set when the store does not work."""

    def __init__(self, config: dict[str, Any], model: str, patience: float):
        from lmcache.v1.distributed import api, l2_adapters
        from lmcache.v1.distributed.l2_adapters import config as configs
        kind = configs.get_l2_adapter_config_class(config["type"])
        self.adapter: Any = l2_adapters.create_l2_adapter(kind.from_dict(config))
        self.api, self.model, self.patience = api, model, patience
        base = l2_adapters.L2AdapterInterface
        self.deletes = (type(self.adapter).delete is not base.delete
                        and getattr(self.adapter, "_has_delete", True))
        self.broken, self.closed = threading.Event(), False
        self.change = threading.Condition()
        self.stored: dict[int, Any] = {}  # results of stores that nobody has fetched yet
        self.abandoned: list[Any] = []  # memory that the adapter may still use
        threading.Thread(target=self.listen, daemon=True).start()
        try:
            self.check()
        except OSError:
            self.closed = True
            raise

    def listen(self) -> None:
        """Wakes the waiting calls when the adapter has completed something."""
        a, poller = self.adapter, select.poll()
        for fd in (a.get_store_event_fd(), a.get_lookup_and_lock_event_fd(),
                   a.get_load_event_fd()):
            poller.register(fd, select.POLLIN)
        while not self.closed:
            for fd, _ in poller.poll(1000):
                with contextlib.suppress(OSError):
                    os.read(fd, 8)
            with self.change:
                self.stored.update(a.pop_completed_store_tasks())
                self.change.notify_all()
        a.close()

    def wait(self, result: Callable[[], Any], memory: Any = None) -> Any:
        until = time.monotonic() + self.patience
        with self.change:
            while (got := result()) is None:
                if not self.change.wait(max(until - time.monotonic(), 0)):
                    self.abandoned.append(memory)
                    self.broken.set()
                    raise TimeoutError(errno.ETIMEDOUT, "LMCache's adapter has not answered")
        return got

    def key(self, name: bytes) -> Any:
        return self.api.ObjectKey(chunk_hash=name, model_name=self.model, kv_rank=0)

    def memory(self, data: bytearray) -> Any:
        import torch
        from lmcache.v1 import memory_management as m
        shape = torch.Size([len(data)])
        meta = m.MemoryObjMetadata(shape=shape, dtype=torch.uint8, address=0, phy_size=len(data),
                                   ref_count=1, fmt=m.MemoryFormat.BINARY_BUFFER,
                                   shapes=[shape], dtypes=[torch.uint8])
        return m.TensorMemoryObj(torch.frombuffer(data, dtype=torch.uint8), meta, None)

    def store(self, name: bytes, data: bytearray) -> None:
        memory = self.memory(data)
        task = self.adapter.submit_store_task([self.key(name)], [memory])
        if not self.wait(lambda: self.stored.pop(task, None), memory).is_successful():
            if name != MARK:
                self.check()
            raise OSError(errno.EIO, "LMCache's adapter cannot store this value")

    def look(self, names: list[bytes]) -> list[bool]:
        """Which keys exist. The adapter keeps those until they are unlocked."""
        task = self.adapter.submit_lookup_and_lock_task([self.key(n) for n in names], {})
        bits = self.wait(lambda: self.adapter.query_lookup_and_lock_result(task))
        return [bool(bits.test(i)) for i in range(len(names))]

    def unlock(self, names: list[bytes], found: list[bool]) -> None:
        if any(found):
            self.adapter.submit_unlock([self.key(n) for n, there in zip(names, found) if there])

    def has(self, name: bytes) -> bool:
        """Fails if the store does not work."""
        found = self.look([name, MARK])
        self.unlock([name, MARK], found)
        if not any(found):
            self.check()
        return found[0]

    def load(self, name: bytes, count: int) -> bytearray | None:
        """The object, which has `count` bytes, or None if it is missing. Some adapters (resp) hang
        if a missing object is loaded. Fails if the store does not work."""
        names, data = [name, MARK], bytearray(count)
        found = self.look(names)
        try:
            if found[0]:
                memory = self.memory(data)
                task = self.adapter.submit_load_task([self.key(name)], [memory])
                bits = self.wait(lambda: self.adapter.query_load_result(task), memory)
                if bits.test(0):
                    return data
        finally:
            self.unlock(names, found)
        if found[0] or not found[1]:
            self.check()
        return None

    def check(self) -> None:
        """Fails if the store does not work."""
        found = self.look([MARK])
        self.unlock([MARK], found)
        if found[0]:
            return
        try:
            self.store(MARK, bytearray(MARK))
        except OSError as e:
            self.broken.set()
            raise OSError(errno.ECONNREFUSED, "LMCache's store does not work") from e

    def delete(self, name: bytes) -> None:
        self.adapter.delete([self.key(name)])

    def keys(self) -> Iterator[bytes]:
        cursor: str | None = None
        while True:
            page = self.adapter.list_l2_keys(self.model, 500, cursor)
            for entry in page.entries:
                yield bytes.fromhex(entry.key.chunk_hash_hex)
            cursor = page.next_page_token
            if cursor is None:
                return


def read_config(path: str) -> dict[str, Any]:
    kvctier.check_trusted(path, "config")  # it can name code, and may contain a password
    with open(path) as f:
        try:
            config = json.load(f)
        except ValueError as e:
            raise kvctier.Refused(f"config={path} is not JSON: {e}") from e
    if not isinstance(config, dict) or not isinstance(config.get("type"), str):
        raise kvctier.Refused(f'config={path} is not an object with a "type"')
    return config


class LMCache:
    def __init__(self, options: kvctier.Options):
        if unknown := set(options) - {"config", "model", "list", "insecure"}:
            raise kvctier.Refused(f"the option {min(unknown)}= is unknown; the options are config, "
                                  "model, list, insecure and venv")
        self.config, self.model = read_config(options["config"]), options.get("model", "kvcachefs")
        if (self.config["type"] == "mooncake_store" and not options.sealed
                and options.get("insecure") != "1"):
            raise kvctier.Refused("anyone who reaches Mooncake's ports can read and change the "
                                  "values: mount with keyfile=, or give insecure=1")
        if not importlib.util.find_spec("lmcache"):
            raise kvctier.Refused("LMCache is not installed: install lmcache, and give venv=FOLDER")
        os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")  # it would report to the internet
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
        if options.get("list") == "1":
            self.list = self.names
        self.patience, self.change = options.deadline, threading.Condition()
        self.adapter: Adapter | None = None
        self.why = ""  # the adapter cannot be made
        threading.Thread(target=self.keep_adapter, daemon=True).start()

    def set_adapter(self, adapter: Adapter | None, why: str) -> None:
        with self.change:
            self.adapter, self.why = adapter, why
            self.change.notify_all()

    def keep_adapter(self) -> None:
        """Makes an adapter, and another one when it is broken."""
        said, pause = "", AGAIN_S
        while True:
            try:
                adapter = Adapter(self.config, self.model, self.patience)
            except Exception as e:
                why = (f"LMCache's adapter {self.config['type']} does not work: "
                       f"{type(e).__name__}: {e}")
                self.set_adapter(None, why)
                if why != said:
                    print(why, flush=True)
                said = why
                time.sleep(pause)
                pause = min(2 * pause, AGAIN_MOST_S)
                continue
            if said:
                print("LMCache's adapter works again", flush=True)
            said, pause = "", AGAIN_S
            self.set_adapter(adapter, "")
            adapter.broken.wait()
            self.set_adapter(None, "LMCache's store does not work")
            adapter.closed = True

    def working(self) -> Adapter:
        until = time.monotonic() + self.patience
        with self.change:
            while not self.adapter:
                if self.why:
                    raise OSError(errno.ECONNREFUSED, self.why)
                if not self.change.wait(max(until - time.monotonic(), 0)):
                    raise TimeoutError(errno.ETIMEDOUT, "LMCache is still being imported")
            return self.adapter

    @staticmethod
    def head(a: Adapter, key: bytes) -> tuple[int, int, bytearray] | None:
        """The length of the value, the tag of its rest, and the first object."""
        data = a.load(key, FIRST)
        if data is None:
            return None
        magic, length, tag = HEAD.unpack_from(data)
        if magic != MAGIC or length > kvctier.VALUE_MAX:
            raise OSError(errno.EBADMSG, "not an object of this program")
        return length, tag, data

    def get(self, key: bytes, offset: int, room: memoryview) -> int:
        a = self.working()
        for _ in range(2):  # the value may be replaced between the two loads
            if not (head := self.head(a, key)):
                break
            length, tag, data = head
            count = max(min(len(room), length - offset), 0)
            first = data[HEAD.size + offset:HEAD.size + min(offset + count, ROOM)]
            room[:len(first)] = first
            if len(first) == count:
                return count
            rest = a.load(rest_name(key, tag), length - ROOM)
            if rest is not None:
                at = offset + len(first) - ROOM
                room[len(first):count] = memoryview(rest)[at:at + count - len(first)]
                return count
        raise KeyError(key)

    def put(self, key: bytes, data: memoryview, expiry_ms: int) -> None:
        a, tag, old = self.working(), 0, None
        first, exists = bytearray(FIRST), a.has(key)
        if exists:
            with contextlib.suppress(OSError):
                old = self.head(a, key)
        if len(data) > ROOM:
            tag = 1 + secrets.randbelow((1 << 64) - 1)
            a.store(rest_name(key, tag), bytearray(data[ROOM:]))
        HEAD.pack_into(first, 0, MAGIC, len(data), tag)
        first[HEAD.size:HEAD.size + min(len(data), ROOM)] = data[:ROOM]
        if exists and a.deletes:
            a.delete(key)
        a.store(key, first)
        if exists and not a.deletes and a.load(key, FIRST) != first:
            raise OSError(errno.EROFS, "this adapter of LMCache neither replaces nor deletes")
        if old and old[1] and a.deletes:
            a.delete(rest_name(key, old[1]))

    def delete(self, key: bytes) -> None:
        a, tag = self.working(), 0
        try:
            if not (head := self.head(a, key)):
                raise KeyError(key)
            tag = head[1]
        except OSError as e:
            if e.errno != errno.EBADMSG:
                raise
        if not a.deletes:  # an empty value means a missing one
            self.put(key, memoryview(b""), 0)
            return
        a.delete(key)  # it reports no failure
        if a.has(key):
            raise OSError(errno.EIO, "LMCache's adapter cannot delete this value")
        if tag:
            a.delete(rest_name(key, tag))

    def names(self) -> Iterator[bytes]:
        return (n for n in self.working().keys() if len(n) == 16)


def rest_name(key: bytes, tag: int) -> bytes:
    return key + tag.to_bytes(8, "little")


if __name__ == "__main__":
    kvctier.serve(LMCache, threads=THREADS, deadlines=True)
