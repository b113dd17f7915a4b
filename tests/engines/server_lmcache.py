# SPDX-License-Identifier: Apache-2.0
"""LMCache's multiprocess server, and the JSON of its L2 adapters."""

import json, os, signal, socket, subprocess, time, urllib.error, urllib.request


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def adapter(kind, mount, where, **more):
    """The JSON object of an adapter for the folder `where` in a mount. kind "kvcachefs" means
    kvcachefs.lmcache; other kinds are LMCache's own."""
    if kind != "kvcachefs":
        return {"type": kind, "base_path": where, **more}
    folder = os.path.relpath(where, mount)
    return {
        "type": "native_plugin",
        "module_path": "kvcachefs.lmcache",
        "class_name": "Client",
        "adapter_params": {"mount": mount, "folder": "" if folder == "." else folder, **more},
    }


def ended(process):
    """Waits for the end of a process that was told to end, and kills it after a minute."""
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Server:
    def __init__(self, env, base, spec, **more):
        self.port, self.http = port(), port()
        self.path = f"{base}/lmcache-server.log"
        self.log = open(self.path, "ab")
        self.begin = self.log.tell()
        command = [f"{env.top}/bin/lmcache", "server", "--port", self.port]
        command += ["--http-port", self.http, "--prometheus-port", port(), "--l1-size-gb", 1]
        command += ["--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven"]
        command += ["--l2-adapter", json.dumps(spec)]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            cwd=base,
            env=dict(
                os.environ,
                PYTHONHASHSEED="0",
                LMCACHE_TRACK_USAGE="false",
                LMCACHE_DISABLE_BANNER="1",
                **more,
            ),
        )
        for _ in range(1200):
            if self.process.poll() is not None:
                raise AssertionError(f"lmcache server ended at its start: {self.said()[-300:]}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.http}/", timeout=1).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        self.end()
        raise AssertionError("lmcache server did not start")

    def said(self):
        """The text that this server has logged."""
        with open(self.path, errors="replace") as f:
            f.seek(self.begin)
            return f.read()

    def clear(self):
        """Empties its memory (L1)."""
        urllib.request.urlopen(
            urllib.request.Request(
                f"http://127.0.0.1:{self.http}/cache/clear",
                data=b'{"tier": "l1"}',
                headers={"Content-Type": "application/json"},
            ),
            timeout=30,
        ).close()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        ended(self.process)
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
