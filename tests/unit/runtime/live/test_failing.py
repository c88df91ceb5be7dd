"""A failed attempt leaves the living run as if it had never been tried."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from perdure.wire import AttemptRecord, HandoverWord
from tests.unit.runtime.live.jobs import WAIT, WAIT_AT, Job, by_rank
from tests.unit.runtime.live.nursery import Nursery

REPLACED = (2, (1,), (1,))


class Fault(NamedTuple):
    """What a newcomer does instead of joining, how its process ends, and what it says."""

    newcomer: dict[str, Any]
    status: int
    says: str
    old: Mapping[str, Any] = MappingProxyType({})
    wait: bool = True


FAULTS = {
    "killed-before-it-is-warm": Fault({"die": "cold"}, -signal.SIGKILL, "", wait=False),
    "killed-with-the-state": Fault({"die": "restored"}, -signal.SIGKILL, ""),
    "error-before-its-first-batch": Fault({"die": "error"}, 1, "no data on this node"),
    "another-model": Fault({"model": "norm"}, 1, "has other models", {"wait_for_end": True}),
    "another-memory-format": Fault(
        {"model": "columns"},
        1,
        "it has model.0.weight: float32 [16, 8], memory order [0, 1], and not model.0.weight: float32 [16, 8], memory "
        "order [1, 0]",
        {"wait_for_end": True},
    ),
}


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery) -> dict[int, Any]:
    return by_rank(Job(nursery, "undisturbed", 2).begin().end())


def test_what_cannot_change_its_ranks_saves_and_goes_on_in_new_processes(
    nursery: Nursery, undisturbed: dict[int, Any]
) -> None:
    job = Job(nursery, "own-group", 2, group=True, leaves_at=WAIT_AT).offered(2, (0, 1), (0, 1), wait=False).begin()
    results = job.end()
    assert by_rank(results) == undisturbed
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    assert {(line["rank"], line["next"], line["word"]) for line in ended} == {(0, 2, "restart"), (1, 2, "restart")}
    assert {name: set(found) for name, found in results.items() if name.startswith("old")} == {
        "old0": {"left", "began", "last"},
        "old1": {"left", "began", "last"},
    }
    opened = [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]
    assert opened == [(1, None), (2, None)]


def test_a_newcomer_begins_in_place_beside_a_rank_that_began_again_in_its_pod(
    nursery: Nursery, undisturbed: dict[int, Any]
) -> None:
    job = Job(nursery, "beside", 2, group=True, leaves_at=WAIT_AT)
    results = job.offered(2, (1,), (1,), wait=False, restarted=(0,), group=False).begin().end()
    assert by_rank(results) == undisturbed
    assert {name: results[name]["rank"] for name in ("again0", "new1")} == {"again0": 0, "new1": 1}
    opened = [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]
    assert opened == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("comes", "restarted"), [((1,), (0,)), ((0,), (1,)), ((0, 1), ())], ids=["rank-1", "rank-0", "both"]
)
def test_newcomers_that_are_connected_begin_in_place_if_the_older_run_is_asked_to_leave(
    nursery: Nursery, undisturbed: dict[int, Any], comes: tuple[int, ...], restarted: tuple[int, ...]
) -> None:
    """Rank 0 of the attempt keeps its store until its process ends: in it nobody meets in place.

    The steps before the offer are slow: ranks that knew it would hand over before they are asked.
    """
    job = Job(nursery, f"asked-{comes}", 2, slow_at=WAIT_AT - 2, environ={"PERDURE_EXIT_AT_STEP": str(WAIT_AT + 1)})
    results = job.offered(2, comes, comes, at=WAIT_AT, restarted=restarted).begin().end()
    assert by_rank(results) == undisturbed
    opened = [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]
    assert opened == [(1, None), (2, None)]


def test_a_group_that_the_script_keeps_is_found(nursery: Nursery) -> None:
    job = (
        Job(nursery, "kept", 2, script="variants.keeping", leaves_at=WAIT_AT)
        .offered(2, (0, 1), (0, 1), wait=False)
        .begin()
    )
    results = job.end()
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    assert {(line["rank"], line["word"]) for line in ended} == {(0, "restart"), (1, "restart")}
    assert set(results["old0"]) == {"left"}
    assert results["new0"]["weights"] == results["new1"]["weights"]


def test_newcomers_that_have_long_been_warm_wait_for_the_save_of_the_older_run(nursery: Nursery) -> None:
    slow = str(nursery.folder / "slow-new0.log"), "waiting to open the log: run 1 has not ended"
    job = Job(nursery, "slow", 2, script="variants.keeping", slow=slow, leaves_at=WAIT_AT)
    job.offered(2, (0, 1), (0, 1), wait=False, started=time.monotonic() - 2 * WAIT).begin()
    assert set(job.end()["old0"]) == {"left"}
    assert slow[1] in job.output("new0")


@pytest.mark.parametrize("makes", ["ddp", "group"])
def test_a_script_that_needs_a_group_before_the_first_batch_is_told_what_to_do(nursery: Nursery, makes: str) -> None:
    job = Job(nursery, f"hasty-{makes}", 2, script="variants.hasty", makes=makes).offered(*REPLACED).begin()
    assert job.ended() == {"new1": 1, "old0": 0, "old1": 0}
    assert "UserError: this process joins a living run, and has no process group before its first batch" in job.output(
        "new1"
    )


@pytest.mark.parametrize("makes", ["a mesh", "a group, a mesh", "a group by name, a mesh"])
def test_a_newcomer_that_makes_a_device_mesh_begins_with_the_others_in_place(nursery: Nursery, makes: str) -> None:
    job = Job(nursery, f"makes {makes}", 2, script="variants.meshed", makes=makes, leaves_at=WAIT_AT)
    results = job.offered(2, (0, 1), (0, 1), wait=False).begin().end()
    assert [set(results[name]) for name in ("old0", "old1")] == [{"left"}, {"left"}]
    assert results["new0"]["weights"] == results["new1"]["weights"]
    opened = [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]
    assert opened == [(1, None), (2, None)]


def test_a_newcomer_of_a_larger_run_begins_in_place_too_for_which_the_smaller_one_stops_once(nursery: Nursery) -> None:
    job = Job(nursery, "meshed-larger", 2, script="variants.meshed", makes="a mesh", leaves_at=WAIT_AT)
    job.offered(3, (2,), (), wait=False, restarted=(0, 1)).begin()
    results = job.end()
    assert [set(results[name]) for name in ("old0", "old1")] == [{"left"}, {"left"}]
    assert len({results[name]["weights"] for name in ("again0", "again1", "new2")}) == 1
    opened = [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]
    assert opened == [(1, None), (2, None)]


def test_a_newcomer_of_a_larger_run_that_cannot_start_stops_no_run_that_cannot_change_live(nursery: Nursery) -> None:
    job = Job(nursery, "meshed-mistaken", 2, script="variants.meshed", makes="a mesh")
    job.offered(3, (2,), (), wait=False, makes="a mistake").begin()
    assert job.ended() == {"new2": 1, "old0": 0, "old1": 0}
    assert [set(nursery.result(f"meshed-mistaken-{name}")) for name in ("old0", "old1")] == [{"rank", "weights"}] * 2
    assert [entry["run"] for entry in job.log if entry["kind"] == "Opened"] == [1]


@pytest.mark.parametrize("makes", ["a group", "a group by name"])
def test_a_newcomer_that_alone_makes_a_group_is_told_what_to_do_and_the_others_train_on(
    nursery: Nursery, makes: str
) -> None:
    job = Job(nursery, f"alone {makes}", 2, script="variants.meshed", makes=makes).offered(*REPLACED).begin()
    assert job.ended() == {"new1": 1, "old0": 0, "old1": 0}, job.output("old0")
    assert "this process joins a living run, and has no process group before its first batch" in job.output("new1")


def test_ranks_that_come_apart_after_a_hand_over_are_told_what_may_have_made_them(nursery: Nursery) -> None:
    job = Job(nursery, "forgetful", 2, script="variants.forgetful").offered(*REPLACED).begin()
    assert job.ended() == {"new1": 1, "old0": 1, "old1": 0}
    for name in ("new1", "old0"):
        assert "the script's own variables started fresh in it" in job.output(name)


def test_old_ranks_that_hold_different_weights_hand_nothing_over(nursery: Nursery) -> None:
    job = Job(nursery, "apart", 2, script="variants.apart").offered(*REPLACED).begin()
    assert job.ended() == {"new1": 1, "old0": 1, "old1": 1}
    assert [entry["run"] for entry in job.log if entry["kind"] == "Opened"] == [1]
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    assert {(line["rank"], line["word"]) for line in ended} == {(0, "abort"), (1, "abort")}
    assert "the ranks of run 1 hold different parameters or optimizer state" in job.output("new1")
    assert "differs between rank 0 and rank 1" in job.output("old0")


def test_a_newcomer_that_has_not_registered_all_by_its_first_batch_does_not_join(nursery: Nursery) -> None:
    job = Job(nursery, "forgets", 2, script="variants.train", kind="registered late")
    job.offered(*REPLACED, reports=True, forgets=True).begin()
    assert job.ended() == {"new1": 1, "old0": 0, "old1": 0}
    assert "at its first batch it has not registered late, as the others have meanwhile" in job.output("new1")
    (ending,) = job.endings("new1")
    assert ending.attempt == AttemptRecord(2, word=HandoverWord.ABORT)
    assert ending.opened == 0, "what has received the state, and may vote, has not opened anything"
    assert [entry["kind"] for entry in job.log if entry["kind"] in ("Opened", "Completed")] == ["Opened", "Completed"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_old_ranks_train_on_bit_for_bit(nursery: Nursery, undisturbed: dict[int, Any], name: str) -> None:
    fault = FAULTS[name]
    job = Job(nursery, name, 2, **fault.old).offered(*REPLACED, wait=fault.wait, **fault.newcomer).begin()
    assert job.ended() == {"new1": fault.status, "old0": 0, "old1": 0}, job.output("old0") + job.output("new1")
    assert by_rank({rank: nursery.result(f"{name}-{rank}") for rank in ("old0", "old1")}) == undisturbed
    assert [entry["run"] for entry in job.log if entry["kind"] == "Opened"] == [1]
    assert fault.says in job.output("new1")
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    assert {(line["rank"], line["next"], line["word"]) for line in ended} == {(0, 2, "abort"), (1, 2, "abort")}
