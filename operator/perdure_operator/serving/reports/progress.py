"""What status shows of reports, and when. Pure. Called by `loop.progress`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.wire.report import DeathCost, Report, TrainerPhase
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import LastSave, Suspect, TrainingJobStatus, TrainingPhase, TrainingProgress
from perdure_operator.decide.health import health, is_silent, trained_plans, trained_runs
from perdure_operator.decide.suspects import Said, suspects
from perdure_operator.serving.reports.heard import Received

EVERY: Final = timedelta(seconds=60)
"""Status shows the numbers of a job this often at most, unless what it says of the job, or of a death, changes."""

AT_LEAST: Final = timedelta(seconds=10)
"""No sooner in any case: two runs' rank 0 may both report while one takes over, and each change starts a round."""

SINCE_CHECKPOINT: Final = "all steps since the newest checkpoint"

_RATE_SECONDS: Final = 10
_RATE_STEPS: Final = 3
"""Rates count for so long after a step, or for so many steps' time: an agent repeats them until the next step."""
_WITH_STEPS: Final = frozenset({TrainerPhase.TRAINING, TrainerPhase.SAVING})
"""Phases in which steps are made."""
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class Shown:
    """A status with a report."""

    status: TrainingJobStatus
    changes_words: bool
    """Whether it says something else about the job than before: the next round has to say it in a condition."""


def shown(
    status: TrainingJobStatus,
    policy: CheckpointPolicy,
    received: Received,
    of_run: Callable[[], Sequence[Received]] = tuple,
) -> Shown | None:
    """The status with what the job's rank 0 reports; None if nothing is due. `of_run` finds the newest reports of all
    members about its run."""
    report, old = received.report, status.progress
    if report.run is None or report.step is None or report.run not in trained_runs(status):
        return None
    if old is not None and received.at - old.observed_at < AT_LEAST:
        return None
    last_save = _last_save(received, status.last_save)
    progress = _progress(received, old, report.run, report.step)
    saved = last_save is not None and (status.last_save is None or last_save.step != status.last_save.step)
    if old is not None and not saved and progress.storage_failing_since is None:
        # another pod may have rank 0 now, and has not tried to save
        kept = {"storage_failing_since": old.storage_failing_since, "storage_why": old.storage_why}
        progress = progress.model_copy(update=kept)
    new = status.model_copy(update={"progress": progress, "last_save": last_save})
    if (found := health(new, policy)) and found.advances is False:
        progress = progress.model_copy(update={"suspects": _suspects(status, received, of_run())})
        new = new.model_copy(update={"progress": progress})
    heard_anew = old is None or old.run != report.run or is_silent(old, received.at)
    changes_words = heard_anew or health(status, policy) != health(new, policy)
    tells_more = changes_words or (old is not None and old.death_costs != progress.death_costs)
    if old is not None and received.at - old.observed_at < EVERY and not tells_more:
        return None
    return Shown(new, changes_words)


def _progress(received: Received, old: TrainingProgress | None, run: int, step: int) -> TrainingProgress:
    report, step_at, phase_at = received.report, received.step_at or received.at, received.phase_at or received.at
    phase = TrainingPhase.__members__.get(report.phase.name) if report.phase else None
    pace = _rounded(report.step_seconds) or (old.seconds_per_step if old else None)
    failing_since = _time(report.store_failing_since, received.at)
    if old is not None:  # an operator that led before may know of earlier reports
        if (old.run, old.step) == (run, step):
            step_at = min(step_at, old.step_time or step_at)
        if (old.run, old.phase) == (run, phase):
            phase_at = min(phase_at, old.phase_time or phase_at)
        if failing_since is not None:
            failing_since = old.storage_failing_since or failing_since
    steps_now = (received.at - step_at).total_seconds() <= max(_RATE_SECONDS, _RATE_STEPS * (pace or 0.0))
    rates_count = steps_now and report.phase in _WITH_STEPS
    rate, left = (report.samples_per_second, report.remaining_seconds) if rates_count else (None, None)
    return TrainingProgress(
        run=run,
        step=step,
        epoch=report.epoch,
        step_time=step_at,
        phase=phase,
        phase_time=phase_at,
        began_time=step_at if old is None else old.began_time,
        seconds_per_step=pace,
        samples_per_second=_rounded(rate),
        storage_failing_since=failing_since,
        storage_why=report.store_why,
        percent=None if report.progress is None else int(100 * report.progress),
        remaining_seconds=None if left is None else round(left),
        death_costs=_death_costs(report),
        hang_time=_time(report.hangs_since, received.at),
        observed_at=received.at,
    )


def _death_costs(report: Report) -> str:
    """In words that a person may search for; "" if it is not known."""
    match report.death_cost:
        case DeathCost.NO_STEP:
            return "no finished step"
        case DeathCost.STEPS if report.death_steps is not None:
            return f"at most {report.death_steps} finished step{'' if report.death_steps == 1 else 's'}"
        case DeathCost.SINCE_COMMIT:
            return SINCE_CHECKPOINT
        case DeathCost.UNTIL_MIRRORED:
            return f"{SINCE_CHECKPOINT}, until the mirror is whole"
    return ""


def _suspects(status: TrainingJobStatus, received: Received, of_run: Sequence[Received]) -> tuple[Suspect, ...]:
    said = {one.sender.uid: _said(one) for one in of_run}
    plan = next(plan for plan in trained_plans(status) if plan.run == received.report.run)
    return suspects(plan, said, received.at)


def _said(received: Received) -> Said:
    if received.report.hangs_since is None:
        return Said()
    return Said(received.hangs_at or received.at, received.report.hangs_in)


def _last_save(received: Received, old: LastSave | None) -> LastSave | None:
    """The time of one stays as it was first shown: the clocks of a pod and of the operator may differ."""
    step, at = received.report.commit_step, _time(received.report.commit_at, received.at)
    if step is None or at is None:
        return old
    time = old.time if old is not None and old.step == step else at
    return LastSave(step=step, time=time, observed_at=received.at)


def _time(at: float | None, latest: datetime) -> datetime | None:
    """A pod's clock may be ahead."""
    return None if at is None else min(latest, datetime.fromtimestamp(min(at, _LATEST), UTC))


def _rounded(rate: float | None) -> float | None:
    """Three digits: more is noise."""
    return None if rate is None else float(f"{rate:.3g}")
