"""Real processes change their ranks while they train: nothing but the ranks is different afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.unit.runtime.live.jobs import WAIT_AT, Job, by_rank, undisturbed
from tests.unit.runtime.live.nursery import Nursery
from tests.unit.runtime.live.scripts import BATCH, SAMPLES
from tests.unit.runtime.live.variants import DRAWN_ALIKE, in_own_orders, strides_of
from tests.unit.runtime.records import progress


class Move(NamedTuple):
    """From `old` ranks to `new` ones."""

    old: int
    new: int
    joins: tuple[int, ...]
    leavers: tuple[int, ...]
    arguments: Mapping[str, Any] = MappingProxyType({})


EQUAL = {
    "rank-1-of-2": Move(2, 2, (1,), (1,)),
    "rank-0-of-2": Move(2, 2, (0,), (0,)),
    "both-of-2": Move(2, 2, (0, 1), (0, 1)),
    "the-only-one": Move(1, 1, (0,), (0,)),
    "rank-1-of-3": Move(3, 3, (1,), (1,), {"deterministic": True}),
    "batch-norm": Move(2, 2, (0,), (0,), {"model": "norm"}),
    "columns-channels-last-and-a-fused-optimizer": Move(2, 2, (1,), (1,), {"model": "turned", "kernel": "fused"}),
    "columns-channels-last-and-fused-amsgrad": Move(
        2, 2, (0,), (0,), {"model": "turned", "kernel": "fused", "amsgrad": True}
    ),
    "columns-channels-last-and-foreach": Move(2, 2, (1,), (1,), {"model": "turned", "kernel": "foreach"}),
    "columns-channels-last-and-a-loop": Move(2, 2, (0,), (0,), {"model": "turned", "kernel": "loop"}),
    "workers": Move(2, 2, (1,), (1,), {"workers": 2}),
    "bucket-views": Move(2, 2, (0,), (0,), {"options": {"gradient_as_bucket_view": True}}),
    "static-graph": Move(2, 2, (0,), (0,), {"options": {"static_graph": True}}),
    "unused-parameters": Move(2, 2, (1,), (1,), {"options": {"find_unused_parameters": True}}),
}
OTHER = {
    "2-to-3": Move(2, 3, (1,), ()),
    "3-to-2": Move(3, 2, (), (1,)),
    "3-to-2-without-rank-0": Move(3, 2, (), (0,), {"model": "norm"}),
    "1-to-2": Move(1, 2, (1,), ()),
    "2-to-1": Move(2, 1, (), (0,)),
}


def played(nursery: Nursery, name: str, move: Move) -> tuple[Job, dict[str, Any]]:
    job = Job(nursery, name, move.old, **move.arguments).offered(move.new, move.joins, move.leavers).begin()
    return job, job.end()


def test_a_survivor_that_becomes_rank_0_tells_how_much_is_done(nursery: Nursery) -> None:
    job = Job(nursery, "told", 3).told().offered(2, (), (0,)).begin()
    results = job.end()
    assert results["old1"]["rank"] == 0
    told, steps = progress(job.output("old1")), results["old1"]["steps"]
    assert {run for run, _, _ in told} == {0, 2}
    assert all(abs(done - step / steps) <= 1 / steps for _, step, done in told), told


VARIANTS = {
    "compiled inside": (2, (0,)),
    "compiled outside": (2, (1,)),
    "two loaders": (2, (0,)),
    "side by side": (2, (1,)),
    "accumulated": (2, (1,)),
    "by tokens": (2, (0,)),
    "views of four": (4, (1, 3)),
    "own values": (2, (0,)),
    "own orders": (2, (1,)),
    "asked by one rank": (2, (1,)),
    "pinned": (2, (0,)),
    "evaluated": (2, (0,)),
    "read on": (2, (1,)),
    "registered late": (2, (0,)),
    "registered meanwhile": (2, (1,)),
}
"""How many ranks, and which of them are replaced."""
COMES_AT = {"evaluated": 7, "registered late": WAIT_AT, "registered meanwhile": WAIT_AT}
"""The step in which the offer comes, where it counts when they hand over: until then no newcomer can be warm."""


@pytest.mark.parametrize("kind", VARIANTS)
def test_whatever_a_script_adds_goes_over_too(nursery: Nursery, kind: str) -> None:
    world, leavers = VARIANTS[kind]
    arguments: dict[str, Any] = {"script": "variants.train", "kind": kind, "deterministic": world > 2}
    job = Job(nursery, kind.replace(" ", "-"), world, **arguments)
    job.offered(world, leavers, leavers, at=COMES_AT.get(kind)).begin()
    results, alone = job.end(), undisturbed(nursery, world, **arguments)
    assert by_rank(results) == by_rank(alone)
    assert {results[f"new{rank}"]["rank"] for rank in leavers} == set(leavers)
    assert [over for _, over, _ in opened(job)] == [None, 1]
    if kind == "compiled inside":  # the model is the same one in who stays
        assert results["old1"]["compilations"] == alone["old1"]["compilations"] > 0
    if kind == "evaluated":
        old, new = ([tuple(score) for score in results[name]["scores"]] for name in ("old0", "new0"))
        (_, _, at) = opened(job)[1]
        assert at == 7
        assert old[-1][1:3] == (7, 1)
        assert new[0] == (2, 7, 1, old[-1][3] - 1), "the newcomer goes on in the middle of the second pass"
        assert [score[1:] for score in old + new] == [tuple(score[1:]) for score in alone["old0"]["scores"]]
    if kind.startswith("registered"):
        assert opened(job)[1] == (2, 1, 6)
        assert {len(result["optimizer"]) for result in results.values() if "optimizer" in result} == {2}
    if kind == "own orders":
        kept = in_own_orders(0)
        orders = {name: list(strides_of(value)) for name, value in kept.items()}
        assert results["new1"]["orders"] == results["old0"]["orders"] == orders
    if kind == "pinned":
        pinned = [(entry["step"], entry["run"]) for entry in job.log if entry.get("pin") == "last"]
        ((_, _, at),) = opened(job)[1:]
        assert pinned == [(step, 1 if step <= (at or 0) else 2) for step in range(1, 22)]


@pytest.mark.parametrize("mib", [360, pytest.param(1080, marks=pytest.mark.chaos)])
def test_old_ranks_hand_over_in_256_mib_beside_their_state_to_a_newcomer_that_has_room_for_it(
    nursery: Nursery, mib: int
) -> None:
    job = Job(nursery, f"heavy-{mib}", 2, script="variants.heavy", mib=mib).offered(3, (2,), ()).begin()
    results = job.end()
    assert [over for _, over, _ in opened(job)] == [None, 1]
    for name in ("old0", "old1"):
        assert results[name]["state"] >= mib
        assert results[name]["extra"]["2"] <= 256
    # What the optimizer keeps is two thirds, and the newcomer's script has made none of it.
    assert results["old0"]["ready"] - results["new2"]["made"] >= 0.6 * mib


def opened(job: Job) -> list[tuple[int, int | None, int | None]]:
    return [(entry["run"], entry.get("takesOver"), entry.get("step")) for entry in job.log if entry["kind"] == "Opened"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.chaos) if name.endswith("loop") else name for name in EQUAL]
)
def test_replaced_ranks_change_nothing(nursery: Nursery, name: str) -> None:
    move = EQUAL[name]
    job, results = played(nursery, name, move)
    assert by_rank(results) == by_rank(undisturbed(nursery, move.old, **move.arguments))
    began = {results[f"new{rank}"]["began"] for rank in move.joins}
    assert began == {results[f"old{rank}"]["left"] for rank in move.leavers}
    assert opened(job) == [(1, None, None), (2, 1, began.pop())]
    assert job.began(1) == [f"old{rank}" for rank in range(move.old)]
    assert job.began(2) == [f"{'new' if rank in move.joins else 'old'}{rank}" for rank in range(move.new)]
    # A full collection of Python's takes longer than the whole stop.
    assert {tuple(found["collecting"]) for found in results.values() if "rank" in found} == {(False, True)}
    reached = {name: found["left"] if "left" in found else found["steps"] for name, found in results.items()}
    assert {name: found["last"] for name, found in results.items()} == {
        name: [steps] for name, steps in reached.items()
    }, "each process has one last report, where it stood"


@pytest.mark.parametrize("name", OTHER)
def test_a_run_of_another_size_goes_on_with_every_sample_once(nursery: Nursery, name: str) -> None:
    move = OTHER[name]
    job, results = played(nursery, name, move)
    ends = by_rank(results)
    assert sorted(ends) == list(range(move.new))
    assert len({(end["weights"], end["optimizer"], end["steps"]) for end in ends.values()}) == 1
    (_, (run, over, step)) = opened(job)
    assert (run, over) == (2, 1)
    assert step in range(1, WAIT_AT + 4), "whoever is ready sooner need not wait"
    assert samples(job) == {epoch: Counter(range(SAMPLES)) for epoch in range(3)}
    worlds = {line["step"]: line["world"] for line in job.trace if "ids" in line}
    assert worlds == {at: move.old if at <= step else move.new for at in worlds}


@pytest.mark.parametrize("name", ["rank-0-of-2", "3-to-2-without-rank-0"])
def test_the_result_goes_over_to_the_newer_runs_rank_0(nursery: Nursery, name: str) -> None:
    _, results = played(nursery, f"{name}-result", {**EQUAL, **OTHER}[name])
    assert [found["result"] for found in results.values() if found.get("rank") == 0] == [{"began": 1}]


@pytest.mark.parametrize(("rank", "than"), [(0, "than that of the checkpoint"), (1, "on rank 1 than on rank 0")])
def test_a_newcomer_that_has_another_dataset_is_noticed_from_its_next_epoch_on(
    nursery: Nursery, rank: int, than: str
) -> None:
    job = Job(nursery, f"data-{rank}", 2).offered(2, (rank,), (rank,), data=6).begin()
    job.end()
    told = job.output("old0" if rank else "new0")
    assert told.count(f"loader 'train': sample 0 is another one {than}: positions then mean other samples") == 1


def test_a_run_grows_and_shrinks_again(nursery: Nursery) -> None:
    job = Job(nursery, "2-to-3-to-2", 2).offered_again(("old0", "old1", "new2"), (0,)).offered(3, (2,), ()).begin()
    results = job.end()
    found = opened(job)
    assert [(run, over) for run, over, _ in found] == [(1, None), (2, 1), (3, 2)]
    assert samples(job) == {epoch: Counter(range(SAMPLES)) for epoch in range(3)}
    assert {name: result.get("told") for name, result in results.items()} == {
        "old0": None,
        "old1": ["ranks 1/3", "ranks 0/2"],
        "new2": [f"resumed {found[1][2]}", "ranks 2/3", "ranks 1/2"],
    }
    shares = {name: [line for line in job.output(name).splitlines() if "equal shares" in line] for name in results}
    assert {name: len(lines) for name, lines in shares.items()} == {"old0": 1, "old1": 0, "new2": 0}
    assert f"run 2 rank 0: loader 'train': of {BATCH} samples of a global batch " in shares["old0"][0]


@pytest.mark.parametrize("name", ["2-to-3", "3-to-2-without-rank-0"])
def test_what_all_ranks_draw_alike_they_draw_alike_in_a_run_of_another_size(nursery: Nursery, name: str) -> None:
    move = OTHER[name]
    job = Job(nursery, f"{name}-drawing", move.old, script="variants.drawing")
    results = job.offered(move.new, move.joins, move.leavers).begin().end()
    alike = random.Random(DRAWN_ALIKE)  # noqa: S311
    expected = [alike.random() for _ in range(21)]
    for found in results.values():
        assert all(value == expected[step] for step, value, _ in found["drawn"])
    last = [found["drawn"][-1] for found in results.values() if found["drawn"][-1][0] == 20]
    assert len({value for _, _, value in last}) == len(last) == move.new


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_leaver_whose_script_catches_everything_leaves_all_the_same(nursery: Nursery, leaver: int) -> None:
    job = Job(nursery, f"stubborn-{leaver}", 2, script="variants.stubborn").offered(2, (leaver,), (leaver,)).begin()
    results = job.end()
    assert set(results[f"old{leaver}"]) == {"left"}
    assert {found["steps"] for found in results.values() if "rank" in found} == {21}


def test_ten_hand_overs_leave_neither_threads_nor_connections(nursery: Nursery) -> None:
    """On a busy machine the threads of one group may end a run later."""
    job = Job(nursery, "ten", 2, epochs=7, count_in=[3, 4, 5, 9, 10, 11]).replaced(*[1] * 10).begin()
    results = job.end()
    assert [(run, over) for run, over, _ in opened(job)] == [(1, None), *((run, run - 1) for run in range(2, 12))]
    counted = list(results["old0"]["counted"].values())
    first, last = counted[:3], counted[3:]
    assert min(one["task"] for one in last) <= max(one["task"] for one in first)
    assert min(one["fd"] for one in last) < max(one["fd"] for one in first) + 8  # the pulses may be connected, or not


def samples(job: Job) -> dict[int, Counter[int]]:
    """How often each sample was trained on, by epoch."""
    found: dict[int, Counter[int]] = {}
    for line in job.trace:
        if "ids" in line:
            found.setdefault(line["epoch"], Counter()).update(line["ids"])
    return found
