"""What status shows of reports, and when. Pure. Called by `loop.progress`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.goodput.batch import efficiency
from perdure.wire.phase_limits import UNKNOWN_SECONDS, WORK_SECONDS
from perdure.wire.report import DeathCost, Report, Standing, TrainerPhase
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import (
    LastSave,
    MoveAct,
    RunPlan,
    Straggler,
    Suspect,
    TrainingJobStatus,
    TrainingPhase,
    TrainingProgress,
)
from perdure_operator.decide.accounting import settled, with_accounts
from perdure_operator.decide.health import health, is_silent, pause_since_step, trained_plans, trained_runs
from perdure_operator.decide.stragglers import OwnShare, stragglers
from perdure_operator.decide.suspects import PATIENCE, Said, suspects
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
_NEVER_HEARD: Final = timedelta(seconds=UNKNOWN_SECONDS)
"""A run with a member that has never reported in it waits for so long before it is said to hang: that member may have
no channel, and be at work."""
_GOES_ON: Final = timedelta(seconds=WORK_SECONDS[Standing.RUNS])
"""A member may see progress of its own for so long while others wait for it: a loop without an end may poll, too."""
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
    """The status with what the job's rank 0 reports, or the member that stands in for it; None if nothing is due.
    `of_run` finds the newest reports of all members about its run."""
    report, old = received.report, status.progress
    if report.run is None or report.step is None or report.run not in trained_runs(status):
        return None
    if old is not None and received.at - old.observed_at < AT_LEAST:
        return None
    rank = next((one.rank for one in _plan(status, received).members if one.uid == received.sender.uid), None)
    if rank is None:
        return None
    last_save = _last_save(received, status.last_save)
    progress = _progress(received, old, report.run, report.step).model_copy(update={"rank": rank})
    saved = last_save is not None and (status.last_save is None or last_save.step != status.last_save.step)
    if old is not None and not saved:
        progress = progress.model_copy(update={"paused_seconds": _paused(old, progress.step, status.last_save)})
    if old is not None and not saved and progress.storage_failing_since is None:
        # another pod may have rank 0 now, and has not tried to save
        kept = {"storage_failing_since": old.storage_failing_since, "storage_why": old.storage_why}
        progress = progress.model_copy(update=kept)
    new = status.model_copy(update={"progress": progress, "last_save": last_save})
    if status.time_account and any(one.run == report.run for one in report.accounts):
        account = settled(with_accounts(status.time_account, report.accounts, received.at), received.at)
        new = new.model_copy(update={"time_account": account})
    if found := health(new, policy):
        if found.advances is False:
            progress = progress.model_copy(update=_of_standstill(_plan(status, received), received, of_run(), old))
        else:
            progress = progress.model_copy(update={"stragglers": _stragglers(status, received, of_run())})
        new = new.model_copy(update={"progress": progress})
    heard_anew = old is None or (old.run, old.rank) != (report.run, rank) or is_silent(old, received.at)
    changes_words = heard_anew or health(status, policy) != health(new, policy)
    tells_more = changes_words or (old is not None and _beside_numbers(old) != _beside_numbers(progress))
    if old is not None and received.at - old.observed_at < EVERY and not tells_more:
        return None
    return Shown(new, changes_words)


def _progress(received: Received, old: TrainingProgress | None, run: int, step: int) -> TrainingProgress:
    report, step_at, phase_at = received.report, received.step_at or received.at, received.phase_at or received.at
    phase = TrainingPhase.__members__.get(report.phase.name) if report.phase else None
    pace = _rounded(report.step_seconds) or (old.seconds_per_step if old and old.run == run else None)
    watched_time = old.watched_time if old and old.run == run else None
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
    grace = report.required_grace_seconds
    rate, left = (report.samples_per_second, report.remaining_seconds) if rates_count else (None, None)
    return TrainingProgress(
        run=run,
        step=step,
        epoch=report.epoch,
        step_time=step_at,
        phase=phase,
        phase_time=phase_at,
        handover_act=MoveAct.__members__.get(report.handover_act.name) if report.handover_act else None,
        began_time=step_at if old is None else old.began_time,
        seconds_per_step=pace,
        samples_per_second=_rounded(rate),
        data_wait_percent=None if report.data_share is None else round(100 * report.data_share),
        own_percent=None if report.own_share is None else round(100 * report.own_share),
        storage_failing_since=failing_since,
        storage_why=report.store_why,
        percent=None if report.progress is None else int(100 * report.progress),
        remaining_seconds=None if left is None else round(left),
        death_costs=_death_costs(report),
        live=report.live,
        live_why=report.live_why if report.live is False else "",
        required_grace_seconds=None if grace is None else math.ceil(grace),
        save_stall_seconds=_rounded(report.save_stall_seconds),
        save_seconds=_rounded(grace),
        batch=report.batch,
        efficiency_percent=_efficiency_percent(report),
        values=dict(report.values),
        hang_time=_time(report.hangs_since, received.at),
        watched_time=received.at if report.watched else watched_time,
        observed_at=received.at,
    )


def _efficiency_percent(report: Report) -> int | None:
    """No sample of a larger batch wins more than one of the script's own."""
    hints = report.scaling
    if hints is None or report.batch is None or report.batch < hints.initial_batch:
        return None
    return round(100 * efficiency(hints.noise, hints.initial_batch, report.batch))


def _paused(old: TrainingProgress, step: int, save: LastSave | None) -> int | None:
    """The pause that a newer step has ended counts as long as it was observed."""
    ended = pause_since_step(old, save) if step != old.step else 0.0
    return (old.paused_seconds or 0) + round(ended) or None


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


def _beside_numbers(progress: TrainingProgress) -> tuple[object, ...]:
    """What is shown as soon as it changes, also where no condition says it. Since when a member is slow has to be
    known before it can be named."""
    return progress.death_costs, progress.handover_act, [one.name for one in progress.stragglers]


def _of_standstill(
    plan: RunPlan, received: Received, of_run: Sequence[Received], old: TrainingProgress | None
) -> Mapping[str, object]:
    if _may_be_work(plan, received, of_run, old):
        return {"may_be_work": True}
    return {"suspects": _suspects(plan, received, of_run)}


def _may_be_work(plan: RunPlan, received: Received, of_run: Sequence[Received], old: TrainingProgress | None) -> bool:
    """Whether a member says that it may be at work, or the one that counts waits for others that do not say that they
    hang: they have not yet said what they do, or see progress of their own.

    What status has said of this hang before stays: a new leader hears of it for the first time.
    """
    fresh = [one for one in of_run if one.is_fresh(received.at)]
    if any(one.report.hang_may_be_work for one in fresh):
        return True
    said = {one.sender.uid for one in fresh if one.report.hangs_since is not None}
    silent = {member.uid for member in plan.members} - said
    if received.report.hangs_since is None or received.report.hangs_in is not Standing.WAITS_FOR_RANKS or not silent:
        return False
    lasts = received.at - (received.hangs_at or received.at)
    never_heard = {member.uid for member in plan.members} - {one.sender.uid for one in of_run}
    young = lasts < (_NEVER_HEARD if never_heard else PATIENCE)
    known = old is not None and old.run == plan.run and old.hang_time is not None and not old.may_be_work
    go_on = {one.sender.uid for one in fresh if one.report.watched and one.report.hangs_since is None}
    return (young and not known) or (lasts < _GOES_ON and not silent.isdisjoint(go_on))


def _suspects(plan: RunPlan, received: Received, of_run: Sequence[Received]) -> tuple[Suspect, ...]:
    said = {one.sender.uid: _said(one) for one in of_run if one.is_fresh(received.at)}
    return suspects(plan, said, received.at)


def _stragglers(status: TrainingJobStatus, received: Received, of_run: Sequence[Received]) -> tuple[Straggler, ...]:
    plan, old = _plan(status, received), status.progress
    follows = old is not None and old.run == plan.run and not is_silent(old, received.at)
    fresh = [one for one in of_run if one.is_fresh(received.at)]
    shares = {
        one.sender.uid: OwnShare(one.report.own_share, one.report.data_share)
        for one in fresh
        if one.report.own_share is not None
    }
    return stragglers(plan, shares, old.stragglers if old and follows else (), received.at)


def _plan(status: TrainingJobStatus, received: Received) -> RunPlan:
    return next(plan for plan in trained_plans(status) if plan.run == received.report.run)


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
