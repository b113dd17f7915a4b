# SPDX-License-Identifier: Apache-2.0
"""router_events.py MOUNT KVCACHECTL: compares the messages of kvcachectl events --zmq with those of
vLLM. vLLM's own classes make the events of the same stored and removed blocks, and vLLM's own
publisher sends them. All frames must be equal: the topic, the sequence number and the batch. vLLM's
batch gets the time of ours. vLLM's decoder, as a router uses it, must read the messages. The hashes
are numbers in the first round, and bytes in the second. Dynamo's decoder reads the messages of a
third round. The last line is "same"."""

import hashlib, os, socket, subprocess, sys, threading, time

mount, kvcachectl = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_vllm

tiny_vllm.mend_llvmlite()
import msgspec, zmq
from vllm.config import KVEventsConfig
from vllm.distributed import kv_events
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import events as offloading
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.kv_offload.base import (
    Locality,
    Medium,
    OffloadingEvent,
    OffloadingKVEventsConfig,
    make_offload_key,
)

GROUP, TOKENS = 1, 256
HASHES = [hashlib.sha256(b"%d" % i).digest() for i in range(3)]
PLACES = ((Medium.CPU, None, None), (Medium.STORAGE, Locality.LOCAL, "kvcachefs/disk"))
context = zmq.Context()
tracker = offloading.OffloadingEventsTracker(OffloadingKVEventsConfig(True, False))


def file(i):
    h = HASHES[i].hex()
    return f"{mount}/m_0123456789ab_r0/{h[:3]}/{h[3:5]}_g{GROUP}/{h}.bin"


def store(i):
    os.makedirs(os.path.dirname(file(i)), exist_ok=True)
    with open(file(i), "wb") as f:
        f.write(b"kv" * 4096)
    parent = file(i - 1).removeprefix(mount) if i else ""
    os.setxattr(file(i), "user.kvcachefs.parent", parent.encode())


def theirs(i, removed, medium, locality, owner):
    """vLLM's own event of this block. In a store, vLLM leaves the parent and the size out, because
    its file tier does not know them."""
    key = make_offload_key(BlockHash(HASHES[i]), GROUP)
    one = OffloadingEvent([key], medium, removed, locality=locality, ownership=owner)
    (event,) = tracker.take_events([one])
    if not removed:
        parent = maybe_convert_block_hash(BlockHash(HASHES[i - 1])) if i else None
        event = msgspec.structs.replace(event, parent_block_hash=parent, block_size=TOKENS)
    return event


def subscriber(address):
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"kv-events")
    socket.connect(address)
    return socket


def compare(messages, address, expected):
    """Sends the events of each message through vLLM's publisher, and compares the frames."""
    publisher = kv_events.EventPublisherFactory.create(
        KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=address, topic="kv-events"
        ),
        0,
    )
    socket = subscriber(address)
    decoder = msgspec.msgpack.Decoder(type=kv_events.KVEventBatch)
    first = int.from_bytes(messages[0][1], "big")
    try:
        # vLLM's publisher loses messages that it sends before it knows the subscriber
        sent, number = 0, -1
        while number != sent - 1 or not sent:
            if number < 0:
                publisher.publish(kv_events.KVEventBatch(ts=0.0, events=[]))
                sent += 1
            if socket.poll(100):
                number = int.from_bytes(socket.recv_multipart()[1], "big")
        for n, frames in enumerate(messages):
            batch = decoder.decode(frames[2])
            events = [expected[kind_of(e)] for e in batch.events]
            publisher.publish(kv_events.KVEventBatch(ts=batch.ts, events=events))
            topic, number, payload = socket.recv_multipart()
            assert topic == frames[0] and payload == frames[2], (payload.hex(), frames[2].hex())
            assert int.from_bytes(number, "big") == sent + n
            assert frames[1] == (first + n).to_bytes(len(number), "big"), (frames[1], number)
    finally:
        publisher.shutdown()
        socket.close()


def kind_of(event):
    """Names the block, the place and the kind of an event."""
    assert isinstance(event, (kv_events.BlockStored, kv_events.BlockRemoved)), event
    (number,) = event.block_hashes
    return number, event.medium, isinstance(event, kv_events.BlockRemoved)


def round_of(name, *options):
    """Returns the number of compared events and bytes."""
    for i in range(3):
        store(i)
    expected = {}
    for i in range(3):
        for place in PLACES:
            for removed in False, True:
                event = theirs(i, removed, *place)
                expected[kind_of(event)] = event
    address = f"ipc://{mount}.{name}"
    socket = subscriber(address)
    decoder = msgspec.msgpack.Decoder(type=kv_events.KVEventBatch)
    command = [kvcachectl, "events", "--zmq", address, "--topic", "kv-events"]
    publisher = subprocess.Popen([*command, "--tokens", str(TOKENS), *options, mount])
    messages, seen = [], set()

    def read(until):
        end = time.monotonic() + 120
        while not until <= seen:
            assert time.monotonic() < end, (until - seen)
            if socket.poll(100):
                messages.append(socket.recv_multipart())
                seen.update(map(kind_of, decoder.decode(messages[-1][2]).events))

    try:
        read({k for k in expected if not k[2]})
        os.unlink(file(2))
        last = maybe_convert_block_hash(BlockHash(HASHES[2]))
        read({k for k in expected if k[2] and k[0] == last})
    finally:
        publisher.terminate()
    assert publisher.wait() == 0
    socket.close()
    compare(messages, f"ipc://{mount}.{name}-vllm", expected)
    size = sum(len(m[2]) for m in messages)
    print(f"{name}: {len(messages)} messages, {len(seen)} events, {size} bytes", flush=True)


def dynamo():
    """Dynamo's indexer keeps only blocks with tokens, and logs the size of each other block that it
    decodes, if the block is of group 0. A new subscriber receives all blocks, so no event is
    missed."""
    path = file(0).replace(f"_g{GROUP}/", "_g0/")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"kv" * 4096)
    address = f"ipc://{mount}.dynamo"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    indexer = [sys.executable, "-m", "dynamo.indexer", "--port", port, "--threads", 1]
    indexer += ["--block-size", TOKENS, "--workers", f"1={address}", "--model-name", "m"]
    publisher = subprocess.Popen(
        [kvcachectl, "events", "--zmq", address, "--tokens", str(TOKENS), mount]
    )
    reader = subprocess.Popen(
        [str(w) for w in indexer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    limit = threading.Timer(300, reader.kill)
    limit.start()
    said = []
    try:
        for line in reader.stdout:
            said.append(line)
            assert "decode" not in line and "ERROR" not in line, line
            if f"token_ids too short: need {TOKENS}, got 0" in line:
                print("Dynamo: decoded", flush=True)
                return
        raise AssertionError(f"Dynamo's indexer decoded no block: {said[-3:]}")
    finally:
        limit.cancel()
        reader.kill()
        publisher.terminate()
        reader.wait()
        publisher.wait()


os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1"
round_of("numbers")
os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
round_of("bytes", "--bytes")
dynamo()
print("same")
