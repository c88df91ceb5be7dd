"""A TrainJob of Kubeflow's Trainer: its runtime has the template, and the TrainJob changes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeGuard

from perdure_operator.cli.convert import tables
from perdure_operator.cli.convert.fields import Conversion, Fields, items, mapping, number, text
from perdure_operator.cli.convert.members import convert_jobset, is_trainer, put_elastic, put_processes
from perdure_operator.cli.convert.template import PLACEHOLDER_IMAGE, add_marks

RUNTIMES: Final = ("TrainingRuntime", "ClusterTrainingRuntime")
TRAINER: Final = "node"
"""The name of the job that trains, and of its container."""
_POLICY: Final = "runtime.spec.mlPolicy"
_TEMPLATE: Final = "runtime.spec.template"
_KEYS: Final = {
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""By which field Kubernetes tells the items of a list apart, where it is not their name."""
_REPLACED: Final = ("env", "volumes")
_OF_TRAINER: Final = {"image": "image", "command": "command", "args": "args", "resourcesPerNode": "resources"}


def convert_trainjob(source: Fields, runtimes: Sequence[Fields], conversion: Conversion) -> None:
    """Put what a TrainJob and its runtime mean into the TrainingJob."""
    spec = mapping(source.get("spec"), "spec")
    trainer = mapping(spec.get("trainer"), "spec.trainer")
    runtime = copy.deepcopy(_runtime(mapping(spec.get("runtimeRef"), "spec.runtimeRef"), runtimes, conversion))
    inner = mapping(runtime.get("spec"), "runtime.spec")
    policy = mapping(inner.get("mlPolicy"), _POLICY)
    torch = mapping(policy.get("torch"), f"{_POLICY}.torch")
    outer = mapping(inner.get("template"), _TEMPLATE)
    jobset = mapping(outer.get("spec"), f"{_TEMPLATE}.spec")
    _change(jobset, spec, trainer, conversion)
    made, _ = convert_jobset(jobset, f"{_TEMPLATE}.spec", conversion, TRAINER)
    conversion.put("spec.template", made.template)
    nodes = trainer.get("numNodes", policy.get("numNodes"))
    conversion.put("spec.replicas", number(nodes, "spec.trainer.numNodes", 1))
    conversion.follow(tables.TRAINJOB, source, "")
    conversion.follow(tables.RUNTIME, runtime, "runtime")
    metadata = mapping(outer.get("metadata"), f"{_TEMPLATE}.metadata")
    for field in ("labels", "annotations"):
        add_marks(field, metadata.get(field), f"{_TEMPLATE}.metadata.{field}", conversion)
    _elastic(torch, nodes, conversion)
    for field in ("labels", "annotations"):
        add_marks(field, spec.get(field), f"spec.{field}", conversion)
    processes = trainer.get("numProcPerNode", torch.get("numProcPerNode"))
    put_processes(made, processes, "auto", "spec.trainer.numProcPerNode", conversion)


def _elastic(torch: Fields, nodes: Any, conversion: Conversion) -> None:
    where = f"{_POLICY}.torch.elasticPolicy"
    policy = mapping(torch.get("elasticPolicy"), where)
    if not policy:
        return
    least = number(policy.get("minNodes"), f"{where}.minNodes", 1)
    most = number(policy.get("maxNodes"), f"{where}.maxNodes", least)
    if nodes is None:
        conversion.put("spec.replicas", most)
    put_elastic(least, most, where, conversion)


def _runtime(reference: Fields, runtimes: Sequence[Fields], conversion: Conversion) -> Fields:
    """The runtime that the TrainJob names, or what stands for it."""
    name = text(reference.get("name"), "spec.runtimeRef.name")
    kind = text(reference.get("kind"), "spec.runtimeRef.kind", "ClusterTrainingRuntime")
    for one in runtimes:
        if one.get("kind") == kind and mapping(one.get("metadata"), "runtime.metadata").get("name") == name:
            return one
    conversion.remark(
        "spec.runtimeRef",
        f"not carried over: the file has no {kind} {name}. Append what `kubectl get {kind.lower()} {name} -o yaml` "
        "prints, behind a line ---, and convert again",
    )
    pod = {"containers": [{"name": TRAINER, "image": PLACEHOLDER_IMAGE}]}
    job = {"name": TRAINER, "template": {"spec": {"template": {"spec": pod}}}}
    return {"spec": {"template": {"spec": {"replicatedJobs": [job]}}}}


def _change(jobset: Fields, spec: Fields, trainer: Fields, conversion: Conversion) -> None:
    """Change the pod template of the job that trains as the TrainJob says."""
    patches = [*_patches(spec, conversion), *_overrides(spec, conversion)]
    for path, job in items(jobset.get("replicatedJobs"), f"{_TEMPLATE}.spec.replicatedJobs"):
        if is_trainer(job, TRAINER):
            pod = _pod_template(job, path)
            for patch in patches:
                _merge(pod, patch)
            _replace(pod, trainer, f"{path}.template.spec.template")


def _pod_template(job: Fields, path: str) -> Fields:
    inner = job
    for field in ("template", "spec", "template"):
        path = f"{path}.{field}"
        if inner.get(field) is None:
            inner[field] = {}
        mapping(inner[field], path)
        inner = inner[field]
    return inner


def _replace(pod: Fields, trainer: Fields, path: str) -> None:
    """Replace what the TrainJob says of the container that trains."""
    inner = mapping(pod.get("spec"), f"{path}.spec")
    containers = [one for _, one in items(inner.get("containers"), f"{path}.spec.containers")]
    chosen = next((one for one in containers if one.get("name") == TRAINER), containers[0] if containers else {})
    chosen |= {field: trainer[name] for name, field in _OF_TRAINER.items() if name in trainer}
    if "env" in trainer:
        _merge(chosen, {"env": [one for _, one in items(trainer["env"], "spec.trainer.env")]})
    pod["spec"] = {**inner, "containers": containers}


def _patches(spec: Fields, conversion: Conversion) -> Iterator[Fields]:
    """The pod templates in runtimePatches that are for the job that trains; the rest is remarked."""
    for path, patch in items(spec.get("runtimePatches"), "spec.runtimePatches"):
        conversion.follow(tables.PATCH, patch, path)
        outer = mapping(patch.get("trainingRuntimeSpec"), f"{path}.trainingRuntimeSpec")
        jobset = mapping(outer.get("template"), f"{path}.trainingRuntimeSpec.template")
        where = f"{path}.trainingRuntimeSpec.template"
        metadata = mapping(jobset.get("metadata"), f"{where}.metadata")
        for field in ("labels", "annotations"):
            add_marks(field, metadata.get(field), f"{where}.metadata.{field}", conversion)
        inner = mapping(jobset.get("spec"), f"{where}.spec")
        for at, job in items(inner.get("replicatedJobs"), f"{where}.spec.replicatedJobs"):
            if job.get("name") != TRAINER:
                conversion.remark(at, f"not carried over: only the job {TRAINER} is trained")
                continue
            conversion.follow(tables.PATCHED_JOB, job, at)
            of_job = mapping(mapping(job.get("template"), f"{at}.template").get("spec"), f"{at}.template.spec")
            yield mapping(of_job.get("template"), f"{at}.template.spec.template")


def _overrides(spec: Fields, conversion: Conversion) -> Iterator[Fields]:
    """The same of podTemplateOverrides, which older versions of Trainer have."""
    for path, override in items(spec.get("podTemplateOverrides"), "spec.podTemplateOverrides"):
        conversion.follow(tables.OVERRIDE, override, path)
        targets = [one.get("name") for _, one in items(override.get("targetJobs"), f"{path}.targetJobs")]
        if TRAINER in targets:
            yield {name: override[name] for name in ("metadata", "spec") if name in override}
        else:
            conversion.remark(path, f"not carried over: only the job {TRAINER} is trained")


def _merge(base: Fields, patch: Fields) -> None:
    """Change `base` as Kubernetes merges: mappings field by field, lists item by item, the rest replaced.

    A variable or volume is replaced as a whole: merged, it could have two sources.
    """
    for field, value in patch.items():
        old, key = base.get(field), _KEYS.get(field, "name")
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif _have(old, key) and _have(value, key):
            known = {one[key]: one for one in old}
            for one in value:
                if field in _REPLACED:
                    known[one[key]] = copy.deepcopy(one)
                else:
                    _merge(known.setdefault(one[key], {}), one)
            base[field] = list(known.values())
        else:
            base[field] = copy.deepcopy(value)


def _have(value: Any, key: str) -> TypeGuard[list[Fields]]:
    """Whether this is a list of mappings that all have the key."""
    return isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get(key), str | int) for one in value
    )
