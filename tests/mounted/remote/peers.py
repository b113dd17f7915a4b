# SPDX-License-Identifier: Apache-2.0
# ways: fast/plain
# level: check
"""Nodes that read each other's pool and disk (remote=peers://): found by name alone, from the pool
and from the disk, sealed and not, and what the reader keeps of it."""
import errno, os, time
from kvtest import KiB, MiB, binary, blob, fails, need_mount, run, wait_for
import nodes

need_mount()


def story(name, extra):
    a, b = nodes.mounted(name, 2, extra)
    one, two, big = blob(1, MiB), blob(2, 300 * KiB + 5), blob(3, 9 * MiB + 17)
    a.write("model/chunk/layer0", one)
    a.write("model/chunk/layer1", two)
    a.write("model/big", big)
    a.write("flat", b"")
    with fails(errno.ENOENT):
        os.stat(f"{b.mnt}/nobody/has/this")
    # from the pool of the other node
    assert b.read("model/chunk/layer0") == one
    assert b.read("model/chunk/layer1") == two
    assert b.read("model/big") == big
    assert b.read("flat") == b""
    st = b.stats()
    assert st["ask_hits"] >= 5 and st["corrupt"] == 0, st
    assert a.stats()["peer_bytes"] > len(one) + len(two) + len(big)
    # the other node's frame is no copy: it is not a tier of the object here
    b.settle()
    assert b.attr("model/chunk/layer0", "tiers").split(",") == ["cpu", "disk"], \
        b.attr("model/chunk/layer0", "tiers")
    # from the disk of the other node
    a.write("model/cold", two)
    a.settle()
    os.setxattr(f"{a.mnt}/model/cold", "user.kvcachefs.demote", b"cpu")
    assert a.attr("model/cold", "tiers") == "disk"
    assert b.read("model/cold") == two
    # jobs over all tiers leave the other node alone
    run(binary("kvcachectl"), "flush", b.mnt, ok=True)
    assert run(binary("kvcachectl"), "verify", b.mnt, ok=True)
    p = run(binary("kvcachectl"), "verify", "--tier", "peers", b.mnt)
    assert p.returncode == 1 and "of other nodes are not verified" in p.stdout, p
    run(binary("kvcachectl"), "import", b.mnt)
    for s in (a, b):
        s.umount()
        s.fsck()
    # what b has read is its own: a is not needed any more
    b.mount()
    assert b.read("model/chunk/layer0") == one and b.read("model/big") == big
    b.umount()


def without_disk():
    """A reader that has only its pool evicts without copies, and reads again."""
    a, b = nodes.make("memory", 2)
    b.options += ",disk=off"
    b.cpu = "16M"
    a.mount()
    b.mount()
    data = {i: blob(i, 3 * MiB) for i in range(12)}
    for i, d in data.items():
        a.write(f"m/{i}/f", d)
    for _ in range(2):
        for i, d in data.items():
            assert wait_for(lambda: later(b, f"m/{i}/f")) == d
    assert b.stats()["drops"] > 0, b.stats()
    log = b.log()
    a.umount()
    b.umount()
    assert "could not be copied" not in b.log()[len(log):]


def write_back():
    """An object of another node is copied to the disk before it leaves the pool."""
    a, b = nodes.make("back", 2)
    b.options += ",write=back"
    b.cpu = "16M"
    a.mount()
    b.mount()
    data = {i: blob(i, 3 * MiB) for i in range(12)}
    for i, d in data.items():
        a.write(f"m/{i}/f", d)
    for i, d in data.items():
        assert wait_for(lambda: later(b, f"m/{i}/f")) == d
    b.settle()
    a.umount()
    for i, d in data.items():
        assert b.read(f"m/{i}/f") == d
    b.umount()


def later(s, path):
    """A miss is remembered for a moment, and a node that did not answer is left alone."""
    try:
        return s.read(path)
    except FileNotFoundError:
        time.sleep(.2)
        return None


without_disk()
write_back()
story("clear", "")
story("sealed", f",keyfile={nodes.key_file('keys')}")
