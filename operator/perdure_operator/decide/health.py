"""What the run's rank 0 reports, as status shows it: whether training advances, saves succeed, the commit is recent.

A judgement is made at the time of the newest report, and never from its absence: a silent member proves nothing. While
rank 0 is silent, another member counts in its place. Reports reach status by `loop.progress`, between the rounds.
Conditions and words for `summary`; `reports.progress` asks here whether a report changes a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure.wire.phase_limits import longest_standstill
from perdure.wire.report import TrainerPhase
from perdure.wire.settings import DEFAULT_EVERY_SECONDS
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import LastSave, RunPlan, Straggler, Suspect, TrainingJobStatus, TrainingProgress
from perdure_operator.decide.draft import Draft, clock
from perdure_operator.decide.stragglers import stragglers_in_words
from perdure_operator.decide.suspects import suspects_in_words

SILENT: Final = timedelta(seconds=180)
"""Progress older than this means that reports stopped: status is updated every minute."""

_SAVES_MISSED: Final = 3
_STALE_SECONDS: Final = 600.0
"""A commit is recent for as long as so many saves take, and for this time at least."""
_PAUSE_SECONDS: Final = 60.0
_PAUSE_STEPS: Final = 3
"""Training pauses if no step is made for so long, and for the time of so many steps."""
_TYPES: Final = (ConditionType.PROGRESSING, ConditionType.CHECKPOINT_FRESH, ConditionType.STORAGE_REACHABLE)


def is_silent(progress: TrainingProgress, now: datetime) -> bool:
    """Whether no report has been shown for long."""
    return now - progress.observed_at >= SILENT


def trained_plans(status: TrainingJobStatus) -> list[RunPlan]:
    """The plans that members may train by: of the run that is on, and of the one that takes it over."""
    following = status.next.plan if status.next else None
    return [plan for plan in (status.current and status.current.plan, following) if plan]


def trained_runs(status: TrainingJobStatus) -> frozenset[int]:
    """The runs that members may train."""
    return frozenset(plan.run for plan in trained_plans(status))


@dataclass(frozen=True)
class Health:
    """What the newest report says; None if unknown."""

    advances: bool | None
    may_be_work: bool
    """Whether a run of which no progress is seen may be at work all the same; then `advances` is None."""
    saves_succeed: bool | None
    checkpoint_is_fresh: bool | None
    storage_why: str
    suspects: tuple[Suspect, ...]
    """The members that a run without progress waits for."""
    stragglers: tuple[str, ...]
    """The names of the members that have held up the others for long."""


def health(status: TrainingJobStatus, policy: CheckpointPolicy) -> Health | None:
    """The judgement at the time of the newest report; None without one of a run that is on."""
    progress = status.progress
    if progress is None or progress.run not in trained_runs(status):
        return None
    saves = None
    if progress.storage_failing_since is not None:
        saves = False
    elif status.last_save is not None:
        saves = True
    advances = _advances(progress)
    works = advances is False and progress.may_be_work
    advances = None if works else advances
    fresh = _is_fresh(status, progress, policy)
    suspects = progress.suspects if advances is False else ()
    stragglers = tuple(one.name for one in named_stragglers(progress)) if advances else ()
    return Health(advances, works, saves, fresh, progress.storage_why, suspects, stragglers)


def named_stragglers(progress: TrainingProgress) -> tuple[Straggler, ...]:
    """The members that have held up the others for long."""
    return tuple(one for one in progress.stragglers if one.named)


def is_training(draft: Draft) -> bool:
    """Whether progress was reported lately."""
    progress, found = draft.status.progress, health(draft.status, draft.snapshot.spec.checkpoint)
    return bool(progress and found and found.advances and not is_silent(progress, draft.now))


def keep_progress(draft: Draft) -> Draft:
    """Remove reported progress when no run is active, because outcomes say more. Until then, schedule a round for when
    it expires.

    Rates of an old report are dropped, and what it says of a death or a hang; so is its step if a later one is
    known.
    """
    progress = draft.status.progress
    if draft.current is None:
        return draft.update(progress=None, last_save=None)
    if progress is None:
        return draft
    if progress.run in trained_runs(draft.status) and not is_silent(progress, draft.now):
        return draft.wake(progress.observed_at + SILENT)
    if draft.status.step is not None and draft.status.step >= progress.step:
        return draft.update(progress=None)
    rates = {"samples_per_second": None, "remaining_seconds": None}
    said = {"death_costs": "", "hang_time": None, "may_be_work": False, "suspects": (), "stragglers": ()}
    left = progress.model_copy(update={**rates, **said})
    return draft.update(progress=left).wake(progress.observed_at + SILENT)


def describe_training(draft: Draft, first: str) -> list[str]:
    """What is known about whether the members train; `first` is the member to look at."""
    progress, step = draft.status.progress, draft.status.step
    if progress is not None and not is_silent(progress, draft.now):
        return ["members report their progress: see status.progress"]
    unheard = f"no report since {clock(progress.observed_at)}: " if progress else ""
    refused = draft.snapshot.channel_refused
    return [
        *([f"new members cannot report, and train without: {refused}"] if refused else []),
        f"{unheard}whether they train is not known until they end: see kubectl logs {first}",
        "no commit is known yet" if step is None else f"the last commit known is of step {step}",
    ]


def describe_health(draft: Draft) -> Draft:
    """The conditions of a run that reports. Without one they do not apply."""
    progress, found = draft.status.progress, health(draft.status, draft.snapshot.spec.checkpoint)
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
    return _fresh(_stored(_progressing(draft, progress, found), progress, found), found)


def _progressing(draft: Draft, progress: TrainingProgress, found: Health) -> Draft:
    kind = ConditionType.PROGRESSING
    if found.advances is None and not found.may_be_work:
        return draft.without(kind)
    silent = ", and rank 0 is silent" if progress.rank else ""
    if found.advances:
        words = f"rank {progress.rank} reports progress{silent}: see status.progress"
        if not found.stragglers:
            return draft.condition(kind, True, Reason.STEPS_REPORTED, words)
        words = f"{stragglers_in_words(named_stragglers(progress))}; {words}"
        return draft.warn_once(kind, Reason.STRAGGLER, words).condition(kind, True, Reason.STRAGGLER, words)
    since, phase = clock(progress.step_time or progress.observed_at), progress.phase or "unknown"
    stands = f"rank {progress.rank} reports no new step since {since}{silent}"
    words = f"{stands}: it is at step {progress.step}, in phase {phase}"
    if found.may_be_work:
        words = f"{words}; that may be an evaluation without the session's loaders, or other long work"
        return draft.condition(kind, None, Reason.MAY_BE_WORK, words)
    reason = Reason.NO_PROGRESS
    if found.suspects:
        reason, words = Reason.MEMBER_WAITED_FOR, f"{words}; {suspects_in_words(found.suspects)}"
    return draft.warn_once(kind, reason, words).condition(kind, False, reason, words)


def _stored(draft: Draft, progress: TrainingProgress, found: Health) -> Draft:
    kind = ConditionType.STORAGE_REACHABLE
    if found.saves_succeed is None:
        return draft.without(kind)
    if progress.storage_failing_since is None:
        return draft.condition(kind, True, Reason.SAVES_SUCCEED, "the newest save that is reported succeeded")
    why = f": {progress.storage_why}" if progress.storage_why else ""
    words = f"saves fail since {clock(progress.storage_failing_since)}, and the members train on{why}"
    return draft.warn_once(kind, Reason.SAVES_FAIL, words).condition(kind, False, Reason.SAVES_FAIL, words)


def _fresh(draft: Draft, found: Health) -> Draft:
    kind, save = ConditionType.CHECKPOINT_FRESH, draft.status.last_save
    if found.checkpoint_is_fresh is None:
        return draft.without(kind)
    if found.checkpoint_is_fresh:
        words = "the newest commit is recent: see status.lastSave"
        return draft.condition(kind, True, Reason.RECENT_CHECKPOINT, words)
    words = f"the newest commit is of step {save.step}, of {clock(save.time)}" if save else "no commit is reported"
    return draft.warn_once(kind, Reason.STALE_CHECKPOINT, words).condition(kind, False, Reason.STALE_CHECKPOINT, words)


def _advances(progress: TrainingProgress) -> bool | None:
    """None before the second step that this run reports, unless it takes too long for that. A process that looks at
    itself says so when it hangs, and knows of more than steps."""
    if progress.hang_time is not None:
        return False
    last = [one for one in (progress.step_time, progress.phase_time, progress.watched_time) if one]
    stood = (progress.observed_at - max(last)).total_seconds() if last else 0.0
    if stood >= _longest_wait(progress):
        return False
    return True if progress.step_time != progress.began_time or progress.began_time is None else None


def _longest_wait(progress: TrainingProgress) -> float:
    """Seconds in the present phase without a step, and without a process that looks at itself."""
    phase = TrainerPhase[progress.phase.name] if progress.phase else None
    return longest_standstill(phase, progress.seconds_per_step)


def _is_fresh(status: TrainingJobStatus, progress: TrainingProgress, policy: CheckpointPolicy) -> bool | None:
    """By steps where checkpoints are made by steps, by seconds where they are made by seconds."""
    save = status.last_save
    saved_step = save.step if save else status.step
    if saved_step is not None and saved_step >= progress.step:
        return True
    age = _age_in_training(progress, save)
    if policy.every_steps is not None:
        behind = progress.step - (saved_step or 0)
        return behind < _SAVES_MISSED * policy.every_steps or (age is not None and age < _STALE_SECONDS)
    if policy.every_epochs is not None or age is None:
        return None
    return age < max(_STALE_SECONDS, _SAVES_MISSED * float(policy.every_seconds or DEFAULT_EVERY_SECONDS))


def _age_in_training(progress: TrainingProgress, save: LastSave | None) -> float | None:
    """Seconds of training since the newest commit, or since the beginning; None if neither is known."""
    since = [one for one in (save and save.time, progress.began_time) if one]
    if not since:
        return None
    pauses = (progress.paused_seconds or 0) + pause_since_step(progress, save)
    return (progress.observed_at - max(since)).total_seconds() - pauses


def pause_since_step(progress: TrainingProgress, save: LastSave | None) -> float:
    """Seconds since the newest step, or since a later commit, if steps take far less: an evaluation, for instance.
    Nothing more is at risk in such a pause, and no checkpoint is made by the clock."""
    if progress.step_time is None:
        return 0.0
    began = max(progress.step_time, save.time) if save else progress.step_time
    seconds = (progress.observed_at - began).total_seconds()
    return seconds if seconds >= max(_PAUSE_SECONDS, _PAUSE_STEPS * (progress.seconds_per_step or 0.0)) else 0.0
