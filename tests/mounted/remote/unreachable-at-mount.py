# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""A mount succeeds if a remote cannot be reached or does not answer, and one line on the terminal
names the remote."""
import signal, socket, subprocess
from kvtest import *

closed = []
for _ in range(2):  # ports that nobody listens on
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    closed.append(sock.getsockname()[1])
silent = socket.socket()  # accepts connections and does not answer
silent.bind(("127.0.0.1", 0))
silent.listen(64)
os.environ.update(AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="secret")
for name, remote, kind, says in (
        ("redis", f"redis://127.0.0.1:{closed[0]}/kv", "redis",
         "cannot connect to 127.0.0.1: Connection refused"),
        ("s3", f"s3://b/kv?endpoint=http://127.0.0.1:{closed[1]}", "s3",
         f"http://127.0.0.1:{closed[1]} does not answer (Connection refused)"),
        ("s3-silent", f"s3://b/kv?endpoint=http://127.0.0.1:{silent.getsockname()[1]}", "s3",
         f"http://127.0.0.1:{silent.getsockname()[1]} does not answer (")):
    s = Store(name, size="16M", cpu="32M")
    p = run(binary("kvcachefs"), s.path, s.mnt, "-o",
            f"cpu=32M,run={TMP}/run,settle=0,remote={remote}", ok=True)
    lines = p.stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"kvcachefs: tier {kind}: "), lines
    assert says in lines[0] and lines[1].startswith(f"mounted {s.path} on {s.mnt} ("), lines
    s.write("m/c/l", blob(1, 5000))
    assert s.read("m/c/l") == blob(1, 5000)
    run("umount", s.mnt, ok=True)
    wait_for(lambda s=s: run(binary("fsck.kvcachefs"), "-n", s.path).returncode == 0, 120)

# a folder on a network filesystem whose server does not answer
server = Store("server", size="16M", cpu="32M", options="io_uring=off").mount()
s = Store("dir", size="16M", cpu="32M")
freeze(server.daemon.pid)
p = subprocess.Popen([binary("kvcachefs"), s.path, s.mnt, "-o", f"cpu=32M,run={TMP}/run,deadline="
                      f"1000,remote=dir://{server.mnt}/not-looked-up"], stdin=subprocess.DEVNULL,
                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    text = p.communicate(timeout=HANG)[0]
finally:
    server.daemon.send_signal(signal.SIGKILL)  # ends calls to its mount
lines = text.splitlines()
assert p.returncode == 0 and len(lines) == 2, lines
assert "does not answer; the next access tries again" in lines[0], lines
assert lines[1].startswith(f"mounted {s.path} on {s.mnt} ("), lines
run("umount", s.mnt, ok=True)
wait_for(lambda: run(binary("fsck.kvcachefs"), "-n", s.path).returncode == 0, 120)
run("umount", "-l", server.mnt, ok=True)
server.daemon.wait()
