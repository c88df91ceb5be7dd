"""GET /metrics, for those whom the API server allows. One scrape at a time is collected, in a thread.

Called by `loop.operator`, which serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from perdure_operator.serving.connections import Endpoint, HttpRequest, HttpResponse, RequestRefused
from perdure_operator.serving.metrics.access import PATH, Access, Gate

NAME: Final = "metrics"
HEADER_BYTES: Final = 8192


@dataclass(frozen=True)
class Body:
    """One scrape's text."""

    text: bytes
    content_type: str
    gzipped: bool = False


Collect = Callable[[bool], Coroutine[Any, Any, Body]]
"""Collects one scrape, gzipped if True."""


def endpoint(gate: Gate, collect: Collect) -> Endpoint:
    """What is served: the scrapes that `collect` makes, to those whom `gate` lets in."""
    one_scrape = asyncio.Lock()

    async def respond(request: HttpRequest) -> HttpResponse:
        _require(await gate.access(request.token))
        async with one_scrape:
            body = await collect(takes_gzip(request.headers.get("accept-encoding", "")))
        encoding = ("Content-Encoding: gzip",) if body.gzipped else ()
        return HttpResponse(body.text, body.content_type, ("Vary: Accept-Encoding", *encoding))

    return Endpoint(NAME, "GET", PATH, respond, HEADER_BYTES)


def takes_gzip(accepted: str) -> bool:
    """Whether a client with this Accept-Encoding takes a packed answer."""
    for one in accepted.lower().split(","):
        coding, _, weight = one.replace(" ", "").partition(";")
        if coding == "gzip":
            return weight not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _require(access: Access) -> None:
    match access:
        case Access.ALLOWED:
            return
        case Access.UNKNOWN:
            words = "the API server does not know this token"
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, words, "WWW-Authenticate: Bearer")
        case Access.FORBIDDEN:
            words = f"this user may not get {PATH}: bind the chart's ClusterRole metrics-reader"
            raise RequestRefused(HTTPStatus.FORBIDDEN, words)
        case Access.NO_ANSWER:
            words = "the API server did not say whether this token may read the metrics"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, words, "Retry-After: 5")
