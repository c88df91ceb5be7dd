"""What agent and trainer say to each other, over a real pipe and a real file."""

import json
import os
import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.wire import (
    LARGEST,
    AttemptRecord,
    CommitRef,
    ErrorKind,
    ExitKind,
    Failure,
    Handover,
    HandoverWord,
    Leave,
    Train,
    channel,
)
from perdure.wire.account import CAUSES, RunAccount
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    Figures,
    HandoverEnded,
    Hangs,
    Imaged,
    Imaging,
    Request,
    SaveFailed,
    SessionOpened,
    StepDone,
    TookOver,
    TrainerReport,
    Voting,
    acknowledge_vote,
    read_offer,
    read_report,
    read_request,
    read_unwound,
    vote_acknowledged,
    write_offer,
    write_report,
    write_request,
    write_unwound,
)
from perdure.wire.report import VALUES_KEPT, DeathCost, Standing, TrainerPhase
from perdure.wire.truncation import CUT
from tests.support.hints import HINTS

whole = st.integers(0, 10**9)
commits = st.builds(CommitRef, seq=whole, step=whole)
failures = st.builds(Failure, kind=st.sampled_from(ErrorKind), name=st.text(max_size=20), tail=st.text(max_size=40))
words = st.sampled_from([None, HandoverWord.GO, HandoverWord.ABORT])
attempts = st.builds(AttemptRecord, run=st.integers(1, 10**9), voted=st.booleans(), word=words)
reports: st.SearchStrategy[TrainerReport] = st.one_of(
    st.builds(Attached, pid=whole, live=st.booleans(), live_why=st.text(max_size=20), images=st.booleans()),
    st.builds(Imaging, size=whole),
    st.builds(Imaged, step=st.none() | whole, why=st.text(max_size=40)),
    st.builds(Voting, run=whole, next=whole),
    st.builds(
        TookOver, run=whole, rank=whole, world=whole, step=whole,
        parts=st.dictionaries(st.text(max_size=9), st.floats(0, 1e6), max_size=5),
    ),
    st.builds(SaveFailed, failures=whole, why=st.text(max_size=40)),
    st.builds(HandoverEnded, run=whole, word=st.sampled_from(HandoverWord), why=st.text(max_size=40)),
    st.builds(
        SessionOpened, run=whole, resumed=st.none() | commits, rescued=whole, rescued_of=whole, step=st.none() | whole,
        behind=st.none() | commits, behind_why=st.text(max_size=40),
    ),
    st.builds(StepDone, step=whole, epoch=st.none() | whole),
    st.builds(CommitDone, commit=commits),
    st.builds(
        Figures, phase=st.sampled_from(TrainerPhase), samples_per_second=st.none() | st.floats(0, 1e6),
        progress=st.none() | st.floats(0, 1), remaining_seconds=st.none() | st.floats(0, 1e9),
        death_cost=st.none() | st.sampled_from(DeathCost), death_steps=st.none() | whole,
        own_share=st.none() | st.floats(0, 1), batch=st.none() | whole, scaling=st.none() | st.just(HINTS),
    ),
    st.builds(Hangs, seconds=st.none() | st.floats(0, 1e6), place=st.none() | st.sampled_from(Standing),
              may_be_work=st.booleans()),
    st.builds(
        Exiting, outcome=st.sampled_from(ExitKind), step=whole, commit=st.none() | commits, opened=whole,
        seconds=st.dictionaries(st.text(max_size=9), st.floats(0, 1e6), max_size=5), error=st.none() | failures,
        epoch=st.none() | whole, attempt=st.none() | attempts,
    ),
)  # fmt: skip


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def fills(writer: int) -> bool:
    """Writes one more page; whether there was no room for it."""
    try:
        os.write(writer, b"x" * select.PIPE_BUF)
    except BlockingIOError:
        return True
    return False


class TestReports:
    @given(report=reports)
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_is_written_is_read(self, pipe: tuple[int, int], report: TrainerReport) -> None:
        write_report(pipe[1], report)
        line = os.read(pipe[0], 65536)
        assert line.count(b"\n") == 1
        assert read_report(line) == report

    def test_the_longest_figures_are_one_line_of_one_piece(self, pipe: tuple[int, int]) -> None:
        most = 1.2345678901234567e-300
        values = {f"{'x' * 31}{number}": most for number in range(VALUES_KEPT)}
        seconds: dict[str, Any] = dict.fromkeys(CAUSES, float(LARGEST))
        accounts = (RunAccount(7, LARGEST, LARGEST, unsaved_steps=LARGEST, joined=True, **seconds),) * 2
        numbers = (most,) * 6
        full = Figures(
            TrainerPhase.HANDING_OVER, *numbers, DeathCost.UNTIL_MIRRORED, LARGEST, most, most, False, values, accounts,
            batch=LARGEST, scaling=HINTS,
        )  # fmt: skip
        write_report(pipe[1], full)
        line = os.read(pipe[0], 65536)
        assert len(line) <= select.PIPE_BUF
        found = read_report(line)
        assert isinstance(found, Figures)
        assert (found.batch, found.scaling) == (LARGEST, HINTS)

    def test_a_script_that_chooses_its_own_batch_writes_the_same_line_as_ever(self, pipe: tuple[int, int]) -> None:
        write_report(pipe[1], Figures())
        assert not {"batch", "scaling"} & json.loads(os.read(pipe[0], 65536)).keys()

    def test_hints_that_no_reader_takes_are_left_out_of_a_line(self, pipe: tuple[int, int]) -> None:
        write_report(pipe[1], Figures(scaling=replace(HINTS, alpha=float("nan"))))
        assert read_report(os.read(pipe[0], 65536)) == Figures()

    @given(name=st.text(max_size=3000), tail=st.text(max_size=9000))
    @example("", "😀" * 5000)
    @example("\x00" * 5000, "\x00" * 5000)
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_line_is_written_in_one_piece_whatever_the_error_says(
        self, pipe: tuple[int, int], name: str, tail: str
    ) -> None:
        error = Failure(ErrorKind.EXCEPTION, name, tail)
        write_report(pipe[1], Exiting(ExitKind.FAILED, 1, error=error))
        line = os.read(pipe[0], 65536)
        assert len(line) <= select.PIPE_BUF
        report = read_report(line)
        assert isinstance(report, Exiting)
        assert report.error
        head, _, end = report.error.tail.partition(CUT)
        whole = report.error.tail == tail
        assert whole or (tail.startswith(head) and tail.endswith(end) and end != "")

    def test_the_end_of_an_interpreter_is_sent_beside_the_reports(self, pipe: tuple[int, int]) -> None:
        write_report(pipe[1], StepDone(7))
        write_unwound(pipe[1])
        write_unwound(pipe[1], range(10**9, 10**9 + 1000))
        step, *unwound = os.read(pipe[0], 65536).splitlines()
        told = frozenset(range(10**9, 10**9 + 100))
        assert (read_unwound(step), [read_unwound(line) for line in unwound]) == (None, [frozenset(), told])
        assert max(map(len, unwound)) < select.PIPE_BUF
        assert [read_report(line) for line in unwound] == [
            None,
            None,
        ]  # what an agent makes of it that does not know it

    @pytest.mark.parametrize("groups", ["7", '["x"]', "[null]", "]"])
    def test_a_broken_word_of_its_sockets_is_none(self, groups: str) -> None:
        assert read_unwound(f'{{"report": "unwound", "groups": {groups}}}'.encode()) is None

    def test_a_full_pipe_is_no_error_for_the_trainer(self, pipe: tuple[int, int]) -> None:
        for step in range(10_000):
            write_report(pipe[1], StepDone(step))
        lines = os.read(pipe[0], 1 << 20).splitlines()
        assert 0 < len(lines) < 10_000
        assert [read_report(line) for line in lines] == [StepDone(step) for step in range(len(lines))]

    def test_an_ending_waits_for_room_in_a_full_pipe(self, pipe: tuple[int, int]) -> None:
        reader, writer = pipe
        while not fills(writer):
            pass
        ending = Exiting(ExitKind.CHECKPOINTED, 5)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_report, writer, ending)
            wait([writing], timeout=0.2)  # long enough for a writer that does not wait to have given up
            text = b""
            while not text.endswith(b"\n"):
                assert select.select([reader], [], [], 60)[0], "the ending has not come"
                text += os.read(reader, 65536)
            writing.result(timeout=60)
        assert read_report(text.lstrip(b"x")) == ending

    def test_an_ending_does_not_wait_for_ever(self, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(channel, "ENDING_SECONDS", 0.01)
        while not fills(pipe[1]):
            pass
        write_report(pipe[1], Exiting(ExitKind.CHECKPOINTED, 5))
        assert b"ending" not in os.read(pipe[0], 1 << 20)

    def test_an_agent_that_is_gone_is_no_error_for_the_trainer(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        write_report(writer, StepDone(1))
        os.close(writer)

    @pytest.mark.parametrize(
        "line",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[1]",
            b'{"report": "later"}',
            b'{"report": "step", "step": "5"}',
            b'{"report": "opened", "run": 1, "resumed": 5}',
            b'{"report": "committed", "commit": null}',
            b'{"report": "ending", "outcome": "later", "step": 1}',
            b'{"report": "ending", "outcome": "failed", "step": 1, "error": {"name": "exit"}}',
            b'{"report": "ending", "outcome": "failed", "step": 1, "seconds": [1]}',
            b'{"report": "ending", "outcome": "failed", "step": 1, "seconds": {"a": null}}',
            b'{"report": "ending", "outcome": "failed", "step": 1, "opened": Infinity}',
        ],
    )
    def test_what_is_no_report_of_this_version_is_ignored(self, line: bytes) -> None:
        assert read_report(line) is None

    def test_unknown_fields_are_ignored(self) -> None:
        assert read_report(b'{"report": "step", "step": 5, "loss": 0.1}') == StepDone(5)


class TestRequests:
    def test_no_request_is_none(self, tmp_path: Path) -> None:
        assert read_request(tmp_path / "request.json") is None

    @given(st.text(), st.floats(0, 1e9))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_is_written_is_read_and_a_newer_one_replaces_it(
        self, tmp_path: Path, cause: str, deadline: float
    ) -> None:
        write_request(tmp_path / "request.json", Request(cause, deadline))
        assert read_request(tmp_path / "request.json") == Request(cause, deadline)
        assert [path.name for path in tmp_path.iterdir()] == ["request.json"]

    def test_a_script_of_another_framework_finds_the_name_it_looks_for(self, tmp_path: Path) -> None:
        write_request(tmp_path / "request.json", Request("node n1 is leaving", 5.0))
        assert json.loads((tmp_path / "request.json").read_text())["GracefulExit"] == 1


def test_a_trainer_that_tells_no_epoch_is_understood() -> None:
    assert read_report('{"report": "step", "step": 7}') == StepDone(7)
    assert read_report('{"report": "ending", "outcome": "completed", "step": 7}') == Exiting(ExitKind.COMPLETED, 7)


BLOCK = Handover(1, 2, (1,), (1,), "10.0.0.1:29700", 30, "ab")


PLAIN = '{"v":1,"run":2,"leave":true}'


class TestOffers:
    @pytest.mark.parametrize("offer", [Leave(2, handover=BLOCK), Train(2, 0, 2, "10.0.0.1:29501", handover=BLOCK)])
    def test_what_is_offered_is_read(self, tmp_path: Path, offer: Train | Leave) -> None:
        write_offer(tmp_path / "offer", offer)
        assert read_offer(tmp_path / "offer") == offer

    @pytest.mark.parametrize(
        "text", [None, "", "{", '{"v":1,"standby":true}', '{"v":1,"run":2,"leave":true}', '{"v":9}']
    )
    def test_what_is_no_offer_is_none(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "offer").write_text(text)
        assert read_offer(tmp_path / "offer") is None

    def test_a_vote_is_acknowledged_for_its_own_run(self, tmp_path: Path) -> None:
        assert not vote_acknowledged(tmp_path / "offer", 2)
        acknowledge_vote(tmp_path / "offer", 2)
        assert vote_acknowledged(tmp_path / "offer", 2)
        assert not vote_acknowledged(tmp_path / "offer", 3)
