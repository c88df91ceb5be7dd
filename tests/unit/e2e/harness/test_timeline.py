"""The timeline tells each thing once, in order, and its parts add up to the pause."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.harness.drain import Drained
from e2e.harness.evidence import Entry, Gap, Mark
from e2e.harness.timeline import Part, in_place_parts, moments, pause_parts, written
from tests.unit.e2e.harness.watched import ended, job, leaving, pod, ranked

GAP = Gap(before_run=1, after_run=2, last_step=12, first_step=13, stopped=105.0, resumed=115.0)


def texts(*, drains: tuple[Drained, ...] = ()) -> list[str]:
    history = [
        job(100, phase="Running"),
        job(101, phase="Running"),
        pod(102, "a", assignment=ranked(1, 0)),
        pod(103, "a", assignment=ranked(1, 0)),
        job(
            104,
            phase="Vacating",
            current={"intent": {"leave": True, "cause": "node n1 is cordoned"}},
            next={"run": 2},
        ),
        pod(104.5, "a", assignment=leaving(2)),
        pod(106, "a", assignment=leaving(2), outcome=ended(1, commit={"seq": 2, "step": 12})),
    ]
    entries = [Entry(2, "Committed", "u", 1, "1970-01-01T00:01:45.500+00:00", {"step": 12, "final": True})]
    return [moment.text for moment in moments(history, entries, [GAP], drains)]


def test_what_is_seen_twice_is_reported_once_and_everything_is_in_order() -> None:
    assert texts() == [
        "job is Running",
        "a placed on n1",
        "a is rank 0 of 2 in run 1",
        "intent in status: run 2 follows, because node n1 is cordoned",
        "job is Vacating",
        "a is asked to save and leave",
        "last step before: step 12 (run 1)",
        "log: final commit of run 1 at step 12",
        "a ended: checkpointed at step 12, last commit: step 12",
        "first step after: step 13 (run 2)",
    ]


def test_the_drain_is_reported_with_its_exit_status() -> None:
    told = texts(drains=(Drained("n1", 0, 103.5, 107.0, ""),))
    assert told.index("$ kubectl drain n1 --ignore-daemonsets") < told.index("job is Vacating")
    assert "kubectl drain came back with status 0" in told


def test_lines_show_seconds_since_the_start() -> None:
    assert written(moments([job(103.25)], [], [], []), start=100) == "      3.25 s  job is Running"


LEAVING = {"agree": 0.1, "stage": 0.2, "upload": 0.3, "commit": 0.5}
ARRIVING = {"start": 0.5, "import": 2.0, "rendezvous": 0.5, "restore": 0.5}
MOVED = [
    pod(106.5, "a", outcome=ended(1, seconds=LEAVING)),
    pod(107, "b", outcome=ended(1, rank=1)),
    pod(108, "b", outcome=ended(1, rank=1), deleted=True),
    pod(110, "c", assignment=ranked(2, 0)),
    pod(111, "d", assignment=ranked(2, 1)),
    pod(114, "c", assignment=ranked(2, 0), outcome=ended(2, "completed", seconds=ARRIVING)),
]


def test_the_pause_is_split_into_parts_that_add_up_to_it() -> None:
    parts = {part.name: part.seconds for part in pause_parts(MOVED, GAP)}
    assert parts == pytest.approx(
        {
            "save": 1.0,
            "exit": 1.0,  # the last member ended at 107, the last step was at 105
            "pod start": 4.0,
            "start": 0.5,
            "import": 2.0,
            "rendezvous": 0.5,
            "restore": 0.5,
            "rest": 0.5,
        }
    )
    assert sum(parts.values()) == pytest.approx(GAP.seconds)


def test_a_member_with_a_rank_before_it_is_warm_is_split_by_the_rank_that_was_started_last() -> None:
    marks = [resumed(2, 0, 114.5, start=0.2, rendezvous=2.0), resumed(2, 1, 114.5, start=0.1, rendezvous=0.9)]
    parts = {part.name: part.seconds for part in pause_parts(MOVED[:-1], GAP, marks)}
    assert parts == pytest.approx(
        {"save": 1.0, "exit": 1.0, "pod start": 4.0, "warm-up": 2.5, "start": 0.1, "rendezvous": 0.9, "rest": 0.5}
    )


def test_a_pause_that_no_watch_has_seen_stays_unexplained() -> None:
    assert pause_parts([], GAP) == [Part("unknown", GAP.seconds)]


def test_a_job_that_is_over_before_its_rank_0_has_ended_is_reported_by_another_rank() -> None:
    early = [
        *MOVED[:-1],
        pod(114, "d", assignment=ranked(2, 1), outcome=ended(2, "completed", rank=1, seconds=ARRIVING)),
    ]
    assert pause_parts(early, GAP) == pause_parts(MOVED, GAP)


def test_a_hand_over_that_no_outcome_tells_of_any_more_is_split_by_the_trace_of_who_stood_still_longest() -> None:
    told = [{"connect": 9.0, "state": 1.0, "pause": 1.0}, {"connect": 8.0, "state": 3.0, "vote": 1.5, "pause": 4.5}]
    marks = [Mark("u", 2, rank, "took-over", 109.0, seconds) for rank, seconds in enumerate(told)]
    parts = {
        part.name: part.seconds
        for part in pause_parts([], GAP, [*marks, Mark("u", 3, 0, "took-over", 120.0, {"x": 9.0})])
    }
    assert parts == pytest.approx({"state": 3.0, "vote": 1.5, "rest": GAP.seconds - 4.5})


def test_an_unreported_part_is_not_a_part_of_no_time() -> None:
    parts = pause_parts(MOVED[:-1], GAP)
    assert [part.name for part in parts] == ["save", "exit", "pod start", "rest"]
    assert sum(part.seconds for part in parts) == pytest.approx(GAP.seconds)


def commit(at: str, run: int, *, final: bool) -> Entry:
    return Entry(7, "Committed", "u", run, f"1970-01-01T00:01:{at}+00:00", {"final": final, "step": 12})


def resumed(run: int, rank: int, time: float, **seconds: float) -> Mark:
    return Mark("u", run, rank, "resumed", time, {**seconds, "agree": 9.0})


def test_a_pause_in_place_is_split_by_the_rank_that_was_started_last() -> None:
    entries = [commit("30", 1, final=False), commit("45.2", 1, final=True), commit("50", 2, final=True)]
    marks = [
        resumed(1, 1, 90.0, start=1.0),
        resumed(2, 0, 114.0, start=0.1, rendezvous=8.0, restore=0.5),  # a newcomer, which has waited for the other
        resumed(2, 1, 114.0, **ARRIVING),
    ]
    parts = {part.name: part.seconds for part in in_place_parts(entries, marks, GAP)}
    assert parts == pytest.approx({"save": 0.2, "exit": 5.3, **ARRIVING, "rest": 1.0})
    assert sum(parts.values()) == pytest.approx(GAP.seconds)


@pytest.mark.parametrize(
    ("entries", "marks"),
    [([commit("45", 1, final=True)], [Mark("u", 2, 0, "resumed", 9.0)]), ([], [resumed(2, 0, 114.0, start=1.0)])],
    ids=["nothing-resumed", "nothing-saved"],
)
def test_an_unreported_pause_in_place_stays_unexplained(entries: list[Entry], marks: list[Mark]) -> None:
    assert in_place_parts(entries, marks, GAP) == [Part("unknown", GAP.seconds)]


def test_the_parts_of_a_live_pause_are_those_of_the_member_that_stood_still_longest() -> None:
    def record(run: int, word: str, **parts: float) -> dict[str, Any]:
        return {"run": run, "word": word, "why": "", "parts": parts}

    quick, slow = record(2, "go", pause=0.02, vote=0.01), record(2, "go", pause=0.05, connect=3.0, vote=0.04)
    history = [
        pod(1, "a", outcome=ended(2, "completed", handovers=[record(2, "abort", pause=9.0), quick])),
        pod(1, "b", outcome=ended(1, "handed-over", handovers=[slow])),
    ]
    parts = pause_parts(history, Gap(1, 2, 3, 4, 10.0, 10.06))
    assert [(part.name, round(part.seconds, 3)) for part in parts] == [("vote", 0.04), ("rest", 0.02)]
