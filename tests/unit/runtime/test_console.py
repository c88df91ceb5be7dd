"""Lines for people: who speaks, where they go, and that a script has the last word about it."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from perdure.console import LOGGER, fall_silent, in_bytes, say, speak_as, spoken, warn
from perdure.loop.telemetry.events import Leaving
from perdure.loop.telemetry.sinks import LogLines
from perdure.wire import CommitRef
from perdure.wire.channel import CommitDone, SessionOpened


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """The logger as a script finds it, and afterwards as it was."""
    before = list(LOGGER.handlers), LOGGER.level, LOGGER.propagate
    LOGGER.handlers, LOGGER.propagate = [], True
    LOGGER.setLevel(logging.NOTSET)
    yield
    fall_silent()
    LOGGER.handlers, LOGGER.propagate = before[0], before[2]
    LOGGER.setLevel(before[1])


def test_a_line_names_the_run_and_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    sink = LogLines(run=None, rank=0)
    for event in (SessionOpened(3), Leaving(480, "node n1 is cordoned"), CommitDone(CommitRef(7, 480))):
        sink.take(event)
    assert capsys.readouterr().err == "perdure run 3 rank 0: saved step 480, leaving: node n1 is cordoned\n"


def test_what_is_written_past_the_logger_reads_as_its_lines_do(capsys: pytest.CaptureFixture[str]) -> None:
    speak_as(3, 1)
    say("it waits")
    assert capsys.readouterr().err == spoken("it waits") + "\n"
    fall_silent()
    say("it waits")
    assert capsys.readouterr().err == spoken("it waits") + "\n"


def test_a_save_while_training_goes_on_is_logged_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    sink = LogLines(run=3, rank=0)
    sink.take(CommitDone(CommitRef(6, 470)))
    LOGGER.setLevel(logging.DEBUG)
    sink.take(CommitDone(CommitRef(7, 480)))
    assert capsys.readouterr().err == "perdure run 3 rank 0: saved step 480\n"


def test_rank_0_speaks_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    sink = LogLines(run=3, rank=1)
    sink.take(Leaving(480, "node n1 is cordoned"))
    sink.take(CommitDone(CommitRef(7, 480)))
    warn("the trace cannot be written")
    assert capsys.readouterr().err == "perdure run 3 rank 1: the trace cannot be written\n"


def test_before_the_run_is_known_a_line_names_the_rank_alone(capsys: pytest.CaptureFixture[str]) -> None:
    speak_as(None, 2)
    say("waiting")
    fall_silent()
    say("done")
    assert capsys.readouterr().err == "perdure rank 2: waiting\nperdure: done\n"


def test_a_handler_of_the_scripts_own_has_the_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = io.StringIO()
    LOGGER.addHandler(logging.StreamHandler(text))
    LOGGER.setLevel(logging.INFO)
    speak_as(3, 0)
    say("saved step 480")
    assert text.getvalue() == "run 3 rank 0: saved step 480\n"
    assert capsys.readouterr().err == ""


def test_a_script_can_turn_lines_off_by_their_level(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.setLevel(logging.WARNING)
    say("saved step 480")
    warn("the store does not answer")
    assert capsys.readouterr().err == "perdure: the store does not answer\n"


def test_a_closed_stderr_stops_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("saved step 480")


def test_sizes_are_reported_as_people_read_them() -> None:
    sizes = (0, 999, 1000, 3_000_000, 1_127_428_915)
    assert [in_bytes(size) for size in sizes] == ["0 B", "999 B", "1 kB", "3 MB", "1.13 GB"]
