"""Who may read the metrics. The function `answer` stands for the API server; tests/api asks a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure_operator.cluster.protocol import Forbidden, Resource, Unavailable
from perdure_operator.serving.metrics.access import (
    ACCESS_REVIEWS,
    ALLOWED_SECONDS,
    KEPT,
    REFUSED_SECONDS,
    Access,
    Gate,
)
from perdure_operator.serving.reviews import TOKEN_REVIEWS

Status = dict[str, Any]
USER = {"username": "system:serviceaccount:monitoring:prometheus", "uid": "u1", "groups": ["system:serviceaccounts"]}
KNOWN: Status = {"authenticated": True, "user": USER}


@dataclass
class Answers:
    """Reviews with these statuses, and what was asked."""

    token: Callable[[str], Status]
    access: Status
    asked: list[tuple[Resource, Any]] = field(default_factory=list)

    async def review(self, resource: Resource, body: Any) -> Any:
        self.asked.append((resource, body["spec"]))
        return body | {"status": self.token(body["spec"]["token"]) if resource == TOKEN_REVIEWS else self.access}


def answers(token: Status | None = None, access: Status | None = None) -> Answers:
    return Answers(lambda _: KNOWN if token is None else token, {"allowed": True} if access is None else access)


class Fails:
    def __init__(self, error: Exception) -> None:
        self.error, self.asked = error, 0

    async def review(self, *_: Any) -> Any:
        self.asked += 1
        raise self.error


class NeverAnswers:
    async def review(self, *_: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("token", "access", "expected"),
    [
        (KNOWN, {"allowed": True}, Access.ALLOWED),
        (KNOWN, {"allowed": False}, Access.FORBIDDEN),
        (KNOWN, {"allowed": True, "denied": True}, Access.FORBIDDEN),
        (KNOWN, {"allowed": "true"}, Access.FORBIDDEN),
        (KNOWN, {}, Access.FORBIDDEN),
        ({"authenticated": False}, {"allowed": True}, Access.UNKNOWN),
        ({"authenticated": "yes", "user": USER}, {"allowed": True}, Access.UNKNOWN),
        ({"authenticated": True}, {"allowed": True}, Access.UNKNOWN),
        ({"authenticated": True, "user": {"username": ""}}, {"allowed": True}, Access.UNKNOWN),
        ({}, {"allowed": True}, Access.UNKNOWN),
    ],
)
def test_only_a_known_user_that_is_allowed_reads(token: Status, access: Status, expected: Access) -> None:
    assert asyncio.run(Gate(answers(token, access)).access("t")) is expected


def test_the_api_server_is_asked_about_exactly_this_token_this_user_and_this_path() -> None:
    api = answers()
    asyncio.run(Gate(api).access("the token"))
    (tokens, asked), (accesses, spec) = api.asked
    assert (tokens, asked) == (TOKEN_REVIEWS, {"token": "the token"})
    assert accesses == ACCESS_REVIEWS
    assert (spec["user"], spec["uid"], spec["groups"]) == (USER["username"], "u1", ["system:serviceaccounts"])
    assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}


@pytest.mark.parametrize("error", [Unavailable("no answer"), Forbidden("the operator lacks a right", status=403)])
def test_without_an_answer_nobody_reads_and_nothing_is_remembered(error: Exception) -> None:
    async def twice() -> list[Access]:
        gate = Gate(api)
        return [await gate.access("t"), await gate.access("t")]

    api = Fails(error)
    assert asyncio.run(twice()) == [Access.NO_ANSWER, Access.NO_ANSWER]
    assert api.asked == 2


def test_a_silent_api_server_is_not_waited_for() -> None:
    assert asyncio.run(Gate(NeverAnswers()).access("t", seconds=0.01)) is Access.NO_ANSWER


@pytest.mark.parametrize(
    ("access", "seconds"), [({"allowed": True}, ALLOWED_SECONDS), ({"allowed": False}, REFUSED_SECONDS)]
)
def test_an_answer_is_kept_for_its_time_and_no_longer(access: Status, seconds: float) -> None:
    now = 0.0
    api = answers(access=access)

    async def run() -> list[int]:
        nonlocal now
        gate, asked = Gate(api, monotonic=lambda: now), []
        for passed in (0.0, seconds - 0.1, seconds):
            now = 100.0 + passed
            await gate.access("t")
            asked.append(len(api.asked) // 2)
        return asked

    assert asyncio.run(run()) == [1, 1, 2]


def test_requests_at_once_with_one_token_cost_one_review() -> None:
    async def at_once() -> list[Access]:
        gate = Gate(api)
        return await asyncio.gather(*(gate.access("t") for _ in range(8)))

    api = answers()
    assert asyncio.run(at_once()) == [Access.ALLOWED] * 8
    assert len(api.asked) == 2


def test_wrong_tokens_fill_no_memory_and_another_tokens_answer_is_never_used() -> None:
    async def flood() -> tuple[Access, int, Access]:
        gate = Gate(api)
        first = await gate.access("right")
        for number in range(3 * KEPT):
            assert await gate.access(f"wrong {number}") is Access.UNKNOWN
        return first, len(gate._known), await gate.access("right")

    api = Answers(lambda token: KNOWN if token == "right" else {"authenticated": False}, {"allowed": True})
    assert asyncio.run(flood()) == (Access.ALLOWED, KEPT, Access.ALLOWED)
