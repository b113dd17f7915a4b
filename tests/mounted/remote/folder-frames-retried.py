# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""Another node finds a file by its path although the copy of one of the file's folders failed at
first: the retry stores all folders of the path. Each number is the put that fails."""
from kvtest import Store, beside, need_mount, wait_for
import servers

need_mount()
DRIVER = """
import errno
import folder, kvctier


class Fails(folder.Folder):
    def __init__(self, options):
        super().__init__(options)
        self.puts, self.fails = 0, int(options["fails"])

    def put(self, key, data, expiry_ms):
        self.puts += 1
        if self.puts == self.fails:
            raise OSError(errno.EIO, "this put fails")
        super().put(key, data, expiry_ms)


kvctier.serve(Fails, threads=1)
"""


def found(number):
    program = servers.Program(DRIVER, f"fails{number}")
    a, b = (Store(f"{n}{number}", size="32M", options="settle=0,disk=off,remote="
                  f"{program.url()}&fails={number if n == 'a' else 0}").mount() for n in "ab")
    a.write("m/c/d/f", b"f" * 5000)
    wait_for(lambda: "ext" in a.attr("m/c/d/f", "tiers").split(","))
    assert a.stats()["spill_failures"] == 1
    assert b.read("m/c/d/f") == b"f" * 5000, number
    for s in (a, b):
        s.umount()


beside([(found, number) for number in range(1, 5)])
