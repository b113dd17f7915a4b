# SPDX-License-Identifier: Apache-2.0
# ways: fast plain
# level: check
"""libkvcachefs on a real mount: leases, mappings, host transfers, bad input, the example,
kvcachectl hash, and the installed library through pkg-config. The device part runs under
tests/fakecuda, and also on the GPU of a machine that has one, with the example."""
import glob, os, re, shutil, subprocess
import package
from kvtest import BUILD, LONG, SLOW, WAY, MiB, Store, TMP, binary, run, wait_for

s = Store(options="settle=20", size="1G", cpu="384M").mount()
if WAY == "fast" or LONG:
    p = run(f"{BUILD}/bin/test-library", s.mnt)
    assert p.returncode == 0, p.stdout
assert not [f for _, _, files in os.walk(s.mnt) for f in files if ".tmp." in f], \
    "a temporary file is left"
# nothing is held any more: it can all be evicted
s.settle()
p = run(f"{BUILD}/bin/example_offload", s.mnt)
assert p.returncode == 0 and "the same" in p.stdout, p.stdout
assert run(f"{BUILD}/bin/example_offload", "/nonexistent").returncode == 1
# evicted and loaded again through the library
for i in range(40):
    s.write(f"fill/{i}", bytes([i]) * 2 * MiB)
s.settle()
p = run(f"{BUILD}/bin/test-library", s.mnt)
assert p.returncode == 0, p.stdout
# the device's half, with mappings that can be pinned and with some that cannot
if WAY == "fast" or LONG:
    p = run(f"{BUILD}/bin/test-gpu-fake", "test", s.mnt, "pinned")
    assert p.returncode == 0 and p.stdout == "ok\n", p.stdout
if SLOW == 1 and (WAY == "fast" or LONG):
    # the one command of kvcachefs-gpu(7): its numbers mean nothing here
    p = run(f"{package.TOP}/scripts/gpu-measure", BUILD,
            env=os.environ | {"TOOL": binary("test-gpu-fake"), "KV_TMP": TMP})
    assert p.returncode == 0 and "gather" in p.stdout, p.stdout
    assert not [n for n in os.listdir(TMP) if n.startswith("kvcachefs-gpu-")]
for example in ("example_offload", "example_layers"):  # a device that no machine has
    p = run(binary(example), s.mnt, "1000")
    assert p.returncode == 1 and len(p.stdout.splitlines()) == 1 and "device" in p.stdout, p.stdout
if os.path.exists(f"{BUILD}/bin/test-gpu"):
    p = run(f"{BUILD}/bin/test-gpu", "test", s.mnt, *["pinned"] * (WAY != "plain"))
    assert p.returncode in (0, 77), p.stdout
    if p.returncode == 0:
        p = run(f"{BUILD}/bin/example_offload", s.mnt, "0")
        assert p.returncode == 0 and "the same" in p.stdout, p.stdout
# keys
tokens = f"{TMP}/tokens"
with open(tokens, "w") as f:
    f.write("[" + ", ".join(map(str, range(1, 17))) + "]")
p = run(binary("kvcachectl"), "hash", "vllm-sha256_cbor", tokens, "my-model",
        env={"PYTHONHASHSEED": "0"})
assert p.stdout.strip() == \
    "my-model/202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea", p.stdout
p = run(binary("kvcachectl"), "hash", "sglang:16", tokens)
assert p.stdout.strip() == "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07", \
    p.stdout
for bad in (["hash", "nobody", tokens], ["hash", "sglang", "/nonexistent"],
            ["hash", "sglang:x", tokens], ["hash", "vllm-xxhash", tokens], ["hash"]):
    p = run(binary("kvcachectl"), *bad)
    assert p.returncode and len(p.stdout.strip().splitlines()) == 1, (bad, p.stdout)
# a NUMA node for a pool
for name, vendor, kind, node in (("0000:01:00.0", "0x10de", "0x030200", "1"),
                                 ("0000:02:00.0", "0x10de", "0x060400", "0"),
                                 ("0000:03:00.0", "0x8086", "0x030000", "0"),
                                 ("0000:04:00.0", "0x10de", "0x030000", "-1")):
    os.makedirs(f"{TMP}/pci/{name}")
    for file, value in (("vendor", vendor), ("class", kind), ("numa_node", node)):
        with open(f"{TMP}/pci/{name}/{file}", "w") as f:
            f.write(value + "\n")
p = run(binary("kvcachectl"), "gpus", f"{TMP}/pci", ok=True)
assert sorted(p.stdout.splitlines()) == ["0000:01:00.0 node 1: mount with numa=bind:1",
                                         "0000:04:00.0 has no NUMA node"], p.stdout
assert "no NVIDIA device" in run(binary("kvcachectl"), "gpus", TMP, ok=True).stdout
assert run(binary("kvcachectl"), "gpus", "/nonexistent").returncode == 1
# installed: header, library, pkg-config
top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
root = f"{TMP}/root"
os.makedirs(f"{root}/include")
os.makedirs(f"{root}/lib/pkgconfig")
for header in glob.glob(f"{top}/gpu/kvcachefs*.h"):
    shutil.copy(header, f"{root}/include")
for f in ("libkvcachefs.so.0", "libkvcachefs.a"):
    shutil.copy(f"{BUILD}/lib/{f}", f"{root}/lib")
os.symlink("libkvcachefs.so.0", f"{root}/lib/libkvcachefs.so")
with open(f"{BUILD}/lib/kvcachefs.pc") as f, open(f"{root}/lib/pkgconfig/kvcachefs.pc", "w") as out:
    out.write(re.sub("^prefix=.*", f"prefix={root}", f.read(), count=1, flags=re.M))
if os.path.basename(BUILD) not in ("asan", "tsan"):
    env = dict(os.environ, PKG_CONFIG_PATH=f"{root}/lib/pkgconfig", LD_LIBRARY_PATH=f"{root}/lib")
    flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "kvcachefs"], env=env,
                                    text=True).split()
    run("gcc", "-o", f"{TMP}/example", f"{top}/gpu/example_offload.c", *flags, ok=True, env=env)
    p = run(f"{TMP}/example", s.mnt, env=env)
    assert p.returncode == 0 and "the same" in p.stdout, p.stdout
s.umount()
s.fsck()
