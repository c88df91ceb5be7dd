"""Two operators: one works, the other takes over when the first is asked to stop, and when it is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure_operator.api.status import Phase
from tests.api.conftest import Installed
from tests.api.process import END_SECONDS, OperatorProcess
from tests.api.scene import Scene, until

pytestmark = pytest.mark.api


def test_only_the_leader_works_and_the_other_goes_on_when_it_is_killed(
    api_server: ApiServer, namespace: str, installed: Installed, tmp_path: Path
) -> None:
    scene = Scene(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2")]
    first = OperatorProcess(installed.kubeconfig, tmp_path / "first", "first")
    second = OperatorProcess(installed.kubeconfig, tmp_path / "second", "second")
    with first, second:
        leader = until("a leader", lambda: next((one for one in (first, second) if one.leading), None))
        follower = second if leader is first else first
        scene.apply()
        until("two pods", lambda: len(scene.names()) == 2)
        names = scene.names()
        assert not follower.worked

        leader.kill()
        scene.run_pods(*nodes)
        until("another leader", lambda: follower.leading)
        until("phase Running", lambda: scene.status().phase is Phase.RUNNING)
    assert scene.names() == names
    assert len(scene.budgets()) == 1


def test_a_leader_that_is_asked_to_stop_gives_its_lease_back(
    api_server: ApiServer, installed: Installed, tmp_path: Path
) -> None:
    """With a Lease of ten minutes no replica could lead within the deadline unless it was released."""
    first = OperatorProcess(installed.kubeconfig, tmp_path / "first", "first", lease_seconds=600)
    second = OperatorProcess(installed.kubeconfig, tmp_path / "second", "second", lease_seconds=600)
    with first:
        until("a leader", lambda: first.leading)
        first.process.terminate()
        assert first.process.wait(END_SECONDS) == 0
    with second:
        until("another leader", lambda: second.leading)


def test_a_candidate_takes_over_as_soon_as_the_lease_is_given_back(
    api_server: ApiServer, installed: Installed, tmp_path: Path
) -> None:
    """With a Lease of ten minutes it would otherwise look again after a minute and a half."""
    first = OperatorProcess(installed.kubeconfig, tmp_path / "first", "first", lease_seconds=600)
    second = OperatorProcess(installed.kubeconfig, tmp_path / "second", "second", lease_seconds=600)
    with first:
        until("a leader", lambda: first.leading)
        before = _watches_of_the_lease(api_server, installed.user)
        with second:
            until("a candidate", lambda: _watches_of_the_lease(api_server, installed.user) > before)
            first.process.terminate()
            until("another leader", lambda: second.leading)


def test_a_leader_that_was_frozen_until_another_led_ends(
    api_server: ApiServer, installed: Installed, tmp_path: Path
) -> None:
    """As a node without CPU time freezes it; one that thaws earlier goes on (tests/unit)."""
    first = OperatorProcess(installed.kubeconfig, tmp_path / "first", "first", lease_seconds=5)
    second = OperatorProcess(installed.kubeconfig, tmp_path / "second", "second", lease_seconds=5)
    with first:
        until("a leader", lambda: first.leading)
        with second:
            os.kill(first.process.pid, signal.SIGSTOP)
            until("another leader", lambda: second.leading)
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.process.wait(END_SECONDS) == 1
    assert "is held by second_" in first.log.read_text()
    assert "s late" in first.log.read_text()


def _watches_of_the_lease(server: ApiServer, user: str) -> int:
    entries = (json.loads(line) for line in server.audit_log.read_text().splitlines())
    mine = (entry for entry in entries if entry["verb"] == "watch" and entry["user"]["username"] == user)
    return sum(entry["objectRef"]["resource"] == "leases" for entry in mine)


def test_a_leader_whose_lease_is_taken_stops_and_ends(
    api_server: ApiServer, installed: Installed, tmp_path: Path
) -> None:
    with OperatorProcess(installed.kubeconfig, tmp_path / "log", lease_seconds=5) as operator:
        until("a leader", lambda: operator.leading)
        thief = '{"spec": {"holderIdentity": "somebody else", "leaseDurationSeconds": 1}}'
        api_server.kubectl(
            "patch", "lease", "perdure-operator", "--namespace=perdure-system", "--type=merge", f"--patch={thief}"
        )
        assert operator.process.wait(END_SECONDS) == 1
    assert "somebody else" in operator.log.read_text()
