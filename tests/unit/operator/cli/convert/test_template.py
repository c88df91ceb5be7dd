"""What becomes of a pod template: what would break Perdure is left out, and told."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.agent.environ import OF_A_RUN
from perdure.errors import UserError
from perdure_operator.cli.convert import template
from perdure_operator.cli.convert.fields import Conversion, Fields

TRAINER: Fields = {"name": "main", "image": "digits:1", "command": ["python", "train.py"]}


def convert(trainer: Fields | None = None, **pod: Any) -> tuple[Fields, list[str]]:
    """The pod's spec, and what was told of which fields."""
    conversion = Conversion()
    spec = {"containers": [{**TRAINER, **(trainer or {})}], **pod}
    made = template.convert({"spec": spec}, "t", conversion)
    return made.template["spec"], [one.where for one in conversion.remarks]


def test_a_template_without_anything_of_note_stays_as_it_is() -> None:
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "nodeSelector": {"a": "b"}}
    assert convert({"lifecycle": {}}, **pod) == (
        {
            "containers": [{**TRAINER, "lifecycle": {}}],
            "automountServiceAccountToken": False,
            "nodeSelector": {"a": "b"},
        },
        [],
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restartPolicy", "Always"),
        ("activeDeadlineSeconds", 60),
        ("readinessGates", [{"conditionType": "a"}]),
        ("nodeName", "n1"),
        ("automountServiceAccountToken", True),
    ],
)
def test_what_no_template_of_a_trainingjob_may_have_is_left_out_and_told(field: str, value: Any) -> None:
    assert convert(**{field: value}) == ({"containers": [TRAINER]}, [f"t.spec.{field}"])


@pytest.mark.parametrize(
    "field", ["startupProbe", "readinessProbe", "terminationMessagePath", "terminationMessagePolicy"]
)
def test_what_its_trainer_may_not_have_is_left_out_and_told(field: str) -> None:
    assert convert({field: "x"}) == ({"containers": [TRAINER]}, [f"t.spec.containers[0].{field}"])


def test_no_container_keeps_a_readiness_probe() -> None:
    pod, told = convert(initContainers=[{"name": "init", "readinessProbe": {}, "startupProbe": {}}])
    assert pod["initContainers"] == [{"name": "init", "startupProbe": {}}]
    assert told == ["t.spec.initContainers[0].readinessProbe"]


def test_variables_that_perdure_sets_are_left_out_and_told() -> None:
    names = ["RANK", "PET_NNODES", "PERDURE_ROOT", "PERDURE_TRACE", "LEVEL"]
    pod, told = convert({"env": [{"name": name, "value": "1"} for name in names]})
    assert [one["name"] for one in pod["containers"][0]["env"]] == ["PERDURE_TRACE", "LEVEL"]
    assert [one.partition(" ")[2] for one in told] == ["(RANK)", "(PET_NNODES)", "(PERDURE_ROOT)"]


def test_variables_that_give_torchrun_options_are_read_as_these() -> None:
    values = {"PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "8", "PET_MAX_RESTARTS": "3", "PET_RDZV_ID": "a"}
    env: list[Fields] = [{"name": name, "value": value} for name, value in values.items()]
    pod = {"spec": {"containers": [{**TRAINER, "command": ["torchrun", "--nnodes=2", "train.py"], "env": env}]}}
    conversion = Conversion()
    launch = template.convert(pod, "t", conversion).launch
    assert launch is not None
    assert (launch.nodes, launch.processes) == ("2", "8")
    assert conversion.manifest == {"spec": {"failure": {"maxCodeFailures": 3}}}
    told = [one.where for one in conversion.remarks]
    assert told == ["t.spec.containers[0].command: --max-restarts", "t.spec.containers[0].env[3] (PET_RDZV_ID)"]


@pytest.mark.parametrize("given", [{"value": "$(N)"}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}])
def test_a_variable_of_torchrun_that_only_a_pod_knows_is_told(given: Fields) -> None:
    env = [{"name": "PET_MAX_RESTARTS", **given}]
    _, told = convert({"command": ["torchrun", "train.py"], "env": env})
    assert told == ["t.spec.containers[0].env[0] (PET_MAX_RESTARTS)"]


@pytest.mark.parametrize("name", sorted(template.SET_BY_PERDURE))
def test_a_variable_that_kubernetes_cannot_fill_in_is_told(name: str) -> None:
    _, told = convert({"args": [f"--value=$({name})"]})
    assert told == ["t.spec.containers[0].args[0]"]


@pytest.mark.parametrize(
    ("trainer", "pod", "told"),
    [
        ({}, {"serviceAccountName": "a"}, ["t.spec.serviceAccountName"]),
        ({}, {"serviceAccountName": "a", "automountServiceAccountToken": False}, []),
        ({}, {"terminationGracePeriodSeconds": 30}, ["t.spec.terminationGracePeriodSeconds"]),
        ({}, {"terminationGracePeriodSeconds": 120}, []),
        ({"livenessProbe": {}}, {}, ["t.spec.containers[0].livenessProbe"]),
        ({"lifecycle": {"preStop": {}}}, {}, ["t.spec.containers[0].lifecycle.preStop"]),
        ({"lifecycle": {"postStart": {}}}, {}, []),
    ],
)
def test_what_stays_and_means_something_else_for_a_member_is_told(
    trainer: Fields, pod: Fields, told: list[str]
) -> None:
    assert convert(trainer, **pod) == ({"containers": [{**TRAINER, **trainer}], **pod}, told)


def test_they_are_those_that_the_agent_sets() -> None:
    assert {str(name) for name in OF_A_RUN if not name.startswith("PERDURE_")} == template.SET_BY_PERDURE


def test_the_container_that_trains_comes_first() -> None:
    conversion = Conversion()
    pod = {"spec": {"containers": [{"name": "proxy"}, {**TRAINER, "resources": {"limits": {"amd.com/gpu": "4"}}}]}}
    made = template.convert(pod, "t", conversion, "main")
    assert [one["name"] for one in made.template["spec"]["containers"]] == ["main", "proxy"]
    assert made.gpus == 4
    assert "moved to the front" in str(conversion.remarks[0])


def test_an_image_that_nothing_names_is_told() -> None:
    conversion = Conversion()
    made = template.convert({"spec": {"containers": [{"name": "main", "command": ["python"]}]}}, "t", conversion)
    assert made.template["spec"]["containers"][0]["image"] == template.PLACEHOLDER_IMAGE
    assert [one.where for one in conversion.remarks] == ["t.spec.containers[0].image"]


def test_labels_of_a_controller_are_left_out_and_told_and_the_others_stay() -> None:
    conversion = Conversion()
    labels = {"app": "digits", "training.kubeflow.org/job-name": "digits", "batch.kubernetes.io/job-name": "digits"}
    labels |= {"job-name": "digits", "controller-uid": "1"}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    metadata = {"labels": labels, "annotations": annotations}
    made = template.convert({"metadata": metadata, "spec": {"containers": [TRAINER]}}, "t", conversion)
    assert made.template["metadata"] == {"labels": {"app": "digits"}}
    assert len(conversion.remarks) == 4


def test_what_the_sources_pods_had_is_told_where_it_is_still_named() -> None:
    term = {"labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "a"}}, "topologyKey": "zone"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    _, told = convert({"args": ["--part=$(JOB_COMPLETION_INDEX)"]}, affinity=affinity)
    assert len(told) == 2
    assert "t.spec.containers[0].args[0]" in told


@pytest.mark.parametrize("pod", [{}, {"containers": []}, {"containers": "a"}, {"containers": [1]}, "a"])
def test_a_template_without_a_container_is_refused(pod: Any) -> None:
    with pytest.raises(UserError, match=r"t\.spec"):
        template.convert({"spec": pod}, "t", Conversion())
