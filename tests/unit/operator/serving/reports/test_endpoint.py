"""The real server on a real port, and members that report to it. `Reviews` stands for the API server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from perdure.wire.report import REPORT_BYTES, REPORT_PATH, ReportAnswer, read_answer, write_report
from perdure_operator.serving.certificate import SelfMade
from perdure_operator.serving.connections import Limits, listen, serve
from perdure_operator.serving.reports.endpoint import HEADER_BYTES, LIMITS, NAME, endpoint
from perdure_operator.serving.reports.heard import Received, ReportBoard
from perdure_operator.serving.reports.tokens import Tokens
from tests.support.raw import NOW
from tests.support.reporting import Reviews, report, sender, trains

FAR = 60.0
"""Seconds that no test should come near."""
PATIENT = replace(LIMITS, handshake=FAR, headers=FAR, body=FAR, answer=FAR)
SERVED = SelfMade(["localhost"])
BODY = write_report(report())


class Scene:
    """An operator that leads, unless a test says otherwise, and hears the members of one job."""

    def __init__(self) -> None:
        self.stage = trains()
        self.reviews = Reviews()
        self.heard = ReportBoard()
        self.leads = [True]
        """The answers to whether it leads; the last one stays."""
        self.token = self.reviews.issue(sender(self.stage))

    def _leads(self) -> bool:
        return self.leads.pop(0) if len(self.leads) > 1 else self.leads[0]

    @asynccontextmanager
    async def serving(self, limits: Limits) -> AsyncIterator[int]:
        listener = listen(0, name=NAME)
        port = listener.getsockname()[1]
        tokens = Tokens(self.reviews, self.stage.cache)
        served = endpoint(tokens, self.heard, self.stage.cache, leads=self._leads, now=lambda: NOW)
        task = asyncio.create_task(serve(listener, SERVED, served, limits=limits))
        try:
            yield port
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def posts(self, *requests: bytes, limits: Limits = PATIENT) -> list[bytes]:
        """The answers, one connection after the other."""

        async def ask() -> list[bytes]:
            async with asyncio.timeout(FAR), self.serving(limits) as port:
                return [await sent(port, one) for one in requests]

        return asyncio.run(ask())

    def request(
        self, body: str = BODY, *, token: str = "", path: str = REPORT_PATH, length: str | None = None
    ) -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token or self.token}"]
        lines.append(f"Content-Length: {len(body.encode()) if length is None else length}")
        return ("\r\n".join([*lines, "", ""]) + body).encode()


async def sent(port: int, request: bytes, *, address: str = "127.0.0.1") -> bytes:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, local_addr=(address, 0))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_members_report_is_kept_and_the_answer_says_when_the_next_one_should_come() -> None:
    scene = Scene()
    (answer,) = scene.posts(scene.request())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    assert read_answer(body.decode()) == ReportAnswer(5.0)
    assert scene.heard.of_jobs(NOW) == [Received(sender(scene.stage), report(), True, NOW, period=5.0)]


def test_the_next_report_of_the_same_pod_replaces_it_and_one_that_is_replayed_does_not() -> None:
    scene = Scene()
    bodies = [write_report(report(number, step=10 * number)) for number in (1, 2, 1, 2)]
    assert [status(one) for one in scene.posts(*map(scene.request, bodies))] == [200, 200, 403, 403]
    assert scene.heard.last(sender(scene.stage).uid) == report(2, step=20)
    assert scene.reviews.asked == 1


def test_a_member_that_does_not_speak_for_its_job_reports_less_often() -> None:
    scene = Scene()
    token = scene.reviews.issue(sender(scene.stage, rank=1))
    (answer,) = scene.posts(scene.request(token=token))
    assert read_answer(answer.partition(b"\r\n\r\n")[2].decode()) == ReportAnswer(30.0)
    assert scene.heard.of_jobs(NOW) == []


def test_a_follower_takes_no_report_and_asks_nobody() -> None:
    scene = Scene()
    scene.leads = [False]
    assert [status(one) for one in scene.posts(scene.request())] == [503]
    assert scene.reviews.asked == 0


def test_an_operator_that_lost_its_lease_meanwhile_takes_no_report() -> None:
    scene = Scene()
    scene.leads = [True, False]
    assert [status(one) for one in scene.posts(scene.request())] == [503]
    assert scene.heard.of_jobs(NOW) == []


def test_everything_else_is_refused_and_heard_by_nobody() -> None:
    scene = Scene()
    long = "x" * (REPORT_BYTES + 1)
    refused = {
        scene.request(token="wrong"): 401,
        scene.request(path="/v1/other"): 404,
        scene.request().replace(b"POST", b"GET"): 405,
        scene.request("{}"): 400,
        scene.request("[" * 2000): 400,
        scene.request("\udcff".encode("utf-8", "surrogateescape").decode("latin-1")): 400,
        scene.request(length=""): 411,
        scene.request(length="-1"): 411,
        scene.request(long): 413,
        scene.request(length="9" * 3000): 413,
        scene.request(write_report(report(run=9))): 403,
        scene.request(token="x" * HEADER_BYTES): 431,
    }
    assert [status(one) for one in scene.posts(*refused)] == list(refused.values())
    assert scene.heard.last(sender(scene.stage).uid) is None


def test_a_body_that_never_comes_is_not_waited_for_and_the_next_report_is_taken() -> None:
    scene = Scene()
    limits = replace(PATIENT, connections=1, body=0.2)
    answers = scene.posts(scene.request(length="2000"), scene.request(), limits=limits)
    assert [status(one) for one in answers] == [408, 200]


def test_one_peer_cannot_keep_all_others_out() -> None:
    scene = Scene()

    async def ask() -> bytes:
        limits = replace(PATIENT, connections=2, of_one_address=1)
        async with asyncio.timeout(FAR / 2), scene.serving(limits) as port:
            _, silent = await asyncio.open_connection("127.0.0.1", port)
            reader, second = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b"", "closed at once"
            answer = await sent(port, scene.request(), address="127.0.0.2")
            for writer in (silent, second):
                writer.close()
            return answer

    assert status(asyncio.run(ask())) == 200


def test_faults_of_ours_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.reviews.error = ZeroDivisionError("a fault")
    tokens = [scene.reviews.issue(sender(scene.stage, rank)) for rank in (0, 1)]
    assert [status(one) for one in scene.posts(*(scene.request(token=one) for one in tokens))] == [500, 500]
    assert [line for line in caplog.messages if "unexpected" in line] == [
        "reports: an unexpected error came as a request was answered; others of this minute are not logged"
    ]


@pytest.mark.parametrize("given", [BODY[:40], ""], ids=["half a body", "no body"])
def test_a_member_that_goes_away_is_no_line_in_the_log(given: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()

    async def ask() -> bytes:
        async with asyncio.timeout(FAR), scene.serving(PATIENT) as port:
            trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.write(scene.request(given, length="100"))
            await writer.drain()
            writer.transport.abort()
            return await sent(port, scene.request())

    assert status(asyncio.run(ask())) == 200
    assert "unexpected" not in caplog.text
