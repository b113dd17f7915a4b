# SPDX-License-Identifier: Apache-2.0
"""A stand-in for LMCache's L2 adapters, with the calls that tiers/programs/lmcache_l2.py makes.
Objects are files in the folder `objects` beside the program. As LMCache's, the adapters skip keys
that exist; a load of a missing object hangs, and a failed store, lookup or load looks like a
missing object. "keeps" replaces objects and cannot delete. The text of the file `mood` beside the
program changes the calls: "dead" makes each fail; in "hang" none is completed."""
import os, threading, time

HERE = os.path.abspath(__file__).split("/lmcache/")[0]


def mood():
    try:
        with open(f"{HERE}/mood") as f:
            return f.read()
    except FileNotFoundError:
        return ""


class Bits(list):
    def test(self, i):
        return self[i]


class Stored(int):
    def is_successful(self):
        return bool(self)


class L2AdapterInterface:
    def delete(self, keys):
        """Does nothing, as in LMCache."""

    def list_l2_keys(self, model, page_size, cursor):
        raise NotImplementedError


class Keeps(L2AdapterInterface):
    replaces = True

    def __init__(self):
        os.makedirs(f"{HERE}/objects", exist_ok=True)
        if mood() == "dead":
            raise RuntimeError("the store refuses connections")
        self.fds = [os.eventfd(0) for _ in range(3)]
        self.done, self.number, self.lock = ({}, {}, {}), 0, threading.Lock()

    def get_store_event_fd(self):
        return self.fds[0]

    def get_lookup_and_lock_event_fd(self):
        return self.fds[1]

    def get_load_event_fd(self):
        return self.fds[2]

    def path(self, key):
        return f"{HERE}/objects/{key.model_name}.{key.chunk_hash.hex()}"

    def start(self, kind, work):
        with self.lock:
            self.number += 1
            task = self.number

        def run():
            while mood() == "hang":
                time.sleep(0.01)
            got = work()
            if got is not None:
                self.done[kind][task] = got
                os.eventfd_write(self.fds[kind], 1)
        threading.Thread(target=run, daemon=True).start()
        return task

    def submit_store_task(self, keys, objects):
        def work():
            if mood() == "dead":
                return Stored(0)
            if self.replaces or not os.path.exists(self.path(keys[0])):
                temporary = f"{self.path(keys[0])}.{os.urandom(8).hex()}"
                with open(temporary, "wb") as f:
                    f.write(objects[0].byte_array)
                os.rename(temporary, self.path(keys[0]))
            return Stored(1)
        return self.start(0, work)

    def pop_completed_store_tasks(self):
        return {task: self.done[0].pop(task) for task in list(self.done[0])}

    def submit_lookup_and_lock_task(self, keys, layouts):
        return self.start(1, lambda: Bits(mood() != "dead" and os.path.exists(self.path(k))
                                          for k in keys))

    def query_lookup_and_lock_result(self, task):
        return self.done[1].pop(task, None)

    def submit_unlock(self, keys):
        pass

    def submit_load_task(self, keys, objects):
        def work():
            if mood() == "dead":
                return Bits([False])
            try:
                with open(self.path(keys[0]), "rb") as f:
                    return Bits([f.readinto(objects[0].byte_array) == len(objects[0].byte_array)])
            except FileNotFoundError:
                return None  # it hangs
        return self.start(2, work)

    def query_load_result(self, task):
        return self.done[2].pop(task, None)

    def close(self):
        for fd in self.fds:
            os.close(fd)


class Plain(Keeps):
    replaces = False

    def delete(self, keys):
        for key in keys:
            if mood() != "dead" and os.path.exists(self.path(key)):
                os.unlink(self.path(key))


def create_l2_adapter(config):
    return Plain() if config["type"] == "plain" else Keeps()
