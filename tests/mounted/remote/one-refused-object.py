# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A server that refuses one object (an S3 service that answers 403 or 500, a Redis with a value of
another type or without permission) has not failed: all other objects are read, however often that
object is requested. A refusal of all objects is a failure of the server and suspends the tier."""
import os
from fakes import Redis, S3
from kvtest import KiB, Store, blob, wait_for
import frames

os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "x"
FILES = 12
data = {f"m/c{i}/l": blob(i, 20 * KiB) for i in range(FILES)}
name = {path: frames.name_of(path) for path in data}
refused, answer = set(), None


def is_refused(key):
    return any(name[p] in key for p in refused)


def s3_says(fake, command, path):
    return (answer, b"<Error/>") if command == "GET" and is_refused(path) else None


def redis_says(fake, words, address):
    key = words[1].decode() if len(words) > 1 else ""
    return b"-%s\r\n" % answer if words[0] == b"GETRANGE" and is_refused(key) else None


def failing(s, paths, times=1):
    for path in list(paths) * times:
        try:
            s.read(path)
        except OSError:
            continue
        raise AssertionError(f"{path} was read")


for kind, url, answers in (
        ("s3", f"s3://b/p?endpoint={S3(s3_says).endpoint}", (403, 500)),
        ("redis", f"redis://127.0.0.1:{Redis(redis_says).port}/kv",
         (b"WRONGTYPE Operation against a key holding the wrong kind of value",
          b"NOPERM No permissions to access a key"))):
    b = Store(kind, size="32M", options=f"settle=0,deadline=1500,disk=off,remote={url}").mount()
    for path, d in data.items():
        b.write(path, d)
    b.settle()
    for answer in answers:
        b.umount()
        b.mount()
        paths = list(data)
        refused = set(paths[1:2])
        failing(b, refused, 8)
        for path in paths[2:4]:
            assert b.read(path) == data[path], (answer, path)
        st = b.stats()
        assert st["tier_errors"] >= 8, st
        assert st["breaker_opened"] == 0 and st["corrupt"] == 0, (answer, st)
        refused = set(paths[5:])
        failing(b, sorted(refused))
        assert b.stats()["breaker_opened"] == 1, (answer, b.stats())
        refused = set()

        def back():
            try:
                return b.read(paths[5]) == data[paths[5]]
            except OSError:
                return False

        wait_for(back)
        print(kind, answer, "of one leaves", FILES - 1)
    b.umount()
