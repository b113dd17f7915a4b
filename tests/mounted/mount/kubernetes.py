# SPDX-License-Identifier: Apache-2.0
# ways: fast
"""The manifests of scripts/kubernetes are consistent and work. The case runs them with mount
namespaces and roots in place of containers, with the manifests' volumes, propagation, commands and
users. An engine's container sees the daemon's mount, also after the daemon was killed and another
one started, which finds the pool warm. After SIGTERM nothing is mounted."""
import os, re, signal, socket, subprocess, sys, urllib.request
from kvtest import *

try:
    import yaml
except ImportError:
    skip("needs python3-yaml")
here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../scripts/kubernetes")
daemons, engine = (yaml.safe_load(open(f"{here}/{n}.yaml")) for n in ("daemonset", "engine"))
pod, engine = daemons["spec"]["template"]["spec"], engine["spec"]
daemon, mkfs = pod["containers"][0], pod["initContainers"][0]

# the manifests
for spec in (pod, engine):
    volumes = {v["name"] for v in spec["volumes"]}
    for c in spec["containers"] + spec["initContainers"]:
        assert {m["name"] for m in c["volumeMounts"]} <= volumes, c["name"]
assert daemons["spec"]["selector"]["matchLabels"] == \
    daemons["spec"]["template"]["metadata"]["labels"]
options = ",".join(b for a, b in zip(daemon["args"], daemon["args"][1:]) if a == "-o").split(",")
named = dict(o.partition("=")[::2] for o in options)
table = re.findall(r"^  (\w+)(?:=\S+)? ", run(binary("kvcachefs"), "--help", ok=True).stdout, re.M)
assert set(named) <= set(table), set(named) - set(table)
containerfile = open(f"{here}/Containerfile").read()
assert 'ENTRYPOINT ["kvcachefs"]' in containerfile
images = {c["image"] for c in (daemon, mkfs)}
version = run(binary("kvcachefs"), "--version", ok=True).stdout.split()[1]
assert images == {f"kvcachefs:{version}"} and f"-t kvcachefs:{version} " in containerfile, images
gi = re.fullmatch(r"(\d+)Gi", daemon["resources"]["limits"]["memory"])
assert int(gi[1]) > int(named["cpu"].rstrip("G"))
assert daemon["resources"]["requests"]["memory"] == gi[0]
port = {p["name"]: p["containerPort"] for p in daemon["ports"]}["metrics"]
assert named["metrics"] == f"0.0.0.0:{port}"
# the probes do not use a port, so clients of the port cannot delay them
probes = {k: daemon[k]["exec"]["command"] for k in daemon if k.endswith("Probe")}
assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
bidirectional = {m["mountPath"]: m["name"] for m in daemon["volumeMounts"]
                 if m.get("mountPropagation") == "Bidirectional"}
store, mnt = daemon["args"][1:3]
assert pod["hostPID"] is True  # otherwise it sees no supplementary groups of engines
assert daemon["securityContext"]["privileged"] and set(bidirectional) == {
    named["run"], os.path.dirname(mnt)}
at = {v["name"]: v.get("hostPath", {}).get("path") for v in pod["volumes"]}
assert engine["volumes"][0]["hostPath"]["path"] == at[bidirectional[os.path.dirname(mnt)]]

# the manifests, run as containers
need_mount()
apart()
NODE = f"{TMP}/node"
os.mkdir(NODE)
run("mount", "-t", "tmpfs", "node", NODE, ok=True)
run("mount", "--make-shared", NODE, ok=True)  # as a node's root is
for path in filter(None, at.values()):
    os.makedirs(NODE + path)
os.makedirs(f"{NODE}/secrets/secrets")
with open(f"{NODE}/secrets/secrets/token", "w") as f:
    f.write("0123456789abcdef\n")
os.chmod(f"{NODE}/secrets/secrets/token", 0o400)
with socket.create_server(("127.0.0.1", 0)) as free:
    free_port = free.getsockname()[1]
SMALL = {"64G": "32M", "200G": "64M", f"0.0.0.0:{port}": f"127.0.0.1:{free_port}"}


SUPPRESSED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tsan.supp")


def small(text):
    for big, little in SMALL.items():
        text = text.replace(big, little)
    return text


def container(c, volumes, command, user=None):
    """Returns the process of the command, in a root directory that has the programs of this machine
    and the volumes of the container."""
    root = f"{TMP}/root"
    lines = ["set -e", "mount --make-private /", f"mkdir -p {root}",
             f"mount -t tmpfs -o mode=755 root {root}",
             f"mkdir {root}/proc {root}/dev {root}/tmp {root}/build {root}/etc {root}/sys",
             f"mount --rbind --make-rslave /proc {root}/proc",
             f"mount --rbind --make-rslave /dev {root}/dev",
             f"mount --rbind --make-rslave /sys {root}/sys", f"mount --bind {BUILD} {root}/build",
             f"mkdir {root}/usr && mount --bind /usr {root}/usr",
             f"for d in bin sbin lib lib64; do ln -s usr/$d {root}/$d; done"]
    for m in c["volumeMounts"]:
        source = NODE + (volumes[m["name"]] or f"/secrets/{m['name']}")
        lines += [f"mkdir -p {root}{m['mountPath']}",
                  f"mount --rbind {source} {root}{m['mountPath']}",
                  "mount --make-" + {"Bidirectional": "rshared", "HostToContainer": "rslave",
                                     None: "rprivate"}[m.get("mountPropagation")] +
                  f" {root}{m['mountPath']}"]
    drop = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups",
            "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"] if user else [
        # the daemon uses only this capability of a privileged container
        "setpriv", "--inh-caps=-all", "--bounding-set=-all,+sys_admin"]
    # the sanitizer's suppression file must exist inside the root
    lines.append(f"cp {SUPPRESSED} {root}/etc/tsan.supp")
    env = ["env", "-i", "PATH=/build/bin:/usr/sbin:/usr/bin:/sbin:/bin", *(
        f"{k}=" + re.sub("suppressions=[^:]*", "suppressions=/etc/tsan.supp", v)
        for k, v in os.environ.items() if k.endswith("SAN_OPTIONS"))]
    lines.append('exec chroot "$0" "$@"')
    return subprocess.Popen(["unshare", "--mount", "--propagation", "unchanged", "sh", "-c",
                             "\n".join(lines), root, *env, *drop, *map(small, command)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def of_engine(script):
    c, user = engine["containers"][0], engine["securityContext"]["runAsUser"]
    volumes = {v["name"]: v["hostPath"]["path"] for v in engine["volumes"]}
    return container(c, volumes, ["sh", "-ec", script], user)


def done(p):
    out = p.communicate(timeout=HANG)[0]
    assert p.returncode == 0, out
    return out


def start():
    done(container(mkfs, at, mkfs["command"]))
    p = container(daemon, at, ["kvcachefs", *daemon["args"]])
    wait_for(lambda: p.poll() is not None or probe("readinessProbe"))
    assert p.poll() is None, p.stdout.read()
    return p


def probe(which):
    """Whether the probe succeeds, as the kubelet runs it in the daemon's container."""
    p = container(daemon, at, probes[which])
    p.communicate(timeout=HANG)
    return p.returncode == 0


def http(path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}{path}") as r:
            return r.status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return None


cache = engine["containers"][0]["volumeMounts"][0]["mountPath"] + mnt[len(os.path.dirname(mnt)):]
waits = container(engine["initContainers"][0],
                  {v["name"]: v["hostPath"]["path"] for v in engine["volumes"]},
                  engine["initContainers"][0]["command"], 1000)
# an engine that lives from before the first daemon until after the second
assert not probe("livenessProbe") and not probe("startupProbe")
first = start()
done(waits)
assert probe("livenessProbe") and http("/metrics") == 401 and http("/readyz") == 200
slow = []  # clients that take all connections that they get, and never finish a request
for n in range(600):
    try:
        slow.append(socket.create_connection(("127.0.0.1", free_port), 10))
        slow[-1].sendall(b"GET /healthz HTTP/1.1\r\nA: ")
    except OSError:
        break
assert all(probe(p) for p in probes), f"beside {len(slow)} slow clients"
for c in slow:
    c.close()
long = of_engine(f"mkdir {cache}/model; seq 200000 >{cache}/model/chunk; echo stored; "
                 f"until [ -e {cache}/go ]; do sleep 0.05; done; "
                 f"seq 200000 | cmp - {cache}/model/chunk; echo loaded")
assert long.stdout.readline() == "stored\n", long.stdout.read()
config = f"{NODE}{at['mounts']}/kv/.kvcachefs/config"
stats = config.replace("config", "stats")


def of(file, name):
    with open(file) as f:
        return next(l.split("=", 1)[1].strip() if "=" in l else l.split()[1] for l in f
                    if re.split("[= ]", l)[0] == name)


assert of(config, "pool_is") == "a tmpfs of its own" and of(config, "pool_warm") == "no"
wait_for(lambda: of(stats, "catalog_pending_bytes") == "0" and of(stats, "files_open") == "0")
first.kill()
first.wait()
assert not probe("livenessProbe"), "a dead daemon"
second = start()
assert of(config, "pool_warm") == "yes", "the pool went with the container"
with open(f"{NODE}{at['mounts']}/kv/go", "w"):
    pass
assert long.stdout.readline() == "loaded\n", long.stdout.read()
done(long)
# the end
second.send_signal(signal.SIGTERM)
assert second.wait(timeout=HANG) == 0, second.stdout.read()
assert not os.path.ismount(f"{NODE}{at['mounts']}/kv") and not probe("livenessProbe")
assert http("/healthz") is None
assert os.listdir(f"{NODE}{at['run']}"), "keep_pool kept nothing"
third = start()
assert of(config, "pool_warm") == "yes"
third.terminate()
assert third.wait(timeout=HANG) == 0
