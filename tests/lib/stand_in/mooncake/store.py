# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Mooncake's Python client, with the calls that tiers/programs/mooncake_store.py
makes and their results. Objects are files in the folder `objects` beside the program, so that all
nodes share them. The text of the file `mood` there changes the calls:

    dead    each call fails as without a master; setup() fails, too
    hang    each call waits until the mood changes
    late    upserts wait until the mood changes, and are done then"""
import os, time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RPC_FAIL, NOT_FOUND, INVALID = -900, -704, -600


def mood():
    try:
        with open(f"{HERE}/mood") as f:
            return f.read()
    except FileNotFoundError:
        return ""


class ReplicateConfig:
    replica_num = 1


class MooncakeDistributedStore:
    def setup(self, host, metadata, segment, buffer, protocol, devices, master):
        os.makedirs(f"{HERE}/objects", exist_ok=True)
        return RPC_FAIL if mood() == "dead" else 0

    def path(self, name):
        return f"{HERE}/objects/{name.replace('/', '%')}"

    def refused(self, moods):
        """Waits in these moods. Returns the error of the call, or 0."""
        with open(f"{HERE}/calls", "a") as f:
            f.write("x")
        while mood() in moods:
            time.sleep(0.01)
        return RPC_FAIL if mood() == "dead" else 0

    def upsert(self, name, data, config):
        if not len(data):
            return INVALID
        if code := self.refused(("hang", "late")):
            return code
        temporary = f"{self.path(name)}.{os.urandom(8).hex()}"
        with open(temporary, "wb") as f:
            f.write(data)
        os.rename(temporary, self.path(name))
        return 0

    def get_buffer(self, name):
        if self.refused(("hang",)):
            return None
        try:
            with open(self.path(name), "rb") as f:
                return f.read()
        except FileNotFoundError:
            return None

    def is_exist(self, name):
        return self.refused(("hang",)) or int(os.path.exists(self.path(name)))

    def remove(self, name, force=False):
        if code := self.refused(("hang",)):
            return code
        try:
            os.unlink(self.path(name))
            return 0
        except FileNotFoundError:
            return NOT_FOUND
