# SPDX-License-Identifier: Apache-2.0
"""Files that look like KV caches, for cases with a lossy codec. The keys of a head have means, the
values have none. A file consists of pages, each drawn from a small set. Decodings says whether a
file has bytes that it may have after a lossy codec."""
import array, hashlib, math, random, struct

LAYOUT = "bf16 p* k2 t16 h2 d64"
PAGE = 2 * 16 * 2 * 64 * 2  # bytes
BLOCK = 1 << 20  # bytes that are coded together


def _page(r, mean):
    f = array.array("f", (r.gauss(m if key else 0, 1) for key in (True, False)
                          for t in range(16) for m in mean))
    return b"".join(x[2:] for x in struct.unpack("4s" * len(f), f.tobytes()))


_r = random.Random(7)
_mean = [(8 if d % 16 == 5 else 0.3) * _r.gauss(0, 1) for d in range(2 * 64)]
_pages = [_page(_r, _mean) for _ in range(12)]


def kv(seed, size):
    """A file of `size` bytes, of which whole pages fit the layout."""
    r = random.Random(seed)
    return b"".join(r.choice(_pages) for _ in range(-(-size // PAGE)))[:size]


def error(a, b):
    """The root mean square of the differences of two files, relative to that of the first."""
    def floats(x):
        x = x[:len(x) // 2 * 2]
        return array.array("f", b"".join(b"\0\0" + x[i:i + 2] for i in range(0, len(x), 2)))
    a, b = floats(a), floats(b)
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / (sum(x * x for x in a) or 1))


_AT = range(5, PAGE // 2, 61)  # some elements of a page
_marks = None


def _elements(page):
    b = struct.unpack(f"<{PAGE // 2}H", page)
    return struct.unpack(f"<{len(_AT)}f", struct.pack(f"<{len(_AT)}I", *(b[i] << 16 for i in _AT)))


def written(data):
    """The bytes of a file of kv() before a lossy codec changed them: each page becomes the page of
    kv() that it resembles. Pages that resemble none, and the rest, are returned as they are."""
    global _marks
    _marks = _marks or [_elements(p) for p in _pages]
    out = []
    for at in range(0, len(data), PAGE):
        page = data[at:at + PAGE]
        if len(page) == PAGE and page not in _pages:
            e = _elements(page)
            far = [sum((x - y) ** 2 for x, y in zip(e, m)) / sum(y * y for y in m) for m in _marks]
            best = min(range(len(far)), key=far.__getitem__)
            if far[best] < 0.2 ** 2 and error(_pages[best], page) < 0.2:
                page = _pages[best]
        out.append(page)
    return b"".join(out)


def near(data, got):
    """Whether each page of `got` resembles that page of a file of kv(), and all other bytes are
    equal. Looks at some elements of each page."""
    end = len(data) // PAGE * PAGE
    if len(got) != len(data) or got[end:] != data[end:]:
        return False
    for at in range(0, end, PAGE):
        a, b = (_elements(x[at:at + PAGE]) for x in (data, got))
        if not sum((x - y) ** 2 for x, y in zip(a, b)) <= 0.2 ** 2 * sum(x * x for x in a):
            return False
    return True


class Decodings:
    """The bytes that files with a lossy codec may have: those that were written, or one decoding of
    them, which is the same on all nodes and for ever. `of` names the written bytes (and the layout,
    if several fit). `reader` is a file on a node: after it had the decoded bytes, it never has the
    written ones again."""

    def __init__(self):
        self.of, self.returned = {}, set()

    def learn(self, of, decoded, reader=None):
        """Another process saw the decoded bytes, which have this digest."""
        assert self.of.setdefault(of, decoded) == decoded, f"{of} was decoded to different bytes"
        self.returned.add((reader, of))

    def holds(self, of, data, got, reader=None):
        """Whether the reader may get these bytes of a file into which `data` was written."""
        if got == data:
            return (reader, of) not in self.returned
        digest = self.digest(got)
        if self.of.get(of, digest) != digest or of not in self.of and not near(data, got):
            return False
        self.of[of] = digest
        self.returned.add((reader, of))
        return True

    def within(self, data, got, told):
        """Whether the errors of the file and of its blocks are not above those that the attribute
        user.kvcachefs.error (`told`) reports. That of keys is relative to their differences from
        the means, so that it is greater than the one computed here."""
        whole, worst = map(float, told.split())
        blocks = (error(data[at:at + BLOCK], got[at:at + BLOCK])
                  for at in range(0, len(data), BLOCK))
        return 0 < error(data, got) <= whole <= worst and max(blocks) <= worst

    @staticmethod
    def digest(data):
        return hashlib.blake2b(data, digest_size=16).hexdigest()
