"""The stream of events: every sink gets every event, one ending is reported, and no sink can do harm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.loop.telemetry.events import (
    Event,
    Events,
    GoalReached,
    Leaving,
    Measured,
    RequestSeen,
    Resumed,
    Stepped,
)
from perdure.loop.telemetry.sinks import AgentPipe
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import StoreTrace, TraceLines
from perdure.store.file import FileStore
from perdure.wire import CommitRef, ExitKind, channel
from perdure.wire.channel import Attached, CommitDone, Exiting, SessionOpened, TrainerReport, read_report

COMMIT = CommitRef(7, 480)
LIFE: list[Event] = [
    Attached(41),
    Measured({"import": 3.5}),
    SessionOpened(3, COMMIT),
    Resumed(480, {"restore": 0.25}),
    Stepped(481, 4, [7, 3]),
    RequestSeen(481, "node n1 is leaving", 1000.0),
    Leaving(481, "node n1 is leaving"),
    CommitDone(CommitRef(8, 481)),
    GoalReached(481),
    Exiting(ExitKind.CHECKPOINTED, 481, COMMIT, 3, epoch=4),
]


class Listener:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    def take(self, event: Event) -> None:
        self.heard.append(event)


class Broken:
    def take(self, _: Event) -> None:
        raise RuntimeError("disk full")


def test_every_sink_hears_everything_in_order() -> None:
    one, other = Listener(), Listener()
    events = Events(one)
    events.add(other)
    for event in LIFE:
        events.tell(event)
    assert one.heard == other.heard == LIFE


def test_a_failing_sink_does_no_harm_and_is_reported_once() -> None:
    listener, complaints = Listener(), list[str]()
    events = Events(Broken(), listener, complain=complaints.append)
    for event in LIFE:
        events.tell(event)
    assert listener.heard == LIFE
    assert complaints == ["Broken cannot pass on what happens, training goes on: RuntimeError('disk full')"]


def test_a_report_of_it_that_fails_does_no_harm_either() -> None:
    def complain(_: str) -> None:
        raise OSError("stderr is closed")

    Events(Broken(), complain=complain).tell(Resumed(0))


def test_an_exit_of_the_process_is_not_stopped_by_a_sink() -> None:
    class Interrupted:
        def take(self, _: Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Events(Interrupted()).tell(Resumed(0))


def test_only_the_first_ending_is_reported() -> None:
    listener = Listener()
    events = Events(listener)
    events.tell(Exiting(ExitKind.CHECKPOINTED, 481))
    events.tell(Exiting(ExitKind.FAILED, 481))
    assert events.ended
    assert listener.heard == [Exiting(ExitKind.CHECKPOINTED, 481)]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def told(reader: int) -> list[TrainerReport | None]:
    return [read_report(line) for line in os.read(reader, 1 << 16).splitlines()]


def test_the_agent_is_told_what_it_decides_by_and_nothing_after_the_ending(pipe: tuple[int, int]) -> None:
    sink = AgentPipe(pipe[1])
    for event in [*LIFE, Stepped(482, 4), CommitDone(COMMIT)]:
        sink.take(event)
    assert told(pipe[0]) == [
        Attached(41),
        SessionOpened(3, COMMIT),
        channel.StepDone(481, 4),
        CommitDone(CommitRef(8, 481)),
        Exiting(ExitKind.CHECKPOINTED, 481, COMMIT, 3, epoch=4),
    ]


def test_without_an_agent_nothing_is_sent() -> None:
    sink = AgentPipe(None)
    for event in LIFE:
        sink.take(event)


def test_the_trace_has_a_line_for_each_step_and_for_what_evidence_is_made_of(tmp_path: Path) -> None:
    trace = StoreTrace(FileStore(tmp_path), uid="u", run=3, rank=0, world=2)
    sink = TraceLines(trace)
    for event in LIFE:
        sink.take(event)
    trace.close()
    trace.flush()
    written = "".join(path.read_text() for path in sorted((tmp_path / "trace").iterdir()))
    assert [without_place(json.loads(line)) for line in written.splitlines()] == [
        {"event": "resumed", "step": 480, "seconds": {"restore": 0.25}},
        {"epoch": 4, "step": 481, "ids": [7, 3]},
        {"event": "request-seen", "t": 1000.0, "step": 481, "cause": "node n1 is leaving"},
        {"event": "exit", "step": 481},
        {"event": "completed", "step": 481},
    ]


def without_place(line: dict[str, Any]) -> dict[str, Any]:
    place = {"uid", "run", "rank", "world"} | ({"t"} if line.get("event") != "request-seen" else set())
    return {name: value for name, value in line.items() if name not in place}


def test_what_others_have_measured_is_noted() -> None:
    timings = Timings()
    for event in LIFE:
        timings.take(event)
    assert timings.seconds == {"import": 3.5}
