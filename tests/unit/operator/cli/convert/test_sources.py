"""What becomes of other systems' jobs: nothing is dropped in silence, and only a user's mistake is an error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import UserError
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cli.convert import documents
from perdure_operator.cli.convert.command import as_yaml
from perdure_operator.cli.convert.fields import Conversion, Fields
from perdure_operator.cli.convert.sources import convert, convert_command
from tests.support import foreign_jobs

Path = tuple[str | int, ...]

SCALARS = st.none() | st.booleans() | st.integers(-5, 2000) | st.floats(0, 9) | st.text(max_size=5)
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)
FREE = ("labels", "annotations", "nodeSelector", "requests", "limits")
"""Mappings whose names are the user's own."""


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of everything in a value."""
    yield path
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*path, name))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def changed(objects: list[Fields], path: Path, value: Any) -> Any:
    """A copy with another value at this path; aliases in the source become values of their own."""
    made = json.loads(json.dumps(objects))
    if path:
        at(made, path[:-1])[path[-1]] = value
    return made


def is_told(conversion: Conversion, path: str) -> bool:
    """Whether a remark is about the field, or about something that it is a part of."""
    told = [one.where.partition(" (")[0] for one in conversion.remarks]
    return any(path == where or path.startswith((f"{where}.", f"{where}[")) for where in told)


@pytest.mark.parametrize("name", foreign_jobs.JOBS)
def test_a_job_of_another_system_becomes_the_trainingjob_beside_it(name: str) -> None:
    conversion = convert(documents.read(foreign_jobs.source(name)))
    comments = "".join(f"# {one}\n" for one in conversion.remarks)
    assert comments + as_yaml(conversion) == foreign_jobs.converted(name)


@pytest.mark.parametrize("name", foreign_jobs.JOBS)
def test_a_field_that_is_unknown_is_told_wherever_it_stands(name: str) -> None:
    objects = documents.read(foreign_jobs.source(name))
    silent = []
    for path in places(objects):
        if not path or not isinstance(at(objects, path), dict) or path[-1] in FREE:
            continue
        try:
            conversion = convert(changed(objects, (*path, "notKnown"), "here"))
        except UserError:
            continue
        if not any("notKnown" in str(one) for one in conversion.remarks) and not is_told(
            conversion, written(path, objects)
        ):
            silent.append(path)
    assert [path for path in silent if not is_runtime(path, objects) or not is_unread(path)] == []


def is_unread(path: Path) -> bool:
    """Whether this of the examples' runtime counts for nothing: its metadata, and a variable that is replaced."""
    return path[1:2] == ("metadata",) or path[-2:] == ("env", 0)


def is_runtime(path: Path, objects: list[Fields]) -> bool:
    return str(at(objects, path[:1])["kind"]).endswith("Runtime")


def written(path: Path, objects: list[Fields]) -> str:
    """A path as remarks have it."""
    names = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:])
    return f"runtime{names}" if is_runtime(path, objects) else names.removeprefix(".")


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(foreign_jobs.JOBS), junk=JUNK, data=st.data())
def test_a_job_with_anything_anywhere_is_converted_or_refused_with_the_reason(
    name: str, junk: Any, data: st.DataObject
) -> None:
    objects = documents.read(foreign_jobs.source(name))
    path = data.draw(st.sampled_from([path for path in places(objects) if len(path) > 1]))
    try:
        conversion = convert(changed(objects, path, junk))
    except UserError:
        return
    TrainingJobSpec.model_validate(conversion.manifest["spec"])
    assert yaml.safe_load(as_yaml(conversion)) == conversion.manifest


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["PyTorchJob", "TrainJob", "JobSet", "Job"]), st.dictionaries(st.text(max_size=9), JUNK), JUNK)
def test_any_mapping_is_converted_or_refused_with_the_reason(kind: str, given_fields: Fields, spec: Any) -> None:
    groups = {"PyTorchJob": "kubeflow.org/v1", "TrainJob": "trainer.kubeflow.org/v1", "JobSet": "jobset.x-k8s.io/v1"}
    named = {**given_fields, "apiVersion": groups.get(kind, "batch/v1"), "kind": kind, "spec": spec}
    for objects in ([given_fields], [named], [{**named, "kind": spec}]):
        try:
            convert(objects)
        except UserError:
            continue


def test_a_conversion_changes_nothing_of_its_source() -> None:
    for name in foreign_jobs.JOBS:
        objects = documents.read(foreign_jobs.source(name))
        before = copy.deepcopy(objects)
        convert(objects)
        assert objects == before


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([{"apiVersion": "v1", "kind": "ConfigMap"}], "one object is expected, a PyTorchJob, TrainJob, JobSet, Job"),
        ([{"apiVersion": "batch/v1", "kind": ["Job"]}], "these are batch/v1 ['Job']"),
        ([{"apiVersion": "example.io/v1", "kind": "Job"}], "these are example.io/v1 Job"),
        ([{"apiVersion": "batch/v1", "kind": "Job"}] * 2, "one object is expected"),
        ([{"apiVersion": "v1", "kind": "List", "items": []}], "these are v1 List; convert one at a time"),
        ([{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "A_b"}}], "rename the job"),
        ([{"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": "2"}}], "spec.parallelism: a whole number"),
        ([{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}}], "neither Master nor Worker"),
        ([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {}}], "replicatedJobs is empty"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_reason(objects: list[Fields], says: str) -> None:
    with pytest.raises(UserError) as refused:
        convert(objects)
    assert says in str(refused.value)


def job(**spec: Any) -> list[Fields]:
    """An indexed Job of two pods, with these fields of its spec."""
    pod = {"spec": {"containers": [{"name": "main", "image": "digits:1", "command": ["python", "train.py"]}]}}
    fields = {"parallelism": 2, "completionMode": "Indexed", "template": pod, **spec}
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "digits"}, "spec": fields}]


def test_where_it_checkpoints_may_be_given_and_is_checked() -> None:
    assert convert(job(), "s3://bucket/digits").manifest["spec"]["checkpoint"] == {"uri": "s3://bucket/digits"}
    with pytest.raises(UserError, match="must be s3://bucket/prefix"):
        convert(job(), "bucket")
    with pytest.raises(UserError, match="is for one member"):
        convert(job(), "file:///folder")


def test_a_job_of_no_pods_is_told_to_be_suspended_instead() -> None:
    with pytest.raises(UserError, match=r"spec\.replicas: replicas must be 1 to 1000: .* set spec\.suspend"):
        convert(job(parallelism=0))


def test_objects_beside_the_job_are_told() -> None:
    conversion = convert([{"apiVersion": "v1", "kind": "Service"}, *job()])
    assert "Service: not converted: apply it as it is, if the script needs it" in map(str, conversion.remarks)


def named(**metadata: str) -> tuple[str, list[str]]:
    """The name of a Job's TrainingJob, and what was told of the Job's own."""
    (one,) = job()
    conversion = convert([{**one, "metadata": metadata}])
    return conversion.manifest["metadata"]["name"], [
        remark.where for remark in conversion.remarks if remark.where.startswith("metadata")
    ]


def test_long_names_that_begin_alike_stay_different_and_that_is_told() -> None:
    (one, told), (other, _) = (named(name="x" * 49 + end) for end in ("-a1", "-a2"))
    assert told == ["metadata.name"]
    assert one != other
    assert one[:41] == other[:41] == "x" * 41
    assert len(one) == len(other) == 50
    assert named(name="x" * 50) == ("x" * 50, [])


def test_the_beginning_of_generated_names_is_told_where_it_names_the_job() -> None:
    assert named(generateName="digits-") == ("digits", ["metadata.generateName", "metadata.name"])
    assert named(generateName="digits-", name="digits-x4k2") == ("digits-x4k2", [])


def test_a_job_that_waits_is_told_because_nobody_else_resumes_it() -> None:
    told = [str(one) for one in convert(job(suspend=True)).remarks]
    assert [one for one in told if one.startswith("spec.suspend: carried over: nothing trains until")]
    assert "spec.suspend" not in [one.where for one in convert(job(suspend=False)).remarks]


def pytorchjob(*command: str, roles: Fields | None = None, **spec: Any) -> Conversion:
    """The conversion of a PyTorchJob of four workers, or of these roles, with these fields of its spec."""
    container = {"name": "pytorch", "image": "digits:1", "command": list(command or ("python", "train.py"))}
    pod = {"spec": {"priorityClassName": "low", "containers": [container]}}
    given = {role: {"template": pod, **fields} for role, fields in (roles or {"Worker": {"replicas": 4}}).items()}
    fields = {"pytorchReplicaSpecs": given, **spec}
    return convert([{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": fields}])


def told_of(conversion: Conversion) -> dict[str, str]:
    return {one.where: one.text for one in conversion.remarks}


def test_a_role_that_is_never_restarted_counts_before_every_limit_and_those_are_told() -> None:
    conversion = pytorchjob(
        *("torchrun", "--max-restarts=3", "train.py"),
        roles={"Worker": {"replicas": 2, "restartPolicy": "Never"}},
        runPolicy={"backoffLimit": 4},
        elasticPolicy={"maxRestarts": 5},
    )
    assert conversion.manifest["spec"]["failure"] == {"maxCodeFailures": 0}
    command = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].command: --max-restarts"
    for loser in ("spec.runPolicy.backoffLimit", "spec.elasticPolicy.maxRestarts", command):
        assert told_of(conversion)[loser] == "not carried over: spec.failure.maxCodeFailures is 0 by another field"


def test_of_two_fields_that_mean_the_same_the_first_counts_and_the_other_is_told() -> None:
    conversion = pytorchjob(runPolicy={"schedulingPolicy": {"priorityClass": "high"}})
    assert conversion.manifest["spec"]["template"]["spec"]["priorityClassName"] == "low"
    assert "is low by another field" in told_of(conversion)["spec.runPolicy.schedulingPolicy.priorityClass"]


def test_a_role_without_pods_counts_for_nothing_and_is_told() -> None:
    conversion = pytorchjob(roles={"Master": {}, "Worker": {"replicas": 0, "restartPolicy": "Never", "template": {}}})
    assert conversion.manifest["spec"]["replicas"] == 1
    assert "failure" not in conversion.manifest["spec"]
    assert told_of(conversion)["spec.pytorchReplicaSpecs.Worker"] == "not carried over: it has 0 replicas"


def test_sizes_that_only_the_containers_torchrun_has_are_carried_over() -> None:
    words = ("torchrun", "--nnodes=1:4", "train.py")
    conversion = pytorchjob(*words)
    assert conversion.manifest["spec"]["elastic"] == {"minReplicas": 1, "maxReplicas": 4}
    assert told_of(conversion)["spec.nprocPerNode: --nnodes"].startswith("became spec.elastic")
    own = pytorchjob(*words, elasticPolicy={"minReplicas": 2, "maxReplicas": 6})
    assert own.manifest["spec"]["elastic"] == {"minReplicas": 2, "maxReplicas": 6}
    assert told_of(own)["spec.nprocPerNode: --nnodes"].startswith("not carried over")
    same = pytorchjob(*words, elasticPolicy={"minReplicas": 1, "maxReplicas": 4})
    assert "spec.nprocPerNode: --nnodes" not in told_of(same)
    assert told_of(pytorchjob("torchrun", "--nnodes=2:3", "train.py"))["spec.nprocPerNode: --nnodes"].startswith(
        "not carried over: 2:3 is not the number of pods"
    )


def test_trainings_that_were_independent_are_told_because_members_train_together() -> None:
    def alone(conversion: Conversion) -> list[str]:
        return [where for where, said in told_of(conversion).items() if "each pod trained by itself" in said]

    def of_job(*command: str, pods: int = 2) -> Conversion:
        pod = {"spec": {"containers": [{"name": "main", "image": "digits:1", "command": list(command)}]}}
        return convert(job(template=pod, parallelism=pods))

    assert alone(pytorchjob("torchrun", "--standalone", "train.py")) == ["spec.nprocPerNode: --standalone"]
    assert alone(of_job("torchrun", "train.py")) == ["spec.template: --nnodes"]
    assert alone(of_job("torchrun", "train.py", pods=1)) == []
    assert alone(of_job("torchrun", "--nnodes=2", "train.py")) == []
    assert alone(pytorchjob("torchrun", "train.py")) == []


def test_a_long_scripts_name_is_cut_as_any_other() -> None:
    name = convert_command(["torchrun", f"{'x' * 60}.py"]).manifest["metadata"]["name"]
    assert len(name) == 50
    assert name.startswith(f"{'x' * 41}-")


def test_an_elastic_torchrun_command_becomes_an_elastic_job() -> None:
    words = "torchrun --nnodes=1:4 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d -m digits.train --lr 0.1"
    conversion = convert_command(words.split(), "s3://bucket/digits", "digits:1")
    assert conversion.manifest["metadata"] == {"name": "digits-train"}
    assert conversion.manifest["spec"] == {
        "replicas": 4,
        "elastic": {"minReplicas": 1, "maxReplicas": 4},
        "processesPerReplica": 8,
        "failure": {"maxCodeFailures": 3},
        "checkpoint": {"uri": "s3://bucket/digits"},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "image": "digits:1",
                        "command": ["python", "-u", "-m", "digits.train", "--lr", "0.1"],
                    }
                ]
            }
        },
    }


@pytest.mark.parametrize("nodes", ["two", "1:two", "0", "5:2", "1:4000"])
def test_a_size_that_no_job_can_have_is_refused(nodes: str) -> None:
    with pytest.raises(UserError):
        convert_command(["torchrun", "--nnodes", nodes, "train.py"])
