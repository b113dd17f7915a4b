# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachectl events --zmq publishes stores as vLLM's KV cache events, with the hash from the file
name and the medium of the tier, byte for byte as vLLM's publisher does. A new subscriber is told
about existing blocks. Every kind of removal is published for each tier that had the block, and
other files are not published. The case covers both formats of events and of hashes, and an address
that cannot be bound, which is reported in one line."""
import errno, json
from kvtest import *

need_mount()
LISTEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../lib/zmq_listen.py")
PYTHON = next((p for p in (sys.executable, "/usr/bin/python3")
               if os.path.exists(p) and not run(p, "-c", "import zmq, msgpack").returncode), None)
if not PYTHON:
    skip("needs python3-zmq and python3-msgpack")
s = Store(size="128M", cpu="64M", options="commit=5,settle=5")
s.mount()
H = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(4)]
VLLM = lambda h: f"org_m_0123456789ab_r0/{h[:3]}/{h[3:5]}_g2/{h}.bin"
SGLANG = lambda h: f"kv/{h}_org-m_0_1.bin"
LAST = lambda h: int(h[-16:], 16)
# The events of H[0] in group 2, as msgspec encodes the classes of vllm/distributed/kv_events.py of
# vLLM 0.32.0 (no later version was compared): stored in CPU, stored in STORAGE, removed from
# STORAGE.
AS_VLLM = [
    "89a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf6729d73a27fb57e9b170617265"
    "6e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0"
    "a66d656469756da3435055a96c6f72615f6e616d65c0a967726f75705f69647802",
    "8ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf6729d73a27fb57e9b170617265"
    "6e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0"
    "a66d656469756da753544f52414745a96c6f72615f6e616d65c0a967726f75705f69647802a86c6f63616c697479"
    "a54c4f43414ca96f776e657273686970ae6b76636163686566732f6469736b",
    "86a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf6729d73a27fb57e9a66d6564"
    "69756da753544f52414745a967726f75705f69647802a86c6f63616c697479a54c4f43414ca96f776e6572736869"
    "70ae6b76636163686566732f6469736b",
]


class Pair:
    """A publisher and a subscriber."""

    def __init__(self, *options):
        self.at = f"ipc://{TMP}/z{id(self)}"
        self.ctl = subprocess.Popen([binary("kvcachectl"), "events", "--zmq", self.at, *options,
                                     s.mnt], stderr=subprocess.PIPE)
        self.listen()

    def listen(self):
        self.sub = subprocess.Popen([PYTHON, LISTEN, self.at, "connect"], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE)
        os.set_blocking(self.sub.stdout.fileno(), False)
        self.text, self.messages = b"", []

    def events(self):
        self.text += self.sub.stdout.read() or b""
        lines, _, self.text = self.text.rpartition(b"\n")
        self.messages += [json.loads(l) for l in lines.splitlines()]
        return [e for m in self.messages for e in m[2][1]]

    def has(self, *wanted):
        def there():
            self.seen = [(e["type"], e["block_hashes"][0], e["medium"]) for e in self.events()]
            return all(w in self.seen for w in wanted)
        wait_for(there)
        return self.seen

    def quiet(self):
        self.sub.stdin.close()
        assert self.sub.wait() == 0

    def end(self):
        self.quiet()
        self.ctl.send_signal(signal.SIGINT)
        assert self.ctl.wait() == 0, self.ctl.stderr.read()


def store(path):
    """Stores a file as engines do."""
    s.write(path + ".tmp", b"kv" * 3000)
    s.closed()
    os.rename(f"{s.mnt}/{path}.tmp", f"{s.mnt}/{path}")
    s.settle()


S, R = "BlockStored", "BlockRemoved"
store(VLLM(H[0]))
store("notes/README.bin")
p = Pair("--topic", "kv")

# every new subscriber is told about existing blocks
p.has((S, LAST(H[0]), "CPU"), (S, LAST(H[0]), "STORAGE"))
assert all(h == LAST(H[0]) for _, h, _ in p.seen), p.seen
e = p.events()[0]
assert e == {"type": S, "block_hashes": [LAST(H[0])], "parent_block_hash": None, "token_ids": [],
             "block_size": 0, "lora_id": None, "medium": "CPU", "lora_name": None,
             "group_idx": 2}, e
topic, number, (at, _, rank), _ = p.messages[0]
wire = "".join(m[3] for m in p.messages)
assert AS_VLLM[0] in wire and AS_VLLM[1] in wire, wire
assert topic == "kv" and rank == 0 and abs(at - time.time()) < 600
p.quiet()
p.listen()
p.has((S, LAST(H[0]), "CPU"), (S, LAST(H[0]), "STORAGE"))

# stored under another name first; evicted and loaded; replaced; deleted
store(SGLANG(H[1]))
p.has((S, LAST(H[1]), "CPU"), (S, LAST(H[1]), "STORAGE"))
assert "group_idx" not in [e for e in p.events() if e["block_hashes"] == [LAST(H[1])]][0]
os.setxattr(f"{s.mnt}/{SGLANG(H[1])}", "user.kvcachefs.demote", b"cpu")
p.has((R, LAST(H[1]), "CPU"))
before = len(p.events())
s.read(SGLANG(H[1]))
wait_for(lambda: any(e["type"] == S and e["medium"] == "CPU" for e in p.events()[before:]))
os.rename(f"{s.mnt}/{SGLANG(H[1])}", f"{s.mnt}/{SGLANG(H[2])}")
p.has((R, LAST(H[1]), "STORAGE"), (S, LAST(H[2]), "CPU"), (S, LAST(H[2]), "STORAGE"))
os.unlink(f"{s.mnt}/{SGLANG(H[2])}")
p.has((R, LAST(H[2]), "CPU"), (R, LAST(H[2]), "STORAGE"))
numbers = [m[1] for m in p.messages]
assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers

# a folder with a block is renamed to a path where engines look
store(f"away/{VLLM(H[3])}")
p.has((S, LAST(H[3]), "CPU"))
p.end()

# the older format, and whole hashes
p = Pair("--arrays", "--bytes")
DISK = ["LOCAL", "kvcachefs/disk"]
wait_for(lambda: [S, [H[0]], None, [], 0, None, "STORAGE", None, None, 2, None, None, *DISK]
         in p.events())
wait_for(lambda: [S, [H[0]], None, [], 0, None, "CPU", None, None, 2] in p.events())
store(SGLANG(H[1]))
wait_for(lambda: [S, [H[1]], None, [], 0, None, "STORAGE", None, None, None, None, None, *DISK]
         in p.events())
os.unlink(f"{s.mnt}/{SGLANG(H[1])}")
wait_for(lambda: [R, [H[1]], "STORAGE", None, *DISK] in p.events())
wait_for(lambda: [R, [H[1]], "CPU"] in p.events())
p.end()

p = Pair()
p.has((S, LAST(H[0]), "STORAGE"))
os.unlink(f"{s.mnt}/{VLLM(H[0])}")
wait_for(lambda: p.events() and AS_VLLM[2] in "".join(m[3] for m in p.messages))
p.end()

# a shared tier is remote storage with another owner
s.umount()
os.mkdir(f"{TMP}/shared")
s.mount(f"remote=dir://{TMP}/shared")
p = Pair()
store(VLLM(H[0]))
wait_for(lambda: {("LOCAL", "kvcachefs/disk"), ("REMOTE", "kvcachefs/dir")} <= {
    (e["locality"], e["ownership"]) for e in p.events() if e["medium"] == "STORAGE"})
p.end()

# the parent that a client set, and the size of a block
FILE = lambda h: f"m_0123456789ab_r0/{h[:3]}/{h[3:5]}_g0/{h}.bin"
for h in H[:3]:
    store(FILE(h))
os.setxattr(f"{s.mnt}/{FILE(H[1])}", "user.kvcachefs.parent", b"/" + FILE(H[0]).encode())
os.setxattr(f"{s.mnt}/{FILE(H[2])}", "user.kvcachefs.parent", b"/notes/README.bin")
assert s.attr(FILE(H[1]), "parent_by") == "client"
with fails(errno.ENODATA):
    s.attr(FILE(H[0]), "parent_by")
p = Pair("--tokens", "256")
want = {LAST(H[0]): None, LAST(H[1]): LAST(H[0]), LAST(H[2]): None}
wait_for(lambda: {e["block_hashes"][0]: e["parent_block_hash"] for e in p.events()
                  if e["type"] == S and e["group_idx"] == 0} == want)
assert {e["block_size"] for e in p.events() if e["type"] == S} == {256}
p.end()
p = Pair("--bytes")
wait_for(lambda: (H[1], H[0]) in [(e["block_hashes"][0], e["parent_block_hash"])
                                  for e in p.events()])
p.end()
for wrong in "0", "x", "-1", "1.5", "9" * 10:
    p = run(binary("kvcachectl"), "events", "--zmq", "ipc://x", "--tokens", wrong, s.mnt)
    assert p.returncode == 2 and "number of tokens" in p.stdout, p

p = run(binary("kvcachectl"), "events", "--zmq", "nowhere", s.mnt)
assert p.returncode == 1 and p.stdout.startswith("kvcachectl: --zmq nowhere: "), p
assert len(p.stdout.splitlines()) == 1, p
p = run(binary("kvcachectl"), "events", "--arrays", s.mnt)
assert p.returncode == 2 and "--zmq" in p.stdout, p
s.umount()
print("ok")
