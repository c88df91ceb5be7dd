"""History keeps the newest runs, and counts the others."""

from __future__ import annotations

from perdure_operator.api.status import EarlierTakeovers, HistoryEntry, Takeover
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.history import RUNS_KEPT, amend, begin
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
