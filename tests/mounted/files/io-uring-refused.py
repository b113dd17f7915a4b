# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""If a seccomp filter refuses io_uring, all its calls or one of them, by an error or by a signal,
or if too few descriptors are allowed for it, requests are read from /dev/fuse, and the config and
the log say so and why."""
import ctypes, errno, os, platform, resource, struct
from kvtest import *

if not os.path.exists("/sys/module/fuse/parameters/enable_uring") \
        or open("/sys/module/fuse/parameters/enable_uring").read().strip() != "Y":
    skip("io_uring is not enabled: there is nothing to refuse")
CALLS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
ERRNO, KILL, ALLOW = 0x00050000, 0x80000000, 0x7fff0000
LIBC = ctypes.CDLL(None, use_errno=True)


def refuse(numbers, action):
    """For this process and its children: these system calls end with this action."""
    f = [(0x20, 0, 0, 0)]
    for n in numbers:
        f += [(0x15, 0, 1, n), (6, 0, 0, action)]
    f += [(6, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *x) for x in f))
    prog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(f), ctypes.addressof(code)))
    assert not LIBC.prctl(22, 2, prog, 0, 0), os.strerror(ctypes.get_errno())


def mounted(name, before, why):
    """Checks that the mount reads requests from /dev/fuse, and reports why."""
    s = Store(name, size="64M", cpu="32M")
    start = len(s.log()) if os.path.exists(LOG) else 0
    child = os.fork()
    if not child:
        try:
            before()
            s.mount()
            config = s.config()
            assert config["requests_by"] == "/dev/fuse", config
            assert why in config["io_uring_is_off"], config["io_uring_is_off"]
            assert "requests by io_uring" not in s.log()[start:]
            s.write("m/c/l", b"served")
            assert s.read("m/c/l") == b"served"
            s.umount()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name


for call, number in CALLS.items():
    mounted(call, lambda: refuse([number], ERRNO | errno.EPERM), f"{call} is refused")
mounted("all", lambda: refuse(CALLS.values(), ERRNO | errno.ENOSYS), "io_uring_setup is refused")
mounted("killed", lambda: refuse(CALLS.values(), KILL), "was killed")
mounted("files", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)), "descriptors")
