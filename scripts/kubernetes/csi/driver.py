#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
driver.py --node NAME [OPTION...]: a CSI node plugin. It publishes a folder of the node's kvcachefs
mount to a pod as an ephemeral inline volume, by a bind mount. There is no controller, no staging
and no other kind of volume. It needs root, python3-grpcio, python3-protobuf, and csi_pb2.py, which
protoc --python_out makes from csi.proto.

A pod gets the folder of its namespace in the mount, or a folder below it that the attribute
`folder` names. So a pod cannot reach the folders of another namespace: the kubelet, not the pod,
names the namespace (podInfoOnMount). No part of the path may be a symbolic link, because the pods
of a namespace can write to its folder. A new folder belongs to root; it is writable for the group
of the volume (fsGroup of the pod), or for all users if the pod has no fsGroup.

If the daemon of kvcachefs is not running, a publication fails and the kubelet repeats it, so that
the pod waits. Mounts of a previous daemon stay dead: NodeGetVolumeStats reports them as abnormal,
and the pod must be started again.

Errors are the gRPC codes of the specification, with one line of text. A call of a method that is
not in METHODS fails with UNIMPLEMENTED.
"""
import argparse
import concurrent.futures
import ctypes
import errno
import os
import signal
import sys
import threading

import grpc

import csi_pb2 as csi

NAME = "csi.kvcachefs"
VERSION = "0.1.0"  # scripts/version writes it
ID_MOST = 128  # bytes of a volume id, as the specification says
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
EPHEMERAL, NAMESPACE = "csi.storage.k8s.io/ephemeral", "csi.storage.k8s.io/pod.namespace"
# errors of a mount whose daemon has ended; the last two while it ends
DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED)
Code = grpc.StatusCode
libc = ctypes.CDLL(None, use_errno=True)


class Refusal(Exception):
    """The answer of a call that fails."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def mount(source, target, flags):
    if libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), target)


def unmount(target):
    """Lazily: a container that is being ended may still have a file open."""
    if libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), target)


def mounts(path):
    """The mounts on a path, the last one on top: (device, root, options, type). Nothing is asked of
    the filesystems, because a dead one does not answer."""
    found = []
    with open("/proc/self/mountinfo", "rb") as f:
        for line in f:
            fields = line.split()
            where = fields[4].decode("unicode_escape").encode("latin-1")
            if where == os.fsencode(path):
                end = fields.index(b"-")
                found.append((fields[2], fields[3], fields[5].split(b","), fields[end + 1]))
    return found


def is_ours(m):
    return m[3].startswith(b"fuse")


class Node:
    def __init__(self, source, kubelet, node):
        self.source, self.kubelet, self.node = source, os.path.abspath(kubelet), node
        self.lock = threading.Lock()  # the kubelet may repeat a call while the first one runs

    # ---- Identity ----

    def GetPluginInfo(self, request):
        return csi.GetPluginInfoResponse(name=NAME, vendor_version=VERSION)

    def GetPluginCapabilities(self, request):
        return csi.GetPluginCapabilitiesResponse()

    def Probe(self, request):
        """The driver is ready even if kvcachefs is not mounted: it can still unpublish."""
        r = csi.ProbeResponse()
        r.ready.value = True
        return r

    # ---- Node ----

    def NodeGetInfo(self, request):
        return csi.NodeGetInfoResponse(node_id=self.node)

    def NodeGetCapabilities(self, request):
        r = csi.NodeGetCapabilitiesResponse()
        kinds = csi.NodeServiceCapability.RPC
        for kind in (kinds.GET_VOLUME_STATS, kinds.VOLUME_CONDITION, kinds.VOLUME_MOUNT_GROUP):
            r.capabilities.add().rpc.type = kind
        return r

    def NodePublishVolume(self, request):
        target = self._target(request.volume_id, request.target_path)
        group = self._capability(request)
        parts = self._folder(request.volume_context)
        with self.lock:
            fd = self._open(parts, group)
            try:
                return self._publish(fd, target, request.readonly)
            finally:
                os.close(fd)

    def NodeUnpublishVolume(self, request):
        """Succeeds if nothing is published there. Removes no files."""
        target = self._target(request.volume_id, request.target_path)
        with self.lock:
            while there := mounts(target):
                if not is_ours(there[-1]):
                    raise Refusal(Code.FAILED_PRECONDITION,
                                  f"{target} is a mount that this driver did not make")
                unmount(target)
            try:
                os.rmdir(target)
            except FileNotFoundError:
                pass
            except OSError as e:
                raise Refusal(Code.FAILED_PRECONDITION,
                              f"cannot remove {target}: {e.strerror}") from None
        return csi.NodeUnpublishVolumeResponse()

    def NodeGetVolumeStats(self, request):
        target = self._target(request.volume_id, request.volume_path)
        there = mounts(target)
        if not there or not is_ours(there[-1]):
            raise Refusal(Code.NOT_FOUND, f"no volume is published at {target}")
        r = csi.NodeGetVolumeStatsResponse()
        try:
            s = os.statvfs(target)
        except OSError as e:
            r.volume_condition.abnormal = True
            r.volume_condition.message = (f"the daemon of this volume has ended ({e.strerror}): "
                                          "start the pod again")
            return r
        units = csi.VolumeUsage
        r.usage.add(unit=units.BYTES, total=s.f_blocks * s.f_frsize,
                    available=s.f_bavail * s.f_frsize, used=(s.f_blocks - s.f_bfree) * s.f_frsize)
        r.usage.add(unit=units.INODES, total=s.f_files, available=s.f_favail,
                    used=s.f_files - s.f_ffree)
        r.volume_condition.message = "the volume is available"
        return r

    # ---- Parts of the methods above ----

    def _target(self, volume, path):
        """A path that the kubelet may give: below its own folder, without links."""
        if not volume or len(volume.encode()) > ID_MOST:
            raise Refusal(Code.INVALID_ARGUMENT, f"a volume id has 1 to {ID_MOST} bytes")
        if not path:
            raise Refusal(Code.INVALID_ARGUMENT, "the path of the volume is missing")
        if "\0" in path or path != os.path.normpath(path) or \
                not path.startswith(self.kubelet + "/") or \
                os.path.realpath(os.path.dirname(path)) != os.path.dirname(path) or \
                (not mounts(path) and os.path.islink(path)):
            raise Refusal(Code.INVALID_ARGUMENT, f"{path!r} is not a path below {self.kubelet} "
                          "without links and '..'")
        return path

    @staticmethod
    def _capability(request):
        """The group of the volume, or None."""
        if not request.HasField("volume_capability"):
            raise Refusal(Code.INVALID_ARGUMENT, "the volume capability is missing")
        capability = request.volume_capability
        if not capability.HasField("mount"):
            raise Refusal(Code.INVALID_ARGUMENT, "only volumes of the kind mount exist")
        if capability.mount.mount_flags or capability.mount.fs_type not in ("", "kvcachefs"):
            raise Refusal(Code.INVALID_ARGUMENT, "mount flags and other filesystems are not "
                          "possible")
        group = capability.mount.volume_mount_group
        if group and (not group.isdecimal() or int(group) >= 1 << 32):
            raise Refusal(Code.INVALID_ARGUMENT, f"the group {group!r} is not a number")
        return int(group) if group else None

    @staticmethod
    def _folder(context):
        """The names from the root of the mount to the folder."""
        if context.get(EPHEMERAL) != "true":
            raise Refusal(Code.INVALID_ARGUMENT, "only ephemeral inline volumes exist")
        namespace, folder = context.get(NAMESPACE, ""), context.get("folder", "")
        unknown = [k for k in context if k != "folder" and not k.startswith("csi.storage.k8s.io/")]
        if unknown:
            raise Refusal(Code.INVALID_ARGUMENT, f"the attribute {min(unknown)!r} does not exist; "
                          "the only one is folder")
        parts = [namespace, *(folder.split("/") if folder else [])]
        for part in parts:
            if part in ("", ".", "..") or "/" in part or "\0" in part or len(part.encode()) > 255 \
                    or part.startswith("."):
                raise Refusal(Code.INVALID_ARGUMENT, f"{'/'.join(parts)!r} is not a folder below "
                              "the namespace's folder")
        return parts

    def _open(self, parts, group):
        """Opens the folder, after it is made if necessary. The caller closes it."""
        try:
            there = mounts(self.source)
            if not there or not is_ours(there[-1]):
                raise OSError(errno.ENODEV, "kvcachefs is not mounted")
            fd = os.open(self.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            raise Refusal(Code.UNAVAILABLE, f"{self.source}: {e.strerror}") from None
        for part in parts:
            try:
                new = False
                try:
                    os.mkdir(part, 0o700, dir_fd=fd)
                    new = True
                except FileExistsError:
                    pass
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                                dir_fd=fd)
            except OSError as e:
                kind = Code.INTERNAL
                if e.errno in (errno.ELOOP, errno.ENOTDIR):
                    kind = Code.INVALID_ARGUMENT
                elif e.errno in DEAD:
                    kind = Code.UNAVAILABLE
                raise Refusal(kind, f"{'/'.join(parts)} in the mount: {part}: "
                              f"{e.strerror}") from None
            finally:
                os.close(fd)
            fd = inner
            if new and group is None:
                os.fchmod(fd, 0o1777)
            elif new:
                os.fchown(fd, -1, group)
                os.fchmod(fd, 0o2770)
        self._contain(fd)
        return fd

    @staticmethod
    def _contain(fd):
        """Makes the folder a container (kvcachefs-attributes(7)), as each folder with a subfolder
        is: a folder of files that arrive in one burst would be a chunk, which the cache drops
        together with its folder, and the volume of the pod would be a removed folder."""
        for call in os.mkdir, os.rmdir:
            try:
                call(".kvcachefs-csi", dir_fd=fd)
            except (FileExistsError, FileNotFoundError):
                pass  # another publication does the same

    @staticmethod
    def _publish(fd, target, readonly):
        there = mounts(target)
        if there:
            want, flag = os.fstat(fd), b"ro" if readonly else b"rw"
            device = f"{os.major(want.st_dev)}:{os.minor(want.st_dev)}".encode()
            if there[-1][0] == device and flag in there[-1][2] and \
                    os.stat(target).st_ino == want.st_ino:
                return csi.NodePublishVolumeResponse()
            raise Refusal(Code.ALREADY_EXISTS, f"{target} has another volume, or another mode")
        try:
            os.makedirs(target, 0o750, exist_ok=True)
            if os.listdir(target):
                raise Refusal(Code.FAILED_PRECONDITION, f"{target} is not empty")
            mount(f"/proc/self/fd/{fd}", target, MS_BIND)
        except OSError as e:
            raise Refusal(Code.INTERNAL, f"{target}: {e.strerror}") from None
        try:
            mount("", target, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV |
                  (MS_RDONLY if readonly else 0))
        except OSError as e:
            unmount(target)
            raise Refusal(Code.INTERNAL, f"{target}: {e.strerror}") from None
        return csi.NodePublishVolumeResponse()


METHODS = {"Identity": ("GetPluginInfo", "GetPluginCapabilities", "Probe"),
           "Node": ("NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats",
                    "NodeGetCapabilities", "NodeGetInfo")}


def handler(call, kind):
    def answer(request, context):
        try:
            return call(request)
        except Refusal as e:
            print(f"driver: {call.__name__}: {e}", file=sys.stderr, flush=True)
            context.abort(e.code, str(e))
    return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=kind.FromString,
                                               response_serializer=lambda r: r.SerializeToString())


def serve(node, socket):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    for service, names in METHODS.items():
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(
            f"csi.v1.{service}", {n: handler(getattr(node, n), getattr(csi, f"{n}Request"))
                                  for n in names})])
    try:
        os.unlink(socket)
    except FileNotFoundError:
        pass
    old = os.umask(0o077)  # only root may connect to the socket
    if not server.add_insecure_port(f"unix:{socket}"):
        sys.exit(f"driver: cannot listen at {socket}")
    server.start()
    os.umask(old)
    return server


def main():
    p = argparse.ArgumentParser(description="CSI node plugin for a mount of kvcachefs")
    p.add_argument("--node", required=True, help="the name of the node")
    p.add_argument("--socket", default="/csi/csi.sock", help="where the kubelet calls")
    p.add_argument("--mount", default="/mnt/kvcachefs/kv", help="the mount of kvcachefs")
    p.add_argument("--kubelet", default="/var/lib/kubelet", help="the folder of the kubelet")
    a = p.parse_args()
    ended = threading.Event()
    for s in signal.SIGTERM, signal.SIGINT:
        signal.signal(s, lambda *_: ended.set())
    server = serve(Node(a.mount, a.kubelet, a.node), a.socket)
    print(f"driver: {NAME} {VERSION} serves {a.mount} at {a.socket}", file=sys.stderr, flush=True)
    ended.wait()
    server.stop(5).wait()


if __name__ == "__main__":
    main()
