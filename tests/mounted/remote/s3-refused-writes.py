# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A node whose S3 service refuses writes (read-only keys, a quota, a full service, a slow-down for
writes alone) still loads everything, however many copies are refused. The copies are made when
writes are accepted again."""
import os
from kvtest import KiB, Store, blob, wait_for
from s3 import Bucket, error

os.environ.update(AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="secret")
refusal = [None]
bucket = Bucket(lambda r: refusal[0] if r.command in ("PUT", "POST") else None)
options = f"settle=0,deadline=3000,disk=off,remote={bucket.url()}"
REFUSALS = [(403, error("AccessDenied", "s3:PutObject")), (403, error("QuotaExceeded")),
            (507, error("XMinioStorageFull")), (503, error("SlowDown"))]
data = {f"m/c{i}/l": blob(i, 20 * KiB) for i in range(10 * len(REFUSALS))}
a = Store("a", options=options).mount()
for path, d in data.items():
    a.write(path, d)
a.settle()
wait_for(lambda: len(bucket.objects) >= len(data))
a.umount()
b = Store("b", options=options).mount()
left = iter(data.items())
for n, answer in enumerate(REFUSALS):
    refusal[0] = answer
    before = len(bucket.log)
    for i in range(8):
        b.write(f"own/c{n}/{i}", blob(100 + i, 10 * KiB))
    wait_for(lambda: any(s == answer[0] for *_, s in bucket.log[before:]))
    for _ in range(10):
        path, d = next(left)
        assert b.read(path) == d, (answer, path)
    refusal[0] = None
    wait_for(lambda: all("s3" in b.attr(f"own/c{n}/{i}", "tiers") for i in range(8)), every=0.1)
    print(answer[1].decode(), "of writes leaves reads alone")
assert b.stats()["corrupt"] == 0
b.umount()
