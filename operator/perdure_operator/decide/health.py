"""Whether training advances, its saves succeed and its newest commit is recent, by what the run's rank 0 reported.

A judgement is made at the time of the newest report, and never from its absence: a silent member proves nothing.
Conditions for `summary`; `reports.progress` asks here whether a report changes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import RunPlan, TrainingJobStatus, TrainingPhase, TrainingProgress
from perdure_operator.decide.draft import Draft, clock
from perdure_operator.decide.hearing import is_silent, trained_plans

_STEP_TIMES: Final = 10
"""A step may take this many times what steps took before."""
_NO_STEP_SECONDS: Final = {
    TrainingPhase.TRAINING: 300,
    TrainingPhase.SAVING: 900,
    TrainingPhase.EVALUATING: 3600,
}
"""How long a phase may go on without a new step, at least. Others import, compile or read a checkpoint."""
_OTHER_SECONDS: Final = 1800
_DEFAULT_EVERY_SECONDS: Final = 300
_SAVES_MISSED: Final = 3
_STALE_SECONDS: Final = 600
"""A commit is recent for as long as so many saves take, and for this time at least."""
_TYPES: Final = (ConditionType.PROGRESSING, ConditionType.CHECKPOINT_FRESH, ConditionType.STORAGE_REACHABLE)


@dataclass(frozen=True)
class Health:
    """What the newest report says. None: it does not say that."""

    advances: bool
    saves_succeed: bool | None
    checkpoint_is_fresh: bool | None


def health(status: TrainingJobStatus, policy: CheckpointPolicy) -> Health | None:
    """The judgement at the time of the newest report; None without one."""
    progress = status.progress
    if progress is None:
        return None
    stood = progress.observed_at - (progress.step_time or progress.observed_at)
    saves = None
    if progress.storage_failing_since is not None:
        saves = False
    elif status.last_save is not None:
        saves = True
    return Health(stood < _longest_step(progress), saves, _is_fresh(status, progress, policy))


def describe_health(draft: Draft) -> Draft:
    """The conditions of a run that reports. Without one they do not apply."""
    progress, policy = draft.status.progress, draft.snapshot.spec.checkpoint
    found = health(draft.status, policy)
    if progress is None or found is None:
        for kind in _TYPES:
            draft = draft.without(kind)
        return draft
    if is_silent(progress, draft.now):
        words = f"no member has reported since {clock(progress.observed_at)}"
        for kind in _TYPES:
            if draft.status.find(kind):
                draft = draft.condition(kind, None, Reason.NOT_HEARD, words)
        return draft
    return _fresh(_stored(_progressing(draft, progress, found), progress, found), progress, found)


def _progressing(draft: Draft, progress: TrainingProgress, found: Health) -> Draft:
    if found.advances:
        words = "rank 0 reports new steps: see status.progress"
        return draft.condition(ConditionType.PROGRESSING, True, Reason.STEPS_REPORTED, words)
    since, phase = clock(progress.step_time or progress.observed_at), progress.phase or "unknown"
    words = f"rank 0 reports no new step since {since}: it is at step {progress.step}, in phase {phase}"
    draft = draft.warn_once(ConditionType.PROGRESSING, Reason.NO_PROGRESS, words)
    return draft.condition(ConditionType.PROGRESSING, False, Reason.NO_PROGRESS, words)


def _stored(draft: Draft, progress: TrainingProgress, found: Health) -> Draft:
    kind = ConditionType.STORAGE_REACHABLE
    if found.saves_succeed is None:
        return draft.without(kind)
    if progress.storage_failing_since is None:
        return draft.condition(kind, True, Reason.SAVES_SUCCEED, "the newest save that rank 0 reports succeeded")
    why = f": {progress.storage_why}" if progress.storage_why else ""
    words = f"saves fail since {clock(progress.storage_failing_since)}, and the members train on{why}"
    return draft.warn_once(kind, Reason.SAVES_FAIL, words).condition(kind, False, Reason.SAVES_FAIL, words)


def _fresh(draft: Draft, progress: TrainingProgress, found: Health) -> Draft:
    kind, save = ConditionType.CHECKPOINT_FRESH, draft.status.last_save
    if found.checkpoint_is_fresh is None:
        return draft.without(kind)
    if found.checkpoint_is_fresh:
        words = "the newest commit is recent: see status.lastSave"
        return draft.condition(kind, True, Reason.RECENT_CHECKPOINT, words)
    newest = f"the newest commit is of step {save.step}, of {clock(save.time)}" if save else "it has made no commit"
    words = f"{newest}; rank 0 was at step {progress.step} at {clock(progress.observed_at)}"
    draft = draft.warn_once(kind, Reason.STALE_CHECKPOINT, words)
    return draft.condition(kind, False, Reason.STALE_CHECKPOINT, words)


def _longest_step(progress: TrainingProgress) -> timedelta:
    least = _OTHER_SECONDS if progress.phase is None else _NO_STEP_SECONDS.get(progress.phase, _OTHER_SECONDS)
    return timedelta(seconds=max(least, _STEP_TIMES * (progress.seconds_per_step or 0.0)))


def _is_fresh(status: TrainingJobStatus, progress: TrainingProgress, policy: CheckpointPolicy) -> bool | None:
    every = _seconds_between_saves(policy, progress)
    since = max(_times(status, progress), default=None)
    if every is None or since is None:
        return None
    return progress.observed_at - since < timedelta(seconds=max(_STALE_SECONDS, _SAVES_MISSED * every))


def _times(status: TrainingJobStatus, progress: TrainingProgress) -> list[datetime]:
    """When the newest commit was made, and when the run began."""
    save = [status.last_save.time] if status.last_save else []
    return [*save, *(plan.assigned_time for plan in _plans(status, progress) if plan.assigned_time)]


def _plans(status: TrainingJobStatus, progress: TrainingProgress) -> list[RunPlan]:
    return [plan for plan in trained_plans(status) if plan.run == progress.run]


def _seconds_between_saves(policy: CheckpointPolicy, progress: TrainingProgress) -> float | None:
    """None where only the script's pace tells."""
    if policy.every_epochs is not None:
        return None
    if policy.every_steps is not None:
        return progress.seconds_per_step and policy.every_steps * progress.seconds_per_step
    return float(policy.every_seconds or _DEFAULT_EVERY_SECONDS)
