# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, controlled through its DevTools protocol on a pipe: pages of any width, dark
or light, with the real mouse and keyboard events, and with answers that the test invents."""
import base64, json, os, shutil, subprocess
from kvtest import HANG, TMP, skip

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)


class Browser:
    def __init__(self):
        if not BROWSER:
            skip("needs chromium")
        self.number, self.said, self.answers, self.loaded = 0, [], {}, False
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def give():  # Chromium reads commands from descriptor 3, and writes answers to 4
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", f"--user-data-dir={TMP}/browser", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(3, 4), preexec_fn=give, env=os.environ | {"HOME": TMP})
        os.close(theirs_in)
        os.close(theirs_out)
        self.commands, self.replies = open(ours_out, "wb", 0), open(ours_in, "rb", 0)
        self.rest, self.session = b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            more = self.replies.read(1 << 16)
            assert more, "the browser ended"
            self.rest += more
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def send(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        self.commands.write(json.dumps(command).encode() + b"\0")
        return self.number

    def event(self, m):
        """Keeps the page's messages to the console, and answers requests for invented files."""
        p = m.get("params", {})
        if m.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled",
                               "Log.entryAdded"):
            self.said.append(p)
        elif m.get("method") == "Page.loadEventFired":
            self.loaded = True
        elif m.get("method") == "Fetch.requestPaused":
            body = json.dumps(next(v for k, v in self.answers.items()
                                   if p["request"]["url"].endswith(k)))
            self.send("Fetch.fulfillRequest", requestId=p["requestId"], responseCode=200,
                      responseHeaders=[{"name": "Content-Type", "value": "application/json"}],
                      body=base64.b64encode(body.encode()).decode())

    def call(self, method, **params):
        number = self.send(method, **params)
        while (m := self.message()).get("id") != number:
            self.event(m)
        assert "error" not in m, (method, m["error"])
        return m["result"]

    def answer(self, path, value):
        """From now on, requests for this path are answered with this value as JSON."""
        self.answers[path] = value
        self.call("Fetch.enable", patterns=[{"urlPattern": f"*{k}"} for k in self.answers])

    def show(self, url, width, height=900, dark=False):
        """Loads a page on a screen of this size. `until` waits for the page's script."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.loaded = False
        self.call("Page.navigate", url=url)
        while not self.loaded:
            self.event(self.message())

    def js(self, text):
        """The value of an expression in the page."""
        got = self.call("Runtime.evaluate", expression=text, returnByValue=True,
                        awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, text):
        """Waits in the page until the expression is true, and returns it."""
        return self.js(f"""new Promise((found, none) => {{
            const end = Date.now() + {HANG * 1000};
            (function look() {{
                const v = (() => {{ try {{ return {text}; }} catch (e) {{ return null; }} }})();
                v ? found(v) : Date.now() > end ? none(Error("never: " + {json.dumps(text)}))
                    : setTimeout(look, 20);
            }})(); }})""")

    def mouse(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self, path):
        """Writes a PNG of the whole page, for a person to look at."""
        got = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as f:
            f.write(base64.b64decode(got["data"]))

    def close(self):
        try:
            self.send("Browser.close")
            self.process.wait(timeout=HANG)
        finally:
            self.process.kill()
            self.process.wait()
