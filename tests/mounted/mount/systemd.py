# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""kvcachefs@.service starts the daemon with few privileges. It is ready when the mount answers,
restarts with the warm pool after a kill, sends pings only while requests are answered, and asks for
time at the stop. No unit setting hides the mount, and systemd accepts the units."""
import ctypes, errno, os, shutil, signal, tempfile, time
from kvtest import *
from manager import UNIT, Manager, unit

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
HIDE = ("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateMounts",
        "BindPaths", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "TemporaryFileSystem",
        "ProtectProc",
        "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProcSubset",
        "ProtectControlGroups", "PrivateIPC", "RootDirectory", "RootImage", "MountFlags",
        "BindReadOnlyPaths", "MountImages", "ExtensionImages", "LogNamespace", "PrivateUsers")
folder = os.path.dirname(UNIT)
said = unit()
assert not set(HIDE) & set(said), set(HIDE) & set(said)
assert said["Type"] == "notify" and said["Restart"] == "on-failure" and int(said["WatchdogSec"]) > 0
example = dict(l.strip().split("=", 1) for l in open(f"{folder}/NAME.conf") if not l.startswith("#")
               and "=" in l)
assert set(example) == {"STORE", "MOUNTPOINT", "OPTIONS"}
if shutil.which("systemd-analyze"):
    with tempfile.TemporaryDirectory() as d:
        with open(f"{d}/kvcachefs@.service", "w") as f:
            f.write(open(UNIT).read().replace("@PREFIX@/sbin", f"{BUILD}/bin"))
        shutil.copy(f"{folder}/mnt-kv.mount", d)
        p = run("systemd-analyze", "verify", "--man=no", f"{d}/kvcachefs@x.service",
                f"{d}/mnt-kv.mount")
        bad = [l for l in p.stdout.splitlines() if "kvcachefs" in l or "mnt-kv" in l]
        assert not bad, bad
else:
    print("without systemd-analyze: the units are not verified")
for line in open(f"{folder}/fstab"):
    if not line.startswith("#"):
        p = run(binary("kvcachefs"), "/nonexistent", TMP, "-o", line.split()[3], ok=False)
        assert "no store at /nonexistent" in p.stdout, p.stdout

ptrace = ctypes.CDLL(None, use_errno=True).ptrace


def threads(pid):
    return {int(t): open(f"/proc/{pid}/task/{t}/comm").read().strip()
            for t in os.listdir(f"/proc/{pid}/task")}


class Stuck:
    """Stops all threads of the daemon except the one that checks the mount."""

    def __init__(self, pid):
        self.tids = [t for t, name in threads(pid).items() if name != "kv-watch"]

    def __enter__(self):
        for t in self.tids:
            assert not ptrace(PTRACE_SEIZE, t, 0, 0), os.strerror(ctypes.get_errno())
            ptrace(PTRACE_INTERRUPT, t, 0, 0)
            os.waitpid(t, 0x40000000)  # __WALL

    def __exit__(self, *_):
        for t in self.tids:
            ptrace(PTRACE_DETACH, t, 0, 0)


def asks(pid):
    """The checking thread has sent its request and waits for the answer."""
    tid = next(t for t, name in threads(pid).items() if name == "kv-watch")
    return "request_wait" in open(f"/proc/{pid}/task/{tid}/wchan").read()


def ready(m):
    def told():
        assert m.daemon.poll() is None, s.log()
        return m.told("READY=1")
    wait_for(told)
    os.statvfs(s.mnt)
    assert os.path.ismount(s.mnt)


def ended(m):
    assert m.daemon.wait(HANG) == 0, s.log()[-3000:]


s = Store()
options = f"cpu=64M,run={TMP}/run,keep_pool,{PATIENT}"
m = Manager("x", 600, STORE=s.path, MOUNTPOINT=s.mnt, OPTIONS=options).start()
ready(m)
c = s.config()
if c["served_by"] != "passthrough":  # a missing privilege must not be the reason
    assert "kernel" in c["passthrough_why"], c
assert "<6>serving by" in s.log()
s.write("m/c/l", blob(1, MiB))
s.settle()
wait_for(lambda: m.pings() >= 3)

# killed, and restarted as by Restart=: the pool is unchanged
m.daemon.kill()
m.daemon.wait()
with fails(errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED):
    os.statvfs(s.mnt)
m.start()
ready(m)
assert "detached the mount that a dead daemon left" in s.log()
assert s.read("m/c/l") == blob(1, MiB) and s.stats()["loads"] == 0
assert s.config()["pool_warm"] == "yes" and s.stats()["recovered"] == 1
assert open("/proc/mounts").read().count(f" {s.mnt} ") == 1

# no thread answers: no pings; threads answer again: pings
with Stuck(m.daemon.pid):
    wait_for(lambda: asks(m.daemon.pid))
    before = m.pings()
    time.sleep(1)  # five pings' time
    assert m.pings() == before
wait_for(lambda: m.pings() > before + 1)
# a stop during this check does not wait for its answer
with Stuck(m.daemon.pid):
    wait_for(lambda: asks(m.daemon.pid))
    m.daemon.terminate()
ended(m)
assert not os.path.ismount(s.mnt) and m.told("STOPPING=1")

# a slow stop asks for more time; without a watchdog no pings are sent; abstract sockets (@)
m = Manager("y", 0, True, STORE=s.path, MOUNTPOINT=s.mnt,
            OPTIONS=options + ",settle=60000,shim=delay-put:400").start()
ready(m)
assert s.read("m/c/l") == blob(1, MiB) and s.stats()["loads"] == 0
for i in range(4):
    s.write(f"m/late{i}/l", blob(10 + i, MiB))
s.closed()
m.daemon.terminate()
ended(m)
lines = m.look()
assert "STOPPING=1" in lines and m.pings() == 0, lines
asked = [i for i, l in enumerate(lines) if l.startswith("EXTEND_TIMEOUT_USEC=")]
assert asked and asked[0] > lines.index("STOPPING=1"), lines
# an unmount by hand ends the service, without a failure
m.start()
ready(m)
run("umount", s.mnt, ok=True)
ended(m)
assert m.told("STOPPING=1")
s.fsck("-n")
s.mount("keep_pool")
assert all(s.read(f"m/late{i}/l") == blob(10 + i, MiB) for i in range(4))
s.umount()
s.fsck("-n", "--data")

# a refused mount is never ready, and is a failure
m = Manager("z", STORE=f"{TMP}/nothing", MOUNTPOINT=s.mnt, OPTIONS=options).start()
assert m.daemon.wait(HANG) == 1 and not m.told("READY=1")
