"""Makes the template of a TrainingJob from a pod template: what would break Perdure is left out, and remarked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import UserError
from perdure.wire import DEFAULT_GRACE_SECONDS
from perdure_operator.cli.convert import torchrun
from perdure_operator.cli.convert.fields import Conversion, Fields, FieldTable, NotCarried, items, mapping, text, words
from perdure_operator.cli.convert.tables import CONTAINER, POD, POD_TEMPLATE, TRAINER
from perdure_operator.cli.convert.torchrun import TorchrunCommand
from perdure_operator.schema.template import USER_ENV

PLACEHOLDER_IMAGE: Final = "registry.example/your-image:tag"
PLACEHOLDER_COMMAND: Final = ("python", "train.py")

FOREIGN: Final = (
    *("training.kubeflow.org/", "trainer.kubeflow.org/", "jobset.sigs.k8s.io/", "alpha.jobset.sigs.k8s.io/"),
    *("batch.kubernetes.io/", "perdure.dev/"),
)
"""Labels and annotations that begin so are of a controller."""
_OF_JOBS: Final = ("controller-uid", "job-name")
"""Labels that Kubernetes puts on a Job's pods beside those that begin with batch.kubernetes.io/."""
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_WITHOUT_TOKEN: Final = "members carry no token of the API server, a projected volume can have one"  # noqa: S105
_QUEUE: Final = "kueue.x-k8s.io/"

SET_BY_PERDURE: Final = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)

GONE: Final = {
    "JOB_COMPLETION_INDEX": "members have no index: a process reads RANK",
    "batch.kubernetes.io/": "members have no index and no labels of a Job: a process reads RANK",
    "jobset.sigs.k8s.io/": "members have no labels of a JobSet: theirs is perdure.dev/job",
    "training.kubeflow.org/": "members have no labels of a PyTorchJob: theirs is perdure.dev/job",
    "trainer.kubeflow.org/": "members have no labels of a TrainJob: theirs is perdure.dev/job",
    "PET_": "members have no variables of torchrun: a process reads RANK, WORLD_SIZE, LOCAL_RANK",
    **{
        f"$({name})": "Perdure sets it in the process alone: the script itself has to read it"
        for name in sorted(SET_BY_PERDURE)
    },
}
"""What the source's pods have and members have not: a template that still names it is remarked."""


@dataclass(frozen=True)
class ConvertedTemplate:
    """A template of a TrainingJob, and what its trainer says about processes."""

    template: Fields
    launch: TorchrunCommand | None
    gpus: int


def convert(given: Any, where: str, conversion: Conversion, trainer: str = "") -> ConvertedTemplate:
    """The template of this pod template; `trainer` names the container that trains, if it is not the first one."""
    source = conversion.follow(POD_TEMPLATE, given, where)
    metadata = mapping(source.get("metadata"), f"{where}.metadata")
    marks = {
        field: own(metadata.get(field), f"{where}.metadata.{field}", conversion) for field in ("labels", "annotations")
    }
    pod = _without(POD, mapping(source.get("spec"), f"{where}.spec"), f"{where}.spec", conversion)
    _check_policies(pod, f"{where}.spec", conversion)
    launch, gpus = _convert_containers(pod, f"{where}.spec", conversion, trainer)
    kept = {name: values for name, values in marks.items() if values}
    template = {**({"metadata": kept} if kept else {}), "spec": pod}
    for path, name in _named(template, where):
        conversion.remark(path, f"it names {name}, and {GONE[name]}")
    return ConvertedTemplate(template, launch, gpus)


def own(given: Any, where: str, conversion: Conversion) -> dict[str, str]:
    """Labels or annotations without those of controllers, which are remarked."""
    kept = {}
    for name, value in mapping(given, where).items():
        if name.startswith(FOREIGN) or name in _OF_JOBS:
            conversion.remark(f"{where}.{name}", "not carried over: only the source's controller reads it")
        elif name != _APPLIED:
            kept[name] = text(value, f"{where}.{name}")
            if name.startswith(_QUEUE):
                conversion.remark(
                    f"{where}.{name}", "carried over: Kueue does not manage TrainingJobs, see docs/elastic.md"
                )
    return kept


def add_marks(field: str, given: Any, where: str, conversion: Conversion) -> None:
    """Labels or annotations of the TrainingJob, beside those that it has."""
    kept = own(given, where, conversion)
    if kept:
        conversion.put(f"metadata.{field}", {**conversion.manifest["metadata"].get(field, {}), **kept})


def _check_hooks(trainer: Fields, path: str, conversion: Conversion) -> None:
    if mapping(trainer.get("lifecycle"), f"{path}.lifecycle").get("preStop") is not None:
        conversion.remark(
            f"{path}.lifecycle.preStop",
            "carried over: it replaces Perdure's own, so call `perdure stop` in it, and its time is lost to the save",
        )
    if trainer.get("livenessProbe") is not None:
        conversion.remark(
            f"{path}.livenessProbe",
            "carried over: it kills without a save; failure.progressTimeoutSeconds ends a run that hangs",
        )


def _without(table: FieldTable, given: Fields, where: str, conversion: Conversion) -> Fields:
    """The fields that the table does not leave out, which it remarks."""
    left_out = {name: rule for name in given if isinstance(rule := table.get(name), NotCarried)}
    for name, rule in left_out.items():
        conversion.remark(f"{where}.{name}", f"not carried over: {rule.why}")
    return {name: value for name, value in given.items() if name not in left_out}


def _check_policies(pod: Fields, where: str, conversion: Conversion) -> None:
    if pod.pop("restartPolicy", "Never") != "Never":
        conversion.remark(f"{where}.restartPolicy", "not carried over: Perdure replaces members, see spec.failure")
    if pod.get("automountServiceAccountToken") not in (None, False):
        del pod["automountServiceAccountToken"]
        conversion.remark(
            f"{where}.automountServiceAccountToken",
            f"not carried over: {_WITHOUT_TOKEN}",
        )
    elif "serviceAccountName" in pod and pod.get("automountServiceAccountToken") is None:
        conversion.remark(f"{where}.serviceAccountName", f"carried over, without its token: {_WITHOUT_TOKEN}")
    grace = pod.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < DEFAULT_GRACE_SECONDS:
        conversion.remark(
            f"{where}.terminationGracePeriodSeconds",
            f"carried over: a deleted member has only {grace} seconds to save, without this field "
            f"{DEFAULT_GRACE_SECONDS}",
        )


def _convert_containers(
    pod: Fields, where: str, conversion: Conversion, trainer: str
) -> tuple[TorchrunCommand | None, int]:
    """Rewrite the pod's containers, the trainer first; what it says of torchrun, and its GPUs."""
    found = items(pod.get("containers"), f"{where}.containers")
    if not found:
        raise UserError(f"{where}.containers is empty: the container that trains is missing")
    names = [one.get("name") for _, one in found]
    chosen = names.index(trainer) if trainer in names else 0
    if chosen:
        conversion.remark(
            found[chosen][0], f"moved to the front: containers[0] is the one that trains, and {trainer} does"
        )
    (path, first), others = found[chosen], found[:chosen] + found[chosen + 1 :]
    launch = _convert_trainer(first := _without(TRAINER, first, path, conversion), path, conversion)
    pod["containers"] = [first, *(_without(CONTAINER, one, at, conversion) for at, one in others)]
    if "initContainers" in pod:
        inits = items(pod["initContainers"], f"{where}.initContainers")
        pod["initContainers"] = [_without(CONTAINER, one, at, conversion) for at, one in inits]
    return launch, _gpus(first.get("resources"), f"{path}.resources")


def _convert_trainer(trainer: Fields, path: str, conversion: Conversion) -> TorchrunCommand | None:
    command = words(trainer.get("command"), f"{path}.command")
    args = words(trainer.get("args"), f"{path}.args")
    if trainer.setdefault("image", PLACEHOLDER_IMAGE) == PLACEHOLDER_IMAGE:
        conversion.remark(f"{path}.image", f"{PLACEHOLDER_IMAGE} stands for your image: write its name")
    _check_hooks(trainer, path, conversion)
    variables = items(trainer.get("env"), f"{path}.env")
    launch = torchrun.read([*command, *args], f"{path}.command", conversion, _defaults(variables)) if command else None
    trainer["env"] = _own_variables(variables, conversion, of_torchrun=_defaults(variables) if launch else {})
    if not trainer["env"]:
        del trainer["env"]
    if not command:
        trainer["command"] = list(PLACEHOLDER_COMMAND)
        conversion.remark(
            f"{path}.command",
            f"{list(PLACEHOLDER_COMMAND)} stands for the image's entry point, which cannot be read: write it out",
        )
    if launch is not None:
        trainer["command"] = list(launch.command)
        trainer.pop("args", None)
    return launch


def _defaults(variables: list[tuple[str, Fields]]) -> dict[str, str]:
    """The options of torchrun that variables give it, where they can be read."""
    given = {str(one.get("name")): one.get("value") for _, one in variables}
    return {
        option: value
        for name, option in torchrun.VARIABLES.items()
        if isinstance(value := given.get(name), str) and value and "$(" not in value
    }


def _own_variables(
    variables: list[tuple[str, Fields]], conversion: Conversion, *, of_torchrun: Mapping[str, str]
) -> list[Fields]:
    kept = []
    for path, variable in variables:
        name = text(variable.get("name"), f"{path}.name")
        if name in SET_BY_PERDURE:
            conversion.remark(f"{path} ({name})", "not carried over: Perdure sets it in each process")
        elif torchrun.VARIABLES.get(name) in of_torchrun:
            pass
        elif name.startswith("PET_"):
            conversion.remark(
                f"{path} ({name})", "not carried over: it is torchrun's, and Perdure starts the processes"
            )
        elif name.startswith("PERDURE_") and name not in USER_ENV:
            conversion.remark(f"{path} ({name})", "not carried over: Perdure sets it")
        else:
            kept.append(variable)
    return kept


def _gpus(given: Any, where: str) -> int:
    """How many GPUs a container asks for."""
    resources = mapping(given, where)
    asked = {
        **mapping(resources.get("requests"), f"{where}.requests"),
        **mapping(resources.get("limits"), f"{where}.limits"),
    }
    counts = [str(count) for name, count in asked.items() if name.endswith("/gpu")]
    return sum(int(count) for count in counts if count.isascii() and count.isdigit() and len(count) < 5)


def _named(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Where a template names what members have not, and what."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _named(name, f"{path}.{name}")
            yield from _named(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _named(inner, f"{path}[{place}]")
    elif isinstance(value, str):
        yield from ((path, name) for name in GONE if name in value)
