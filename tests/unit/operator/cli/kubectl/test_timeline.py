"""`kubectl perdure timeline` puts runs, ended members and events in the order of time; `explain` gives the meaning."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure.wire import ExitKind, Outcome, write_outcome
from perdure_operator.api.reasons import REASONS, Reason
from perdure_operator.api.status import (
    Condition,
    EarlierTakeovers,
    HistoryEntry,
    LastSave,
    Takeover,
    TrainingJobStatus,
)
from perdure_operator.cli.kubectl.page import Page
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cli.kubectl.timeline import (
    EntryKind,
    RunSpan,
    Timeline,
    explain,
    page,
    page_of_meanings,
    timeline,
    totals,
)
from perdure_operator.cluster.protocol import EVENTS
from tests.support.raw import NOW
from tests.support.stage import Stage
from tests.unit.operator.cli.kubectl.seen import cordoned, eventful, moved, seen


def told(stage: Stage) -> Timeline:
    return timeline(seen(stage), asyncio.run(stage.cluster.list(EVENTS, "ns")))


def shown(whole: Page) -> str:
    out = io.StringIO()
    draw(whole, out)
    return out.getvalue()


def test_a_drained_job_tells_its_story_in_the_order_of_time() -> None:
    story = told(moved())
    assert [one.time for one in story.entries] == sorted(one.time for one in story.entries)
    runs = [one for one in story.entries if one.what.startswith("run ")]
    assert [one.details.partition("; ")[0] for one in runs] == ["began with 2 members", "took over live with 2 members"]
    assert "because node n2 is cordoned" in runs[1].details
    assert runs[1].details.endswith("training stood still for 0.06s")
    assert {"start", "NodeLeaving", "RunPlanned", "HandedOver"} <= {one.what for one in story.entries}
    assert "Moves: 1 live; training stood still for 0.06s" in shown(page(story, NOW))


def test_a_member_that_died_is_told_with_its_error_until_the_next_run_has_begun() -> None:
    stage = moved()
    stage.end_pod(stage.names()[0], write_outcome(Outcome(ExitKind.FAILED, 2, 0, 500, opened=2)), exit_code=1)
    stage.settle()
    last = [one for one in told(stage).entries if one.what == stage.names()[0]]
    assert [one.details for one in last] == ["ended: failed, at step 500 of run 2"]


def test_what_a_run_cost_is_told() -> None:
    cost: dict[str, Any] = {"steps_lost": 3, "steps_in_doubt": 2, "rescued": 1, "unreported": True, "began": 40}
    entry = HistoryEntry(run=7, size=4, how=Takeover.RECREATE, why="no room", pause=61.0, time=NOW, **cost)
    job = seen(moved())
    status = job.status.model_copy(update={"history": (entry,)})
    story = timeline(replace(job, record=replace(job.record, status=status)), [])
    (run,) = [one for one in story.entries if one.what == "run 7"]
    assert run.details == (
        "took over, all its pods new, with 4 members; no better, because no room; training stood still for 61s; "
        "began at step 40; 3 steps lost; at most 2 steps in doubt; 1 steps saved by survivors; "
        "no member reported how far the run before it came"
    )
    assert run.warning


def test_runs_that_history_no_longer_lists_count_in_the_sums() -> None:
    before = EarlierTakeovers(live=20, in_place=3, recreate=1)
    now = (HistoryEntry(run=30, size=2, how=Takeover.LIVE, pause=0.5), HistoryEntry(run=31, size=2, how=Takeover.LIVE))
    found = totals(TrainingJobStatus(earlier_takeovers=before, history=now, steps_lost=9))
    assert (found.live, found.in_place, found.recreate, found.pauses, found.steps_lost) == (22, 3, 1, 0.5, 9)


def test_a_run_lasts_until_the_next_one_and_the_last_one_is_on() -> None:
    stage = moved()
    first, second = told(stage).runs
    assert (first.ended, first.on, second.ended, second.on) == (second.began, False, None, True)
    assert (second.how, second.size, second.pause, second.cause) == (Takeover.LIVE, 2, 0.06, "node n2 is cordoned")


def test_nobody_knows_when_a_run_ended_before_a_suspension_or_when_no_run_is_on() -> None:
    again = HistoryEntry(run=3, size=2, how=Takeover.START, time=NOW + timedelta(days=1))
    status = seen(moved()).status
    suspended = status.model_copy(update={"history": (*status.history, again), "current": None})
    assert [(one.ended, one.on) for one in runs_of(suspended)[1:]] == [(None, False), (None, False)]


def test_the_last_run_of_a_job_that_is_over_ended_with_it() -> None:
    status = seen(moved()).status
    over = Condition(
        type="Failed",
        status="True",
        reason="TooManyCodeFailures",
        message="it raised",
        last_transition_time=NOW + timedelta(hours=1),
    )
    failed = status.model_copy(update={"conditions": (*status.conditions, over)})
    last = runs_of(failed)[-1]
    assert (last.ended, last.on) == (NOW + timedelta(hours=1), False)


def runs_of(status: TrainingJobStatus) -> tuple[RunSpan, ...]:
    job = seen(moved())
    return timeline(replace(job, record=replace(job.record, status=status)), []).runs


def test_a_save_is_told_once_with_the_earliest_time_at_which_it_was_known() -> None:
    stage = eventful()
    assert [(one.step, one.time) for one in told(stage).entries if one.kind is EntryKind.SAVE] == [
        (61200, told(stage).runs[-1].began)
    ]
    before, after = stage.now - timedelta(hours=3), stage.now
    job = seen(stage)
    for last, expected in ((61200, {61200: before}), (61300, {61200: told(stage).runs[-1].began, 61300: before})):
        save = LastSave(step=last, time=before, observed_at=after)
        status = job.status.model_copy(update={"last_save": save})
        story = timeline(replace(job, record=replace(job.record, status=status)), [])
        assert {one.step: one.time for one in story.entries if one.kind is EntryKind.SAVE} == expected


def test_an_event_without_a_time_is_left_out_and_a_hostile_one_shows_no_controls() -> None:
    stage = moved()
    later = (stage.now + timedelta(seconds=1)).isoformat()
    events = [{"reason": "Odd"}, {"eventTime": later, "type": "Warning", "reason": "Bad", "note": "\x1b[31m[red]x"}]
    story = timeline(seen(stage), events)
    assert [(one.what, one.warning) for one in story.entries][-1] == ("Bad", True)
    assert all(one.what != "Odd" for one in story.entries)
    assert "\x1b" not in shown(page(story, stage.now))
    assert "[31m[red]x" in shown(page(story, stage.now))


def test_each_condition_is_explained_in_the_words_of_the_reference() -> None:
    status = seen(cordoned()).status
    meanings = {one.condition: one for one in explain(status)}
    assert meanings.keys() == {one.type for one in status.conditions}
    assert meanings["Disrupted"].meaning == REASONS[Reason.NODE_LEAVING].meaning
    newer = [one.model_copy(update={"reason": "FromTheFuture"}) for one in status.conditions]
    unknown = explain(status.model_copy(update={"conditions": tuple(newer)}))
    assert {one.meaning for one in unknown} == {""}
    assert "only a newer version" in shown(page_of_meanings(unknown))
    assert "is one running?" in shown(page_of_meanings([]))
