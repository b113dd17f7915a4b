# SPDX-License-Identifier: Apache-2.0
"""LMCache's programs on a mount: `lmcache bench l2`, which compares the data that it loads, and the
unit tests of its file storage, from its source package, with their temporary folders on the
mount."""

import glob, os, re, shutil, subprocess, tarfile

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
    """Its source package, kept beside the environment; the folder lmcache in it is moved aside,
    for it has no built parts."""
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
                f"its source package cannot be had: {(out.strip().splitlines() or [''])[-1][:160]}",
            )
        with tarfile.open(packed[0]) as t:
            t.extractall(f"{env.top}/src", filter="data")
    if os.path.isdir(f"{top}/lmcache"):
        shutil.move(f"{top}/lmcache", f"{top}/lmcache.aside")
    return top, ""


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
                        '{"type":"%s","base_path":"%s"}' % (kind, where),
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

    for kind in ("fs", "fs_native"):
        for depth in (0, 1, 3):
            yield f"whole lmcache bench l2 {kind}, {PLACES[depth]}", bench(kind, depth)

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
