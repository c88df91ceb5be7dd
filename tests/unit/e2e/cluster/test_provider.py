"""A Node's machine, and its promises."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.node import Promise
from e2e.cluster.processes import ClusterError
from e2e.cluster.provider import Machines, promised


def node(name: str, provider: str = "kwok", **allocatable: str) -> dict[str, Any]:
    told = {"cpu": "900m", "memory": "2038Mi", "pods": "1", **allocatable}
    spec = {"providerID": f"{provider}://{name}"} if provider else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": told}}


@pytest.mark.parametrize(
    ("cpu", "memory", "expected"),
    [
        ("900m", "2038Mi", Promise(900, 2038 << 20, 1)),
        ("2", "4Gi", Promise(2000, 4 << 30, 1)),
        ("2", "1024", Promise(2000, 1024, 1)),
    ],
)
def test_the_promise_is_what_the_node_says_that_pods_may_have(cpu: str, memory: str, expected: Promise) -> None:
    assert promised(node("a", cpu=cpu, memory=memory)) == expected


@pytest.mark.parametrize("provider", ["", "aws"])
def test_a_node_without_a_provider_or_of_another_cloud_gets_no_machine(provider: str) -> None:
    assert Machines(2, 3).wants(node("a", provider)) is None


def test_a_quantity_that_is_not_understood_is_named() -> None:
    with pytest.raises(ClusterError, match="'1e3'"):
        promised(node("a", memory="1e3"))


def test_a_node_is_given_one_machine_however_often_it_is_seen() -> None:
    machines = Machines(4, 6)
    wanted = [machines.wants(node(name)) for name in ("a", "b", "a")]
    assert [found and found[:2] for found in wanted] == [(4, "a"), (5, "b"), None]


def test_a_number_is_used_again_as_late_as_possible() -> None:
    machines = Machines(4, 6)
    machines.wants(node("a"))
    machines.free("a")
    numbers = [(machines.wants(node(name)) or (0,))[0] for name in ("b", "c", "d")]
    assert numbers == [5, 6, 4]


def test_without_a_free_number_it_says_so() -> None:
    machines = Machines(4, 4)
    machines.wants(node("a"))
    with pytest.raises(ClusterError, match="no place for another node"):
        machines.wants(node("b"))


def test_nodes_that_are_no_longer_listed_are_gone() -> None:
    machines = Machines(4, 6)
    for name in ("a", "b"):
        machines.wants(node(name))
    assert machines.gone({"b", "c"}) == ["a"]
