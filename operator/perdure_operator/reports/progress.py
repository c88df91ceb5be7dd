"""What status shows of reports, and when. Pure. Called by `loop.progress`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from perdure_operator.api.status import LastSave, TrainingJobStatus, TrainingProgress
from perdure_operator.decide.hearing import is_silent, trained_runs
from perdure_operator.reports.heard import Received

EVERY: Final = timedelta(seconds=60)
"""Status shows the numbers of a job this often at most, unless what it says of the job changes with them."""

AT_LEAST: Final = timedelta(seconds=10)
"""No sooner in any case: two runs' rank 0 may both report while one takes over, and each change starts a round."""

_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def shown(status: TrainingJobStatus, received: Received) -> TrainingJobStatus | None:
    """The status with what the job's rank 0 reports; None if nothing is due."""
    report, old = received.report, status.progress
    if report.run is None or report.step is None or report.run not in trained_runs(status):
        return None
    if old is not None and received.at - old.observed_at < AT_LEAST:
        return None
    if old is not None and received.at - old.observed_at < EVERY and not changes_words(status, received):
        return None
    progress = TrainingProgress(
        run=report.run,
        step=report.step,
        epoch=report.epoch,
        samples_per_second=_rounded(report.samples_per_second),
        percent=None if report.progress is None else int(100 * report.progress),
        remaining_seconds=None if report.remaining_seconds is None else round(report.remaining_seconds),
        observed_at=received.at,
    )
    return status.model_copy(update={"progress": progress, "last_save": _saved(received) or status.last_save})


def changes_words(status: TrainingJobStatus, received: Received) -> bool:
    """Whether status says something else about the job once this report is shown: it was not heard, or not of this
    run."""
    old = status.progress
    return old is None or old.run != received.report.run or is_silent(old, received.at)


def _saved(received: Received) -> LastSave | None:
    step, at = received.report.commit_step, received.report.commit_at
    if step is None or at is None:
        return None
    heard = datetime.fromtimestamp(min(at, _LATEST), UTC)
    return LastSave(step=step, time=min(heard, received.at), observed_at=received.at)  # a pod's clock may be ahead


def _rounded(rate: float | None) -> float | None:
    """Three digits: more is noise."""
    return None if rate is None else float(f"{rate:.3g}")
