"""The API server without nodes: boots, keeps tokens apart, and dies with its starter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import ApiServer, CommandFailed
from e2e.cluster.apiserver import Refused
from e2e.prepare import missing_for_api

pytestmark = pytest.mark.api
DEADLINE_SECONDS = 120.0
HOLD = """
from e2e.cluster import ApiServer
with ApiServer() as server:
    print(server.folder, flush=True)
    input()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    lacks = missing_for_api()
    if lacks:
        pytest.skip("; ".join(lacks))
    with ApiServer() as made:
        yield made


def test_a_service_account_may_do_what_its_role_says_and_no_more(server: ApiServer) -> None:
    where = "--namespace=default"
    server.kubectl("create", "serviceaccount", "reader", where)
    server.kubectl("create", "role", "reads-pods", "--verb=list", "--resource=pods", where)
    server.kubectl("create", "rolebinding", "reader", "--role=reads-pods", "--serviceaccount=default:reader", where)
    config = server.kubeconfig_for_service_account("default", "reader")

    assert server.kubectl("--kubeconfig", config, "get", "pods", where).returncode == 0
    with pytest.raises(CommandFailed, match=r'"system:serviceaccount:default:reader" cannot list resource "secrets"'):
        server.kubectl("--kubeconfig", config, "get", "secrets", where)


def test_it_answers_the_administrator_without_kubectl(server: ApiServer) -> None:
    made = server.ask("/api/v1/namespaces", "POST", {"metadata": {"name": "asked"}})
    assert server.ask("/api/v1/namespaces/asked")["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(Refused, match='GET /api/v1/namespaces/nowhere: namespaces "nowhere" not found'):
        server.ask("/api/v1/namespaces/nowhere")


def test_the_audit_log_names_the_service_account_and_the_verb(server: ApiServer) -> None:
    server.kubectl("create", "serviceaccount", "lister", "--namespace=default")
    config = server.kubeconfig_for_service_account("default", "lister")
    server.kubectl("--kubeconfig", config, "get", "configmaps", "--namespace=default", check=False)

    events = [json.loads(line) for line in server.audit_log.read_text().splitlines()]
    seen = [event for event in events if event["user"]["username"] == "system:serviceaccount:default:lister"]
    assert ("list", "configmaps") in {(event["verb"], event["objectRef"]["resource"]) for event in seen}


def test_a_killed_test_run_leaves_no_server_behind_and_two_servers_know_nothing_of_each_other(
    server: ApiServer,
) -> None:
    """The other server has the controllers: a new namespace gets its ServiceAccount there."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        running = _processes_on(folder)
        os.kill(holder.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while _processes_on(folder):
        assert time.monotonic() < deadline, f"still running: {_processes_on(folder)}"
        time.sleep(0.05)

    assert len(running) == 2
    with ApiServer(controller_manager=True) as other:  # the next one removes the files of the dead
        assert not folder.exists()
        assert other.folder.exists()
        assert other.url != server.url
        other.kubectl("create", "namespace", "only-here")
        other.kubectl("wait", "--for=create", "serviceaccount/default", "--namespace=only-here", "--timeout=120s")
    assert not other.folder.exists()
    assert server.kubectl("get", "namespace", "only-here", check=False).returncode == 1


def _processes_on(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if f"{folder}/".encode() in line:
            found.append(line.replace(b"\0", b" ").decode()[:80])
    return found
