"""What status shows of reports: numbers once a minute, and at once what changes its words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure_operator.api.status import LastSave, TrainingJobStatus, TrainingProgress
from perdure_operator.decide.hearing import SILENT
from perdure_operator.reports.heard import Received
from perdure_operator.reports.progress import EVERY, changes_words, shown
from tests.support.raw import NOW
from tests.support.reporting import job_of, report, sender, trains

STAGE = trains()
MINUTE = EVERY.total_seconds()


def heard(after: float = 0.0, **fields: Any) -> Received:
    return Received(sender(STAGE), report(**fields), True, NOW + timedelta(seconds=after))


def status(progress: TrainingProgress | None = None, **fields: Any) -> TrainingJobStatus:
    known = job_of(STAGE).status
    assert known is not None
    return known.model_copy(update={"progress": progress, **fields})


def test_all_that_is_known_is_shown_with_its_time() -> None:
    numbers = {"epoch": 3, "samples_per_second": 1234.567, "progress": 0.129, "remaining_seconds": 41.6}
    found = shown(status(), heard(commit_step=8, commit_at=NOW.timestamp() - 30, **numbers))
    assert found is not None
    assert found.progress == TrainingProgress(
        run=1, step=10, epoch=3, samples_per_second=1230.0, percent=12, remaining_seconds=42, observed_at=NOW
    )
    assert found.last_save == LastSave(step=8, time=NOW - timedelta(seconds=30), observed_at=NOW)
    assert found.model_copy(update={"progress": None, "last_save": None}) == status()


def test_what_is_not_known_is_absent_and_the_save_before_stays() -> None:
    before = LastSave(step=8, time=NOW, observed_at=NOW)
    found = shown(status(last_save=before), heard())
    assert found is not None
    assert found.progress == TrainingProgress(run=1, step=10, observed_at=NOW)
    assert found.last_save == before


@pytest.mark.parametrize("at", [NOW.timestamp() + 3600, 1e15], ids=["an hour", "beyond all calendars"])
def test_a_clock_that_is_ahead_saves_nothing_in_the_future(at: float) -> None:
    found = shown(status(), heard(commit_step=8, commit_at=at))
    assert found is not None
    assert found.last_save == LastSave(step=8, time=NOW, observed_at=NOW)


@pytest.mark.parametrize(
    ("after", "due"), [(0.0, False), (MINUTE - 1, False), (MINUTE, True), (SILENT.total_seconds(), True)]
)
def test_numbers_are_shown_once_a_minute(after: float, due: bool) -> None:
    known = status(TrainingProgress(run=1, step=9, observed_at=NOW))
    assert (shown(known, heard(after)) is not None) is due


def test_another_run_is_shown_soon_and_two_that_take_turns_are_no_write_each() -> None:
    known = status(TrainingProgress(run=0, step=9, observed_at=NOW))
    assert shown(known, heard(9.0)) is None
    assert shown(known, heard(10.0)) is not None


@pytest.mark.parametrize("fields", [{"run": None}, {"step": None}, {"run": 2}], ids=repr)
def test_a_report_without_a_step_or_of_a_run_that_is_over_shows_nothing(fields: dict[str, Any]) -> None:
    assert shown(status(), heard(**fields)) is None


def test_nothing_is_shown_of_a_job_without_a_run() -> None:
    assert shown(status(current=None), heard()) is None


def test_words_change_when_a_job_is_heard_first_or_again_or_of_another_run() -> None:
    old = TrainingProgress(run=1, step=9, observed_at=NOW)
    assert changes_words(status(), heard())
    assert not changes_words(status(old), heard(MINUTE))
    assert changes_words(status(old), heard(SILENT.total_seconds()))
    assert changes_words(status(old.model_copy(update={"run": 7})), heard(MINUTE))
