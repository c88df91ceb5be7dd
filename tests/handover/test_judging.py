"""The judge of harmed hand-overs is judged: a log that breaks a law is found."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.harness import evidence
from e2e.harness.evidence import Entry
from perdure.wire import ExitKind, HandoverRecord, HandoverWord, Outcome
from tests.handover.judging import broken, drawn, with_last_words
from tests.unit.e2e.harness.builders import SIZE, Training, drained

Line = tuple[str, int, dict[str, Any]]
OPENED: Line = ("Opened", 1, {})
TAKEN: Line = ("Opened", 2, {"takesOver": 1})
REFUSED: Line = ("Refused", 1, {"refuses": 2})
COMMITTED: Line = ("Committed", 1, {})
ABORTED: Line = ("Committed", 1, {"aborted": 2})
WENT = (HandoverRecord(2, HandoverWord.GO),)


def log(*lines: Line) -> list[Entry]:
    return [Entry(seq, kind, "u", run, "", body) for seq, (kind, run, body) in enumerate(lines, 1)]


def ended(kind: ExitKind, handovers: tuple[HandoverRecord, ...] = ()) -> Outcome:
    return Outcome(kind, 1, 0, 0, handovers=handovers)


@pytest.mark.parametrize(
    "lines",
    [
        (OPENED, COMMITTED, TAKEN, ("Committed", 2, {})),
        (OPENED, REFUSED, ABORTED, ("Opened", 3, {"takesOver": 1})),
        (OPENED, TAKEN, REFUSED, ("Opened", 3, {"takesOver": 2})),
    ],
    ids=["taken-over", "refused", "refused-too-late"],
)
def test_a_log_that_keeps_the_laws_is_left_alone(lines: tuple[Line, ...]) -> None:
    assert list(broken(log(*lines), [ended(ExitKind.COMPLETED)])) == []


@pytest.mark.parametrize(
    ("lines", "law"),
    [
        ((OPENED, REFUSED, TAKEN), "H9"),
        ((OPENED, ABORTED, ("Opened", 2, {})), "H9"),
        ((OPENED, ("Opened", 2, {}), ("Opened", 3, {"takesOver": 1})), "H2"),
        ((OPENED, TAKEN, COMMITTED), "H4"),
    ],
    ids=["opened-after-refused", "opened-after-aborted", "took-over-an-ended-run", "wrote-after-it-was-taken-over"],
)
def test_a_log_that_breaks_a_law_is_found(lines: tuple[Line, ...], law: str) -> None:
    assert [found[:2] for found in broken(log(*lines), [])] == [law]


@pytest.mark.parametrize(
    ("outcome", "law"),
    [
        (ended(ExitKind.HANDED_OVER), "H1"),
        (ended(ExitKind.COMPLETED, WENT), "H1"),
        (ended(ExitKind.EXIT_TIMEOUT), "H8"),
    ],
    ids=["left-without-a-word", "went-although-nobody-took-over", "killed-for-its-silence"],
)
def test_an_outcome_that_the_log_denies_is_found(outcome: Outcome, law: str) -> None:
    assert [found[:2] for found in broken(log(OPENED), [outcome])] == [law]


ALONE = evidence.batches(drained().entries, drained().trace)


def judged(training: Training) -> tuple[evidence.Samples, list[tuple[int, int]]]:
    words = with_last_words(training.entries, training.trace, ALONE)
    return evidence.samples(training.entries, words, size=SIZE, epochs=2), evidence.untraced(training.entries, words)


def test_the_last_steps_that_a_killed_rank_had_no_time_to_write_down_are_those_of_the_undisturbed_training() -> None:
    assert judged(drained().without(1, 1, 3).without(1, 1, 2)) == (evidence.Samples(0, 0, 0), [])


@pytest.mark.parametrize(
    "training",
    [
        drained().without(1, 1, 2),
        drained().without(1, 0, 3).without(1, 1, 3),
        drained().without(2, 1, 4).without(1, 0, 2),
    ],
    ids=["in-the-middle", "of-both-ranks", "of-an-earlier-step"],
)
def test_no_other_missing_line_is_forgiven(training: Training) -> None:
    samples, untraced = judged(training)
    assert samples.lost
    assert untraced


@pytest.mark.parametrize("ids", [(1, 0), (1,)], ids=["a-strangers-sample", "one-too-few"])
def test_what_another_rank_did_wrong_in_that_step_is_not_covered_up(ids: tuple[int, ...]) -> None:
    samples, _ = judged(drained().without(1, 1, 3).with_ids(1, 0, 3, ids))
    assert samples.lost


def test_a_rank_that_finds_its_generators_in_another_state_is_found_whichever_process_it_is() -> None:
    before, stays, comes = (
        f"PACE run 1: 1 steps\nGENERATORS of rank {one}\n" for one in ("0 of 2: a", "1 of 2: b", "1 of 2: c")
    )
    assert drawn([before, stays, before + "GENERATORS of rank 0 of 3: c\n"]) == set()
    assert drawn([before, stays, comes]) == {"rank 1 of 2"}
    assert drawn([before, stays, comes], lost=True) == set()
    assert drawn([before, stays + comes], lost=True) == {"rank 1 of 2"}
    assert drawn([before + "GENERATORS of rank 0 of 2: d\n"]) == {"rank 0 of 2"}
    fresh = f"{before}perdure run 2 rank 0: starting fresh at file:///root, step 0\nGENERATORS of rank 0 of 2: d\n"
    assert drawn([fresh]) == {"rank 0 of 2"}
    assert drawn([fresh], lost=True) == set()
