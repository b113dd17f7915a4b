# SPDX-License-Identifier: Apache-2.0
"""router_events.py MOUNT KVCACHECTL: checks that vLLM's own decoder, as a router uses it, reads the
events of kvcachectl events --zmq: blocks in the pool and on disk, their parents and their removal.
The last line is "read"."""

import hashlib, os, subprocess, sys, time

mount, kvcachectl = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_vllm

tiny_vllm.mend_llvmlite()
import msgspec, zmq
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch

HASHES = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(3)]
NUMBERS = [int(h[-16:], 16) for h in HASHES]
FILES = [f"{mount}/m_0123456789ab_r0/{h[:3]}/{h[3:5]}_g1/{h}.bin" for h in HASHES]
ADDRESS = f"ipc://{mount}.events"

for i, path in enumerate(FILES):
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as f:
        f.write(b"kv" * 4096)
    parent = FILES[i - 1].removeprefix(mount) if i else ""
    os.setxattr(path, "user.kvcachefs.parent", parent.encode())
socket = zmq.Context().socket(zmq.SUB)
socket.subscribe(b"kv-events")
socket.connect(ADDRESS)
publisher = subprocess.Popen(
    [kvcachectl, "events", "--zmq", ADDRESS, "--topic", "kv-events", "--tokens", "256", mount]
)
decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
stored, removed, numbers = {}, set(), []


def read(until):
    end = time.monotonic() + 120
    while not until():
        assert time.monotonic() < end, (stored, removed)
        if not socket.poll(100):
            continue
        topic, number, payload = socket.recv_multipart()
        numbers.append(int.from_bytes(number, "big"))
        for e in decoder.decode(payload).events:
            if isinstance(e, BlockStored):
                assert (e.block_size, e.token_ids, e.group_idx) == (256, [], 1), e
                (number,) = e.block_hashes
                stored[number, e.medium, getattr(e, "locality", None)] = e.parent_block_hash
            else:
                assert isinstance(e, BlockRemoved), e
                removed.add((*e.block_hashes, e.medium))


try:
    everywhere = [("CPU", None), ("STORAGE", "LOCAL")]
    read(lambda: all((n, *where) in stored for n in NUMBERS for where in everywhere))
    for i, number in enumerate(NUMBERS):
        for where in everywhere:
            assert stored[number, *where] == (NUMBERS[i - 1] if i else None), stored
    os.unlink(FILES[2])
    read(lambda: {(NUMBERS[2], "CPU"), (NUMBERS[2], "STORAGE")} <= removed)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
finally:
    publisher.terminate()
assert publisher.wait() == 0
print("read")
