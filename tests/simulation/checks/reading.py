"""Reads the operator's writes as any client could: raw status and assignments, never through its own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.signal_rows import SignalSource
from tests.simulation.objects import UNSCHEDULABLE, Json, is_ready, seconds_of, terminating

ASSIGNMENT: Final = "perdure.dev/assignment"
ROLE: Final = "perdure.dev/role"
UID: Final = "perdure.dev/job-uid"
LONGEST_REST_SECONDS: Final = 3600
"""Between two attempts at a larger run, unless one takes longer itself."""
LATE_SECONDS: Final = 5.0
"""This long after a pause another attempt has begun."""
FINISHED: Final = ("Completed", "Failed")


def status_of(job: Json) -> Json:
    """{} before the first write."""
    return job.get("status") or {}


def sizes(spec: Json) -> list[int]:
    """How many members a run of the job may have, the smallest first."""
    elastic = spec.get("elastic")
    if not elastic:
        return [int(spec.get("replicas", 1))]
    batch, each = elastic.get("globalBatchSize"), int(spec.get("processesPerReplica", 1))
    between = range(elastic["minReplicas"], elastic["maxReplicas"] + 1)
    return elastic.get("sizes") or [size for size in between if batch is None or batch % (size * each) == 0]


def wanted(spec: Json) -> int:
    """The wanted number of members."""
    allowed = sizes(spec)
    return max((size for size in allowed if size <= int(spec.get("replicas", 1))), default=allowed[0])


def on_cordon(job: Json) -> str:
    """The reaction of members whose node is cordoned and announces nothing else: Move, MoveIfRoom or Ignore."""
    return str(job["spec"]["disruption"].get("onCordon") or "Move")


def spares(job: Json | None) -> int:
    """The number of standbys to keep beside its run."""
    return int(((job or {}).get("spec", {}).get("elastic") or {}).get("spares") or 0)


def rests(job: Json, now: float) -> bool:
    """Whether a run that is smaller than wanted pauses after an attempt at a larger one."""
    growth, elastic = status_of(job).get("growth"), job["spec"].get("elastic")
    if not growth or growth["generation"] != job["metadata"]["generation"]:
        return False
    if elastic:
        longest = max(LONGEST_REST_SECONDS, elastic["growTimeoutSeconds"])
    else:
        longest = 2 * (job["spec"].get("startTimeoutSeconds") or 600)
    left = seconds_of(growth["until"]) - now
    return len(plan_of(status_of(job))["members"]) < wanted(job["spec"]) and -LATE_SECONDS < left <= longest


def root_of(job: Json) -> tuple[str, ...]:
    """Where it writes: a bucket's name at another endpoint is another place, as is a folder on another volume."""
    checkpoint, pod = job["spec"]["checkpoint"], job["spec"]["template"]["spec"]
    volumes = [json.dumps(one, sort_keys=True) for one in pod.get("volumes") or ()]
    return checkpoint["uri"], (checkpoint.get("s3") or {}).get("endpoint", ""), *sorted(volumes)


def finished(job: Json) -> bool:
    return status_of(job).get("phase") in FINISHED


def condition(status: Json, kind: str) -> Json:
    """{} if absent."""
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), {})


def announces(raw: Json) -> bool:
    """Whether a node or a pod shows a problem, or a user wants the node vacated."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    if vacate(raw) or {*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})} & _MARKS:
        return True
    if any("allocatedResourcesStatus" in one for one in status.get("containerStatuses") or ()):
        return True
    said = {one["type"]: one.get("status") for one in status.get("conditions") or ()}
    return any(said[kind] == ("False" if kind in _GOOD else "True") for kind in said.keys() - _OF_THE_WELL)


def troubled(node: Json) -> bool:
    """Whether it shows anything beside a cordon that may make members leave, or keep others away."""
    taints = {one["key"] for one in (node.get("spec") or {}).get("taints") or ()} - {UNSCHEDULABLE}
    return bool(taints) or terminating(node) or announces(node) or not is_ready(node)


def vacate(raw: Json) -> str:
    """What a user wants vacated, by an annotation of a node or a job."""
    return str((raw["metadata"].get("annotations") or {}).get("perdure.dev/vacate") or "")


_OF_THE_WELL: Final = frozenset({"Ready", "PodScheduled"})
_GOOD: Final = frozenset(
    {row.key for row in DEFAULT_SIGNALS if row.source is SignalSource.CONDITION and row.value == "False"}
)
"""Conditions whose True is healthy."""
_MARKS: Final = frozenset(
    {row.key for row in DEFAULT_SIGNALS if row.source in (SignalSource.LABEL, SignalSource.ANNOTATION)}
)


def current(status: Json) -> Json:
    """The current run; {} between two."""
    return status.get("current") or {}


def plan_of(status: Json) -> Json:
    """The plan of the current run; {} between two."""
    return current(status).get("plan") or {}


def intent(status: Json) -> Json:
    """The decision to end the current run."""
    return current(status).get("intent") or {}


def previous(status: Json) -> Json:
    """The run before the current one, while its leavers leave; {} otherwise."""
    return status.get("previous") or {}


def upcoming(status: Json) -> Json:
    """The next run; {} if none is prepared."""
    return status.get("next") or {}


def to_come(status: Json) -> set[str]:
    """Names of pods created without a rank: for the next run, and beside the current one."""
    beside = (status.get("spares") or {}).get("names") or ()
    return {*(upcoming(status).get("members") or ()), *beside}


def plans(status: Json) -> Iterator[Json]:
    """Run plans anywhere in status: objects with a run, a world and members."""
    for value in status.values():
        if isinstance(value, dict):
            if "world" in value and isinstance(value.get("members"), list):
                yield value
            else:
                yield from plans(value)


def training(status: Json) -> set[str]:
    """Names of members whose end status does not know."""
    return _alive(current(status), plan_of(status)) | leaving(status)


def leaving(status: Json) -> set[str]:
    """Those of them that did not continue with the current run."""
    return _alive(previous(status), previous(status))


def _alive(run: Json, list_of: Json) -> set[str]:
    ended = {one.get("name") for one in run.get("outcomes") or ()}
    return {one["name"] for one in list_of.get("members") or ()} - ended


def failures(status: Json) -> tuple[int, int]:
    """Failures of the code and of infrastructure."""
    found = status.get("failures") or {}
    return int(found.get("code") or 0), int(found.get("infrastructure") or 0)


def assignment(pod: Json) -> Json:
    """The pod's assignment; {} if it cannot be read."""
    return _object((pod["metadata"].get("annotations") or {}).get(ASSIGNMENT))


def run_told(pod: Json) -> int:
    """The newest run that the pod was assigned."""
    return int(assignment(pod).get("run") or 0)


def terminated(pod: Json) -> Json:
    """How container 0 ended; {} while it has not; of a pod without containers, why it has none."""
    status = pod.get("status") or {}
    states = status.get("containerStatuses") or [{}]
    if status.get("phase") == "Failed" and not states[0]:
        return {"reason": status.get("reason")}
    return (states[0].get("state") or {}).get("terminated") or {}


def outcome(pod: Json) -> Json:
    """The last words of the pod's agent; {} if there are no readable ones."""
    return _object(terminated(pod).get("message"))


@lru_cache(maxsize=1024)
def _object(text: Any) -> Json:
    """Called with the same text again and again; callers do not change the result."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_being_pulled(pod: Json) -> bool:
    """Whether its image is most likely being pulled."""
    status = pod.get("status") or {}
    is_set_up = any(one["type"] == "PodReadyToStartContainers" for one in status.get("conditions") or ())
    waits = [(one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()]
    return is_set_up and any(one.get("reason") == "ContainerCreating" for one in waits)
