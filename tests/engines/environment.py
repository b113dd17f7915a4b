# SPDX-License-Identifier: Apache-2.0
"""The Python environment of the engines: created once in build/engines/env, or in KV_ENGINES_ENV,
and kept. Packages are installed when the file packages or requirements.txt has changed. NEWEST=1
checks the registry for newer versions."""

import hashlib, json, os, shutil, subprocess, sys

here = os.path.dirname(os.path.abspath(__file__))


def packages():
    with open(f"{here}/packages") as f:
        return [line.split() for line in f if line.strip() and not line.startswith("#")]


class Environment:
    def __init__(self, top):
        self.top = os.environ.get("KV_ENGINES_ENV") or f"{top}/env"
        self.python, self.stamp = f"{self.top}/bin/python", f"{self.top}/kvcachefs.json"
        self.missing = {}

    def pip(self, *arguments):
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def imports(self, module):
        """The error that prevents the import, or nothing if it works."""
        try:
            p = subprocess.run(
                [self.python, "-c", f"import {module}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                cwd="/",
                env=dict(os.environ, HF_HUB_OFFLINE="1"),
            )
        except subprocess.TimeoutExpired:
            return "its import did not end within five minutes"
        return (
            ""
            if p.returncode == 0
            else (p.stdout.strip().splitlines() or ["it does not import"])[-1][:200]
        )

    def wanted(self):
        parts = [open(f"{here}/{n}").read() for n in ("requirements.txt", "packages")]
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def ready(self):
        """Installs the packages if necessary. Returns "", or the reason why no engine can run."""
        try:
            with open(self.stamp) as f:
                kept = json.load(f)
            if kept["wanted"] == self.wanted() and not os.environ.get("NEWEST"):
                self.missing = kept["missing"]
                return ""
        except (OSError, ValueError, KeyError):
            pass
        if not os.path.exists(self.python):
            python = next(filter(None, map(shutil.which, ("python3.11", "python3.12"))), None)
            if not python:
                return "needs Python 3.11 or 3.12"
            p = subprocess.run(
                [python, "-m", "venv", self.top],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if p.returncode:
                return f"no environment: {p.stdout.strip().splitlines()[-1]}"
        print(f"engines: installing into {self.top} (about 7 GB the first time)", flush=True)
        p = self.pip("install", "-q", "-r", f"{here}/requirements.txt")
        if p.returncode:
            return f"pip: {p.stdout.strip().splitlines()[-1]}"
        for name, known, module in packages():
            why = ""
            for what in (name, f"{name}=={known}"):
                p = self.pip("install", "-q", "--no-deps", "--upgrade", what)
                why = (
                    self.imports(module)
                    if p.returncode == 0
                    else p.stdout.strip().splitlines()[-1][:200]
                )
                if not why:
                    break
                print(f"engines: {what}: {why}", flush=True)
            if why:
                self.missing[name] = why
        with open(self.stamp, "w") as f:
            json.dump({"wanted": self.wanted(), "missing": self.missing}, f)
        return ""
