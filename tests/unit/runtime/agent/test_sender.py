"""The process that sends reports, against a real HTTPS server: what arrives, and what it says when nothing does."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster.pki import Pki
from perdure.agent.sender import (
    CHANGE_SECONDS,
    ELSEWHERE_TIMES,
    JITTER_SECONDS,
    RETRY_SECONDS,
    SendLimits,
    Timing,
    matters,
)
from perdure.wire.report import Channel, Report, Standing, TrainerPhase, write_channel, write_report
from tests.unit.runtime.agent.report_server import DEADLINE, EAGER, PATIENT, answer, issued, put_token, serving

REPORT = Report("ab" * 16, 1, TrainerPhase.TRAINING, run=3, rank=0, step=7)
SECRET = "eyJhbGciOi.a-secret_token"


FAR = 60.0
"""Seconds that no test should come near."""
PATIENCE = SendLimits(FAR, FAR)
PROGRAM = """
import sys; from pathlib import Path; from perdure.agent.sender import SendLimits, Sender
Sender(Path(sys.argv[1]), Path(sys.argv[2]), 0, SendLimits(float(sys.argv[3]), float(sys.argv[4]))).run()
"""


class Sending:
    """A real sender and what it writes."""

    def __init__(self, folder: Path, limits: SendLimits) -> None:
        files = [str(folder / "report"), str(folder / "token")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *files, str(limits.connect), str(limits.request)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=0,
        )

    def tell(self, report: Report) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{write_report(report)}\n")

    def tell_line(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")

    def says(self) -> str:
        """Its next line."""
        assert self.process.stderr
        return self.process.stderr.readline().rstrip("\n")

    def ends(self) -> str:
        """What else it has said, once its agent has closed the pipe."""
        assert self.process.stdin
        assert self.process.stderr
        self.process.stdin.close()
        rest = self.process.stderr.read()
        assert self.process.wait(DEADLINE) == 0
        return rest


@contextmanager
def sending(folder: Path, limits: SendLimits = PATIENCE) -> Iterator[Sending]:
    sender = Sending(folder, limits)
    overdue = threading.Timer(DEADLINE, sender.process.kill)  # a read that waits for ever ends then
    overdue.start()
    try:
        yield sender
    finally:
        overdue.cancel()
        sender.process.kill()
        for pipe in (sender.process.stdin, sender.process.stderr):
            if pipe:
                pipe.close()
        sender.process.wait(DEADLINE)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return issued(tmp_path_factory.mktemp("pki"))


def test_reports_are_sent_as_often_as_the_answers_say_with_the_token_of_that_moment(pki: Pki, tmp_path: Path) -> None:
    with serving(pki, answer(EAGER)) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path, "first")
        sender.tell(REPORT)
        first = server.next()
        put_token(tmp_path, "second\n")
        second = server.next()
        while second.token == "first":
            second = server.next()
        assert (first.path, first.token, second.token) == ("/v1/report", "first", "second")
        assert first.report == REPORT
        assert second.report == replace(REPORT, sequence=second.report.sequence)
        assert second.report.sequence > 1
        assert first.connection == second.connection
        assert sender.ends() == ""


def test_a_change_that_matters_does_not_wait_for_its_time_and_only_the_newest_report_is_sent(
    pki: Pki, tmp_path: Path
) -> None:
    with serving(pki, answer(PATIENT)) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        sender.tell(REPORT)
        assert server.next().report.step == 7
        sender.tell(replace(REPORT, step=8))
        sender.tell(replace(REPORT, step=9, phase=TrainerPhase.EVALUATING))
        got = server.next().report
        assert (got.sequence, got.step, got.phase) == (2, 9, TrainerPhase.EVALUATING)


def test_whether_processes_look_at_themselves_matters() -> None:
    assert matters(replace(REPORT, watched=True), replace(REPORT, watched=False))


def test_a_hang_its_place_and_its_end_matter_and_its_beginning_by_a_clock_does_not() -> None:
    hangs = replace(REPORT, hangs_since=1000.0)
    assert matters(REPORT, hangs)
    assert matters(hangs, REPORT)
    assert matters(hangs, replace(hangs, hangs_in=Standing.STANDS))
    assert matters(replace(hangs, hang_may_be_work=True), replace(hangs, hang_may_be_work=False))
    assert not matters(hangs, replace(hangs, hangs_since=1001.0))


@pytest.mark.parametrize("line", ["", "{", '{"v": 1}', '{"v": 1, "start": "abababab", "sequence": 1, "step": -1}'])
def test_a_line_that_is_no_report_changes_nothing(pki: Pki, tmp_path: Path, line: str) -> None:
    with serving(pki, answer(PATIENT)) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        sender.tell_line(f"{write_report(REPORT)}\n{line}")
        assert server.next().report == REPORT
        assert sender.ends() == ""


@pytest.mark.parametrize("kept", [True, False], ids=["without a word", "as its answer says"])
def test_a_connection_that_the_operator_closes_is_made_again_without_a_word(
    pki: Pki, tmp_path: Path, kept: bool
) -> None:
    def close(handler: BaseHTTPRequestHandler) -> None:
        answer(EAGER, headers={} if kept else {"Connection": "close"})(handler)
        handler.close_connection = True

    with serving(pki, close) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        sender.tell(REPORT)
        first, second = server.next(), server.next()
        assert first.connection != second.connection
        assert sender.ends() == ""


@pytest.mark.parametrize(
    ("answering", "why"),
    [
        (answer("", 503), "it answers with status 503"),
        (answer("", 401), "it answers with status 401"),
        (answer("", 302, {"Location": "https://elsewhere:1/"}), "it answers with status 302"),
        (answer("<html>"), "answer to a report: not JSON: '<html>'"),
        (answer('{"v": 1, "next_seconds": NaN}'), "field next_seconds of ReportAnswer"),
        (answer('{"v": 2}'), "version 2, this side knows 1"),
        (answer(" " * 2_000_000), "its answer is longer than 1024 bytes"),
        (answer(EAGER, headers={f"X-{number}": "y" for number in range(200)}), "got more than 100 headers"),
    ],
    ids=["503", "401", "302", "HTML", "NaN", "another version", "2 MB", "200 headers"],
)
def test_a_bad_answer_is_one_line_without_the_token(pki: Pki, tmp_path: Path, answering: Any, why: str) -> None:
    with serving(pki, answering) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path, SECRET)
        sender.tell(REPORT)
        line = sender.says()
        assert line.startswith(f"perdure: reports do not reach the operator at {server.url}: ")
        assert why in line
        assert line.endswith("; training goes on, and one is tried each minute")
        sender.tell(replace(REPORT, phase=TrainerPhase.SAVING))
        assert sender.ends() == ""
        assert SECRET not in line


ELSEWHERE = answer("", 503, {"Retry-After": "1"})


def test_a_replica_that_does_not_lead_sends_the_report_to_another_one_without_a_word(pki: Pki, tmp_path: Path) -> None:
    answers = [ELSEWHERE, ELSEWHERE, answer(PATIENT)]

    def next_one(handler: BaseHTTPRequestHandler) -> None:
        answers.pop(0)(handler)

    with serving(pki, next_one) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        sender.tell(REPORT)
        got = [server.next() for _ in range(3)]
        assert len({one.connection for one in got}) == 3, "a connection stays with one replica"
        assert [one.report.sequence for one in got] == [1, 2, 3]
        assert sender.ends() == ""


def test_replicas_of_which_none_leads_are_one_line(pki: Pki, tmp_path: Path) -> None:
    with serving(pki, ELSEWHERE) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        sender.tell(REPORT)
        assert "it answers with status 503; training goes on" in sender.says()
        assert server.requests.qsize() == ELSEWHERE_TIMES + 1
        assert sender.ends() == ""


def test_a_server_that_answers_byte_by_byte_is_given_up(pki: Pki, tmp_path: Path) -> None:
    gone = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not gone.wait(0.1):
            handler.wfile.write(b"X")

    with serving(pki, drip) as server, sending(tmp_path, SendLimits(FAR, 1.0)) as sender:
        server.put_into(tmp_path)
        sender.tell(REPORT)
        assert "it does not answer within 1 s" in sender.says()
        gone.set()


def test_a_server_that_another_authority_has_certified_gets_nothing(pki: Pki, tmp_path: Path) -> None:
    other = issued(tmp_path)
    with serving(pki, answer(EAGER)) as server, sending(tmp_path) as sender:
        server.authority = other.authority.read_text()
        server.put_into(tmp_path)
        sender.tell(REPORT)
        assert "its certificate is not trusted: " in sender.says()
        assert server.requests.empty()


def test_the_next_connection_is_to_the_server_and_by_the_authority_that_the_file_names_by_then(
    pki: Pki, tmp_path: Path
) -> None:
    """The operator changes both in living members, and closes each connection after its answer."""
    other, once = issued(tmp_path), answer(EAGER, headers={"Connection": "close"})
    with serving(pki, once) as server, serving(other, once) as later, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        sender.tell(REPORT)
        server.next()
        later.put_into(tmp_path)
        assert later.next().report.step == REPORT.step
        assert sender.ends() == ""


def test_a_server_under_another_name_than_its_certificates_gets_nothing(pki: Pki, tmp_path: Path) -> None:
    with serving(pki, answer(EAGER)) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        (tmp_path / "report").write_text(write_channel(Channel(f"https://127.0.0.1:{server.port}", server.authority)))
        sender.tell(REPORT)
        assert "its certificate is not trusted: IP address mismatch" in sender.says()
        assert server.requests.empty()


def test_a_host_that_takes_connections_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole, sending(tmp_path, SendLimits(0.5, FAR)) as sender:
        (tmp_path / "token").write_text("a-token")
        port = hole.getsockname()[1]
        pem = issued(tmp_path).authority.read_text()
        (tmp_path / "report").write_text(write_channel(Channel(f"https://127.0.0.1:{port}", pem)))
        sender.tell(REPORT)
        assert f"at https://127.0.0.1:{port}: it does not take a connection within 0.5 s" in sender.says()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("token", f"{SECRET} and\nmore", "token holds no token"),
        ("token", "", "token holds no token"),
        ("report", '{"v":1,"url":"http://plain:80","ca":""}', "is not https://host:port"),
        ("report", '{"v":1,"url":"https://a:1","ca":"no certificate"}', "no start line"),
    ],
    ids=["a token over two lines", "no token", "no TLS", "no certificate"],
)
def test_files_that_cannot_be_used_are_one_line(pki: Pki, tmp_path: Path, name: str, content: str, why: str) -> None:
    with serving(pki, answer(EAGER)) as server, sending(tmp_path) as sender:
        server.put_into(tmp_path)
        (tmp_path / name).write_text(content)
        sender.tell(REPORT)
        line = sender.says()
        assert why in line
        assert SECRET not in line
        assert sender.ends() == ""


NOW = st.floats(0, 1e6)


@given(NOW, st.floats(1, 300), st.booleans())
def test_the_answer_says_when_the_next_report_is_due_and_haste_comes_five_seconds_after_the_last(
    now: float, seconds: float, urgent: bool
) -> None:
    due = Timing().answered(now, seconds).due(urgent=urgent)
    assert due == (min(now + seconds, now + CHANGE_SECONDS) if urgent else now + seconds)


@given(NOW, st.floats(0, JITTER_SECONDS), st.booleans())
def test_what_has_not_arrived_is_tried_after_a_minute_however_urgent(now: float, jitter: float, urgent: bool) -> None:
    assert Timing().answered(now, 1).failed(now, jitter).due(urgent=urgent) >= now + RETRY_SECONDS
    assert Timing().failed(now, jitter).due(urgent=urgent) <= now + RETRY_SECONDS + JITTER_SECONDS
    assert Timing().closed(now, jitter).due(urgent=urgent) == now + jitter


def test_the_first_report_is_due_at_once() -> None:
    assert Timing().due(urgent=False) <= 0
    assert Timing().due(urgent=True) == -math.inf


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"step": 8, "samples_per_second": 3.0, "commit_step": 7}, False),
        ({"store_failing_since": 5.0}, True),
        ({"phase": TrainerPhase.LEAVING}, True),
        ({"run": 4}, True),
        ({"rank": 1}, True),
    ],
    ids=str,
)
def test_numbers_wait_for_their_time_and_changes_of_state_do_not(changed: dict[str, Any], expected: bool) -> None:
    assert matters(REPORT, replace(REPORT, **changed)) is expected
    assert matters(None, REPORT)


def test_another_second_in_which_the_store_fails_is_no_change_of_state() -> None:
    failing = replace(REPORT, store_failing_since=5.0)
    assert not matters(failing, replace(failing, store_failing_since=6.0, store_why="no route"))
