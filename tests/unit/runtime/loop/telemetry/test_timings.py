"""The beginning of a process is split where it was made: before that is `start`, after it `import`."""

from __future__ import annotations

import time

import pytest

from perdure.host.process_age import age, born
from perdure.loop.telemetry.timings import Timings

BORN = born() or 0.0


def test_what_a_process_has_done_since_it_was_made_is_import_and_not_start() -> None:
    timings = Timings()
    before = age(BORN)
    timings.begin(time.monotonic() - before - 100)  # a shell took 100 s until it started this process
    assert before <= timings.seconds["import"] <= age(BORN)
    assert timings.seconds["start"] + timings.seconds["import"] >= before + 100


def test_without_an_agent_nothing_is_start() -> None:
    timings = Timings()
    timings.begin(None)
    assert timings.seconds["start"] == 0
    assert 0 < timings.seconds["import"] <= age(BORN)


def test_a_block_that_fails_is_measured_too() -> None:
    timings = Timings()
    with pytest.raises(ValueError, match="boom"), timings.part("restore"):
        raise ValueError("boom")
    assert list(timings.seconds) == ["restore"]
