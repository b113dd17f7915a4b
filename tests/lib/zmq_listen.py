# SPDX-License-Identifier: Apache-2.0
"""zmq_listen.py ADDRESS connect|bind: prints the KV cache events that arrive, one JSON list per
message: the topic, the number, the batch, and the batch's bytes in hex. Ends with its stdin."""
import json, sys, threading
import msgpack, zmq


def plain(x):
    if isinstance(x, bytes):
        return x.hex()
    return ([plain(i) for i in x] if isinstance(x, list) else
            {plain(k): plain(v) for k, v in x.items()} if isinstance(x, dict) else x)


context = zmq.Context()
s = context.socket(zmq.SUB)
getattr(s, sys.argv[2])(sys.argv[1])
s.subscribe(b"")
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.is_set():
    if s.poll(100):
        topic, number, batch = s.recv_multipart()
        print(json.dumps([topic.decode(), int.from_bytes(number, "big"),
                          plain(msgpack.unpackb(batch)), batch.hex()]), flush=True)
