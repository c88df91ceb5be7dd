"""Whose token it is: what the API server confirms, and no more questions than that takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from perdure_operator.cluster.protocol import PODS, Forbidden, Json, Resource, Unavailable
from perdure_operator.serving.connections import RequestRefused
from perdure_operator.serving.reports.tokens import (
    CLOCK_SECONDS,
    DOUBTFUL_SECONDS,
    ONE_POD_SECONDS,
    REFUSED_SECONDS,
    Claim,
    Tokens,
    claim,
)
from tests.support.reporting import FAR, Reviews, SigningKey, claims_of, published, sender, token, trains, trains_as
from tests.support.stage import Stage

KEY = SigningKey("of the API server", generate_private_key(65537, 2048))


def refused(tokens: Tokens, given: str) -> int:
    with pytest.raises(RequestRefused) as error:
        asyncio.run(tokens.sender(given))
    return error.value.status.value


def desk(stage: Stage | None = None) -> tuple[Stage, Reviews, Tokens]:
    scene, reviews = stage or trains(), Reviews(clock=lambda: 0.0)
    return scene, reviews, Tokens(reviews, scene.cache, monotonic=lambda: 0.0)


def test_a_members_token_is_asked_about_once() -> None:
    stage, reviews, tokens = desk()
    given = reviews.issue(sender(stage))
    assert [asyncio.run(tokens.sender(given)) for _ in range(3)] == [sender(stage)] * 3
    assert reviews.asked == 1


def test_a_renewed_token_is_asked_about_again_and_so_is_one_that_has_ended() -> None:
    now = 0.0
    stage, reviews = trains(), Reviews(clock=lambda: now)
    tokens = Tokens(reviews, stage.cache, monotonic=lambda: now)
    first = reviews.issue(sender(stage))
    asyncio.run(tokens.sender(first))
    now = 3000.0
    second = token(sender(stage), exp=FAR + 1)
    reviews.senders[second] = sender(stage)
    asyncio.run(tokens.sender(second))
    assert reviews.asked == 2
    now = FAR + 2.0
    del reviews.senders[second]
    assert refused(tokens, second) == 401


@pytest.mark.parametrize(
    ("claims", "status", "asked"),
    [
        pytest.param({}, 401, 1, id="a token that nobody signed"),
        pytest.param({"aud": ["perdure.dev/reports/ns/another"]}, 401, 0, id="another job's audience"),
        pytest.param({"aud": ["https://kubernetes.default.svc"]}, 401, 0, id="the API server's audience"),
        pytest.param({"aud": ["a", "b"]}, 401, 0, id="two audiences"),
        pytest.param({"kubernetes.io": {"pod": {"uid": "gone"}}}, 403, 0, id="a pod that the job has not"),
        pytest.param({"kubernetes.io": {}}, 401, 0, id="no pod"),
        pytest.param({"exp": "soon"}, 401, 0, id="no end"),
        pytest.param({"exp": 10**400}, 401, 0, id="an end that no float holds"),
    ],
)
def test_other_tokens_are_refused_and_most_without_a_question(claims: dict[str, Any], status: int, asked: int) -> None:
    stage, reviews, tokens = desk()
    assert refused(tokens, token(sender(stage), **claims)) == status
    assert reviews.asked == asked


@pytest.mark.parametrize("given", ["", "a.b", "a.b.c", "a.e30.c", "a.bnVsbA.c", "a.W10.c", "a." + "W1tb" * 900 + ".c"])
def test_what_is_no_token_claims_nothing(given: str) -> None:
    assert claim(given) is None


def test_what_a_token_says_about_itself_is_read() -> None:
    stage = trains()
    found = claim(token(sender(stage)))
    assert found == Claim(f"perdure.dev/reports/ns/{sender(stage).job_uid}", sender(stage).uid, FAR)


def test_a_token_that_the_api_server_knows_as_another_pods_is_refused() -> None:
    stage, reviews, tokens = desk()
    given = reviews.issue(sender(stage))
    reviews.senders[given] = sender(stage, rank=1)
    assert refused(tokens, given) == 401


def test_a_token_of_another_namespaces_account_is_refused() -> None:
    stage, reviews, tokens = desk()
    given = reviews.issue(sender(stage))
    reviews.senders[given] = replace(sender(stage), job=("elsewhere", "digits"))
    assert refused(tokens, given) == 401


def test_an_api_server_that_names_no_audience_has_confirmed_none() -> None:
    class KnowsNoAudiences(Reviews):
        async def review(self, resource: Resource, body: Json) -> Json:
            review = await super().review(resource, body)
            del review["status"]["audiences"]
            return review

    stage, reviews = trains(), KnowsNoAudiences()
    assert refused(Tokens(reviews, stage.cache), reviews.issue(sender(stage))) == 401


def test_without_an_answer_nobody_is_known_and_the_next_question_is_asked() -> None:
    stage, reviews, tokens = desk()
    given = reviews.issue(sender(stage))
    reviews.error = Unavailable("no answer")
    assert refused(tokens, given) == 503
    reviews.error = None
    assert asyncio.run(tokens.sender(given)) == sender(stage)


def test_no_more_questions_a_second_are_asked_than_the_rate() -> None:
    stage, reviews = trains(), Reviews()
    now = 0.0
    tokens = Tokens(reviews, stage.cache, monotonic=lambda: now, reviews_per_second=1.0)
    first, second = (reviews.issue(sender(stage, rank)) for rank in (0, 1))
    assert asyncio.run(tokens.sender(first)) == sender(stage)
    assert refused(tokens, second) == 503
    now = 1.0
    assert asyncio.run(tokens.sender(second)) == sender(stage, rank=1)


def test_forged_tokens_of_one_pod_are_asked_about_every_ten_seconds_and_leave_the_rest_to_others() -> None:
    stage, reviews = trains(), Reviews()
    now = 0.0
    tokens = Tokens(reviews, stage.cache, monotonic=lambda: now)
    forged = [token(sender(stage), exp=FAR + number) for number in range(1, 101)]
    assert [refused(tokens, one) for one in forged] == [401] + [503] * 99
    assert reviews.asked == 1
    assert asyncio.run(tokens.sender(reviews.issue(sender(stage, rank=1)))) == sender(stage, rank=1)
    now = ONE_POD_SECONDS
    assert asyncio.run(tokens.sender(reviews.issue(sender(stage)))) == sender(stage)


def test_a_token_that_was_refused_is_not_asked_about_again_for_a_minute() -> None:
    stage, reviews = trains(), Reviews()
    now = 0.0
    tokens = Tokens(reviews, stage.cache, monotonic=lambda: now)
    forged = token(sender(stage))
    assert refused(tokens, forged) == 401
    now = ONE_POD_SECONDS
    assert refused(tokens, forged) == 401
    assert reviews.asked == 1
    now = REFUSED_SECONDS
    reviews.senders[forged] = sender(stage)
    assert asyncio.run(tokens.sender(forged)) == sender(stage), "the API server may have lagged"


def test_an_api_server_that_is_not_allowed_to_answer_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    stage, reviews, tokens = desk()
    reviews.error = Forbidden("tokenreviews is forbidden")
    for _ in range(3):
        assert refused(tokens, reviews.issue(sender(stage))) == 503
    assert caplog.messages[1:] == [  # the first one is about its keys
        "the API server does not say whose tokens members report with, so reports are ignored: "
        "tokenreviews is forbidden"
    ]


def test_tokens_of_pods_that_are_gone_are_forgotten() -> None:
    stage, reviews, tokens = desk()
    kept, gone = reviews.issue(sender(stage)), reviews.issue(sender(stage, rank=1))
    for given in (kept, gone):
        asyncio.run(tokens.sender(given))
    lost = sender(stage, rank=1)
    stage.cache.forget(PODS, ("ns", lost.name), lost.uid)
    tokens.forget_ended()
    assert [one.sender.uid for one in tokens._known.values()] == [sender(stage).uid]
    assert list(tokens._asked) == [sender(stage).uid]


def test_a_token_that_the_api_server_has_signed_is_no_question_however_many_come_at_once() -> None:
    stage, reviews = trains_as(8), Reviews(published=published(KEY))
    tokens = Tokens(reviews, stage.cache, monotonic=lambda: 0.0, reviews_per_second=1.0)
    for rank in range(8):
        assert asyncio.run(tokens.sender(KEY.sign(claims_of(sender(stage, rank))))) == sender(stage, rank)
    assert reviews.asked == 0


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        pytest.param({"sub": "system:serviceaccount:elsewhere:default"}, 401, id="another namespace's account"),
        pytest.param({"sub": "admin"}, 401, id="no account"),
        pytest.param({"nbf": CLOCK_SECONDS + DOUBTFUL_SECONDS + 1}, 401, id="not yet"),
        pytest.param({"nbf": "soon"}, 401, id="no beginning"),
        pytest.param({"exp": -DOUBTFUL_SECONDS - 1}, 401, id="ended"),
        pytest.param({"kubernetes.io": {"pod": {"uid": "gone", "name": "gone"}}}, 403, id="a pod that is gone"),
        pytest.param({"aud": ["https://kubernetes.default.svc"]}, 401, id="the API server's audience"),
    ],
)
def test_a_signed_token_for_something_else_is_refused(claims: dict[str, Any], status: int) -> None:
    stage, reviews = trains(), Reviews(published=published(KEY), clock=lambda: 0.0)
    tokens = Tokens(reviews, stage.cache, monotonic=lambda: 0.0)
    assert refused(tokens, KEY.sign(claims_of(sender(stage), **claims))) == status
    assert reviews.asked == 0


@pytest.mark.parametrize("claims", [{"nbf": 300.0}, {"exp": -300}], ids=["not yet", "ended"])
def test_a_signed_token_that_is_minutes_early_or_late_is_asked_about(claims: dict[str, Any]) -> None:
    stage, reviews = trains(), Reviews(published=published(KEY), clock=lambda: 0.0)
    tokens, given = Tokens(reviews, stage.cache), KEY.sign(claims_of(sender(stage), **claims))
    assert refused(tokens, given) == 401
    tokens, reviews.senders[given] = Tokens(reviews, stage.cache), sender(stage)
    assert asyncio.run(tokens.sender(given)) == sender(stage)
    assert reviews.asked == 2


def test_a_signed_token_is_judged_by_the_api_servers_time_and_by_none_while_that_is_not_known() -> None:
    def unknown() -> float:
        raise Unavailable("the API server's time and this machine's are more than an hour apart")

    begins = FAR - 7200.0  # this machine's clock says that it is decades away
    stage, reviews = trains(), Reviews(published=published(KEY), clock=unknown)
    tokens, given = Tokens(reviews, stage.cache), KEY.sign(claims_of(sender(stage), nbf=begins))
    assert refused(tokens, given) == 503
    reviews.clock = lambda: begins
    assert asyncio.run(tokens.sender(given)) == sender(stage)
    assert reviews.asked == 0


def test_a_signed_token_of_another_namespaces_pod_is_refused() -> None:
    stage, reviews = trains(), Reviews(published=published(KEY))
    pod = {"name": sender(stage).name, "uid": sender(stage).uid}
    given = KEY.sign(claims_of(sender(stage), **{"kubernetes.io": {"namespace": "elsewhere", "pod": pod}}))
    assert refused(Tokens(reviews, stage.cache), given) == 401


def test_a_token_with_a_wrong_signature_of_a_known_key_is_refused_without_a_question() -> None:
    stage, reviews = trains(), Reviews(published=published(KEY))
    head, _, signature = KEY.sign(claims_of(sender(stage))).split(".")
    body = KEY.sign(claims_of(sender(stage, rank=1))).split(".")[1]
    assert refused(Tokens(reviews, stage.cache), f"{head}.{body}.{signature}") == 401
    assert reviews.asked == 0


def test_a_token_of_a_key_that_is_not_published_is_asked_about() -> None:
    stage, reviews = trains(), Reviews(published=published(KEY))
    given = SigningKey("another", KEY.private).sign(claims_of(sender(stage)))
    reviews.senders[given] = sender(stage)
    assert asyncio.run(Tokens(reviews, stage.cache).sender(given)) == sender(stage)
    assert reviews.asked == 1
