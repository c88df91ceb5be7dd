"""History keeps the newest runs, and counts the others."""

from __future__ import annotations

import pytest

from perdure.wire import ExitKind, Outcome
from perdure.wire.account import RunAccount
from perdure_operator.api.status import (
    PAUSE_SECONDS,
    Disruption,
    EarlierDisruption,
    EarlierTakeovers,
    HistoryEntry,
    PauseCounts,
    Takeover,
    TimeAccount,
)
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.history import RUNS_KEPT, amend, begin, learn_from
from tests.support.full_status import PLAN
from tests.support.raw import snapshot

WAYS = (Takeover.START, Takeover.LIVE, Takeover.RECREATE, Takeover.UNKNOWN, Takeover.LIVE, Takeover.IN_PLACE)


def draft(*ways: Takeover) -> Draft:
    entries = tuple(HistoryEntry(run=run, size=2, how=how) for run, how in enumerate(ways, 1))
    return Draft(snapshot=snapshot(), status=snapshot().status.model_copy(update={"history": entries}))


def begun(before: Draft, run: int) -> Draft:
    return begin(before, PLAN.model_copy(update={"run": run}), None, Takeover.LIVE)


def test_runs_that_history_drops_are_counted_by_how_they_took_over() -> None:
    kept = (Takeover.LIVE,) * (RUNS_KEPT - len(WAYS))
    now = draft(*WAYS, *kept)
    for run in range(RUNS_KEPT + 1, RUNS_KEPT + 1 + len(WAYS)):
        now = begun(now, run)
    assert len(now.status.history) == RUNS_KEPT
    assert now.status.earlier_takeovers == EarlierTakeovers(live=2, in_place=1, recreate=1)


def test_a_run_counts_as_it_was_corrected_before_it_was_dropped() -> None:
    now = amend(draft(*[Takeover.UNKNOWN] * RUNS_KEPT), 1, how=Takeover.LIVE)
    assert begun(now, RUNS_KEPT + 1).status.earlier_takeovers == EarlierTakeovers(live=1)


def test_while_history_holds_all_runs_none_is_counted() -> None:
    assert begun(draft(*WAYS), 7).status.earlier_takeovers == EarlierTakeovers()


def test_runs_that_history_drops_are_counted_by_what_ended_the_run_before() -> None:
    lost, left = Disruption.MEMBER_LOST, Disruption.NODE_LEAVING
    before = draft(*[Takeover.START] * (RUNS_KEPT - 4))
    ended = [
        (left, Takeover.LIVE, 0),
        (lost, Takeover.RECREATE, 5),
        (lost, Takeover.UNKNOWN, 2),
        (None, Takeover.LIVE, 9),
    ]
    entries = [
        HistoryEntry(run=90 + place, size=2, disruption=disruption, how=how, steps_lost=steps)
        for place, (disruption, how, steps) in enumerate(ended)
    ]
    now = before.update(history=(*entries, *before.status.history))
    for run in range(100, 104):
        now = begun(now, run)
    assert now.status.earlier_disruptions == (
        EarlierDisruption(disruption=left, live=1),
        EarlierDisruption(disruption=lost, recreate=1, steps_lost=7),
    )


def test_a_run_has_the_disruption_of_the_one_before() -> None:
    now = begin(draft(), PLAN, None, Takeover.LIVE, disruption=Disruption.SIZE_CHANGE)
    assert now.status.history[-1].disruption is Disruption.SIZE_CHANGE


def test_a_pause_counts_once_however_many_members_report_it() -> None:
    now = draft(Takeover.LIVE, Takeover.LIVE, Takeover.LIVE)
    for run, pause in ((1, 0.05), (1, 0.07), (2, 0.051), (2, None), (3, 1e9), (9, 1.0)):
        now = amend(now, run, pause=pause)
    assert now.status.pauses == PauseCounts(
        counts=(1, 1, *[0] * (len(PAUSE_SECONDS) - 2), 1), seconds=round(1e9 + 0.101, 3)
    )


@pytest.mark.parametrize(
    ("outcome", "waited"), [(ExitKind.CHECKPOINTED, -3.75), (ExitKind.FAILED, 0.0), (ExitKind.HANDED_OVER, 0.0)]
)
def test_the_pause_before_the_next_run_has_the_save_of_a_member_that_left(outcome: ExitKind, waited: float) -> None:
    seconds = {"agree": 0.5, "stage": 1.0, "upload": 2.0, "commit": 0.25, "import": 9.0}
    said = Outcome(outcome, run=1, rank=0, seconds=seconds, accounts=(RunAccount(1, 0, 9, productive=9.0),))
    account = learn_from(draft(Takeover.START).update(time_account=TimeAccount()), said).status.time_account
    assert account is not None
    assert account.open is not None
    assert account.open.waited == waited
