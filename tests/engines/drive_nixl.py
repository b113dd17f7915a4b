# SPDX-License-Identifier: Apache-2.0
"""NIXL's POSIX plugin, used through its agent: the caller opens and registers files, and libaio,
io_uring or POSIX AIO transfers the data."""

import contextlib, os, time

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
import numpy
from client import KiB, MiB, Client, content, digest, serve, version
from nixl._api import nixl_agent, nixl_agent_config


class Posix(Client):
    name, params, flags = (
        "nixl POSIX use_aio",
        {"use_aio": "true", "use_uring": "false", "use_posix_aio": "false"},
        os.O_DIRECT,
    )

    def __init__(self, folder):
        super().__init__(folder)
        os.makedirs(folder, exist_ok=True)
        self.agent = nixl_agent(f"kv{os.getpid()}", nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", self.params)
        whole = numpy.zeros(self.size * self.batch + 4096, numpy.uint8)
        self.memory = whole[-whole.ctypes.data % 4096 :][: self.size * self.batch].reshape(
            self.batch, self.size
        )
        self.ram = self.agent.register_memory(
            [(self.memory.ctypes.data, self.memory.nbytes, 0, "ram")], "DRAM", backends=["POSIX"]
        )

    def path(self, number):
        return os.path.join(self.folder, digest(number).hex() + ".bin")

    def move(self, direction, fds, slots):
        files = self.agent.register_memory(
            [(0, self.size, fd, "") for fd in fds], "FILE", backends=["POSIX"]
        )
        try:
            ram = self.agent.get_xfer_descs(
                [(self.memory[i].ctypes.data, self.size, 0) for i in slots], "DRAM"
            )
            request = self.agent.initialize_xfer(direction, ram, files.trim(), self.agent.name)
            try:
                state = self.agent.transfer(request)
                while state not in ("DONE", "ERR"):
                    time.sleep(0.0001)
                    state = self.agent.check_xfer_state(request)
                return state == "DONE"
            finally:
                self.agent.release_xfer_handle(request)
        except Exception as e:  # the agent raises the errors of the POSIX plugin
            print(direction, e)
            return False
        finally:
            self.agent.deregister_memory(files)

    def prepare(self, numbers):
        for i, n in enumerate(numbers):
            self.memory[i] = content(n, self.size)
        self.ready = numbers

    def store(self, numbers):
        if getattr(self, "ready", None) != numbers:
            self.prepare(numbers)
        self.ready = None
        fds = []
        try:
            fds = [
                os.open(self.path(n), os.O_RDWR | os.O_CREAT | self.flags, 0o644) for n in numbers
            ]
            return [self.move("WRITE", fds, range(len(fds)))] * len(numbers)
        except OSError as e:
            print("store", e)
            return [False] * len(numbers)
        finally:
            [os.close(fd) for fd in fds]

    def load(self, numbers):
        self.memory[:] = 0
        have = {}
        try:
            for i, n in enumerate(numbers):
                with contextlib.suppress(FileNotFoundError):
                    have[i] = os.open(self.path(n), os.O_RDONLY | self.flags)
            if have and not self.move("READ", list(have.values()), list(have)):
                raise OSError("NIXL could not read")
        finally:
            [os.close(fd) for fd in have.values()]
        return [self.memory[i] if i in have else None for i in range(len(numbers))]


class Uring(Posix):
    name, params = "nixl POSIX use_uring", {
        "use_aio": "false",
        "use_uring": "true",
        "use_posix_aio": "false",
    }
    depths = (1,)


class Aio(Posix):
    name, params = "nixl POSIX use_posix_aio", {
        "use_aio": "false",
        "use_uring": "false",
        "use_posix_aio": "true",
    }
    depths = (1,)


class Buffered(Posix):
    name, flags, depths = "nixl POSIX use_aio, without O_DIRECT", 0, (1,)


serve([Posix, Uring, Aio, Buffered], version("nixl", "nixl-cu13", "nixl-cu12"))
