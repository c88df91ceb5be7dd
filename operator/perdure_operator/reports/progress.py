"""What status shows of reports, and when. Pure. Called by `loop.progress`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.wire.report import TrainerPhase
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import LastSave, TrainingJobStatus, TrainingPhase, TrainingProgress
from perdure_operator.decide.health import health
from perdure_operator.decide.hearing import is_silent, trained_runs
from perdure_operator.reports.heard import Received

EVERY: Final = timedelta(seconds=60)
"""Status shows the numbers of a job this often at most, unless what it says of the job changes with them."""

AT_LEAST: Final = timedelta(seconds=10)
"""No sooner in any case: two runs' rank 0 may both report while one takes over, and each change starts a round."""

_RATE_SECONDS: Final = 10
_RATE_STEPS: Final = 3
"""Rates count for so long after a step, or for so many steps' time: an agent repeats them while its trainer stands."""
_WITH_STEPS: Final = frozenset({TrainerPhase.TRAINING, TrainerPhase.SAVING})
"""Phases in which steps are made."""
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class Shown:
    """A status with a report."""

    status: TrainingJobStatus
    changes_words: bool
    """Whether it says something else about the job than before: the next round has to say it in a condition."""


def shown(status: TrainingJobStatus, policy: CheckpointPolicy, received: Received) -> Shown | None:
    """The status with what the job's rank 0 reports; None if nothing is due."""
    report, old = received.report, status.progress
    if report.run is None or report.step is None or report.run not in trained_runs(status):
        return None
    if old is not None and received.at - old.observed_at < AT_LEAST:
        return None
    progress = _progress(received, old, report.run, report.step)
    new = status.model_copy(update={"progress": progress, "last_save": _saved(received) or status.last_save})
    heard_anew = old is None or old.run != report.run or is_silent(old, received.at)
    changes_words = heard_anew or health(status, policy) != health(new, policy)
    if old is not None and received.at - old.observed_at < EVERY and not changes_words:
        return None
    return Shown(new, changes_words)


def _progress(received: Received, old: TrainingProgress | None, run: int, step: int) -> TrainingProgress:
    report, step_at = received.report, received.step_at or received.at
    if old is not None and (old.run, old.step) == (run, step):
        step_at = min(step_at, old.step_time or step_at)  # known to an operator that led before
    steps_now = received.at - step_at <= timedelta(seconds=max(_RATE_SECONDS, _RATE_STEPS * (report.step_seconds or 0)))
    rates_count = steps_now and report.phase in _WITH_STEPS
    rate, left = (report.samples_per_second, report.remaining_seconds) if rates_count else (None, None)
    return TrainingProgress(
        run=run,
        step=step,
        epoch=report.epoch,
        step_time=step_at,
        phase=TrainingPhase.__members__.get(report.phase.name) if report.phase else None,
        seconds_per_step=_rounded(report.step_seconds),
        samples_per_second=_rounded(rate),
        storage_failing_since=_time(report.store_failing_since, received.at),
        storage_why=report.store_why,
        percent=None if report.progress is None else int(100 * report.progress),
        remaining_seconds=None if left is None else round(left),
        observed_at=received.at,
    )


def _saved(received: Received) -> LastSave | None:
    step, at = received.report.commit_step, _time(received.report.commit_at, received.at)
    return None if step is None or at is None else LastSave(step=step, time=at, observed_at=received.at)


def _time(at: float | None, latest: datetime) -> datetime | None:
    """A pod's clock may be ahead."""
    return None if at is None else min(latest, datetime.fromtimestamp(min(at, _LATEST), UTC))


def _rounded(rate: float | None) -> float | None:
    """Three digits: more is noise."""
    return None if rate is None else float(f"{rate:.3g}")
