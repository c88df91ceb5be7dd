"""POST /v1/report: only the leader takes reports, because only the leader writes status. Served by `loop.operator`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from typing import Final

from perdure.wire.reading import ContractError
from perdure.wire.report import REPORT_BYTES, REPORT_PATH, Report, ReportAnswer, read_report, write_answer
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.serving.connections import Endpoint, HttpRequest, HttpResponse, Limits, RequestRefused
from perdure_operator.serving.reports.heard import Received, ReportBoard
from perdure_operator.serving.reports.tokens import Tokens
from perdure_operator.serving.reports.trust import refusal, speaks_for_job

NAME: Final = "reports"
HEADER_BYTES: Final = 4096
LIMITS: Final = Limits(connections=64, of_one_address=16, pause=0.005)
"""200 new connections a second, a quarter of a core: after a change of leader thousands of agents come in ten seconds,
and once more a minute later. So much with the operator's own certificates, whose keys are P-256."""
GIVEN_LIMITS: Final = replace(LIMITS, pause=0.02)
"""With a user's certificate, which may have an RSA key: a handshake then takes several times as long."""
WAITING: Final = 256
"""Connections that wait in the kernel: the last one is accepted before an agent gives up, which is after 3 s."""


def endpoint(
    tokens: Tokens, heard: ReportBoard, cache: Cache, *, leads: Callable[[], bool], now: Callable[[], datetime]
) -> Endpoint:
    """What is served. Reports that count go to `heard`, with the time that `now` says."""

    async def respond(request: HttpRequest) -> HttpResponse:
        _require(leads())
        sender = await tokens.sender(request.token)
        report = _read(request.body)
        _require(leads())  # the API server may have taken its time
        job, pod = cache.job(sender.job), cache.pod((sender.job[0], sender.name))
        words = refusal(sender, pod, job, report, heard.last(sender.uid))
        if words or job is None or job.status is None:
            raise RequestRefused(HTTPStatus.FORBIDDEN, words)
        speaks = speaks_for_job(sender, report, job.status)
        answer = write_answer(ReportAnswer(heard.take(Received(sender, report, speaks, now()))))
        return HttpResponse(answer.encode(), "application/json")

    return Endpoint(NAME, "POST", REPORT_PATH, respond, HEADER_BYTES, REPORT_BYTES)


def _require(leads: bool) -> None:
    if not leads:
        words = "this operator does not lead: another one takes reports"
        raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, words, "Retry-After: 1")


def _read(body: bytes) -> Report:
    try:
        return read_report(body.decode())
    except (ContractError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"this is no report: {error}") from None
