# SPDX-License-Identifier: Apache-2.0
"""LMCache's programs on a mount: `lmcache bench l2`, which compares the loaded data with the stored
data; LMCache's multiprocess server with kvcachefs.lmcache; and the unit tests of LMCache's file
storage, from its source package, with their temporary folders on the mount."""

import contextlib, glob, json, os, re, shutil, signal, subprocess, tarfile, time
from kvtest import freeze
from server_lmcache import Server, adapter, ended

here = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, CHUNKS = range(6), 4

TESTS = (
    "tests/v1/distributed/test_fs_l2_adapter_*.py",
    "tests/v1/distributed/test_fs_native_l2_adapter_config.py",
    "tests/v1/distributed/test_native_connector_l2_adapter.py",
    "tests/v1/storage_backend/test_local_disk*.py",
    "tests/v1/storage_backend/test_fs_connector.py",
    "tests/v1/storage_backend/test_fs_native_connector.py",
    "tests/v1/storage_backend/test_path_sharder.py",
)

PLACES = {0: "the mount's root", 1: "1 folder down", 3: "3 folders down"}


def call(env, base, command, limit, **more):
    e = dict(
        os.environ,
        HF_HUB_OFFLINE="1",
        LMCACHE_TRACK_USAGE="false",
        LMCACHE_DISABLE_BANNER="1",
        PYTHONDONTWRITEBYTECODE="1",
        NO_CUDA_EXT="1",
        **more,
    )
    p = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=e,
        cwd=more.get("PWD", base),
        timeout=limit,
    )
    return p.returncode, p.stdout


def sources(env):
    """Returns the folder of LMCache's source package and "", or None and an error. The folder is
    kept in the folder of the environment. The folder lmcache in the package is moved aside, because
    its native modules are not built."""
    have = subprocess.run(
        [env.python, "-c", "from importlib.metadata import version; print(version('lmcache'))"],
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    top = f"{env.top}/src/lmcache-{have}"
    if not os.path.isdir(f"{top}/tests"):
        os.makedirs(f"{env.top}/src", exist_ok=True)
        rc, out = call(
            env,
            env.top,
            [
                env.python,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                "lmcache",
                "--no-build-isolation",
                "-d",
                f"{env.top}/src",
                f"lmcache=={have}",
            ],
            900,
        )
        packed = glob.glob(f"{env.top}/src/lmcache-{have}*.tar.gz")
        if not packed:
            return (
                None,
                f"cannot get its source package: {(out.strip().splitlines() or [''])[-1][:160]}",
            )
        with tarfile.open(packed[0]) as t:
            t.extractall(f"{env.top}/src", filter="data")
    if os.path.isdir(f"{top}/lmcache"):
        shutil.move(f"{top}/lmcache", f"{top}/lmcache.aside")
    return top, ""


class Requests:
    """requests_lmcache.py: a client of a server."""

    def __init__(self, env, base, server):
        self.log = open(f"{base}/lmcache-requests.log", "ab")
        self.process = subprocess.Popen(
            [env.python, f"{here}/requests_lmcache.py", str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=base,
            env=dict(os.environ, LMCACHE_TRACK_USAGE="false", LMCACHE_DISABLE_BANNER="1"),
        )
        for line in self.process.stdout:
            if line == "ready\n":
                return
        raise AssertionError("requests_lmcache.py did not start")

    def __call__(self, do, sequences=SEQUENCES):
        self.process.stdin.write(json.dumps({"do": do, "sequences": list(sequences)}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if "error" in answer:
                    raise AssertionError(f"{do}: {answer['error']}")
                return answer["is"]
        raise AssertionError(f"the client died at {do}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        ended(self.process)
        self.log.close()


def server_rows(env, base, mounted, need):
    """A separate server for each row. Hits come from the mount, because the server's memory is
    empty before each load."""

    def spec(store, **more):
        return adapter("kvcachefs", store.mnt, f"{store.mnt}/lmcache", **more)

    def files(store):
        return sorted(glob.glob(f"{store.mnt}/lmcache/*.data"))

    @contextlib.contextmanager
    def serving(store, more=None, **environment):
        with Server(env, base, spec(store, **(more or {})), **environment) as server:
            with Requests(env, base, server) as requests:
                yield server, requests
                need(server.process.poll() is None, "the server died")

    def store_all(store, requests, sequences=SEQUENCES):
        requests("store", sequences)
        end = time.time() + 60
        while len(files(store)) < len(sequences) * CHUNKS and time.time() < end:
            time.sleep(0.1)
        have = len(files(store))
        need(have >= len(sequences) * CHUNKS, f"{have} of {len(sequences) * CHUNKS} files")

    def hits(got, what):
        """The number of chunks loaded for each sequence. Fails if any chunk has wrong bytes."""
        need(not any(wrong for _, wrong in got), f"{what}: wrong bytes: {got}")
        return [n for n, _ in got]

    def all_hit(got, what):
        need(set(hits(got, what)) == {CHUNKS}, f"{what}: chunks of {CHUNKS} loaded: {got}")

    def missed(got, what):
        need(not any(hits(got, what)), f"{what}: hits: {got}")

    def restart():
        with mounted(size=512, cpu=256) as store:
            with serving(store) as (_, requests):
                store_all(store, requests)
            store.settle()
            store.kill()
            store.mount()
            with serving(store) as (_, requests):
                all_hit(requests("load"), "after the restart of both")
                missed(requests("load", [90, 91]), "sequences that were never stored")

    yield "a restart of both", restart

    def harmed(change):
        def run():
            with mounted(size=512, cpu=256) as store, serving(store) as (server, requests):
                store_all(store, requests)
                store.settle()
                for path in files(store):
                    with open(path, "r+b") as f:
                        f.truncate(max(os.path.getsize(path) + change, 0))
                server.clear()
                missed(requests("load"), "harmed files")
                time.sleep(1)
                need(not files(store), f"{len(files(store))} harmed files are left")
                server.clear()
                store_all(store, requests)
                store.settle()
                server.clear()
                all_hit(requests("load"), "stored again")

        return run

    yield "truncated files", harmed(-1000)
    yield "files that are too large", harmed(4096)

    def away():
        with mounted(size=512, cpu=256) as store, serving(store) as (server, requests):
            store_all(store, requests)
            store.settle()
            store.kill()
            server.clear()
            missed(requests("load"), "without a daemon")
            requests("store", [40, 41])
            store.mount()
            server.clear()
            all_hit(requests("load"), "mounted again")
            requests("store", range(20, 26))
            store_all(store, requests, [*SEQUENCES, *range(20, 26)])
            store.settle()
            server.clear()
            all_hit(requests("load", range(20, 26)), "stored after the mount")

    yield "no daemon", away

    def killed():
        with mounted(size=512, cpu=256) as store, serving(store) as (server, requests):
            for again in range(6):
                some = range(100 + 8 * again, 108 + 8 * again)
                requests("store", some)
                store.kill()
                server.clear()
                hits(requests("load", some), "while it was killed")
                store.mount()
                server.clear()
                hits(requests("load", some), "after the mount")
            store_all(store, requests)
            store.settle()
            server.clear()
            all_hit(requests("load"), "afterwards")

    yield "a daemon that is killed during calls", killed

    def stopped():
        with mounted(size=512, cpu=256) as store:
            with serving(store, {"lookup_timeout_ms": 500}) as (server, requests):
                store_all(store, requests)
                store.settle()
                server.clear()
                freeze(store.daemon.pid)
                try:
                    missed(requests("load", range(3)), "a stopped daemon")
                finally:
                    store.daemon.send_signal(signal.SIGCONT)
                time.sleep(1)
                all_hit(requests("load"), "it answers again")
                need("took longer than 0.5 s" in server.said(), "no warning")

    yield "a daemon that does not answer", stopped

    def full():
        with mounted(size=512, cpu=16) as store, serving(store) as (server, requests):
            with open(f"{store.mnt}/open", "wb", buffering=0) as f:
                with contextlib.suppress(OSError):
                    while True:
                        f.write(bytes(1 << 20))
                requests("store")
                time.sleep(2)
                need("could not be stored" in server.said(), "no store failed")
                server.clear()
                hits(requests("load"), "a full pool")
            os.unlink(f"{store.mnt}/open")
            server.clear()
            store_all(store, requests)
            server.clear()
            all_hit(requests("load"), "space again")

    yield "a full pool (ENOSPC)", full

    def broken():
        with mounted(size=512, cpu=256) as store:
            with serving(store) as (_, requests):
                store_all(store, requests)
            store.settle()
            faults = {
                "LD_PRELOAD": f"{os.environ['KV_BUILD']}/lib/faults.so",
                "FAULTS": f"calls=open path={store.mnt}/lmcache* nth=1 count=0 do=EIO",
            }
            with serving(store, **faults) as (server, requests):
                missed(requests("load"), "with EIO")
                requests("store", [50, 51])
                time.sleep(1)
                for word in ("loaded, which is a miss", "could not be stored"):
                    need(word in server.said(), f"the log does not say '{word}'")
            with serving(store) as (_, requests):
                all_hit(requests("load"), "without EIO")

    yield "EIO in loads and stores", broken

    def refused(change, word):
        def run():
            with mounted(size=512, cpu=256) as store:
                wrong = spec(store)
                change(wrong["adapter_params"])
                try:
                    with Server(env, base, wrong):
                        pass
                except AssertionError as e:
                    with open(f"{base}/lmcache-server.log", errors="replace") as f:
                        need(word in f.read(), f"the error does not say '{word}': {e}")
                    return
                need(False, "the server started")

        return run

    yield "no mount at the start", refused(lambda p: p.update(mount=base), "mount -t kvcachefs")
    yield "an option that does not exist", refused(
        lambda p: p.update(thread=1), "no option 'thread'"
    )


def rows(env, base, mounted, folder, need, row, asked):
    if "lmcache" in env.missing:
        if asked("whole lmcache"):
            row("whole lmcache", "skip", f"lmcache: {env.missing['lmcache']}")
        return

    def bench(kind, depth):
        def run():
            with mounted(size=512, cpu=256) as store:
                where = folder(store, depth)
                os.makedirs(where, exist_ok=True)
                rc, out = call(
                    env,
                    base,
                    [
                        f"{env.top}/bin/lmcache",
                        "bench",
                        "l2",
                        "--l2-adapter",
                        json.dumps(adapter(kind, store.mnt, where)),
                        "--num-keys",
                        "32",
                        "--data-size-kb",
                        "1024",
                        "--rounds",
                        "3",
                        "--lookup-max-hit-rate",
                        "1",
                        "--no-skip-verify",
                    ],
                    300,
                )
                need(rc == 0, f"it ended with {rc}: {(out.strip().splitlines() or [''])[-1][:200]}")
                need("MISMATCH" not in out, "what it loaded is not what it stored")
                done = re.findall(r"Total success: +(\d+)", out)
                need(
                    done == ["96", "96", "96"], f"of 96 stores, lookups and loads went well: {done}"
                )

        return run

    for kind in ("fs", "fs_native", "kvcachefs"):
        for depth in (0, 1, 3):
            yield f"whole lmcache bench l2 {kind}, {PLACES[depth]}", bench(kind, depth)

    for name, run in server_rows(env, base, mounted, need):
        yield f"whole lmcache server kvcachefs, {name}", run

    name = "whole lmcache unit tests"
    if not asked(name):
        return
    top, why = sources(env)
    if not top:
        row(name, "skip", why)
        return

    def unit():
        files = [f for t in TESTS for f in sorted(glob.glob(f"{top}/{t}"))]
        need(files, "its source package has none of the files")
        with mounted(size=4096, cpu=2048) as store:
            os.makedirs(f"{store.mnt}/tmp/t")
            rc, out = call(
                env,
                base,
                [
                    env.python,
                    "-m",
                    "pytest",
                    "-q",
                    "--no-header",
                    "-p",
                    "no:cacheprovider",
                    "-o",
                    "log_cli=false",
                    f"--basetemp={store.mnt}/tmp/base",
                    *files,
                ],
                900,
                TMPDIR=f"{store.mnt}/tmp/t",
                PWD=top,
            )
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", out, re.M)
            need(rc == 0, f"pytest ended with {rc}: {', '.join(failed[:3])} {out.strip()[-160:]}")
            counted = re.search(r"(\d+) passed", out)
            need(counted and int(counted[1]) > 100, f"too few ran: {out.strip().splitlines()[-1]}")

    yield name, unit
