"""A line that strangers can cause is due once a minute. A bounded rate lets a burst through, then what time allows."""

from __future__ import annotations

from perdure_operator.serving.pacing import BoundedRate, OnceAMinute


def test_a_line_is_due_at_first_and_then_once_a_minute() -> None:
    now = 0.0
    line = OnceAMinute(monotonic=lambda: now)
    assert [line.due(), line.due()] == [True, False]
    now = 59.0
    assert not line.due()
    now = 60.0
    assert [line.due(), line.due()] == [True, False]


def test_a_burst_and_then_the_rate() -> None:
    now = 100.0
    pace = BoundedRate(2.0, monotonic=lambda: now)
    assert [pace.allows() for _ in range(3)] == [True, True, False]
    now += 0.5
    assert [pace.allows() for _ in range(2)] == [True, False]
    now += 3600
    assert [pace.allows() for _ in range(3)] == [True, True, False]
