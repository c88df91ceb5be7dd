"""Real processes change the ranks of a model that FSDP2 shards while it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.runtime.live.jobs import Job
from tests.unit.runtime.live.nursery import FOLDER, MODULES, Nursery

SCRIPT = "sharding.train"
EQUAL: Mapping[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "rank-1-of-2": (2, (1,), {"optimizer": "loop"}),
    "rank-0-of-2": (2, (0,), {"optimizer": "fused"}),
    "two-of-4": (4, (1, 3), {"optimizer": "foreach"}),
}
"""How many ranks, and which of them are replaced."""
SAME = ("steps", "own", "rate")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"), modules=(*MODULES, f"{FOLDER}.sharding"))
    yield nursery
    nursery.close()


def by_rank(results: Mapping[str, Any]) -> dict[int, Any]:
    return {found["rank"]: {key: found[key] for key in SAME} for found in results.values() if "rank" in found}


def losses(results: Mapping[str, Any]) -> set[tuple[str, float]]:
    """Each step's gradient norm, over all ranks."""
    return {(step, norm) for found in results.values() for step, (_, norm) in found["losses"].items()}


def opened(job: Job) -> list[tuple[int, int | None]]:
    return [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]


@pytest.mark.parametrize("name", EQUAL)
def test_replaced_ranks_change_nothing(nursery: Nursery, name: str) -> None:
    world, leavers, arguments = EQUAL[name]
    job = Job(nursery, name, world, script=SCRIPT, **arguments).offered(world, leavers, leavers).begin()
    results = job.end()
    assert opened(job) == [(1, None), (2, 1)], job.output("old0")
    undisturbed = Job(nursery, f"{name}-undisturbed", world, script=SCRIPT, **arguments).begin().end()
    assert by_rank(results) == by_rank(undisturbed)
    assert losses(results) == losses(undisturbed)
    assert all(found["same objects"] for found in results.values() if "rank" in found)
