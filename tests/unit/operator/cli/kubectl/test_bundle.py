"""`kubectl perdure bundle` has what a support case needs, and nothing that may be secret."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure_operator.cli.kubectl.bundle import REMOVED, Parts, bundle, job, lines_about, pod
from perdure_operator.cluster.protocol import BUDGETS, EVENTS, JOBS, NODES, Json
from tests.support.raw import NOW
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import planned

SECRET = "s3cr3t"


def made(stage: Stage, log: tuple[str, ...] = (), **missing: str) -> Json:
    pods = stage.pods()

    async def read() -> Parts:
        cluster = stage.cluster
        return Parts(
            job=await cluster.get(JOBS, *KEY),
            pods=pods,
            events=await cluster.list(EVENTS, "ns"),
            budgets=await cluster.list(BUDGETS, "ns"),
            nodes=await cluster.list(NODES),
            missing=missing,
        )

    return bundle(asyncio.run(read()), log, version="1", now=NOW)


def container(**more: Any) -> Json:
    return {
        "name": "trainer",
        "image": "digits:1",
        "command": ["python", f"--key={SECRET}"],
        "args": [SECRET, "--epochs=3"],
        "env": [
            {"name": "TOKEN", "value": SECRET},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}},
        ],
        "envFrom": [{"secretRef": {"name": "keys"}, "new": SECRET}],
        "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
        "readinessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]}},
        "fromTheFuture": SECRET,
    } | more


SPEC: Json = {
    "nodeName": "n1",
    "containers": [container()],
    "initContainers": [container(name="first")],
    "ephemeralContainers": [container(name="debugger")],
    "hostAliases": [{"hostnames": [SECRET]}],
    "imagePullSecrets": [{"name": SECRET}],
    "volumes": [
        {"name": "a", "csi": {"volumeAttributes": {"password": SECRET}}},
        {"name": "b", "secret": {"secretName": "keys"}},
        {"name": "c", "nfs": {"server": SECRET}},
        {"name": "d", "emptyDir": {}},
    ],
}


@pytest.mark.parametrize(
    "told",
    [
        pod(
            {
                "metadata": {"name": "p", "annotations": {"last-applied": SECRET}, "managedFields": [SECRET]},
                "spec": SPEC,
            }
        ),
        job({"metadata": {"name": "j", "annotations": {"last-applied": SECRET}}, "spec": {"template": {"spec": SPEC}}}),
    ],
    ids=["pod", "job"],
)
def test_no_value_of_a_pod_that_may_be_secret_is_taken(told: Json) -> None:
    text = json.dumps(told)
    assert SECRET not in text
    for kept in ("digits:1", "TOKEN", "secretKeyRef", '"keys"', '"debugger"', '"first"', "emptyDir"):
        assert kept in text
    assert f'"command": ["python", "{REMOVED}"]' in text


def test_the_token_of_a_hand_over_is_removed_and_the_rest_of_the_assignment_is_kept() -> None:
    stage = planned()
    given = [json.loads(one["metadata"]["annotations"]["perdure.dev/assignment"]) for one in stage.pods()]
    told = made(stage)
    assert all(one["handover"]["token"] not in json.dumps(told) for one in given)
    kept = json.loads(told["pods"][0]["metadata"]["annotations"]["perdure.dev/assignment"])
    assert kept == given[0] | {"handover": given[0]["handover"] | {"token": REMOVED}}


@pytest.mark.parametrize("text", ["{", '"text"', '{"handover": 3}'])
def test_an_assignment_that_nobody_of_ours_wrote_does_no_harm(text: str) -> None:
    told = pod({"metadata": {"name": "p", "annotations": {"perdure.dev/assignment": text}}})
    assert told["metadata"]["annotations"]["perdure.dev/assignment"] in (REMOVED, text)


def test_it_has_the_status_the_events_the_pods_their_nodes_and_the_budget() -> None:
    stage = planned()
    told = made(stage, ("trainingjob ns/digits: one", "other"), nodes="forbidden")
    assert told["job"]["status"]["history"][0]["run"] == 1
    assert {one["reason"] for one in told["events"]} >= {"NodeLeaving", "RunPlanned"}
    assert [one["metadata"]["name"] for one in told["pods"]] == stage.names()
    assert {one["metadata"]["name"] for one in told["nodes"]} == {"n1", "n2", "n3"}
    assert [one["spec"].get("unschedulable") for one in told["nodes"]].count(True) == 1
    assert told["podDisruptionBudgets"][0]["spec"]["minAvailable"] == 3
    assert (told["operatorLog"], told["missing"]) == (["trainingjob ns/digits: one"], {"nodes": "forbidden"})


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("trainingjob ns/digits: a move", True),
        ('{"message": "trainingjob ns/digits: a move"}', True),
        ("ns/digits.", True),
        ("trainingjob ns/digits-2: a move", False),
        ("trainingjob ns/digits.2: a move", False),
        ("trainingjob other-ns/digits: a move", False),
        ("digits", False),
    ],
)
def test_lines_of_the_log_are_those_of_this_job_alone(line: str, ours: bool) -> None:
    assert list(lines_about([line], "ns", "digits")) == ([line] if ours else [])
