# SPDX-License-Identifier: Apache-2.0
"""A minimal service manager that runs scripts/systemd/kvcachefs@.service: its command, environment
and configuration file, its notifications and watchdog, and its restrictions of privileges."""
import os, shlex, shutil, socket, subprocess
from kvtest import TMP, binary

UNIT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "../../scripts/systemd/kvcachefs@.service")


def unit(path=UNIT):
    """The unit's settings; if a name is repeated, the last."""
    with open(path) as f:
        lines = [l.rstrip("\n") for l in f if "=" in l and not l.startswith("#")]
    return dict(l.split("=", 1) for l in lines)


class Manager:
    """One service: NAME.conf says what it mounts. root: the folder of the installed package; None:
    the build is used."""

    def __init__(self, name, watchdog_ms=0, abstract=False, root=None, **conf):
        self.root = root
        self.conf, self.daemon, self.seen, self.watchdog_ms = conf, None, [], watchdog_ms
        self.file = f"{TMP}/{name}.conf"
        with open(self.file, "w") as f:
            f.write("".join(f"{k}={v}\n" for k, v in conf.items()))
        self.address = f"@{TMP}/{name}.notify" if abstract else f"{TMP}/{name}.notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address.replace("@", "\0", 1))
        self.socket.setblocking(False)

    def command(self):
        with open(self.file) as f:
            env = dict(l.strip().split("=", 1) for l in f)
        if self.root:
            said = unit(f"{self.root}/usr/lib/systemd/system/kvcachefs@.service")["ExecStart"]
            words = f"{self.root}{said}"
        else:
            words = unit()["ExecStart"].replace("@PREFIX@/sbin/kvcachefs", binary("kvcachefs"))
        words = [env[w[2:-1]] if w.startswith("${") else w for w in shlex.split(words)]
        caps = ",".join("+" + c[4:].lower() for c in unit()["CapabilityBoundingSet"].split())
        if shutil.which("setpriv"):
            words = ["setpriv", f"--bounding-set=-all,{caps}", "--no-new-privs"] + words
        return words, env

    def start(self):
        self.seen.clear()
        words, env = self.command()
        env = dict(os.environ, **env, NOTIFY_SOCKET=self.address)
        if self.watchdog_ms:
            env["WATCHDOG_USEC"] = str(1000 * self.watchdog_ms)
        with open(f"{TMP}/log", "ab") as log:
            st = os.fstat(log.fileno())
            env["JOURNAL_STREAM"] = f"{st.st_dev}:{st.st_ino}"
            self.daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                           env=env, start_new_session=True)
        return self

    def look(self):
        """All notifications since the start."""
        while True:
            try:
                self.seen += self.socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self.seen

    def told(self, line):
        return line in self.look()

    def pings(self):
        return self.look().count("WATCHDOG=1")
