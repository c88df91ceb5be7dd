"""A bounded rate lets a burst through, and then as many as the time allows."""

from __future__ import annotations

from perdure_operator.reports.pace import BoundedRate


def test_a_burst_and_then_the_rate() -> None:
    now = 100.0
    pace = BoundedRate(2.0, monotonic=lambda: now)
    assert [pace.allows() for _ in range(3)] == [True, True, False]
    now += 0.5
    assert [pace.allows() for _ in range(2)] == [True, False]
    now += 3600
    assert [pace.allows() for _ in range(3)] == [True, True, False]
