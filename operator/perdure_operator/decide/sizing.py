"""How large a run is: the size that a job wants, the sizes that it can have, and when a run grows to a larger one.

Only this file decides the wanted size, by arithmetic on the spec: it does not look at capacity. The callers know which
members can train.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure_operator.api.spec import Elastic, TrainingJobSpec
from perdure_operator.api.status import CurrentRun, Enough, Growth, RunPlan, Scaling
from perdure_operator.decide.draft import Draft, clock, doubled_seconds, later
from perdure_operator.decide.facts import CAUSE_LENGTH, gang_pause, longest_gang_pause
from perdure_operator.state.snapshot import PodView, Snapshot

LONGEST_REST_SECONDS: Final = 3600
SETTLING_SECONDS: Final = 30
"""How long after its plan a run does not grow: most runs have begun by then, and only those can be handed over live."""
EXPENDABLE: Final = -10
"""--expendable-pods-priority-cutoff of cluster-autoscaler: below it a pending pod makes it add no node."""


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    members: int
    world: int

    @property
    def each(self) -> float:
        """Processes of one member."""
        return self.world / max(self.members, 1)


def wanted_members(spec: TrainingJobSpec, scaling: Scaling | None = None) -> int:
    """replicas; with `elastic` limited to its bounds, then rounded down to a size.

    With policy Goodput the size that it was given counts in place of replicas, and its minimum until it is given one.
    """
    elastic = spec.elastic
    if elastic is None:
        return spec.replicas
    asked = spec.replicas if not elastic.shares else scaling.size if scaling else elastic.min_replicas
    return largest(spec, _bounded(asked, elastic)) or max(elastic.min_replicas, 1)


def sizes_of(spec: TrainingJobSpec) -> tuple[int, ...]:
    """The sizes that the job can have, rising."""
    elastic = spec.elastic
    if elastic is None:
        return (spec.replicas,)
    low, batch, each = max(elastic.min_replicas, 1), elastic.global_batch_size, max(spec.processes_per_replica, 1)
    if elastic.sizes is not None:
        return tuple(size for size in elastic.sizes if low <= size <= elastic.max_replicas) or (low,)
    numbers = range(low, elastic.max_replicas + 1)
    return tuple(size for size in numbers if batch is None or batch % (size * each) == 0) or (low,)


def why_so_many(spec: TrainingJobSpec, scaling: Scaling | None = None) -> str:
    """Why the wanted size is what it is, in words."""
    if spec.elastic and spec.elastic.shares:
        return scaling.why if scaling else "elastic.minReplicas, or as the run is, until the pool's devices are shared"
    said, elastic, members = f"spec.replicas is {spec.replicas}", spec.elastic, wanted_members(spec)
    if elastic is None or members == spec.replicas:
        return said
    if spec.replicas < elastic.min_replicas:
        return f"{said}, and elastic.minReplicas is {elastic.min_replicas}"
    if spec.replicas > elastic.max_replicas:
        said = f"{said}, elastic.maxReplicas is {elastic.max_replicas}"
        if members == elastic.max_replicas:
            return said
    return f"{said}, and {members} is the largest {_of_what(spec, elastic)} that is not above it"


def largest(spec: TrainingJobSpec, at_most: int) -> int:
    """The largest of the job's sizes that is not above `at_most`, 0 if there is none."""
    elastic = spec.elastic
    if elastic is None:
        return 0
    low, high = max(elastic.min_replicas, 1), min(elastic.max_replicas, at_most)
    if elastic.sizes is not None:
        return max((size for size in elastic.sizes if low <= size <= high), default=0)
    batch, each = elastic.global_batch_size, max(spec.processes_per_replica, 1)
    return next((size for size in range(high, low - 1, -1) if batch is None or batch % (size * each) == 0), 0)


def _of_what(spec: TrainingJobSpec, elastic: Elastic) -> str:
    """The rule for the job's sizes, in words."""
    if elastic.sizes is not None or elastic.global_batch_size is None:
        return "of elastic.sizes"
    each = spec.processes_per_replica
    times = f", times processesPerReplica {each}," if each > 1 else ""
    return f"number that{times} divides elastic.globalBatchSize {elastic.global_batch_size}"


def _bounded(replicas: int, elastic: Elastic) -> int:
    return min(max(replicas, elastic.min_replicas), elastic.max_replicas)


def wanted_size(snapshot: Snapshot) -> Size:
    """The size that the job's run ought to have. A run that comes into a pool keeps its own until it is given one."""
    spec, current, scaling = snapshot.spec, snapshot.status.current, snapshot.status.scaling
    members = wanted_members(spec, scaling)
    if current is not None and scaling is None and spec.elastic is not None and spec.elastic.shares:
        members = largest(spec, len(current.plan.members)) or members
    return Size(members, members * spec.processes_per_replica)


def size_of(plan: RunPlan) -> Size:
    """The size of the run of this plan."""
    return Size(len(plan.members), plan.world)


def ends_for_size(draft: Draft, current: CurrentRun) -> bool:
    """Whether a size is wanted that needs no new room, as it is smaller, or room for all, as each member changes."""
    wanted, have = wanted_size(draft.snapshot), size_of(current.plan)
    return wanted != have and (wanted.each != have.each or wanted.members < have.members)


def most_with(draft: Draft, able: int) -> int:
    """The largest size that `able` members can have, 0 if there is none; never above the wanted size.

    A job of a fixed size that is to grow has one smaller size: the one that its run has.
    """
    spec, wanted, current = draft.snapshot.spec, wanted_size(draft.snapshot), draft.current
    if spec.elastic or current is None:
        return largest(spec, min(able, wanted.members))
    have = size_of(current.plan)
    grows = have.each == wanted.each and have.members < wanted.members
    return have.members if grows and able in range(have.members, wanted.members) else 0


def lasts(draft: Draft, size: int) -> tuple[Draft, bool]:
    """Whether a run of this size could have begun for growAfterSeconds by now; 0 means no run."""
    upcoming, elastic = draft.status.next, draft.snapshot.spec.elastic
    if upcoming is None or elastic is None:
        return draft, False
    known = upcoming.enough if upcoming.enough and upcoming.enough.size == size else None
    enough = (known or Enough(size=size, since=draft.now)) if size else None
    if enough != upcoming.enough:
        draft = draft.update(next=upcoming.model_copy(update={"enough": enough}))
    if enough is None:
        return draft, False
    due = later(enough.since, elastic.grow_after_seconds)
    return draft.wake(due), draft.now >= due


def growth_seconds(spec: TrainingJobSpec, offered: bool) -> int:
    """How many seconds a larger run waits for new members.

    Without `elastic` it waits less once a larger run was `offered` in vain: perhaps no run trains.
    """
    if spec.elastic:
        return spec.elastic.grow_timeout_seconds
    return spec.disruption.replacement_timeout_seconds if offered else spec.start_timeout_seconds


def longest_growth_seconds(spec: TrainingJobSpec) -> int:
    """The longest wait of a larger run for new members, in seconds."""
    return max(growth_seconds(spec, offered=False), growth_seconds(spec, offered=True))


def give_up_growing(draft: Draft) -> Draft:
    """Note in status when the next attempt to grow is due, and what this one waited for.

    A job of a fixed size grows by all new members at once, so it pauses like a gang: see `gang_pause`.
    """
    old, snapshot, spec = draft.status.growth, draft.snapshot, draft.snapshot.spec
    attempts = old.attempts + 1 if old and old.generation == snapshot.generation else 1
    if spec.elastic:
        first = spec.elastic.grow_timeout_seconds
        until = later(draft.now, doubled_seconds(attempts, first, longest_rest(spec)))
    else:
        until = draft.now + gang_pause(snapshot.uid, attempts, spec.start_timeout_seconds)
    why = draft.waiting.message[:CAUSE_LENGTH] if draft.waiting else "they were not Ready"
    return draft.update(growth=Growth(attempts=attempts, until=until, generation=snapshot.generation, cause=why))


def grows_later(draft: Draft) -> str:
    """When new members are tried again, and what the last ones waited for; "" if none are now."""
    growth = draft.status.growth
    if growth is None or growth.generation != draft.snapshot.generation or draft.now >= growth.until:
        return ""
    last = f"; the last ones: {growth.cause}" if growth.cause else ""
    return f"; new members are tried again at {clock(growth.until)}{last}"


def longest_rest(spec: TrainingJobSpec) -> int:
    """The longest pause between two attempts at a larger run, in seconds."""
    if spec.elastic is None:
        return longest_gang_pause(spec.start_timeout_seconds)
    return max(LONGEST_REST_SECONDS, spec.elastic.grow_timeout_seconds)


def grows_again_at(draft: Draft, current: CurrentRun) -> datetime | None:
    """When a run that is smaller than wanted may try to grow again; None if it may now."""
    growth = draft.status.growth
    if growth is None or growth.generation != draft.snapshot.generation:
        return None
    wanted, have = wanted_size(draft.snapshot), size_of(current.plan)
    rests = have.each == wanted.each and have.members < wanted.members and draft.now < growth.until
    return growth.until if rests else None


def back_off_growth(draft: Draft) -> Draft:
    """Look again when the pause before growth is over; forget it once the run has the wanted size."""
    current = draft.current
    if current is None or draft.status.growth is None:
        return draft
    if until := grows_again_at(draft, current):
        return draft.wake(until)
    if size_of(current.plan) != wanted_size(draft.snapshot) or _grows_with_its_pool(draft, current):
        return draft
    return draft.update(growth=None)


def _grows_with_its_pool(draft: Draft, current: CurrentRun) -> bool:
    """Whether the run has the wanted size only because its pool gives no more while new members are not tried: the
    attempts go on counting until a run begins after that."""
    growth, elastic, began = draft.status.growth, draft.snapshot.spec.elastic, current.plan.assigned_time
    if growth is None or elastic is None or not elastic.shares:
        return False
    return growth.generation == draft.snapshot.generation and (began is None or began < growth.until)


def warn_of_priority(elastic: Elastic, pods: Iterable[PodView]) -> str:
    """What is wrong with the priority of new members, and what to do about it; "" if nothing is known to be.

    It is read from the pods that the API server admitted: to read PriorityClasses would take a right on objects of the
    whole cluster.
    """
    named = elastic.joiner_priority_class_name
    pod = next((pod for pod in pods if named in (None, pod.priority_class)), None)
    if pod is None:
        return ""
    which = f"class {pod.priority_class}, {pod.priority}" if pod.priority_class else str(pod.priority)
    if pod.priority > 0 and pod.preemption_policy != "Never":
        to_do = "name another class there" if named else "set elastic.joinerPriorityClassName to a class"
        words = "new members may preempt pods of others, by their priority"
        return f"{words} ({which}): {to_do} with preemptionPolicy Never"
    if pod.priority < EXPENDABLE:
        words = f"cluster-autoscaler adds no node for new members, as their priority ({which}) is below {EXPENDABLE}"
        return f"{words}: name a class of a higher one in elastic.joinerPriorityClassName"
    return ""
