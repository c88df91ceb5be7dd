"""The demo's last line tells the truth, and its exit status follows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.demo.report import Result, Trained, judge, told
from e2e.harness.drain import Drained
from e2e.harness.evidence import NoEvidence
from tests.unit.e2e.harness.builders import SIZE, Training, drained, handed_over

DRAIN = Drained("n1", 0, 1001.0, 1007.2, "")
UNDISTURBED = Trained([], [], [], "0.93", "abc")


def result(training: Training, *, weights: str = "abc", drain: Drained = DRAIN) -> Result:
    moved = Trained([], training.entries, training.trace, "0.93", weights)
    return judge(moved, UNDISTURBED, drain, samples=SIZE, epochs=2)


def test_a_clean_move_is_reported_in_one_line_and_holds() -> None:
    clean = result(drained())
    assert clean.holds
    assert clean.line() == (
        "RESULT steps_lost=0 samples_lost=0 samples_repeated=0 weights_equal=true "
        "handover=recreate drain_s=6.2 pause_s=6.0"
    )


def test_a_pause_below_a_second_is_reported_in_hundredths() -> None:
    gap = replace(result(handed_over()).promises.gap, stopped=10.0, resumed=10.047)
    told = result(handed_over())
    line = replace(told, promises=replace(told.promises, gap=gap)).line()
    assert line.endswith("handover=live drain_s=6.2 pause_s=0.05")


@pytest.mark.parametrize(
    "broken",
    [
        result(drained(), weights="abd"),
        result(drained(), drain=replace(DRAIN, status=1)),
        result(drained().with_ids(2, 1, 4, (0,))),
        result(drained().trained(1, 4, 4)),
        result(drained().without(1, 1, 2)),
    ],
    ids=["other weights", "drain failed", "sample lost", "step lost", "evidence missing"],
)
def test_one_broken_promise_is_enough_not_to_hold(broken: Result) -> None:
    assert not broken.holds


def test_other_weights_are_reported() -> None:
    assert "weights_equal=false" in result(drained(), weights="abd").line()


def test_a_training_that_was_over_before_the_drain_is_no_evidence() -> None:
    with pytest.raises(NoEvidence, match="2 were expected"):
        result(Training().opened(1).trained(1, 1, 4).completed(1, 4))


def test_the_report_shows_both_hashes_side_by_side() -> None:
    training = drained()
    moved = Trained([], training.entries, training.trace, "0.93", "abc")
    lines = told(result(training), moved, UNDISTURBED, start=1000.0, score="loss").splitlines()
    assert lines[-3].split()[0] == "loss"
    assert [line.split() for line in lines[-2:]] == [["drained", "0.93", "abc"], ["undisturbed", "0.93", "abc"]]
