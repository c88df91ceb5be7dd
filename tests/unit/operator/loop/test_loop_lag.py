"""A loop that runs late says so: at once, then once a minute, with the worst of it and whose doing it was."""

from __future__ import annotations

import asyncio

import pytest

from perdure_operator.loop.loop_lag import BEAT_SECONDS, LoopLag, report

STARVED = "it waited for CPU time of its node, which a larger request gives it, or a call blocked it"


def test_only_what_is_late_is_reported_and_the_worst_of_a_minute_at_its_end() -> None:
    lateness = LoopLag()
    beats = [
        # now, late, CPU time in it: the message
        (0.0, 0.0, 0.0, None),
        (1.0, 0.99, 0.0, None),
        (2.0, 1.0, 0.01, f"the event loop was 1.0 s late, and worked for 0.01 s of it: {STARVED}"),
        (10.0, 7.04, 0.008, None),
        (20.0, 3.0, 3.0, None),
        (61.9, 0.0, 0.0, None),
        (62.0, 0.0, 0.0, f"the event loop was 7.0 s late, and worked for 0.01 s of it: {STARVED}"),
        (200.0, 0.5, 0.0, None),
        (201.0, 2.0, 1.0, "the event loop was 2.0 s late, and worked for 1.00 s of it: its own work took so long"),
    ]
    for now, late, worked, told in beats:
        assert lateness.beat(now, late, worked) == told, now


def test_a_loop_that_had_no_time_says_so_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    late, clock = iter([0.0, 3.0, 0.0]), [1000.0]

    async def sleep(seconds: float) -> None:
        assert seconds == BEAT_SECONDS
        clock[0] += seconds + next(late)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(report(monotonic=lambda: clock[0], worked=lambda: clock[0] / 100, sleep=sleep))
    assert [record.getMessage() for record in caplog.records] == [
        f"the event loop was 3.0 s late, and worked for 0.03 s of it: {STARVED}"
    ]
