"""What is wrong with an installation is found by what the API server serves and by how the Lease changes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from perdure_operator.cluster.election import LeaseSettings
from perdure_operator.cluster.protocol import CRDS, JOBS, LEASES, ApiError, Json, NotFound, Resource, Unavailable
from perdure_operator.loop.verify import problems
from perdure_operator.schema import crd
from tests.support.memory_cluster import MemoryCluster

LEASE = LeaseSettings("system", "operator", 15)


def held(renewed: int, holder: str = "operator-a_1") -> Json:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed}}


class Installation(MemoryCluster):
    """A cluster with this CRD, whose Lease is what `lease` says of the test's clock."""

    def __init__(self, lease: Callable[[float], Json | None], *, serves: bool = True, crd_: Json | None = None) -> None:
        super().__init__()
        self.served = {JOBS} if serves else set()
        self._lease, self._crd, self.now = lease, crd_ or crd.crd(), 0.0

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        if resource == CRDS:
            return self._crd
        assert (resource, namespace, name) == (LEASES, "system", "operator")
        found = self._lease(self.now)
        if found is None:
            raise NotFound("no such lease")
        return found

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def problems(self) -> list[str]:
        return asyncio.run(problems(self, LEASE, monotonic=lambda: self.now, sleep=self.sleep))


def renewing(now: float) -> Json:
    return held(round(now))


def test_a_leader_that_renews_its_lease_and_a_whole_crd_are_no_problem() -> None:
    found = Installation(renewing)
    assert found.problems() == []
    assert found.now < LEASE.seconds, "it looks no longer than it has to"


@pytest.mark.parametrize(
    "lease",
    [
        lambda now: renewing(now) if now > 20 else held(-1),  # the leader had died, and another one takes over
        lambda now: renewing(now) if now > 20 else None,
        lambda now: renewing(now) if now > 20 else held(-1, holder=""),
    ],
    ids=["held by a dead one", "none yet", "released"],
)
def test_a_leader_is_waited_for(lease: Callable[[float], Json | None]) -> None:
    assert Installation(lease).problems() == []


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        (lambda _: held(1), "is held by operator-a_1 and was not renewed for 45 s"),
        (lambda _: None, "did not exist for 45 s"),
        (lambda _: {}, "did not exist for 45 s"),
        (lambda now: held(round(now), holder=""), "had no holder for 45 s"),
    ],
    ids=["not renewed", "no Lease", "empty", "released"],
)
def test_no_leader_is_a_problem_that_names_the_lease(lease: Callable[[float], Any], words: str) -> None:
    (problem,) = Installation(lease).problems()
    assert problem == f"no operator leads: the Lease system/operator {words}: look at the operator's log"


def test_a_crd_that_is_not_served_is_a_problem_even_with_a_leader() -> None:
    (problem,) = Installation(renewing, serves=False).problems()
    assert "is not installed: kubectl apply -f crds/" in problem


def test_an_older_crd_is_a_problem_with_the_command_that_ends_it() -> None:
    older = copy.deepcopy(crd.crd())
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["completion"]
    (problem,) = Installation(renewing, crd_=older).problems()
    assert "drops spec.completion: Helm does not upgrade it: perdure-operator crd | kubectl apply" in problem


def test_all_problems_are_told_at_once() -> None:
    assert len(Installation(lambda _: None, serves=False).problems()) == 2


def test_an_api_server_that_does_not_answer_is_an_error_of_its_own() -> None:
    def away(_: float) -> Json:
        raise Unavailable("no answer")

    with pytest.raises(ApiError, match="no answer"):
        Installation(away).problems()
