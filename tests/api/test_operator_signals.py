"""What nodes announce, told to a real API server as the components tell it: through status, annotations and cordons."""

from __future__ import annotations

import json

import pytest

from perdure.contract import Leave, Train
from perdure_operator.api.status import Disruption, Intent
from tests.api.scene import Scene, starts, until

pytestmark = pytest.mark.api


def report(scene: Scene, node: str, kind: str, status: str, reason: str) -> None:
    """As node-problem-detector does: a strategic merge patch of the node's status, which leaves other conditions."""
    one = {"type": kind, "status": status, "reason": reason, "message": reason}
    patch = json.dumps({"status": {"conditions": [one]}})
    scene.server.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", f"--patch={patch}")


def intent(scene: Scene) -> Intent | None:
    current = scene.status().current
    return current.intent if current else None


def test_a_condition_of_a_sick_node_moves_its_member_once_there_is_room(scene: Scene) -> None:
    sick, well, other = (scene.node(name) for name in ("n1", "n2", "n3"))
    scene.apply(disruption={"replacementTimeoutSeconds": 0})
    members = starts(scene, sick, well)
    report(scene, sick, "ReadonlyFilesystem", "True", "FilesystemIsReadOnly")
    until("a new member", lambda: len(scene.names()) == 3)
    seen = intent(scene)
    assert seen is not None
    assert seen.cause == f"node {sick} has the condition ReadonlyFilesystem=True"
    assert seen.ready_by is None
    assert all(isinstance(said, Train) for said in scene.assignments())
    scene.run_pods(other)
    until("the member is asked to leave", lambda: any(isinstance(said, Leave) for said in scene.assignments()))
    assert set(members) < set(scene.names())


def test_a_condition_that_is_taken_back_lets_the_new_member_go(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    members = starts(scene, *nodes)
    report(scene, nodes[0], "ReadonlyFilesystem", "True", "FilesystemIsReadOnly")
    until("a new member", lambda: len(scene.names()) == 3)
    report(scene, nodes[0], "ReadonlyFilesystem", "False", "FilesystemIsNotReadOnly")
    until("it is gone", lambda: scene.names() == members)
    assert intent(scene) is None
    assert scene.status().withdrawals is not None


def test_a_person_clears_a_node_by_an_annotation(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"replacementTimeoutSeconds": 0})
    starts(scene, *nodes)
    scene.server.kubectl("annotate", "node", nodes[0], "perdure.dev/vacate=true")
    until("all leave", lambda: all(isinstance(said, Leave) for said in scene.assignments()))
    seen = intent(scene)
    assert seen is not None
    assert seen.cause == f"node {nodes[0]} has the annotation perdure.dev/vacate"


def test_a_broken_gpu_ends_the_run_without_a_save_where_the_job_says_so(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"signals": {"nvsentinel-xid": "Fault"}})
    starts(scene, *nodes)
    report(scene, nodes[0], "SysLogsXIDError", "True", "SysLogsXIDErrorIsNotHealthy")
    until("all leave", lambda: all(isinstance(said, Leave) for said in scene.assignments()))
    told = [said for said in scene.assignments() if isinstance(said, Leave)]
    assert {(said.seconds, said.lost) for said in told} == {(0, (1,))}
    assert scene.shows(Disruption.NODE_FAULT)


def test_a_cordon_without_another_node_stops_no_job_that_moves_only_if_there_is_room(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"onCordon": "MoveIfRoom", "replacementTimeoutSeconds": 0})
    starts(scene, *nodes)
    scene.cordon(nodes[0])
    until("a new member", lambda: len(scene.names()) == 3)
    until("it is told", lambda: "no time limit" in _disrupted(scene))
    assert all(isinstance(said, Train) for said in scene.assignments())


def test_a_signal_that_the_table_does_not_have_is_told(scene: Scene) -> None:
    scene.apply(disruption={"signals": {"karpentr": "Ignore"}})
    until("the condition", lambda: scene.shows("UnknownFields"))


def _disrupted(scene: Scene) -> str:
    return next((one.message for one in scene.status().conditions if one.type == "Disrupted"), "")
