# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The CSI driver, called as the kubelet calls it: each RPC of Identity and Node. A pod gets the
folder of its namespace, or one below it, and stores there as an ordinary user; repeated calls
succeed; other kinds of volumes, wrong arguments, hostile paths, names and links are refused with
the code of the specification, and nothing is mounted; a dead daemon is reported and its volume can
be unpublished; all other RPCs are unimplemented."""
import importlib.util, os, shutil, stat, subprocess, sys
from kvtest import *

need_mount()
if not importlib.util.find_spec("grpc"):  # Debian's Python may have it
    other = "/usr/bin/python3"
    if os.path.realpath(sys.executable) == os.path.realpath(other) or \
            run(other, "-c", "import grpc, google.protobuf").returncode:
        skip("needs python3-grpcio and python3-protobuf")
    os.execv(other, [other, *sys.argv])
if not shutil.which("protoc") or not os.path.exists("/usr/include/google/protobuf/any.proto"):
    skip("needs protobuf-compiler and libprotobuf-dev")
apart()
here = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../scripts/kubernetes/csi"))
run("protoc", f"--python_out={TMP}", f"-I{here}", "csi.proto", ok=True)
sys.path.insert(0, TMP)
import grpc
import csi_pb2 as csi

s = Store(options="allow_other,mode=1777,settle=0", size="256M").mount()
KUBELET, SOCKET = f"{TMP}/kubelet", f"{TMP}/csi.sock"
os.makedirs(f"{KUBELET}/pods")
os.chmod(TMP, 0o755)
log = open(f"{TMP}/driver.log", "w")
driver = subprocess.Popen([sys.executable, f"{here}/driver.py", "--node", "n1", "--socket", SOCKET,
                           "--mount", s.mnt, "--kubelet", KUBELET], stdin=subprocess.DEVNULL,
                          stdout=log, stderr=log, env=dict(os.environ, PYTHONPATH=TMP))
wait_for(lambda: driver.poll() is not None or os.path.exists(SOCKET))
channel = grpc.insecure_channel(f"unix:{SOCKET}")
grpc.channel_ready_future(channel).result(HANG)
assert stat.S_IMODE(os.stat(SOCKET).st_mode) & 0o077 == 0, "other users may call the driver"
Code = grpc.StatusCode


def call(service, name, **fields):
    kind = csi.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    request = getattr(csi, kind.input_type.name)(**fields)
    return channel.unary_unary(f"/csi.v1.{service}/{name}",
                               request_serializer=lambda r: r.SerializeToString(),
                               response_deserializer=getattr(csi, kind.output_type.name).FromString
                               )(request, timeout=HANG)


def refused(code, service, name, **fields):
    try:
        call(service, name, **fields)
    except grpc.RpcError as e:
        assert e.code() == code, (e.code(), e.details(), fields)
        assert e.details() and "\n" not in e.details()
        return e.details()
    raise AssertionError(f"{name} succeeded with {fields}")


def capability(group="", **more):
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(volume_mount_group=group, **more),
        access_mode={"mode": csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER})


def target(name):
    path = f"{KUBELET}/pods/{name}/volumes/mount"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def volume(name="v", namespace="team", group="", **more):
    """The fields of a publication."""
    folder = more.pop("folder", None)
    context = {"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "p",
               "csi.storage.k8s.io/pod.namespace": namespace}
    if folder is not None:
        context["folder"] = folder
    return {"volume_id": f"csi-{name}", "target_path": target(name),
            "volume_capability": capability(group), "volume_context": context, **more}


def publish(**fields):
    return call("Node", "NodePublishVolume", **fields)


def unpublish(name):
    return call("Node", "NodeUnpublishVolume", volume_id=f"csi-{name}", target_path=target(name))


def no(code, **fields):
    said = refused(code, "Node", "NodePublishVolume", **fields)
    assert not os.path.ismount(fields["target_path"] or target("bad")), fields
    return said


def as_user(uid, gids, script, path):
    """Runs the script in the volume, as in a container: the folders above it are not visible."""
    return run("unshare", "--mount", "sh", "-ec", 'mount --bind "$0" /mnt; cd /mnt; exec "$@"',
               path, "setpriv", "--reuid", str(uid), "--regid", str(uid),
               "--groups", gids or str(uid), "--inh-caps=-all", "sh", "-ec", script)


# ---- Identity and the node -----------------------------------------------------------------------

info = call("Identity", "GetPluginInfo")
version = run(binary("kvcachefs"), "--version").stdout.split()[1]
assert (info.name, info.vendor_version) == ("csi.kvcachefs", version)
assert not call("Identity", "GetPluginCapabilities").capabilities
assert call("Identity", "Probe").ready.value is True
assert call("Node", "NodeGetInfo").node_id == "n1"
kinds = csi.NodeServiceCapability.RPC
assert {c.rpc.type for c in call("Node", "NodeGetCapabilities").capabilities} == {
    kinds.GET_VOLUME_STATS, kinds.VOLUME_CONDITION, kinds.VOLUME_MOUNT_GROUP}
known = {"GetPluginInfo", "GetPluginCapabilities", "Probe", "NodeGetInfo", "NodeGetCapabilities",
         "NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats"}
others = 0
for service, d in csi.DESCRIPTOR.services_by_name.items():
    for method in set(d.methods_by_name) - known:
        if not d.methods_by_name[method].output_type.name.startswith("GetMetadata"):  # are streams
            try:
                call(service, method)
                raise AssertionError(method)
            except grpc.RpcError as e:
                assert e.code() == Code.UNIMPLEMENTED, (method, e)
            others += 1
assert others > 15

# ---- Publish, use, unpublish ---------------------------------------------------------------------

publish(**volume())
publish(**volume())  # again
at = target("v")
with open("/proc/self/mountinfo") as f:
    lines = [l for l in f if l.split()[4] == at]
assert len(lines) == 1 and "nosuid" in lines[0] and "nodev" in lines[0], lines
assert os.stat(at).st_ino == os.stat(f"{s.mnt}/team").st_ino
p = as_user(1000, "", "mkdir -p model/c; seq 9999 >model/c/l; seq 9999 | cmp - model/c/l", at)
assert p.returncode == 0, p.stdout
assert s.read("team/model/c/l") == "".join(f"{i}\n" for i in range(1, 10000)).encode()
publish(**volume("deep", folder="a/b", group="3000"))
deep = target("deep")
mode = os.stat(deep)
assert stat.S_IMODE(mode.st_mode) == 0o2770 and mode.st_gid == 3000 and mode.st_uid == 0
assert os.getxattr(f"{s.mnt}/team/a/b", "user.kvcachefs.unit_now") == b"file", "it could be dropped"
assert os.getxattr(f"{s.mnt}/team", "user.kvcachefs.unit_now") == b"file"
assert os.listdir(deep) == []
assert as_user(1000, "3000", "echo x >f", deep).returncode == 0
assert as_user(1001, "", "echo x >g", deep).returncode != 0, "a user without the group"
publish(**volume("again", folder="a/b"))  # another pod: the folder keeps its mode
assert stat.S_IMODE(os.stat(deep).st_mode) == 0o2770 and s.read("team/a/b/f") == b"x\n"
publish(**volume("ro", readonly=True))
assert as_user(0, "0", "echo x >model/new", target("ro")).returncode != 0
publish(**volume("ro", readonly=True))
refused(Code.ALREADY_EXISTS, "Node", "NodePublishVolume", **volume("ro"))
refused(Code.ALREADY_EXISTS, "Node", "NodePublishVolume", **volume("v", folder="a"))
publish(**volume("other", namespace="else"))
assert os.listdir(target("other")) == []

stats = call("Node", "NodeGetVolumeStats", volume_id="csi-v", volume_path=at)
units = {u.unit: u for u in stats.usage}
whole = os.statvfs(s.mnt)
assert units[csi.VolumeUsage.BYTES].total == whole.f_blocks * whole.f_frsize > 0
assert units[csi.VolumeUsage.INODES].used > 0 and stats.volume_condition.abnormal is False
refused(Code.NOT_FOUND, "Node", "NodeGetVolumeStats", volume_id="csi-v", volume_path=target("none"))

# ---- Wrong arguments, hostile paths --------------------------------------------------------------

INVALID = Code.INVALID_ARGUMENT
before = sorted(os.listdir(s.mnt))
for change in ({"volume_id": ""}, {"volume_id": "x" * 129}, {"target_path": ""},
               {"volume_capability": None}, {"volume_context": {}},
               {"volume_capability": csi.VolumeCapability(block={})},
               {"volume_capability": capability(mount_flags=["suid"])},
               {"volume_capability": capability(fs_type="ext4")},
               {"volume_capability": capability("-1")}, {"volume_capability": capability("x")},
               {"volume_capability": capability(str(1 << 32))}):
    no(INVALID, **{**volume("bad"), **change})
assert "size" in no(INVALID, **{**volume("bad"), "volume_context": {
    **volume()["volume_context"], "size": "1G"}})
no(INVALID, **{**volume("bad"), "volume_context": {
    k: v for k, v in volume()["volume_context"].items() if "namespace" not in k}})
for folder in ("..", "../else", "a/../../else", "/", "/etc", "a//b", ".", ".kvcachefs", "a/.x",
               "x" * 256):
    no(INVALID, **volume("bad", folder=folder))
for namespace in ("", "..", "a/b", ".kvcachefs"):
    no(INVALID, **volume("bad", namespace=namespace))
# a link that a pod made in its folder, to the folder of another namespace
os.symlink("../else", f"{s.mnt}/team/link")
os.symlink("/etc", f"{s.mnt}/team/etc")
s.write("team/file", b"x")
for folder in ("link", "etc", "link/inner", "file", "file/x"):
    no(INVALID, **volume("bad", folder=folder))
os.symlink("/", f"{KUBELET}/root")
os.makedirs(f"{TMP}/outside")
os.symlink(f"{TMP}/outside", f"{KUBELET}/pods/link")
for path in ("/etc", f"{TMP}/outside/x", f"{KUBELET}/../outside", f"{KUBELET}/pods/../../outside/x",
             f"{KUBELET}/root/tmp/x", f"{KUBELET}/pods/link", f"{KUBELET}/pods/link/x", "relative",
             f"{KUBELET}x/y", KUBELET, f"{KUBELET}/pods/a//b"):
    no(INVALID, **{**volume("bad"), "target_path": path})
    refused(INVALID, "Node", "NodeUnpublishVolume", volume_id="v", target_path=path)
    refused(INVALID, "Node", "NodeGetVolumeStats", volume_id="v", volume_path=path)
assert sorted(os.listdir(s.mnt)) == before and os.listdir(f"{TMP}/outside") == []
refused(INVALID, "Node", "NodeUnpublishVolume", volume_id="", target_path=at)
# a mount of something else is left alone, and so are files of the target
foreign = target("foreign")
os.mkdir(foreign)
run("mount", "-t", "tmpfs", "other", foreign, ok=True)
refused(Code.FAILED_PRECONDITION, "Node", "NodeUnpublishVolume", volume_id="v", target_path=foreign)
refused(Code.ALREADY_EXISTS, "Node", "NodePublishVolume", **volume("foreign"))
assert os.path.ismount(foreign)
run("umount", foreign, ok=True)
open(f"{foreign}/file", "w").close()
refused(Code.FAILED_PRECONDITION, "Node", "NodeUnpublishVolume", volume_id="v", target_path=foreign)
refused(Code.FAILED_PRECONDITION, "Node", "NodePublishVolume", **volume("foreign"))
assert os.listdir(foreign) == ["file"]

# ---- Unpublish, also with a file open, and after the daemon died ---------------------------------

with open(f"{deep}/f") as f:
    unpublish("deep")
    unpublish("deep")
    assert f.read() == "x\n"
assert not os.path.exists(deep) and s.read("team/a/b/f") == b"x\n", "the files stay in the cache"
unpublish("never")
s.kill()
stats = call("Node", "NodeGetVolumeStats", volume_id="csi-v", volume_path=at)
assert stats.volume_condition.abnormal and "start the pod again" in stats.volume_condition.message
no(Code.UNAVAILABLE, **volume("late"))
unpublish("v")
assert not os.path.exists(at)
run("umount", "-l", s.mnt, ok=True)
assert "not mounted" in no(Code.UNAVAILABLE, **volume("late"))
assert os.listdir(s.mnt) == [], "it wrote below the mount"
s.mount()
publish(**volume("late"))  # the kubelet has repeated the call
assert os.path.exists(f"{target('late')}/model/c/l")
for name in ("late", "ro", "again", "other"):
    unpublish(name)
with open("/proc/self/mountinfo") as f:
    assert KUBELET not in f.read()
driver.terminate()
assert driver.wait(HANG) == 0
with open(f"{TMP}/driver.log") as f:
    text = f.read()
assert "Traceback" not in text and "driver: NodePublishVolume: " in text, text
s.umount()
s.fsck()
