"""A program's requests in the API server's audit log: how many, which, and how soon. Pure.

The log is the scale bench's only witness that is neither the operator nor our own code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WATCHES = "watch"
LEASES = "leases"


@dataclass(frozen=True)
class Request:
    """One request that has been answered."""

    user: str
    verb: str
    resource: str
    """With its subresource: trainingjobs/status."""
    namespace: str
    name: str
    received: float
    answered: float
    code: int


def requests(log: Path, since: float = 0.0) -> Iterator[Request]:
    """Those received since then, in the order of their answers."""
    with log.open() as lines:
        for line in lines:
            if line.endswith("\n") and (found := _request(json.loads(line))) and found.received >= since:
                yield found


def _request(entry: dict[str, Any]) -> Request | None:
    target = entry.get("objectRef")
    if not target or entry["stage"] != "ResponseComplete":
        return None
    return Request(
        user=entry.get("user", {}).get("username", ""),
        verb=entry["verb"],
        resource="/".join(filter(None, [target.get("resource"), target.get("subresource")])),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        received=_time(entry["requestReceivedTimestamp"]),
        answered=_time(entry["stageTimestamp"]),
        code=int(entry.get("responseStatus", {}).get("code", 0)),
    )


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def calls(seen: Iterable[Request], user: str) -> Counter[str]:
    """How often the user made each request, watches and Leases left out."""
    return Counter(
        f"{request.verb} {request.resource}"
        for request in seen
        if request.user == user and request.verb != WATCHES and request.resource != LEASES
    )


def cordons(seen: Iterable[Request]) -> dict[str, float]:
    """When the API server had answered the first cordon of each node."""
    found: dict[str, float] = {}
    for request in seen:
        if (request.verb, request.resource) == ("patch", "nodes") and request.code < 400:
            found.setdefault(request.name, request.answered)
    return found


def reactions(seen: Sequence[Request], user: str, cordoned: float, jobs: Iterable[tuple[str, str]]) -> list[float]:
    """Seconds from a cordon to the first status that the user wrote of each of these jobs: the request's arrival."""
    waiting = set(jobs)
    found = []
    for request in sorted(seen, key=lambda request: request.received):
        job = (request.namespace, request.name)
        ours = request.user == user and (request.verb, request.resource) == ("update", "trainingjobs/status")
        if ours and job in waiting and request.received >= cordoned:
            waiting.remove(job)
            found.append(request.received - cordoned)
    return found
