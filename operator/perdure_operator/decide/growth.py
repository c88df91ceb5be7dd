"""How a job with `elastic` comes by its size: with how many members a run begins, and when a larger one is tried again.

Questions, and the times that status keeps for their answers. Who is able to train is for the callers to say.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import CurrentRun, Enough, Growth
from perdure_operator.decide.backoff import doubled_seconds
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import size_of, wanted_size
from perdure_operator.decide.sizing.target import largest

LONGEST_REST_SECONDS: Final = 3600
SETTLING_SECONDS: Final = 30
"""So long after a run was planned it does not grow: most have begun by then, and no other is handed over alive."""


def most_with(draft: Draft, able: int) -> int:
    """The largest size that so many members can have, 0 where there is none; never above the wanted one."""
    return largest(draft.snapshot.spec, min(able, wanted_size(draft.snapshot).members))


def lasts(draft: Draft, size: int) -> tuple[Draft, bool]:
    """Whether a run of this size could have begun for growAfterSeconds; 0 is none."""
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


def growth_seconds(spec: TrainingJobSpec) -> int:
    """How long new members of a larger run are awaited where that has an end.

    Without `elastic` only once a run was offered in vain: then nobody knows which one trains.
    """
    return spec.elastic.grow_timeout_seconds if spec.elastic else spec.disruption.replacement_timeout_seconds


def grow_by(draft: Draft) -> datetime:
    """Until when a run that could be larger waits for new members, from now on."""
    return later(draft.now, growth_seconds(draft.snapshot.spec))


def give_up_growing(draft: Draft) -> Draft:
    """With the pause before the next attempt."""
    old, generation, elastic = draft.status.growth, draft.snapshot.generation, draft.snapshot.spec.elastic
    if elastic is None:
        return draft
    attempts = old.attempts + 1 if old and old.generation == generation else 1
    first = elastic.grow_timeout_seconds
    until = later(draft.now, doubled_seconds(attempts, first, longest_rest(first)))
    return draft.update(growth=Growth(attempts=attempts, until=until, generation=generation))


def longest_rest(timeout: int) -> int:
    """Between two attempts at a larger run."""
    return max(LONGEST_REST_SECONDS, timeout)


def rests_until(draft: Draft, current: CurrentRun) -> datetime | None:
    """When a run that is smaller than wanted may try to grow again; None where it may now."""
    growth, spec = draft.status.growth, draft.snapshot.spec
    if growth is None or spec.elastic is None or growth.generation != draft.snapshot.generation:
        return None
    wanted, have = wanted_size(draft.snapshot), size_of(current.plan)
    rests = have.each == wanted.each and have.members < wanted.members and draft.now < growth.until
    return growth.until if rests else None
