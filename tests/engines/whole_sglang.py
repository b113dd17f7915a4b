# SPDX-License-Identifier: Apache-2.0
"""SGLang on a mount. tiny_sglang.py runs a whole SGLang on the CPU with kvcachefs.sglang.
linker_sglang.py performs the steps of the other rows: our cache linker for SGLang
(kvcachefs.sglang_linker) on real device pool groups in host memory, and SGLang's failure injector
around kvcachefs.sglang. The rows restart processes and daemons, fill the mount, and damage files
between the steps."""

import json, os, shutil, subprocess

here = os.path.dirname(os.path.abspath(__file__))
top = os.path.dirname(os.path.dirname(here))


def rows(env, base, mounted, folder, need, row, asked):
    names = {
        "pages return in another process": returns,
        "leased pages outlast a full mount": pressed,
        "leases of forgotten requests end": forgotten,
        "truncated files are misses": truncated,
        "the daemon killed after the lookup": killed,
        "SGLang's failure injector": injector,
        "names of equal pages": distinct,
        "refused options": refused,
    }
    names = {f"whole sglang linker, {name}": run for name, run in names.items()}
    names["whole sglang kvcachefs, a restart"] = whole
    for name, run in names.items():
        if asked(name):
            if "sglang" in env.missing:
                row(name, "skip", f"sglang: {env.missing['sglang']}")
                continue
            yield name, lambda run=run: run(Steps(env, base, mounted, need))


class Steps:
    def __init__(self, env, base, mounted, need):
        self.env, self.base, self.mounted, self.need = env, base, mounted, need

    def start(self, mount, step):
        return subprocess.Popen(
            [self.env.python, f"{here}/linker_sglang.py", mount, step],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(f"{self.base}/linker-sglang.log", "ab"),
            text=True,
            cwd=self.base,
            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"),
        )

    def expect(self, process, line):
        said = ""
        for said in iter(process.stdout.readline, ""):
            if said.strip() == line:
                return
        with open(f"{self.base}/linker-sglang.log", errors="replace") as f:
            last = (f.read().strip().splitlines() or ["it printed nothing"])[-1]
        self.need(False, f"'{line}' was expected: {last[:200]}")

    def go_on(self, process):
        process.stdin.write("\n")
        process.stdin.flush()

    def run(self, mount, step):
        process = self.start(mount, step)
        self.expect(process, "done")
        process.wait()


def returns(s):
    with s.mounted(size=512, cpu=256) as store:
        s.run(store.mnt, "store")
        store.committed()
        store.kill()
        store.mount()
        s.run(store.mnt, "load")


def pressed(s):
    with s.mounted(size=48, cpu=48) as store:
        s.run(store.mnt, "store")
        process = s.start(store.mnt, "pressed")
        s.expect(process, "looked up")
        for i in range(160):  # more than the pool and the disk hold
            try:
                store.write(f"other/f{i}", os.urandom(1 << 20))
            except FileNotFoundError:
                os.makedirs(f"{store.mnt}/other", exist_ok=True)
        s.go_on(process)
        s.expect(process, "done")


def forgotten(s):
    with s.mounted(size=512, cpu=256) as store:
        s.run(store.mnt, "store")
        s.run(store.mnt, "leases")


def truncated(s):
    with s.mounted(size=512, cpu=256) as store:
        s.run(store.mnt, "store")
        cut = 0
        for at, _, names in os.walk(f"{store.mnt}/sglang"):
            for name in names:
                path = f"{at}/{name}"
                with open(path, "rb") as f:
                    data = f.read()
                os.unlink(path)
                with open(path, "wb") as f:
                    f.write(data[:-1])
                cut += 1
        s.need(cut == 42, f"{cut} files instead of 42")
        s.run(store.mnt, "truncated")


def killed(s):
    with s.mounted(size=512, cpu=256) as store:
        s.run(store.mnt, "store")
        store.committed()
        process = s.start(store.mnt, "killed")
        s.expect(process, "looked up")
        store.kill()
        s.go_on(process)
        s.expect(process, "failed")
        store.mount()
        s.go_on(process)
        s.expect(process, "done")


def whole(s):
    """Each engine is a process; the tokens must be those of an engine without a cache. They are
    computed with float32: with bfloat16, the rounding of a shorter prefill could change them. The
    last engine uses bfloat16, whose pages have a layout; it must not read the other pages."""

    def engine(*mount, dtype="float32"):
        path = os.pathsep.join([f"{here}/stand_in", os.environ["PYTHONPATH"]])
        with open(f"{s.base}/tiny-sglang.log", "a") as log:
            p = subprocess.run(
                [s.env.python, f"{here}/tiny_sglang.py", f"{s.base}/tiny-sglang", dtype, *mount],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=1200,
                cwd=s.base,
                env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=path),
            )
        last = (p.stdout.strip().splitlines() or [""])[-1]
        if not last.startswith("[["):
            os.makedirs(f"{top}/build/engines", exist_ok=True)
            shutil.copy(log.name, f"{top}/build/engines/tiny-sglang.log")
            s.need(False, f"SGLang ended with {p.returncode}: see build/engines/tiny-sglang.log")
        made = json.loads(last)
        return [cached for cached, _ in made], [tokens for _, tokens in made]

    _, tokens = engine()
    plain, changed = tokens[:3], tokens[3:]
    s.need(
        all(a != b for a, b in zip(plain, changed)),
        f"the tokens do not depend on the prompt: {tokens}",
    )
    with s.mounted(size=512, cpu=256) as store:
        cached, tokens = engine(store.mnt)
        s.need(tokens == plain, "first: other tokens than without a cache")
        s.need(not any(cached), f"hits in an empty store: {cached}")
        store.committed()
        store.kill()
        store.mount()
        cached, tokens = engine(store.mnt)
        s.need(min(cached) >= 576, f"the second engine had {cached} tokens from the cache")
        s.need(tokens == plain, "second: other tokens than without a cache")
        before = set(os.listdir(f"{store.mnt}/sglang"))
        cached, _ = engine(store.mnt, dtype="bfloat16")
        s.need(not any(cached), f"hits of pages of another type: {cached}")
        (folder,) = set(os.listdir(f"{store.mnt}/sglang")) - before
        layout = os.getxattr(f"{store.mnt}/sglang/{folder}", "user.kvcachefs.layout")
        s.need(layout == b"bf16 l4 k2 t32 h2 d64", f"the layout is {layout}")


def injector(s):
    with s.mounted(size=1024, cpu=512) as store:
        s.run(store.mnt, "injector")


def distinct(s):
    with s.mounted(size=128, cpu=64) as store:
        s.run(store.mnt, "names")


def refused(s):
    with s.mounted(size=128, cpu=64) as store:
        s.run(store.mnt, "refused")
