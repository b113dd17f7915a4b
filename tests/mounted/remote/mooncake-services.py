# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The program mooncake_store.py with the real Mooncake: a master, a process that owns a segment,
and two nodes. A node reads what the other has stored. A master that is killed or stopped, and the
death of the segment's owner, make misses or failures, never wrong bytes or a read that hangs; when
they are back, the tier works again without a new mount."""
import os, signal
from kvtest import (KiB, MiB, SLOW, Store, TMP, beside, binary, blob, freeze, need_mount, run,
                    wait_for)
import servers
from servers import in_ext, read_or_miss

need_mount()
DEADLINE = 2000 * SLOW
SIZES = 100, 20 * KiB, 300 * KiB, 4 * MiB, 9 * MiB + 5
with open(f"{TMP}/keys", "w", opener=lambda p, f: os.open(p, f, 0o600)) as keys:
    keys.write("1 " + "5a" * 32 + "\n")


def nodes(name, program):
    options = (f"settle=0,disk=off,deadline={DEADLINE},keyfile={TMP}/keys,"
               f"remote={program.url(more='')}")
    return [Store(f"{name}.{n}", options=options).mount() for n in "ab"]


def stored(s, folder):
    """Stores files, and returns their bytes by their paths."""
    data = {f"{folder}/{n}/f": blob((folder, n), size) for n, size in enumerate(SIZES)}
    for path, d in data.items():
        s.write(path, d)
    for path in data:
        wait_for(lambda: in_ext(s, path))
    return data


def shared(b, data):
    for path, d in data.items():
        assert read_or_miss(b, path) == d, path


def eventually(b, data):
    """All files can be read, and until then none has wrong bytes."""
    for path, d in data.items():
        def found():
            got = read_or_miss(b, path)
            assert got in (None, d), path
            return got is not None
        wait_for(found)


def failing(a, b, data):
    """The tier fails for both nodes, and the pool still has the files of a."""
    wait_for(lambda: [read_or_miss(b, f"m/none/{n}") for n in range(9)]
             and b.stats()["breaker_opened"])
    for path, d in data.items():
        assert read_or_miss(b, path) in (None, d), path
        assert a.read(path) == d, path


def master_is_killed():
    """The new master knows no objects: they are misses, and files stored since are found."""
    m = servers.Mooncake("killed")
    a, b = nodes("killed", m)
    data = stored(a, "m/before")
    some = dict(list(data.items())[::2])
    shared(b, some)
    m.master.kill()
    m.master.wait()
    failing(a, b, data)
    a.write("m/during/f", blob("during", 300 * KiB))
    m.start_master()
    wait_for(lambda: in_ext(a, "m/during/f"))  # the owner of the segment has registered again
    eventually(b, {"m/during/f": blob("during", 300 * KiB)})
    eventually(b, stored(a, "m/after"))
    for s in (a, b):
        assert s.stats()["corrupt"] == 0
        s.umount()
    m.stop()


def master_is_stopped():
    m = servers.Mooncake("stopped")
    a, b = nodes("stopped", m)
    data = stored(a, "m/before")
    freeze(m.master.pid)
    failing(a, b, data)
    m.master.send_signal(signal.SIGCONT)
    eventually(b, stored(a, "m/after"))
    for s in (a, b):
        s.umount()
    m.stop()


def owner_is_killed():
    """Objects in the lost segment are misses. With a new segment the tier stores again."""
    m = servers.Mooncake("owner")
    a, b = nodes("owner", m)
    data = stored(a, "m/before")
    m.owner.kill()
    m.owner.wait()
    for path, d in data.items():
        assert read_or_miss(b, path) in (None, d), path
        assert a.read(path) == d, path
    m.start_owner()
    # in a new folder: the frame of the folder m may be lost, too
    a.write("new/again/f", blob("again", 300 * KiB))
    wait_for(lambda: in_ext(a, "new/again/f"))
    eventually(b, {"new/again/f": blob("again", 300 * KiB)})
    for s in (a, b):
        s.umount()
    m.stop()


def replaced_and_listed():
    m = servers.Mooncake("listed")
    a, b = nodes("listed", m)
    for turn in range(5):  # of one size, and of another one
        a.write("m/again/f", blob(turn, 40 * KiB + turn // 2))
        wait_for(lambda: in_ext(a, "m/again/f"))
    assert read_or_miss(b, "m/again/f") == blob(4, 40 * KiB + 2)
    data = stored(a, "m/list")
    run(binary("kvcachectl"), "import", b.mnt, ok=True)
    assert sorted(os.listdir(f"{b.mnt}/m/list")) == [str(n) for n in range(len(SIZES))]
    shared(b, data)
    for s in (a, b):
        s.umount()
    m.stop()


def mount_without_master():
    m = servers.Mooncake("absent")
    m.owner.kill()
    m.owner.wait()
    m.master.kill()
    m.master.wait()
    a, b = nodes("absent", m)
    a.write("m/f", blob("f", 300 * KiB))
    m.start_master()
    m.start_owner()
    wait_for(lambda: in_ext(a, "m/f"))
    eventually(b, {"m/f": blob("f", 300 * KiB)})
    for s in (a, b):
        s.umount()
    m.stop()


servers.Mooncake.find()
parts = (master_is_killed, master_is_stopped, owner_is_killed, replaced_and_listed,
         mount_without_master)
beside([(part,) for part in parts if part.__name__.startswith(os.environ.get("PART", ""))],
       most=2)
