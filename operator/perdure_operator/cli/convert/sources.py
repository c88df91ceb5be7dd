"""For each source: how many members its object means, and of what template. `tables` has where its other fields go."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from perdure.errors import UserError
from perdure.wire import GROUP
from perdure_operator.cli.convert import tables, template, torchrun
from perdure_operator.cli.convert.checking import checked_spec
from perdure_operator.cli.convert.fields import Conversion, Fields, mapping, number, text
from perdure_operator.cli.convert.members import convert_job, convert_jobset, put_elastic, put_nodes, put_processes
from perdure_operator.cli.convert.template import PLACEHOLDER_IMAGE, ConvertedTemplate, add_marks
from perdure_operator.cli.convert.trainjob import RUNTIMES, convert_trainjob
from perdure_operator.schema.crd import KIND, NAME_LENGTH, VERSION

_HASH_LENGTH: Final = 8
PLACEHOLDER_ROOT: Final = "s3://your-bucket"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def convert(documents: Sequence[Fields], checkpoint: str = "") -> Conversion:
    """The TrainingJob of the one job among these objects. UserError if there is none, or it cannot be one."""
    found = [one for one in documents if _is_source(one)]
    if len(found) != 1:
        kinds = ", ".join(f"{one.get('apiVersion')!s:.60} {one.get('kind')!s:.60}" for one in documents)
        raise UserError(f"one object is expected, a {', '.join(SOURCES)}: these are {kinds}; convert one at a time")
    (source,) = found
    conversion = Conversion()
    runtimes = [one for one in documents if one.get("kind") in RUNTIMES]
    _name(source, conversion)
    SOURCES[source["kind"]](source, runtimes, conversion)
    for one in documents:
        if one is not source and not (one in runtimes and source["kind"] == "TrainJob"):
            conversion.remark(f"{one.get('kind')!s:.60}", "not converted: apply it as it is, if the script needs it")
    return _finish(conversion, checkpoint)


def convert_command(command: Sequence[str], checkpoint: str = "", image: str = "") -> Conversion:
    """The TrainingJob of a torchrun command line."""
    conversion = Conversion()
    launch = torchrun.read(command, "the command", conversion)
    if launch is None:
        raise UserError(f"{' '.join(command)!r:.60} does not begin with torchrun or python -m torch.distributed.run")
    stem = PurePosixPath(launch.script).name.removesuffix(".py").lower()
    conversion.put("metadata.name", _short(re.sub(r"[^a-z0-9]+", "-", stem).strip("-")) or "training")
    if not image:
        conversion.remark("spec.template", f"{PLACEHOLDER_IMAGE} stands for your image: write its name, or use --image")
    container = {"name": "trainer", "image": image or PLACEHOLDER_IMAGE, "command": list(launch.command)}
    conversion.put("spec.template", {"spec": {"containers": [container]}})
    conversion.remark("spec.template", "a command line says nothing of CPUs, memory and GPUs: add resources")
    put_nodes(launch.nodes or "1", "the command: --nnodes", conversion)
    put_processes(ConvertedTemplate({}, launch, 0), None, "1", "the command: --nproc-per-node", conversion)
    return _finish(conversion, checkpoint)


def _is_source(one: Fields) -> bool:
    kind, group = one.get("kind"), str(one.get("apiVersion")).partition("/")[0]
    return isinstance(kind, str) and kind in SOURCES and group == GROUPS[kind]


def _name(source: Fields, conversion: Conversion) -> None:
    metadata = mapping(source.get("metadata"), "metadata")
    given, prefix = (text(metadata.get(field), f"metadata.{field}") for field in ("name", "generateName"))
    if prefix and not given:
        conversion.remark(
            "metadata.generateName",
            "not carried over: a resume needs the same name; the TrainingJob is named by it without a suffix",
        )
    given = given or prefix
    name = _short(given.rstrip("-")) or "training"
    if not _NAME.fullmatch(name):
        raise UserError(f"metadata.name: {given!r:.60} has other characters than a-z, 0-9 and -: rename the job")
    conversion.put("metadata.name", name)
    if name != given:
        conversion.remark(
            "metadata.name",
            f"became {name}: it has at most {NAME_LENGTH} characters, of a longer one a hash stands at the end, "
            "and no dash",
        )
    for field in ("labels", "annotations"):
        add_marks(field, metadata.get(field), f"metadata.{field}", conversion)


def _short(name: str) -> str:
    """A name that may be a TrainingJob's; of names that begin alike, each has its own."""
    if len(name) <= NAME_LENGTH:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: NAME_LENGTH - 1 - _HASH_LENGTH].rstrip('-')}-{mark}"


def _pytorchjob(source: Fields, _: Sequence[Fields], conversion: Conversion) -> None:
    spec = mapping(source.get("spec"), "spec")
    where = "spec.pytorchReplicaSpecs"
    groups = {
        name: mapping(one, f"{where}.{name}") for name, one in mapping(spec.get("pytorchReplicaSpecs"), where).items()
    }
    roles: dict[str, Fields] = {name: groups[name] for name in ("Worker", "Master") if name in groups}
    if not roles:
        raise UserError(f"{where} has neither Master nor Worker: nothing would train")
    known = _with_pods(roles, where, conversion)
    chosen = next(iter(known))
    if len(known) == 2:
        for path in _differences(known["Worker"].get("template"), known["Master"].get("template"), ""):
            conversion.remark(f"{where}.Master.template{path}", "not carried over: all members have Worker's template")
    for name, one in known.items():
        _restart_policy(one.get("restartPolicy"), f"{where}.{name}.restartPolicy", conversion)
    made = template.convert(known[chosen].get("template"), f"{where}.{chosen}.template", conversion, "pytorch")
    conversion.put("spec.template", made.template)
    replicas = sum(number(one.get("replicas"), f"{where}.{name}.replicas", 1) for name, one in known.items())
    conversion.put("spec.replicas", replicas)
    elastic = mapping(spec.get("elasticPolicy"), "spec.elasticPolicy")
    if elastic:
        least, most = (
            number(elastic.get(name), f"spec.elasticPolicy.{name}", replicas) for name in ("minReplicas", "maxReplicas")
        )
        put_elastic(least, most, "spec.elasticPolicy", conversion)
    conversion.follow(tables.PYTORCHJOB, source, "")
    processes = spec.get("nprocPerNode", elastic.get("nProcPerNode"))
    put_processes(made, processes, "auto", "spec.nprocPerNode", conversion)


def _with_pods(roles: dict[str, Fields], where: str, conversion: Conversion) -> dict[str, Fields]:
    """The roles that have pods; all, if none has."""
    kept = {name: one for name, one in roles.items() if number(one.get("replicas"), f"{where}.{name}.replicas", 1)}
    for name in roles.keys() - kept.keys() if kept else ():
        conversion.remark(f"{where}.{name}", "not carried over: it has 0 replicas")
    return kept or roles


def _restart_policy(given: Any, where: str, conversion: Conversion) -> None:
    if given == "Never":
        conversion.put("spec.failure.maxCodeFailures", 0)
        conversion.remark(where, "became spec.failure.maxCodeFailures 0: lost nodes and pods are still replaced")
    elif given is not None:
        conversion.remark(where, "not carried over: Perdure replaces members and restarts scripts, see spec.failure")


def _job(source: Fields, _: Sequence[Fields], conversion: Conversion) -> None:
    made, members = convert_job(mapping(source.get("spec"), "spec"), "spec", conversion)
    conversion.put("spec.template", made.template)
    conversion.put("spec.replicas", members)
    conversion.follow(tables.JOB, source, "")
    put_processes(made, None, "1", "spec.template", conversion, has_no_world=True)


def _jobset(source: Fields, _: Sequence[Fields], conversion: Conversion) -> None:
    made, members = convert_jobset(mapping(source.get("spec"), "spec"), "spec", conversion)
    conversion.put("spec.template", made.template)
    conversion.put("spec.replicas", members)
    conversion.follow(tables.JOBSET, source, "")
    put_processes(made, None, "1", "spec.replicatedJobs", conversion, has_no_world=True)


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """The paths at which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from _differences(one.get(name), other.get(name), f"{path}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{place}]")
    elif one != other:
        yield path


def _finish(conversion: Conversion, checkpoint: str) -> Conversion:
    """The whole manifest, checked, in the order in which people write one."""
    name = conversion.manifest["metadata"]["name"]
    if not checkpoint:
        conversion.remark(
            "spec.checkpoint.uri",
            f"{PLACEHOLDER_ROOT}/{name} stands for your bucket: write it, or use --checkpoint; "
            "keys: spec.checkpoint.s3.credentialsSecret",
        )
    conversion.put("spec.checkpoint.uri", checkpoint or f"{PLACEHOLDER_ROOT}/{name}")
    if conversion.get("spec.suspend") is True:
        conversion.remark(
            "spec.suspend", "carried over: nothing trains until you set it to false; a queue such as Kueue will not"
        )
    for what, todo in TO_DO.items():
        conversion.remark(what, todo)
    spec = checked_spec(conversion)
    order = [*(field for field in spec if field not in ("checkpoint", "template")), "checkpoint", "template"]
    conversion.manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": conversion.manifest["metadata"],
        "spec": {field: spec[field] for field in sorted(order, key=_rank)},
    }
    return conversion


def _rank(field: str) -> tuple[int, str]:
    first, last = ("replicas", "elastic", "processesPerReplica"), ("checkpoint", "template")
    place = first.index(field) if field in first else len(first) + (1 + last.index(field) if field in last else 0)
    return place, field


TO_DO: Final = {
    "the image": "it needs perdure, of the operator's version: pip install 'perdure[runtime,s3]'",
    "the script": "it needs a session, its loader and its step, see docs/migrate.md; batch_size is then that of the "
    "global batch, over all processes",
}
"""What no field of a source can say."""

SOURCES: Final[Mapping[str, Callable[[Fields, Sequence[Fields], Conversion], None]]] = {
    "PyTorchJob": _pytorchjob,
    "TrainJob": convert_trainjob,
    "JobSet": _jobset,
    "Job": _job,
}
GROUPS: Final = {
    "PyTorchJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
    "JobSet": "jobset.x-k8s.io",
    "Job": "batch",
}
