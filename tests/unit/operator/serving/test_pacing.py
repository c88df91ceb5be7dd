"""A line that strangers can cause is written once a minute."""

from __future__ import annotations

from perdure_operator.serving.pacing import OnceAMinute


def test_a_line_is_due_at_first_and_then_once_a_minute() -> None:
    now = 0.0
    line = OnceAMinute(monotonic=lambda: now)
    assert [line.due(), line.due()] == [True, False]
    now = 59.0
    assert not line.due()
    now = 60.0
    assert [line.due(), line.due()] == [True, False]
