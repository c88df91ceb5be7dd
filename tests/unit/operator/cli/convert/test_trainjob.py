"""What a TrainJob changes of its runtime's template."""

from __future__ import annotations

from typing import Any

import pytest

from perdure_operator.cli.convert.fields import Conversion, Fields
from perdure_operator.cli.convert.sources import convert

NODE: Fields = {
    "name": "node",
    "image": "base:1",
    "command": ["python", "base.py"],
    "args": ["--base"],
    "env": [{"name": "A", "value": "1"}],
}


def runtime(policy: Fields | None = None, **jobset: Any) -> Fields:
    """A runtime of one job, `node`."""
    job = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [NODE]}}}}}
    spec = {"mlPolicy": policy or {}, "template": {"spec": {"replicatedJobs": [job], **jobset}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "r"},
        "spec": spec,
    }


def convert_with(own_runtime: Fields, **spec: Any) -> Conversion:
    """The conversion of a TrainJob of this runtime."""
    fields = {"runtimeRef": {"kind": "TrainingRuntime", "name": "r"}, **spec}
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "d"}, "spec": fields}
    return convert([job, own_runtime])


def trainer(conversion: Conversion) -> Fields:
    found: Fields = conversion.manifest["spec"]["template"]["spec"]["containers"][0]
    return found


def test_without_changes_it_is_the_runtimes() -> None:
    assert trainer(convert_with(runtime())) == NODE


def test_a_command_of_its_own_keeps_the_runtimes_arguments_as_in_trainer() -> None:
    changed = trainer(convert_with(runtime(), trainer={"command": ["python", "own.py"]}))
    assert changed["command"] == ["python", "own.py"]
    assert changed["args"] == NODE["args"]


def test_variables_are_added_and_replaced_by_name() -> None:
    own = [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]
    assert trainer(convert_with(runtime(), trainer={"env": own}))["env"] == own


def overridden(old: Fields, new: Fields) -> Fields:
    """The pod's spec where the runtime's has the old fields, and an override the new ones."""
    own = runtime()
    own["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"] = old
    override = {"targetJobs": [{"name": "node"}], "spec": new}
    found: Fields = convert_with(own, podTemplateOverrides=[override]).manifest["spec"]["template"]["spec"]
    return found


def test_an_override_replaces_a_variable_or_volume_as_a_whole() -> None:
    def pod(variable: Fields, volume: Fields) -> Fields:
        containers = [{**NODE, "env": [{"name": "A", **variable}]}]
        return {"containers": containers, "volumes": [{"name": "data", **volume}]}

    new = pod({"value": "2"}, {"emptyDir": {}})
    secret = {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    assert overridden(pod(secret, {"hostPath": {"path": "/data"}}), new) == new


@pytest.mark.parametrize(
    ("field", "key"), [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath"), ("ports", "containerPort")]
)
def test_an_override_finds_items_as_kubernetes_tells_them_apart(field: str, key: str) -> None:
    first, second, third = (8001, 8002, 8003) if field == "ports" else ("/a", "/b", "/c")
    old = [{"name": "data", key: first}, {"name": "data", key: second}]
    new = [{"name": "other", key: second}, {"name": "data", key: third}]
    made = overridden({"containers": [{**NODE, field: old}]}, {"containers": [{"name": "node", field: new}]})
    assert made["containers"][0][field] == [old[0], *new]


def test_what_the_trainjob_says_counts_before_its_runtime() -> None:
    conversion = convert_with(runtime(suspend=True), suspend=False)
    assert conversion.manifest["spec"]["suspend"] is False
    assert "runtime.spec.template.spec.suspend" in [one.where for one in conversion.remarks]


@pytest.mark.parametrize(
    ("own", "policy", "replicas"), [({"numNodes": 3}, {"numNodes": 2}, 3), ({}, {"numNodes": 2}, 2), ({}, {}, 1)]
)
def test_its_number_of_nodes_counts_before_the_runtimes(own: Fields, policy: Fields, replicas: int) -> None:
    assert convert_with(runtime(policy), trainer=own).manifest["spec"]["replicas"] == replicas


def test_an_elastic_policy_becomes_sizes() -> None:
    policy = {"torch": {"numProcPerNode": 2, "elasticPolicy": {"minNodes": 1, "maxNodes": 4, "maxRestarts": 5}}}
    spec = convert_with(runtime(policy)).manifest["spec"]
    assert spec["elastic"] == {"minReplicas": 1, "maxReplicas": 4}
    assert (spec["replicas"], spec["processesPerReplica"], spec["failure"]) == (4, 2, {"maxCodeFailures": 5})


def test_overrides_of_older_versions_count_for_the_trainer_alone() -> None:
    overrides = [
        {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "b"}}},
        {"targetJobs": [{"name": "other"}], "spec": {"nodeSelector": {"c": "d"}}},
    ]
    conversion = convert_with(runtime(), podTemplateOverrides=overrides)
    assert conversion.manifest["spec"]["template"]["spec"]["nodeSelector"] == {"a": "b"}
    assert "spec.podTemplateOverrides[1]" in [one.where for one in conversion.remarks]


def test_what_the_runtimes_jobset_has_is_told() -> None:
    told = [one.where for one in convert_with(runtime(network={"subdomain": "a"})).remarks]
    assert "runtime.spec.template.spec.network.subdomain" in told


def test_a_runtime_of_another_kind_or_name_is_none() -> None:
    other = {**runtime(), "kind": "ClusterTrainingRuntime"}
    conversion = convert_with(other)
    assert "the file has no TrainingRuntime r." in "".join(map(str, conversion.remarks))
    assert trainer(conversion)["name"] == "node"
