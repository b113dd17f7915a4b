# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The manifests for Kubernetes: the settings that an operator expects, references that resolve, the
result of kustomize (kubectl kustomize), and the Helm chart, which must give the same DaemonSet.
With the Python packages helm-python-sdk (Helm's own library) and kubernetes-validate (the schemas
of Kubernetes) the chart is linted and rendered, and each object is checked against its schema,
without unknown fields. KUBE_PYTHON names a Python that has them. If they are missing, these parts
are skipped, and a line says so."""
import json, os, shutil, subprocess, sys
from kvtest import *

try:
    import yaml
except ImportError:
    skip("needs python3-yaml")
here = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../scripts/kubernetes"))
DAEMON = "DaemonSet"


def load(text):
    return [o for o in yaml.safe_load_all(text) if o]


def read(path):
    with open(path) as f:
        return f.read()


def by_kind(objects):
    kinds = {o["kind"]: o for o in objects}
    assert len(kinds) == len(objects), [o["kind"] for o in objects]
    return kinds


plain = by_kind([o for n in ("namespace", "priorityclass", "daemonset")
                 for o in load(read(f"{here}/{n}.yaml"))])
monitor = load(read(f"{here}/monitoring/podmonitor.yaml"))[0]
engine = load(read(f"{here}/engine.yaml"))[0]


def check(objects):
    """Rules that no schema has: the objects of one installation fit together."""
    kinds = by_kind(objects)
    daemon = kinds[DAEMON]
    spec = daemon["spec"]["template"]["spec"]
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert spec["priorityClassName"] == kinds["PriorityClass"]["metadata"]["name"]
    assert kinds["PriorityClass"]["value"] <= 10 ** 9
    assert spec["nodeSelector"] == {"kvcachefs": "yes"}
    assert {t["key"] for t in spec["tolerations"]} == {"nvidia.com/gpu", "amd.com/gpu"}
    volumes = {v["name"]: v for v in spec["volumes"]}
    used = set()
    for c in spec["containers"] + spec["initContainers"]:
        assert {m["name"] for m in c["volumeMounts"]} <= set(volumes), c["name"]
        used |= {m["name"] for m in c["volumeMounts"]}
        name, _, tag = c["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+\.\d+|[0-9a-f]{64}", tag), f"{c['image']} is not pinned"
    assert used == set(volumes), "a volume that no container uses"
    c = spec["containers"][0]
    secret = volumes["secrets"]["secret"]
    at = {m["name"]: m["mountPath"] for m in c["volumeMounts"]}
    assert secret["defaultMode"] == 0o400 and f"metrics_token={at['secrets']}/token" in c["args"][6]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        mount = c["args"][2]
        assert list(c[probe]["exec"]["command"]) == [
            "sh", "-c", f"read -r _ <{mount}/.kvcachefs/config"], c[probe]
        assert c[probe]["timeoutSeconds"] >= 5 and "httpGet" not in c[probe]
    if "PodMonitor" in kinds:
        m = kinds["PodMonitor"]
        assert m["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert m["metadata"]["namespace"] == daemon["metadata"]["namespace"]
        (end,) = m["spec"]["podMetricsEndpoints"]
        assert end["port"] in {p["name"] for p in c["ports"]}
        assert end["authorization"] == {"type": "Bearer", "credentials": {
            "name": secret["secretName"], "key": "token"}}
    return kinds


csi = by_kind(load(read(f"{here}/csi/csi.yaml")))
pod = load(read(f"{here}/csi/engine.yaml"))[0]
driver, spec = csi["CSIDriver"], csi[DAEMON]["spec"]["template"]["spec"]
assert driver["spec"]["volumeLifecycleModes"] == ["Ephemeral"] and driver["spec"]["podInfoOnMount"]
source = read(f"{here}/csi/driver.py")
name = re.search(r'^NAME = "(.*)"$', source, re.M)[1]
assert driver["metadata"]["name"] == name == pod["spec"]["volumes"][0]["csi"]["driver"]
volumes = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]}
assert volumes["socket"] == f"/var/lib/kubelet/plugins/{name}"
assert f"--kubelet-registration-path={volumes['socket']}/csi.sock" in spec["containers"][1]["args"]
for c in spec["containers"]:
    assert {m["name"] for m in c["volumeMounts"]} <= set(volumes)
    assert re.search(r":v?\d+\.\d+\.\d+$", c["image"]), c["image"]
at = {m["mountPath"]: m.get("mountPropagation") for m in spec["containers"][0]["volumeMounts"]}
assert at["/mnt/kvcachefs"] == "HostToContainer" and at["/var/lib/kubelet/pods"] == "Bidirectional"
for setting in ("priorityClassName", "nodeSelector", "tolerations"):
    assert spec[setting] == plain[DAEMON]["spec"]["template"]["spec"][setting], setting
# Pod Security "restricted"
assert all("hostPath" not in v for v in pod["spec"]["volumes"])
assert pod["spec"]["securityContext"]["runAsNonRoot"]
level = plain["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
assert level == "privileged"
check(plain.values())
assert engine["spec"]["initContainers"][0]["image"] == \
    plain[DAEMON]["spec"]["template"]["spec"]["containers"][0]["image"]

# ---- kustomize -----------------------------------------------------------------------------------

kubectl = shutil.which("kubectl")
made = []
if kubectl and not run(kubectl, "kustomize", here).returncode:
    def kustomize(more=""):
        copy = f"{TMP}/kustomize"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(here, copy)
        with open(f"{copy}/kustomization.yaml", "a") as f:
            f.write(more)
        return check(load(run(kubectl, "kustomize", copy, ok=True).stdout))

    base = kustomize()
    assert base[DAEMON]["metadata"]["namespace"] == base["Namespace"]["metadata"]["name"]
    assert base[DAEMON]["spec"] == plain[DAEMON]["spec"]
    both = kustomize("components: [monitoring, remotes]\n")
    assert set(both) == set(base) | {"PodMonitor"}
    args = both[DAEMON]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-4:] == ["-o", "keyfile=/secrets/key", "-o",
                         "remote=s3://BUCKET/kvcachefs?credentials=/secrets/aws"], args
    # the daemon knows these options
    table = run(binary("kvcachefs"), "--help", ok=True).stdout
    for option in ("keyfile", "remote"):
        assert re.search(rf"^  {option}=", table, re.M), option
    made += [*base.values(), *both.values()]
else:
    print("without kubectl kustomize")

# ---- Helm, and the schemas of Kubernetes ---------------------------------------------------------

python = os.environ.get("KUBE_PYTHON") or sys.executable


def has(module):
    if not run(python, "-c", f"import {module}").returncode:
        return True
    print(f"without {module}")
    return False


HELM = """
import json, sys
from helm_python import chart
path, values = sys.argv[1], json.loads(sys.argv[2])
try:
    found = chart.lint(path, strict=True)
    assert not found["errors"] and not [m for m in found["messages"] if m["severity"] > 1], found
    files = chart.Chart.load(path).render(values, name="kv", namespace="kvcachefs")
    print(json.dumps(files))
except AssertionError:
    raise
except Exception as e:
    sys.exit(f"refused: {e}")
"""
if has("helm_python"):
    def helm(ok=True, **values):
        p = run(python, "-c", HELM, f"{here}/chart", json.dumps(values), ok=ok)
        if not ok:
            assert "refused: " in p.stdout, p.stdout
            return p.stdout
        return check([o for text in json.loads(p.stdout).values() for o in load(text)])

    default = helm()
    assert default[DAEMON]["spec"] == plain[DAEMON]["spec"], "differs from daemonset.yaml"
    assert default["PriorityClass"] == plain["PriorityClass"] and len(default) == 2
    digest = "sha256:" + "0123456789abcdef" * 4
    changed = helm(image={"digest": digest, "repository": "r.example/kv"}, pool="8G", memory="9Gi",
                   key="k", remotes=["dir:///shared", "s3://b/p?credentials=/secrets/aws"],
                   podMonitor=True, store={"path": "/data", "size": "1T"}, options="allow_other")
    assert set(changed) == {DAEMON, "PriorityClass", "PodMonitor"}
    assert changed["PodMonitor"]["spec"] == monitor["spec"]
    c = changed[DAEMON]["spec"]["template"]["spec"]["containers"][0]
    assert c["image"] == f"r.example/kv@{digest}" and c["args"][4].startswith("cpu=8G,allow_other,")
    assert c["args"][7:] == ["-o", "keyfile=/secrets/k", "-o", "remote=dir:///shared", "-o",
                             "remote=s3://b/p?credentials=/secrets/aws"], c["args"]
    assert c["resources"]["limits"] == {"memory": "9Gi"}
    for wrong in ({"pool": "much"}, {"nonsense": 1}, {"image": {"digest": "sha256:1"}},
                  {"remotes": "s3://b"}, {"secret": ""}, {"key": "../x"}):
        assert next(iter(wrong)) in helm(ok=False, **wrong) or "schema" in helm(ok=False, **wrong)
    made += [*default.values(), *changed.values()]

VALIDATE = """
import json, sys, kubernetes_validate as k
for o in json.load(sys.stdin):
    k.validate(o, k.latest_version(), strict=True)
print(k.latest_version())
"""
if has("kubernetes_validate"):
    objects = [o for o in [*plain.values(), engine, *csi.values(), pod, *made]
               if o["kind"] != "PodMonitor"]

    def validate(some):
        return subprocess.run([python, "-c", VALIDATE], input=json.dumps(some), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    p = validate(objects)
    assert p.returncode == 0, p.stdout
    print(f"{len(objects)} objects are valid for Kubernetes {p.stdout.strip()}")
    for path in (("spec", "template", "spec", "tolerances"), ("spec", "replicas")):
        wrong = json.loads(json.dumps(plain[DAEMON]))
        at = wrong
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = 1
        assert validate([wrong]).returncode, f"the schema does not refuse {path}"
