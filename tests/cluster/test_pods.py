"""Pods on the cluster: restricted, without root, with the two environments, and able to reach all that they must."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Cluster, CommandFailed, cgroups

pytestmark = pytest.mark.cluster
NAMESPACE = "restricted"
SCRATCH = "/dev/shm"  # noqa: S108 - the one place that a container with a read-only root may write to
TIMEOUT = "--timeout=90s"
TERMINATED = "{.status.containerStatuses[0].state.terminated"
LOOK_AROUND = """
import importlib, json, os, sys
def has(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True
def writable(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "uid": os.getuid(), "seccomp": status["Seccomp"].strip(), "capabilities": int(status["CapEff"], 16),
    "executable": sys.executable, "folder": os.getcwd(), "writable": [p for p in ("/x", "/workspace/x", "/dev/shm/x")
    if writable(p)], "modules": [name for name in sys.argv[1:] if has(name)],
}))
"""
OPERATORS = ["kopf", "kubernetes", "pydantic", "perdure_operator"]
TRAINERS = ["torch", "boto3", "safetensors", "sklearn", "perdure"]
CALL_API = """
import os, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
server = "https://" + os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
headers = {"Authorization": "Bearer " + open(account + "token").read()}
request = urllib.request.Request(server + "/version", headers=headers)
print(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=account + "ca.crt"), timeout=20).status)
"""
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"
SERVE = """
import http.server, os
os.chdir("/dev/shm")
open("hello", "w").write("from another node")
http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)
"""
GET_WHEN_SERVED = f"""
import socket, time, urllib.parse
place = urllib.parse.urlsplit(__import__("sys").argv[1])
while socket.socket().connect_ex((place.hostname, place.port)):
    time.sleep(0.05)
{GET}
"""


def pod(name: str, image: str, *command: str, node: str) -> str:
    secure = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "main",
        "image": image,
        "command": list(command),
        "env": [{"name": "TMPDIR", "value": SCRATCH}],
        "securityContext": secure,
    }
    spec = {
        "restartPolicy": "Never",
        "nodeName": node,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module", autouse=True)
def namespace(cluster: Cluster) -> Iterator[None]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": labels}
    cluster.kubectl("create", "-f-", input=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
    # without nodeName's scheduler nothing waits for the ServiceAccount but the admission of the first pod
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={NAMESPACE}", TIMEOUT)
    yield
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def finished(cluster: Cluster, name: str) -> str:
    """The pod's output when it has succeeded."""
    where = f"--namespace={NAMESPACE}"
    cluster.kubectl("wait", f"--for=jsonpath={TERMINATED}.reason}}", f"pod/{name}", where, TIMEOUT)
    said = cluster.kubectl("logs", name, where).stdout
    code = cluster.kubectl("get", "pod", name, where, f"--output=jsonpath={TERMINATED}.exitCode}}").stdout
    assert code == "0", said
    return said


def test_both_environments_work_without_root_under_restricted_pod_security(cluster: Cluster) -> None:
    look = ["python", "-c", LOOK_AROUND, *OPERATORS, *TRAINERS]
    cluster.kubectl("create", "-f-", input=pod("operator", "perdure-operator:dev", *look, node=cluster.nodes[0]))
    cluster.kubectl("create", "-f-", input=pod("trainer", "perdure-digits:dev", *look, node=cluster.nodes[1]))
    operator, trainer = (json.loads(finished(cluster, name)) for name in ("operator", "trainer"))

    for seen in (operator, trainer):
        assert seen["uid"] == 65532
        assert seen["seccomp"] == "2"
        assert seen["capabilities"] == 0
        assert seen["writable"] == [f"{SCRATCH}/x"]
        assert seen["folder"] == "/workspace"
    assert operator["executable"] == f"{cluster.facts.environments}/operator/bin/python"
    assert trainer["executable"] == f"{cluster.facts.environments}/trainer/bin/python"
    assert operator["modules"] == [*OPERATORS, "perdure"]
    assert trainer["modules"] == ["perdure_operator", *TRAINERS]  # one wheel has both packages


def test_a_pod_that_is_not_restricted_is_refused(cluster: Cluster) -> None:
    manifest = json.loads(pod("root", "perdure-operator:dev", "true", node=cluster.nodes[0]))
    manifest["spec"]["containers"][0]["securityContext"] = {}
    with pytest.raises(CommandFailed, match=r'violates PodSecurity "restricted'):
        cluster.kubectl("create", "-f-", input=json.dumps(manifest))


def test_a_pod_reaches_the_api_server_by_its_service(cluster: Cluster) -> None:
    call = ["python", "-c", CALL_API]
    cluster.kubectl("create", "-f-", input=pod("caller", "perdure-operator:dev", *call, node=cluster.nodes[0]))

    assert finished(cluster, "caller").strip() == "200"


def test_pods_of_different_nodes_and_the_host_reach_each_other_and_the_s3_server(cluster: Cluster) -> None:
    serve = ["python", "-c", SERVE]
    cluster.kubectl("create", "-f-", input=pod("server", "perdure-operator:dev", *serve, node=cluster.nodes[0]))
    where = f"--namespace={NAMESPACE}"
    cluster.kubectl("wait", "--for=condition=Ready", "pod/server", where, TIMEOUT)
    address = cluster.kubectl("get", "pod", "server", where, "--output=jsonpath={.status.podIP}").stdout
    get = ["python", "-c", GET_WHEN_SERVED, f"http://{address}:8000/hello"]
    cluster.kubectl("create", "-f-", input=pod("client", "perdure-operator:dev", *get, node=cluster.nodes[1]))
    assert finished(cluster, "client").strip() == "from another node"

    from_host = cluster.kubectl("exec", "server", where, "--", "python", "-c", GET, f"http://{address}:8000/hello")
    assert from_host.stdout.strip() == "from another node"
    reach = f"import socket; socket.create_connection(({cluster.s3.address!r}, 9000), 20)"
    cluster.kubectl("exec", "server", where, "--", "python", "-c", reach)


def test_a_folder_of_python_files_becomes_an_image_on_every_node(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello from my own image')\n")
    cluster.image("mine:dev", tmp_path)
    for node in cluster.nodes:
        cluster.kubectl("create", "-f-", input=pod(f"mine-{node}", "mine:dev", "python", "hello.py", node=node))

    assert {finished(cluster, f"mine-{node}") for node in cluster.nodes} == {"hello from my own image\n"}


def test_the_processes_of_a_pod_can_be_found_on_the_host(cluster: Cluster) -> None:
    sleep = pod("sleeper", "perdure-operator:dev", "sleep", "12345", node=cluster.nodes[1])
    cluster.kubectl("create", "-f-", input=sleep)
    where = f"--namespace={NAMESPACE}"
    cluster.kubectl("wait", "--for=condition=Ready", "pod/sleeper", where, TIMEOUT)
    uid = cluster.kubectl("get", "pod", "sleeper", where, "--output=jsonpath={.metadata.uid}").stdout

    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in cluster.pod_processes(uid)]
    assert b"sleep\x0012345\x00" in lines
    assert len(lines) == 2  # and the sandbox's


def test_on_a_busy_machine_each_node_weighs_as_much_as_a_process(cluster: Cluster) -> None:
    files = {
        hierarchy / cluster.names.cgroup / name: one
        for hierarchy in cgroups.hierarchies()
        for name, one in cgroups.WEIGHTS.items()
    }
    found = [int(file.read_text()) / one for file, one in files.items() if file.exists()]
    assert found == [len(cluster.nodes)]


def test_a_frozen_node_stops_its_kubelet_and_a_thawed_one_lets_it_go_on(cluster: Cluster) -> None:
    pid = cluster.components()["kubelet-n2"]

    cluster.freeze_node(cluster.nodes[1])
    frozen = _state(pid)
    cluster.thaw_node(cluster.nodes[1])

    assert frozen == "T"
    assert _state(pid) != "T"


def test_the_audit_log_tells_who_did_what_once_per_request(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "audited", f"--namespace={NAMESPACE}")
    events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]

    made = [event for event in events if event["verb"] == "create" and event["objectRef"].get("name") == "audited"]
    (event,) = made
    assert event["user"]["username"] == "admin"
    assert event["objectRef"]["resource"] == "configmaps"
    assert event["responseStatus"]["code"] == 201
    assert not any(event["stage"] == "RequestReceived" for event in events)


def _state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
