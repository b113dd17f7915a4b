# SPDX-License-Identifier: Apache-2.0
# ways: fast (plain)
"""Limits of the machine: threads that cannot be created, few descriptors, and idle connections to
the metrics endpoint. The mount works, or fails with a line that says how to fix it, and leaves
nothing behind."""
import os, resource, signal, socket, time
from kvtest import *

need_mount()
s = Store("s", options="metrics=127.0.0.1:0")
kv = binary("kvcachefs")


def end(p, what):
    try:
        p.wait(timeout=HANG)
    except subprocess.TimeoutExpired:
        p.kill()
        raise AssertionError(f"{what}: it hangs")


# a limit on threads
command = [kv, s.path, s.mnt, "-f", "-o", f"cpu=64M,run={TMP}/run,{WAYS[WAY]}"]
served = nth = 0
while served < 3:
    nth += 1
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=os.environ | {"LD_PRELOAD": f"{BUILD}/lib/threads.so",
                                           "MAX_THREADS": str(nth)})
    before = os.stat(TMP).st_dev
    until = time.time() + HANG
    while p.poll() is None and not os.path.ismount(s.mnt) and time.time() < until:
        time.sleep(0.01)
    if p.poll() is None:
        assert os.path.ismount(s.mnt), f"thread {nth}: neither mounted nor ended"
        # the mount serves or ends, and no caller waits forever
        q = subprocess.Popen(["stat", f"{s.mnt}/.kvcachefs/stats"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        end(q, f"thread {nth}: a stat")
        if p.poll() is None and q.returncode == 0:
            served += 1
            s.daemon = p
            s.write(f"m/c/{nth}", blob(nth, 100000))
            assert s.read(f"m/c/{nth}") == blob(nth, 100000)
        run("umount", s.mnt)
    end(p, f"thread {nth}")
    out = p.stdout.read()
    if p.returncode:
        assert "thread" in out or "cannot" in out, (nth, out)
    assert not os.path.ismount(s.mnt), (nth, out)
    assert nth < 200
print(f"{nth} threads until three mounts in a row served")
s.mount()
assert s.read(f"m/c/{nth}") == blob(nth, 100000)

# connections that say nothing
port = next(int(l.split(":")[-1]) for l in run("ss", "-ltnpH").stdout.splitlines() for l in
            [l.split()[3]] if f"pid={s.daemon.pid}," in run("ss", "-ltnpH", f"src {l}").stdout)
idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
for c in idle[:100]:
    c.sendall(b"GET /metr")
with socket.create_connection(("127.0.0.1", port), timeout=HANG) as c:
    c.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert b"200 OK" in c.recv(100)
[c.close() for c in idle]

# a user who holds all available connections, a byte at a time, does not block another user
r, w = os.pipe()
pid = os.fork()
if not pid:
    os.setuid(1001)
    mine, told = [], False
    while True:
        for c in mine:
            try:
                c.sendall(b"x")
            except OSError:
                mine.remove(c)
        try:
            while len(mine) < 600:
                c = socket.socket()
                c.setblocking(False)
                c.connect_ex(("127.0.0.1", port))
                mine.append(c)
        except OSError:
            pass
        if len(mine) >= 500 and not told:
            told = os.write(w, b"x")
        time.sleep(0.2)
os.read(r, 1)
try:
    for n in range(20):
        with socket.create_connection(("127.0.0.1", port), timeout=HANG) as c:
            c.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"200 OK" in c.recv(100)
        time.sleep(0.1)
finally:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
s.umount()

# descriptors: the daemon raises its limit as far as allowed, and logs a line if that is low
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for bounds in ((256, hard), (256, 256)):
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, bounds))
    wait_for(lambda: os.path.ismount(s.mnt))
    s.daemon = p
    with open(f"/proc/{p.pid}/limits") as f:
        have = int(next(l for l in f if "open files" in l).split()[3])
    assert have > 256 or bounds[1] == 256, have
    files = []
    for n in range(300 if have > 400 else 100):
        s.write(f"m/f/{n}", b"x")
        files.append(open(f"{s.mnt}/m/f/{n}", "rb"))
    [f.close() for f in files]
    s.umount()
    said = f"at most {have} files can be open at once" in p.stdout.read()
    assert said == (have < 16384), have
print("ok")
