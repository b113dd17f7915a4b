# SPDX-License-Identifier: Apache-2.0
"""A network of hosts: network namespaces, joined by a bridge in the namespace of the case. The
links of a host can be cut in several ways. Needs root and the command ip."""
import contextlib, os, shutil, subprocess

from kvtest import LIBC, run, skip

CLONE_NEWNET = 0x40000000
NET = "10.98.0."


def ip(*words):
    run("ip", *words, ok=True)


class Host:
    """The host with this number: its namespace lives as long as the process that holds it."""

    def __init__(self, number):
        self.number, self.address, self.port = number, f"{NET}{number}", f"port{number}"
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 100000"],
                                       stdout=subprocess.PIPE, start_new_session=True)
        self.holder.stdout.readline()
        self.namespace = f"/proc/{self.holder.pid}/ns/net"
        inside = f"inner{number}"
        ip("link", "add", self.port, "type", "veth", "peer", "name", inside)
        ip("link", "set", inside, "netns", str(self.holder.pid))
        ip("link", "set", self.port, "master", "bridge", "up")
        with self.entered():
            for words in (["lo", "up"], [inside, "up"]):
                ip("link", "set", *words)
            ip("address", "add", f"{self.address}/24", "dev", inside)

    @contextlib.contextmanager
    def entered(self):
        """Processes that this thread starts meanwhile are in the host's namespace."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(self.namespace, os.O_RDONLY)
        try:
            assert LIBC.setns(there, CLONE_NEWNET) == 0
            yield
        finally:
            assert LIBC.setns(own, CLONE_NEWNET) == 0
            os.close(own)
            os.close(there)

    def end(self):
        self.holder.kill()
        self.holder.wait()

    # packets vanish: the host does not notice
    def unplug(self):
        ip("link", "set", self.port, "nomaster")

    # the host sees that it has no link
    def down(self):
        ip("link", "set", self.port, "down")

    # two hosts that are isolated reach the others, but not each other
    def isolate(self):
        ip("link", "set", self.port, "type", "bridge_slave", "isolated", "on")

    def heal(self):
        ip("link", "set", self.port, "master", "bridge", "up")
        ip("link", "set", self.port, "type", "bridge_slave", "isolated", "off")


def hosts(n):
    """Makes a bridge and n hosts, or skips the case."""
    if not shutil.which("ip"):
        skip("needs the command ip (package iproute2)")
    for words in (["add", "bridge", "type", "bridge"], ["set", "bridge", "up"]):
        p = run("ip", "link", *words)
        if p.returncode:
            skip(f"cannot make a bridge in a network namespace: {p.stdout.strip()}")
    return [Host(i + 1) for i in range(n)]
