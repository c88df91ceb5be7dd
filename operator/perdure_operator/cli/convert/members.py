"""How many members and processes a source means: its counts, and the Job or JobSet in it."""

from __future__ import annotations

from typing import Any, Final

from perdure.errors import UserError
from perdure_operator.cli.convert import tables, template
from perdure_operator.cli.convert.fields import Conversion, Fields, items, mapping, number
from perdure_operator.cli.convert.template import ConvertedTemplate
from perdure_operator.cli.convert.torchrun import whole

_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"


def convert_job(job: Fields, where: str, conversion: Conversion, trainer: str = "") -> tuple[ConvertedTemplate, int]:
    """The template of a Job's pods, and how many of them run at once."""
    parallelism = number(job.get("parallelism"), f"{where}.parallelism", 1)
    completions = number(job.get("completions"), f"{where}.completions", parallelism)
    if completions != parallelism:
        conversion.remark(
            f"{where}.completions",
            f"not carried over: {parallelism} members train together, and {completions} pods one after another are no "
            "training",
        )
    if parallelism > 1 and job.get("completionMode") != "Indexed" and not where.startswith("spec.replicatedJobs"):
        conversion.remark(f"{where}.completionMode", "members have ranks, as in an Indexed Job: these pods had none")
    return template.convert(job.get("template"), f"{where}.template", conversion, trainer), parallelism


def convert_jobset(
    jobset: Fields, where: str, conversion: Conversion, trainer: str = ""
) -> tuple[ConvertedTemplate, int]:
    """The replicated job that trains: the one of this name, else the one with the most pods."""
    jobs = items(jobset.get("replicatedJobs"), f"{where}.replicatedJobs")
    if not jobs:
        raise UserError(f"{where}.replicatedJobs is empty: nothing would train")
    chosen = next((one for one in jobs if trainer and is_trainer(one[1], trainer)), None)
    path, job = chosen or max(jobs, key=_pods)
    for other, one in jobs:
        if other != path:
            conversion.remark(
                f"{other} ({one.get('name')!s:.60})", "not carried over: a TrainingJob has one kind of members"
            )
    conversion.follow(tables.REPLICATED_JOB, job, path)
    spec = mapping(mapping(job.get("template"), f"{path}.template").get("spec"), f"{path}.template.spec")
    policy = mapping(jobset.get("failurePolicy"), f"{where}.failurePolicy")
    made, pods = convert_job(spec, f"{path}.template.spec", conversion, trainer)
    limit = f"{path}.template.spec.backoffLimit"
    if "backoffLimit" in spec and "maxRestarts" in policy:
        conversion.remark(limit, "not carried over: failurePolicy.maxRestarts counts")
    elif "backoffLimit" in spec:
        conversion.carry(limit, "spec.failure.maxCodeFailures", spec["backoffLimit"], tables.CODE_FAILURES)
    return made, pods * number(job.get("replicas"), f"{path}.replicas", 1)


def is_trainer(job: Fields, name: str) -> bool:
    """Whether this replicated job trains: by its name, or by Trainer's label."""
    labels = [job]
    for field in ("template", "metadata", "labels"):
        labels = [one[field] for one in labels if isinstance(one.get(field), dict)]
    return job.get("name") == name or any(one.get(_STEP) == "trainer" for one in labels)


def _pods(one: tuple[str, Fields]) -> int:
    path, job = one
    spec = mapping(mapping(job.get("template"), f"{path}.template").get("spec"), f"{path}.template.spec")
    return number(job.get("replicas"), f"{path}.replicas", 1) * number(
        spec.get("parallelism"), f"{path}.template.spec.parallelism", 1
    )


def put_elastic(least: int, most: int, where: str, conversion: Conversion) -> None:
    """Let the job have these sizes; it never asks for more than the largest."""
    conversion.put("spec.elastic", {"minReplicas": least, "maxReplicas": most})
    conversion.remark(
        where, "became spec.elastic: the global batch stays the same at every size, see spec.elastic.globalBatchSize"
    )
    if conversion.manifest["spec"]["replicas"] > most:
        conversion.put("spec.replicas", most)
        conversion.remark("spec.replicas", f"lowered to {most}, the largest size")


def put_nodes(given: str, where: str, conversion: Conversion) -> None:
    """The members of torchrun's NODES or MIN:MAX."""
    least, colon, most = given.partition(":")
    if not colon:
        conversion.put("spec.replicas", whole(given, where))
        return
    conversion.put("spec.replicas", whole(most, where))
    if least != most:
        put_elastic(whole(least, where), whole(most, where), where, conversion)


def put_processes(
    made: ConvertedTemplate,
    given: Any,
    default: str,
    where: str,
    conversion: Conversion,
    *,
    has_no_world: bool = False,
) -> None:
    """The processes of each member: what torchrun says, else the source, else the default of its kind.

    `has_no_world`: a source whose controller does not tell torchrun how many pods there are.
    """
    launch = made.launch
    said = str(launch.processes if launch and launch.processes else default if given is None else given)
    if said.isascii() and said.isdigit():
        conversion.put("spec.processesPerReplica", whole(said, where))
    elif launch and made.gpus and said in ("auto", "gpu"):
        conversion.put("spec.processesPerReplica", made.gpus)
    elif launch or said not in ("auto", "cpu", "gpu"):
        conversion.remark(
            where, f"spec.processesPerReplica is 1: {said!r:.60} is known only where the pod runs, write the number"
        )
    if launch and launch.nodes:
        _compare_nodes(launch.nodes, f"{where}: --nnodes", conversion)
    if launch and (launch.is_alone or (has_no_world and not launch.nodes)) and conversion.get("spec.replicas") > 1:
        conversion.remark(
            f"{where}: {'--standalone' if launch.is_alone else '--nnodes'}",
            "each pod trained by itself, and the members of a TrainingJob train together: for trainings of their own, "
            "make a TrainingJob of one member for each",
        )


def _compare_nodes(nodes: str, where: str, conversion: Conversion) -> None:
    """Carry over sizes that only torchrun has; remark those that differ from the source's."""
    replicas, sizes = conversion.get("spec.replicas"), _sizes(nodes)
    elastic = conversion.get("spec.elastic")
    if sizes == ((elastic["minReplicas"], elastic["maxReplicas"]) if elastic else (replicas, replicas)):
        return
    if elastic:
        conversion.remark(where, f"not carried over: {nodes:.60} is not the source's own policy, which is spec.elastic")
    elif sizes and 0 < sizes[0] < sizes[1] == replicas:
        put_elastic(*sizes, where, conversion)
    else:
        conversion.remark(where, f"not carried over: {nodes:.60} is not the number of pods, which is spec.replicas")


def _sizes(nodes: str) -> tuple[int, int] | None:
    """MIN and MAX of torchrun's NODES or MIN:MAX; None of anything else."""
    least, colon, most = nodes.partition(":")
    sizes = (least, most if colon else least)
    if all(size.isascii() and size.isdigit() and len(size) < 10 for size in sizes):
        return int(sizes[0]), int(sizes[1])
    return None
