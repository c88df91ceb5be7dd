"""Announcements of nodes, sent to a real API server as the components send them: by status, annotations and cordons."""

from __future__ import annotations

import json

import pytest

from perdure.wire import Leave, Train
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


def test_a_user_of_the_namespace_moves_the_job_off_a_node_and_thinks_better_of_it(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"replacementTimeoutSeconds": 600})
    members = starts(scene, *nodes)
    scene.kubectl("annotate", "trainingjob", scene.name, f"perdure.dev/vacate={nodes[0]},nowhere")
    until("a new member", lambda: len(scene.names()) == 3)
    seen = intent(scene)
    assert seen is not None
    assert (seen.cause, seen.nodes) == (f"the job's annotation perdure.dev/vacate names node {nodes[0]}", (nodes[0],))
    until("the word that means nothing is told", lambda: scene.shows("UnknownFields"))
    scene.kubectl("annotate", "trainingjob", scene.name, "perdure.dev/vacate-")
    until("the new one is gone", lambda: scene.names() == members)
    assert intent(scene) is None


def test_a_user_moves_all_members_once(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"replacementTimeoutSeconds": 0})
    members = starts(scene, *nodes)
    scene.kubectl("annotate", "trainingjob", scene.name, "perdure.dev/vacate=true")
    until("all leave", lambda: all(isinstance(said, Leave) for said in scene.assignments()))
    scene.save_all(1, 20)
    until("others are there", lambda: len(set(scene.names()) - set(members)) == 2)
    scene.run_pods(*nodes)
    until("they train", lambda: scene.status().current and scene.status().run == 2)
    assert scene.status().vacate is not None
    assert intent(scene) is None


def test_a_pod_that_is_about_to_be_taken_says_by_whom(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"replacementTimeoutSeconds": 0})
    members = starts(scene, *nodes)
    one = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for another"}
    patch = json.dumps({"status": {"conditions": [one]}})
    scene.kubectl("patch", "pod", members[0], "--subresource=status", "--type=strategic", f"--patch={patch}")
    until("all leave", lambda: all(isinstance(said, Leave) for said in scene.assignments()))
    seen = intent(scene)
    assert seen is not None
    assert seen.cause == f"the scheduler takes the place of {members[0]} for a pod of higher priority"


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


def test_a_signal_that_the_table_does_not_have_is_reported(scene: Scene) -> None:
    scene.apply(disruption={"signals": {"karpentr": "Ignore"}})
    until("the condition", lambda: scene.shows("UnknownFields"))


def _disrupted(scene: Scene) -> str:
    return next((one.message for one in scene.status().conditions if one.type == "Disrupted"), "")
