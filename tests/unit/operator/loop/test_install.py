"""At its start the operator says what an older CRD drops, and goes on."""

from __future__ import annotations

import asyncio
import copy
import logging

import pytest

from perdure.errors import UserError
from perdure_operator.cluster.protocol import CRDS, ApiError, Forbidden, Json, NotFound, Resource, Unavailable
from perdure_operator.loop import install
from perdure_operator.schema import crd
from tests.support.memory_cluster import MemoryCluster


class Api(MemoryCluster):
    """A cluster with this CRD, or with this error instead of it."""

    def __init__(self, answer: Json | Exception, *, jobs: Exception | None = None) -> None:
        super().__init__()
        self._answer, self._jobs = answer, jobs

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        assert (resource, namespace, name) == (CRDS, None, "trainingjobs.perdure.dev")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        if self._jobs:
            raise self._jobs
        return await super().list(resource, namespace, selector=selector)


def installed(*, drop: str = "", add: str = "") -> Json:
    """This operator's CRD without or with a field of spec."""
    made = copy.deepcopy(crd.crd())
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if drop:
        *path, last = drop.split(".")
        for name in path:
            spec = spec["properties"][name]
        del spec["properties"][last]
    if add:
        spec["properties"][add] = {"type": "string"}
    return made


def told(answer: Json | Exception, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING):
        asyncio.run(install.check(Api(answer), None))
    return caplog.messages


@pytest.mark.parametrize("add", ["", "later"])
def test_the_same_crd_or_a_newer_one_is_no_news(add: str, caplog: pytest.LogCaptureFixture) -> None:
    assert told(installed(add=add), caplog) == []


@pytest.mark.parametrize("drop", ["completion", "failure.massOutageSeconds", "template.spec.hostnameOverride"])
def test_an_older_crd_is_reported_with_what_it_drops_and_with_the_command(
    drop: str, caplog: pytest.LogCaptureFixture
) -> None:
    (message,) = told(installed(drop=drop), caplog)
    assert f"drops spec.{drop}:" in message
    assert "perdure-operator crd | kubectl apply --server-side --force-conflicts -f -" in message


def test_of_many_lacking_fields_some_are_named(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = told(installed(drop="template.spec.affinity"), caplog)
    assert "drops spec.template.spec.affinity, " in message
    assert " more: " in message


@pytest.mark.parametrize("answer", [{}, {"spec": None}, {"spec": {"versions": [None, {"name": "v1alpha1"}]}}], ids=str)
def test_a_crd_that_says_nothing_is_older(answer: Json, caplog: pytest.LogCaptureFixture) -> None:
    (message,) = told(answer, caplog)
    assert "is older than this operator" in message


def test_without_the_right_to_read_it_the_operator_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = told(Forbidden("customresourcedefinitions is forbidden"), caplog)
    assert "cannot tell whether" in message


class Away(Api):
    """A cluster whose API server refuses until `back` seconds of the test's clock have passed."""

    def __init__(self, back: float, refusal: ApiError | None = None) -> None:
        super().__init__(crd.crd())
        self.back, self.now = back, 0.0
        self.refusal = refusal or Unavailable("connection refused")
        self.waits: list[float] = []

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        if self.now < self.back:
            raise self.refusal
        return await super().list(resource, namespace, selector=selector)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def start(self) -> None:
        asyncio.run(install.check(self, None, monotonic=lambda: self.now, sleep=self.sleep))


def test_the_start_waits_for_an_api_server_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    away = Away(back=6)
    with caplog.at_level(logging.WARNING):
        away.start()
    assert away.waits == [1, 2, 4]
    assert caplog.messages == ["the API server is not there yet, so the start waits for it: connection refused"] * 3


def test_the_start_ends_if_the_api_server_stays_away() -> None:
    away = Away(back=3600)
    with pytest.raises(UserError, match=r"cannot list trainingjobs: connection refused"):
        away.start()
    assert away.waits == [1, 2, 4, 8, 10, 10]


def test_the_start_waits_for_an_api_server_that_knows_no_token_yet() -> None:
    away = Away(back=6, refusal=ApiError("Unauthorized", status=401))
    away.start()
    assert away.waits == [1, 2, 4]


def test_the_start_ends_with_a_token_that_is_not_accepted() -> None:
    with pytest.raises(UserError, match=r"cannot list trainingjobs: Unauthorized"):
        Away(back=3600, refusal=ApiError("Unauthorized", status=401)).start()


def test_the_start_waits_for_as_long_as_the_api_server_asks_within_reason() -> None:
    away = Away(back=6, refusal=Unavailable("too many requests", status=429, retry_after=7))
    away.start()
    assert away.waits == [7]
    away = Away(back=6, refusal=Unavailable("too many requests", status=429, retry_after=300))
    away.start()
    assert away.waits == [10]


def test_without_the_crd_the_operator_ends_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"not installed: kubectl apply -f crds/"):
        asyncio.run(install.check(Api({}, jobs=NotFound("no such resource")), None))
