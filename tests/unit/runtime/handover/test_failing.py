"""An attempt that comes to nothing leaves the living run as if nobody had tried."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.unit.runtime.handover.jobs import Job, by_rank
from tests.unit.runtime.handover.nursery import Nursery

REPLACED = (2, (1,), (1,))


class Fault(NamedTuple):
    """What a newcomer does instead of joining, how its process ends, and what it says."""

    newcomer: dict[str, Any]
    status: int
    says: str
    wait: bool = True


FAULTS = {
    "killed-before-it-is-warm": Fault({"die": "cold"}, -signal.SIGKILL, "", wait=False),
    "killed-with-the-state": Fault({"die": "restored"}, -signal.SIGKILL, ""),
    "error-before-its-first-batch": Fault({"die": "error"}, 1, "no data on this node"),
    "another-model": Fault({"model": "norm"}, 1, "has other models", wait=False),
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("failing"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery) -> dict[int, Any]:
    return by_rank(Job(nursery, "undisturbed", 2).begin().end())


@pytest.mark.parametrize("name", FAULTS)
def test_the_old_ranks_train_on_bit_for_bit(nursery: Nursery, undisturbed: dict[int, Any], name: str) -> None:
    fault = FAULTS[name]
    job = Job(nursery, name, 2).offered(*REPLACED, wait=fault.wait, **fault.newcomer).begin()
    assert job.ended() == {"new1": fault.status, "old0": 0, "old1": 0}, job.output("old0") + job.output("new1")
    assert by_rank({rank: nursery.result(f"{name}-{rank}") for rank in ("old0", "old1")}) == undisturbed
    assert [entry["run"] for entry in job.log if entry["kind"] == "Opened"] == [1]
    assert fault.says in job.output("new1")
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    assert {(line["rank"], line["next"], line["word"]) for line in ended} == {(0, 2, "abort"), (1, 2, "abort")}
