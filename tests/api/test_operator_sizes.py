"""What others see of a job's pods while it changes its size: autoscalers of nodes, of pods, and the scheduler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure.wire import Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Phase
from tests.api.scene import Scene, starts, until
from tests.support.raw import template

pytestmark = pytest.mark.api

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
KARPENTER = "karpenter.sh/do-not-disrupt"
GROWS = {"minReplicas": 2, "maxReplicas": 4, "growAfterSeconds": 0}
NEVER, COOPERATIVE, NOTHING = ("false", "true"), ("true", None), (None, None)


def told(scene: Scene) -> list[tuple[str | None, str | None]]:
    """What each pod says to cluster-autoscaler and to Karpenter."""
    annotations = [pod["metadata"]["annotations"] for pod in scene.pods()]
    return [(one.get(SAFE), one.get(KARPENTER)) for one in annotations]


def sized(scene: Scene) -> str:
    return said(scene, "Sized")


def said(scene: Scene, condition: str) -> str:
    return next((one.message for one in scene.status().conditions if one.type == condition), "")


def test_living_pods_tell_autoscalers_of_nodes_what_the_job_says_now(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"autoscaler": "Cooperative"})
    until("two pods", lambda: len(scene.names()) == 2)
    assert told(scene) == [NEVER, NEVER]
    members = starts(scene, *nodes)
    until("members may go", lambda: told(scene) == [COOPERATIVE, COOPERATIVE])
    scene.apply(disruption={"autoscaler": "Never"})
    until("members may not go", lambda: told(scene) == [NEVER, NEVER])
    scene.apply(disruption={})
    until("members say nothing", lambda: told(scene) == [NOTHING, NOTHING])
    assert scene.names() == members
    assert scene.status().run == 1


def priority_class(server: ApiServer, name: str, value: int, policy: str) -> None:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    server.kubectl("apply", "-f", "-", input=json.dumps(body | {"value": value, "preemptionPolicy": policy}))


def priorities(scene: Scene) -> list[tuple[Any, ...]]:
    specs = [pod["spec"] for pod in scene.pods()]
    return [(one.get("priorityClassName"), one["priority"], one["preemptionPolicy"]) for one in specs]


def test_joiners_preempt_no_pod_although_their_template_does(scene: Scene, api_server: ApiServer) -> None:
    priority_class(api_server, "high", 1000, "PreemptLowerPriority")
    priority_class(api_server, "joiner", 0, "Never")
    nodes = [scene.node(name) for name in ("n1", "n2")]
    high = template()
    high["spec"]["priorityClassName"] = "high"
    scene.apply(template=high, disruption={}, elastic=GROWS)
    starts(scene, *nodes)
    until("the remedy", lambda: "set elastic.joinerPriorityClassName" in sized(scene))
    scene.apply(template=high, disruption={}, elastic=GROWS | {"joinerPriorityClassName": "joiner"})
    until("no remedy", lambda: "joinerPriorityClassName" not in sized(scene))
    scene.kubectl("scale", "trainingjob", scene.name, "--replicas=3")
    until("a joiner", lambda: len(scene.names()) == 3)
    of_template = ("high", 1000, "PreemptLowerPriority")
    assert priorities(scene) == [of_template, of_template, ("joiner", 0, "Never")]


def test_a_class_for_joiners_that_is_not_there_is_named_while_the_run_trains_on(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={}, elastic=GROWS | {"joinerPriorityClassName": "nobody-has-it"})
    starts(scene, *nodes)
    scene.kubectl("scale", "trainingjob", scene.name, "--replicas=3")
    until("the refusal", lambda: "no PriorityClass with name nobody-has-it" in said(scene, "Disrupted"))
    assert scene.status().phase is Phase.RUNNING


def test_who_asks_for_the_scale_gets_members_and_no_joiners(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={}, elastic=GROWS)
    members = starts(scene, *nodes)
    scene.kubectl("scale", "trainingjob", scene.name, "--replicas=4")
    until("joiners", lambda: len(scene.names()) == 4)
    path = f"/apis/perdure.dev/v1alpha1/namespaces/{scene.namespace}/trainingjobs/{scene.name}/scale"
    scale = json.loads(scene.server.kubectl("get", "--raw", path).stdout)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (4, 2)
    found = scene.kubectl("get", "pods", f"--selector={scale['status']['selector']}", "--output=name")
    assert sorted(line.removeprefix("pod/") for line in found.split()) == members


def test_without_room_for_more_members_a_job_trains_with_those_it_has_and_grows_once_there_is(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={}, elastic=GROWS)
    members = starts(scene, *nodes)
    scene.kubectl("scale", "trainingjob", scene.name, "--replicas=4")
    until("joiners", lambda: len(scene.names()) == 4)
    for joiner in set(scene.names()) - set(members):
        scene.finds_no_room(joiner)
    until("the size", lambda: scene.condition(ConditionType.SIZED, "OtherSize"))
    assert sized(scene).startswith("2 members, 4 are wanted")
    until("why", lambda: "0/2 nodes are available" in said(scene, "Disrupted"))
    running = scene.status().find(ConditionType.RUNNING)
    assert running is not None
    assert running.status == "True"
    scene.run_pods(*nodes)
    until(
        "four ranks",
        lambda: (
            sorted(one.rank for one in scene.assignments() if isinstance(one, Train) and one.run == 2) == [0, 1, 2, 3]
        ),
    )
    assert set(members) < set(scene.names())


def test_a_spare_is_no_member_and_takes_the_place_of_one(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2", "n3")]
    scene.apply(disruption={}, elastic={"minReplicas": 2, "maxReplicas": 2, "spares": 1})
    members = starts(scene, *nodes[:2])
    until("a spare", lambda: len(scene.names()) == 3)
    (spare,) = set(scene.names()) - set(members)
    scene.run_pods(nodes[2])
    until("it is warm", lambda: "1 of 1 spares are warm" in sized(scene))
    assert sorted(scene.selected()) == members
    assert [budget["spec"]["minAvailable"] for budget in scene.budgets()] == [2]
    scene.end_pod(members[1], "", exit_code=137)
    until("it has a rank", lambda: spare in scene.selected())
    assert scene.status().run == 2
    until("another spare", lambda: bool(set(scene.names()) - {*members, spare}))
