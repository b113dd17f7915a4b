#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store as a shared tier of kvcachefs, through Mooncake's own Python client:

    remote=ext:///usr/lib/kvcachefs/mooncake_store.py?master=HOST:PORT&venv=/opt/mooncake

kvcachefs-ext(7), SHIPPED PROGRAMS, describes the options. A value is an object of Mooncake, whose
name is the prefix and the key in hexadecimal digits. Mooncake has no empty objects, so an empty
value, which means a missing one, is not stored.

Anyone who reaches the ports of Mooncake can read and change all of its memory. So the program
refuses to serve a mount without keyfile=, unless the option insecure=1 is given.

Client.setup() holds Python's lock while it waits for the master. It is called once, before the
program is ready: if it fails or hangs, the daemon ends the program, and starts it again when the
tier is used. All other calls are made by threads; kvctier answers in time while they hang."""
import errno, os, socket, sys, urllib.request
from collections.abc import Iterator
from typing import Any, NoReturn
import kvctier

OPTIONS = ("master", "metadata", "protocol", "devices", "host", "segment", "buffer", "prefix",
           "replicas", "admin", "insecure")
THREADS = 8
# Mooncake's error codes; all others are errors of one value
ERRNO = {-200: errno.ENOSPC, -703: errno.EBUSY, -704: errno.ENOENT, -705: errno.EBUSY,
         -706: errno.EBUSY, -708: errno.EBUSY, -714: errno.EBUSY, -900: errno.ECONNRESET,
         -901: errno.ETIMEDOUT, -1010: errno.EBUSY}


def size(options: kvctier.Options, name: str, default: str) -> int:
    text = options.get(name, default)
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    shift = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}.get(unit)
    if not number.isdecimal() or shift is None:
        raise kvctier.Refused(f"{name}={text} is not a size such as 64M")
    return int(number) << shift


def own_address(master: str) -> str:
    """The address of this node in the network of the master. Nothing is sent."""
    host, _, port = master.rpartition(":")
    if not host or not port.isdecimal():
        raise kvctier.Refused(f"master={master} is not HOST:PORT")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host.strip("[]"), int(port),
                                                             type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as s:
            s.connect(address)
            return str(s.getsockname()[0])
    except OSError as e:  # the next access starts the program again
        sys.exit(f"no way to the master {master}: {e}")


def failed(code: int, what: str) -> NoReturn:
    raise OSError(ERRNO.get(code, errno.EIO), f"{what}: Mooncake's error {code}")


class Mooncake:
    def __init__(self, options: kvctier.Options):
        if unknown := set(options) - set(OPTIONS):
            raise kvctier.Refused(f"the option {min(unknown)}= is unknown; the options are "
                                  f"{', '.join(OPTIONS)} and venv")
        if not options.sealed and options.get("insecure") != "1":
            raise kvctier.Refused("anyone who reaches Mooncake's ports can read and change the "
                                  "values: mount with keyfile=, or give insecure=1")
        self.prefix = options.get("prefix", "kvcachefs/")
        self.admin = options.get("admin", "")
        if self.admin:  # only the master's HTTP port can list keys and tell the space
            self.list, self.used = self.list_keys, self.read_space
        # the client's own timeouts are 30 s
        os.environ.setdefault("MC_RPC_TIMEOUT_MS", str(int(options.deadline * 1000)))
        os.environ.setdefault("MC_RPC_CONNECT_TIMEOUT_MS", str(int(options.deadline * 500)))
        os.environ.setdefault("MC_STORE_CLIENT_SETUP_RETRIES", "1")  # each takes seconds
        os.environ.setdefault("MC_LOG_LEVEL", "WARNING")
        self.connect(options)

    def connect(self, options: kvctier.Options) -> None:
        master = options["master"]
        host = options.get("host") or own_address(master)
        segment, buffer = size(options, "segment", "0"), size(options, "buffer", "64M")
        replicas = options.get("replicas", "1")
        if not replicas.isdecimal() or not int(replicas):
            raise kvctier.Refused(f"replicas={replicas} is not a number above 0")
        try:
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        except ImportError as e:
            raise kvctier.Refused(f"Mooncake cannot be imported ({e}): install "
                                  "mooncake-transfer-engine, and give venv=FOLDER") from e
        self.config = ReplicateConfig()
        self.config.replica_num = int(replicas)
        self.store: Any = MooncakeDistributedStore()
        code = self.store.setup(host, options.get("metadata", "P2PHANDSHAKE"), segment, buffer,
                                options.get("protocol", "tcp"), options.get("devices", ""), master)
        if code:  # the mount goes on without it, and the next access starts the program again
            sys.exit(f"Mooncake's client cannot be set up with the master {master} (error {code})")

    def name(self, key: bytes) -> str:
        return self.prefix + key.hex()

    def get(self, key: bytes, offset: int, room: memoryview) -> int:
        name = self.name(key)
        value = self.store.get_buffer(name)
        if value is None:
            self.explain(name)
        with memoryview(value).cast("B") as data:
            count = max(min(len(room), len(data) - offset), 0)
            room[:count] = data[offset:offset + count]
        return count

    def explain(self, name: str) -> NoReturn:
        """A get has no value, and the client does not say why."""
        code = self.store.is_exist(name)
        if code == 0:
            raise KeyError(name)
        if code < 0:
            failed(code, "get")
        raise OSError(errno.EIO, "the object exists and cannot be read")

    def put(self, key: bytes, data: memoryview, expiry_ms: int) -> None:
        if not len(data):
            self.store.remove(self.name(key), True)
        elif code := self.store.upsert(self.name(key), data, self.config):
            failed(code, "put")

    def delete(self, key: bytes) -> None:
        if code := self.store.remove(self.name(key), True):
            failed(code, "delete")

    def list_keys(self) -> Iterator[bytes]:
        with urllib.request.urlopen(f"http://{self.admin}/get_all_keys", timeout=60) as lines:
            for line in lines:
                name = line.decode(errors="replace").strip()
                if name.startswith(self.prefix) and len(name) == len(self.prefix) + 32:
                    try:
                        yield bytes.fromhex(name[len(self.prefix):])
                    except ValueError:
                        pass  # a key of another program

    def read_space(self) -> tuple[int, int]:
        found = {}
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as lines:
            for line in lines:
                name, _, value = line.decode(errors="replace").rpartition(" ")
                found[name] = value
        return (int(float(found.get("master_allocated_bytes", 0))),
                int(float(found.get("master_total_capacity_bytes", 0))))


if __name__ == "__main__":
    kvctier.serve(Mooncake, threads=THREADS, deadlines=True)
