# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The answers of a remote do not determine the daemon's memory: an S3 service sends endless bodies,
errors, headers, pages and lists, and a shared folder has a file of 1 TiB in place of a frame and
200,000 foreign names. Each call ends, and the peak memory of the daemon stays within its limit."""
import os, threading
from kvtest import *
from s3 import Bucket

MOST = 64 * MiB  # maximum growth; each endless answer is several times larger
ENDLESS = 300  # MiB, then the service gives up
os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = "id", "secret"
# asan keeps freed memory, 256 MB by default
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
mode, sent, pages = [None], [0], [0]


def send(r, head, piece, status="200 OK"):
    r.wfile.write(f"HTTP/1.1 {status}\r\n".encode() + head)
    send_all(r, piece)


def send_all(r, piece):
    while sent[0] < ENDLESS * MiB:
        r.wfile.write(piece)
        sent[0] += len(piece)
    raise ConnectionAbortedError


def endless(r):
    lists = "list-type" in r.query
    close = b"Connection: close\r\n\r\n"
    if r.command != "GET" or not mode[0]:
        return None
    if mode[0] == "body":
        send(r, close, bytes(MiB))
    if mode[0] == "part":
        send(r, b"Content-Range: bytes 0-4095/4096\r\n" + close, bytes(MiB), "206 Partial Content")
    if mode[0] == "error":
        send(r, close, b"<Error><Code>" + b"x" * MiB, "500 Internal Server Error")
    if mode[0] == "header":
        send(r, b"X-Header: ", b"x" * MiB)
    if mode[0] == "status":
        r.wfile.write(b"HTTP/1.1 200 ")
        send_all(r, b"x" * MiB)
    if mode[0] == "headers":
        send(r, b"", b"X-Header: x\r\n" * 65536)
    if mode[0] == "page" and lists:
        send(r, close + b"<ListBucketResult>", b"<Contents><Key>kv/aa/x</Key></Contents>" * 8192)
    if mode[0] == "list" and lists and pages[0] < 500:  # half a million foreign names
        pages[0] += 1
        keys = b"".join(b"<Contents><Key>kv/other/%06d-%03d</Key></Contents>" % (pages[0], i)
                        for i in range(1000))
        return 200, (b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%d"
                     b"</NextContinuationToken>" % pages[0] + keys + b"</ListBucketResult>")
    return None


def memory(pid, field):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith(field + ":"))


def peak_of(s, what, call):
    """The growth of the daemon's memory while call() runs."""
    with open(f"/proc/{s.daemon.pid}/clear_refs", "w") as f:
        f.write("5")  # resets the peak
    before = memory(s.daemon.pid, "VmRSS")
    call()
    grown = memory(s.daemon.pid, "VmHWM") - before
    print(f"{what}: {grown >> 20} MiB more at most, {sent[0] >> 20} MiB sent", flush=True)
    assert grown < MOST, (what, grown)


def missing(path):
    with fails(errno.ENOENT, errno.EIO, errno.ETIMEDOUT):
        os.close(os.open(path, os.O_RDONLY))


def stored(s, n):
    for i in range(n):
        s.write(f"m/c{i}/0", blob(i, 256 * KiB))
    s.settle()
    for i in range(n):
        run(binary("kvcachectl"), "evict", f"{s.mnt}/m/c{i}", ok=True)


def services():
    b = Bucket(endless)
    modes = ("body", "part", "error", "status", "header", "headers")
    s = Store("s3", options=f"disk=off,unit=dir,settle=0,deadline=20000,remote={b.url()}").mount()
    stored(s, len(modes))
    for i, how in enumerate(modes):
        def load():
            missing(f"{s.mnt}/m/c{i}/0")
        mode[0], sent[0] = how, 0
        peak_of(s, how, load)
        mode[0] = None
        wait_for(lambda: s.stats()["tier_s3_read_up"])
    for how in ("page", "list"):
        mode[0], sent[0] = how, 0
        peak_of(s, how, lambda: run(binary("kvcachectl"), "import", s.mnt))
    assert pages[0] == 500, pages  # read to its end, and no name of it was kept
    mode[0] = None
    assert s.stats()["imports"] == 0 and s.stats()["memory_peak_bytes"] < MOST, s.stats()
    s.write("m/after", b"x")
    assert s.read("m/after") == b"x"
    s.umount()


def folders():
    share = f"{TMP}/share"
    os.makedirs(share)
    run("mount", "-t", "tmpfs", "share", share, ok=True)  # a tmpfs creates names quickly
    s = Store("dir", options=f"disk=off,unit=dir,settle=0,remote=dir://{share}").mount()
    stored(s, 2)
    frames = [f"{d}/{n}" for d, _, names in os.walk(share) for n in names
              if os.path.getsize(f"{d}/{n}") > 256 * KiB]
    assert len(frames) == 2, frames
    for path in frames:  # the header stays valid, and has the true length
        os.truncate(path, 1 << 40)
    peak_of(s, "long frame", lambda: [s.read(f"m/c{i}/0") for i in range(2)])
    for path in frames:
        with open(path, "r+b") as f:
            f.write(bytes(4096))
    run(binary("kvcachectl"), "evict", f"{s.mnt}/m/c0", ok=True)
    peak_of(s, "long file", lambda: missing(f"{s.mnt}/m/c0/0"))
    folder = os.path.dirname(frames[0])
    prefix = os.path.basename(folder)[:2]
    for i in range(200000):
        name = f"{prefix}{i:030x}" if i % 20 == 0 else f"other-{i}"
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
    peak_of(s, "many names", lambda: run(binary("kvcachectl"), "import", s.mnt, ok=True))
    s.umount()
    run("umount", share, ok=True)


beside([(services,), (folders,)])
