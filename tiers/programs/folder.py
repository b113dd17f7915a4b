#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tier in a folder, as an example of kvctier.py: each value is a file. kvcachefs-ext(7) shows how
to mount it. For real use, dir:// is better."""
import os
import kvctier


class Folder:
    def __init__(self, options):
        self.folder = options["folder"]
        os.listdir(self.folder)  # fails now if the folder does not exist

    def path(self, key):
        return f"{self.folder}/{key.hex()}"

    def get(self, key, offset, room):
        with open(self.path(key), "rb", buffering=0) as f:
            return os.preadv(f.fileno(), [room], offset)

    def put(self, key, data, expiry_ms):
        temporary = f"{self.path(key)}.{os.urandom(8).hex()}"  # other nodes may share the folder
        with open(temporary, "wb") as f:
            f.write(data)
        os.rename(temporary, self.path(key))

    def delete(self, key):
        os.unlink(self.path(key))

    def list(self):
        return (bytes.fromhex(n) for n in os.listdir(self.folder) if len(n) == 32)

    def used(self):
        v = os.statvfs(self.folder)
        return (v.f_blocks - v.f_bfree) * v.f_frsize, v.f_blocks * v.f_frsize


if __name__ == "__main__":
    kvctier.serve(Folder)
