"""What the job's rank 0 reports while it trains, as status shows it: a question for `summary`.

Status is all there is to decide by: reports reach it by `loop.progress`, beside the rounds.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from perdure_operator.api.status import RunPlan, TrainingJobStatus, TrainingProgress
from perdure_operator.decide.draft import Draft, clock

SILENT: Final = timedelta(seconds=180)
"""Progress older than this means that reports stopped: status is updated every minute."""


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


def keep_progress(draft: Draft) -> Draft:
    """Remove reported progress when no run is active, because outcomes say more. Until then, schedule a round for when
    it expires.

    Rates that nobody reports any more are dropped, and so is a step where a later one is known.
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
    left = progress.model_copy(update={"samples_per_second": None, "remaining_seconds": None})
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
