"""Which way a move took is read from the log and from the assignments."""

from __future__ import annotations

from e2e.harness.evidence import gaps
from e2e.harness.handover import Way, way_of
from e2e.harness.watching import Seen
from tests.unit.e2e.harness.builders import Training, drained, handed_over
from tests.unit.e2e.harness.watched import leaving, pod, ranked

BOTH = [pod(1, "a", assignment=ranked(1, 0)), pod(1, "b", assignment=ranked(1, 1))]
MOVED = [*BOTH, pod(2, "b", assignment=leaving(2)), pod(2, "c", assignment=ranked(2, 1))]


def way(training: Training, history: list[Seen]) -> Way:
    (gap,) = gaps(training.trace)
    return way_of(history, training.entries, gap)


def test_a_run_that_took_over_a_living_one_is_live() -> None:
    assert way(handed_over(), [*MOVED, pod(2, "a", assignment=ranked(2, 0))]) is Way.LIVE


def test_a_pod_that_trains_in_both_runs_stayed_in_place() -> None:
    assert way(drained(), [*MOVED, pod(2, "a", assignment=ranked(2, 0))]) is Way.IN_PLACE


def test_only_new_pods_are_a_recreate() -> None:
    assert way(drained(), [*MOVED, pod(2, "d", assignment=ranked(2, 0))]) is Way.RECREATE
