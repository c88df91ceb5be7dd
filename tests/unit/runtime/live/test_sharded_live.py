"""Real processes change the ranks of a model that FSDP2 shards while it trains."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from tests.unit.runtime.live.jobs import WAIT_AT, Job, undisturbed
from tests.unit.runtime.live.nursery import FOLDER, MODULES, Nursery

SCRIPT = "sharding.train"
EQUAL: Mapping[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "rank-1-of-2": (2, (1,), {"optimizer": "loop", "extras": True, "checkpoints": True}),
    "rank-0-of-2": (2, (0,), {"optimizer": "fused", "offloads": True}),
    "two-of-4-and-a-block-rests": (4, (1, 3), {"optimizer": "foreach", "rests": True}),
    "rank-2-of-2-x-2-replicas": (4, (2,), {"optimizer": "foreach", "how": "hsdp"}),
    "rank-1-of-2-x-2-in-tensor-parallelism": (4, (1,), {"optimizer": "loop", "how": "tp"}),
    "both-of-2": (2, (0, 1), {"optimizer": "fused", "offloads": True}),
    "a-replica-with-rank-0": (4, (0, 1), {"optimizer": "foreach", "how": "hsdp"}),
    "rank-0-of-a-replica": (4, (0,), {"optimizer": "foreach", "how": "hsdp"}),
    "a-shard-in-both-replicas": (4, (1, 3), {"optimizer": "foreach", "how": "hsdp"}),
    "tensor-parallel-ranks-with-rank-0": (4, (0, 1), {"optimizer": "loop", "how": "tp"}),
    "rank-0-in-tensor-parallelism": (4, (0,), {"optimizer": "loop", "how": "tp"}),
    "all-of-4-in-tensor-parallelism": (4, (0, 1, 2, 3), {"optimizer": "loop", "how": "tp"}),
}
"""How many ranks, and which of them are replaced."""
LONG = list(EQUAL)[list(EQUAL).index("rank-0-of-a-replica") :]
"""Those of `make chaos`."""
SAME = ("steps", "own", "rate")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(
        tmp_path_factory.mktemp("nursery"), modules=(*MODULES, f"{FOLDER}.sharding", f"{FOLDER}.weighing")
    )
    yield nursery
    nursery.close()


def by_rank(results: Mapping[str, Any]) -> dict[int, Any]:
    return {found["rank"]: {key: found[key] for key in SAME} for found in results.values() if "rank" in found}


def losses(results: Mapping[str, Any]) -> set[tuple[str, float]]:
    """Each step's gradient norm, over all ranks."""
    return {(step, norm) for found in results.values() for step, (_, norm) in found["losses"].items()}


def opened(job: Job) -> list[tuple[int, int | None]]:
    return [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.chaos if name in LONG else ()) for name in EQUAL]
)
def test_replaced_ranks_change_nothing(nursery: Nursery, name: str) -> None:
    world, leavers, arguments = EQUAL[name]
    job = Job(nursery, name, world, script=SCRIPT, **arguments).offered(world, leavers, leavers).begin()
    results = job.end()
    assert opened(job) == [(1, None), (2, 1)], job.output("old0")
    alone = undisturbed(nursery, world, script=SCRIPT, **arguments)
    assert by_rank(results) == by_rank(alone)
    assert losses(results) == losses(alone)
    assert all(found["same objects"] for found in results.values() if "rank" in found)
    assert {tuple(found["listens"]) for found in results.values() if "left" in found} == {()}


OTHER: Mapping[str, tuple[int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "2-to-3-and-a-block-rests": (2, 3, (1,), (), {"optimizer": "loop", "rests": True}),
    "3-to-2-without-rank-0": (3, 2, (), (0,), {"optimizer": "foreach", "checkpoints": True, "offloads": True}),
    "2-to-3-compiled-and-computed-again": (2, 3, (2,), (), {"extras": True, "checkpoints": True, "offloads": True}),
    "4-to-2": (4, 2, (), (0, 2), {"optimizer": "fused"}),
    "3-to-2-in-16-bits-and-compiled": (3, 2, (), (1,), {"extras": True}),
    "3-to-4-and-one-is-replaced": (3, 4, (1, 2), (1,), {"optimizer": "fused"}),
    "4-to-3": (4, 3, (), (2,), {"optimizer": "sgd"}),
    "replicas-2-x-2-to-1-x-2": (4, 2, (), (1, 2), {"optimizer": "foreach", "how": "hsdp"}),
    "replicas-1-x-2-to-2-x-2": (2, 4, (1, 2), (), {"optimizer": "fused", "how": "hsdp"}),
    "tensor-parallel-2-x-2-to-1-x-2": (4, 2, (), (0, 1), {"optimizer": "loop", "how": "tp"}),
    "tensor-parallel-1-x-2-to-2-x-2": (2, 4, (1, 2), (), {"optimizer": "foreach", "how": "tp"}),
    "replicas-and-a-row-is-torn": (2, 4, (1, 3), (), {"optimizer": "loop", "how": "hsdp"}),
    "tensor-parallel-and-a-row-is-torn": (2, 4, (1, 3), (), {"optimizer": "loop", "how": "tp"}),
}
"""Old ranks and new ones, joiners, leavers."""
SHORT = ("2-to-3-and-a-block-rests", "3-to-2-without-rank-0")
"""Those of `make test`."""
UNFINISHED = {
    "gathers": "the script has begun to gather sharded parameters",
    "sums": "the model holds gradients that are not reduced yet",
}
SIZES = [pytest.param(name, marks=() if name in SHORT else pytest.mark.chaos) for name in OTHER]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.chaos) for name in OTHER]
)
def test_a_run_of_another_size_goes_on_as_after_a_restart(nursery: Nursery, name: str) -> None:
    world, after, joins, leavers, arguments = OTHER[name]
    saves = {"PERDURE_EVERY_STEPS": "1"}
    job = Job(nursery, name, world, script=SCRIPT, environ=saves, epochs=2, **arguments)
    results = job.offered(after, joins, leavers).begin().end()
    assert opened(job) == [(1, None), (2, 1)], job.output("old0")
    (at,) = (entry["step"] for entry in job.log if entry["kind"] == "Opened" and entry["run"] == 2)
    whole = Job(nursery, f"{name}-whole", world, script=SCRIPT, epochs=2, saves_at=at, **arguments)
    whole.begin().end()
    begins = {"uri": f"file://{whole.root}", "step": at}
    restarted = Job(nursery, f"{name}-restarted", after, script=SCRIPT, epochs=2, begins=begins, **arguments)
    alone = restarted.begin().end()
    assert {found["began"] for found in alone.values()} == {at}
    assert by_rank(results) == by_rank(alone)
    assert {one for one in losses(results) if int(one[0]) >= at} == losses(alone)
    assert all(found["same objects"] for found in results.values() if "rank" in found)


DRAWS: Mapping[str, tuple[int, tuple[int, ...], tuple[int, ...], bool]] = {
    "share-2-x-2-to-1-x-2": (2, (), (0, 1), True),
    "share-2-x-2-to-3-x-2": (6, (1, 4), (), True),
    "rank-2-x-2-to-3-x-2": (6, (1, 4), (), False),
}
"""By what ranks seed; new ranks, joiners, leavers, and whether ranks that share a batch draw alike."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.chaos if name.endswith("3-x-2") else ()) for name in DRAWS]
)
def test_ranks_that_share_a_batch_draw_alike_in_a_run_of_another_size_if_they_did(nursery: Nursery, name: str) -> None:
    """And otherwise than those of another share: they seed by the rank in the mesh of samples, or by their own."""
    after, joins, leavers, alike = DRAWS[name]
    seeds, _, _ = name.partition("-")
    job = Job(nursery, f"draws-{name}", 4, script=SCRIPT, epochs=2, how="tp", optimizer="loop", seeds=seeds)
    results = job.offered(after, joins, leavers).begin().end()
    assert opened(job) == [(1, None), (2, 1)], job.output("old3")
    (at,) = (entry["step"] for entry in job.log if entry["kind"] == "Opened" and entry["run"] == 2)
    drawn = [found["drawn"] for _, found in sorted((one["rank"], one) for one in results.values() if "rank" in one)]
    for step in (step for step in drawn[0] if int(step) >= at):
        numbers = [one[step] for one in drawn]
        expected = [rank - rank % 2 if alike else rank for rank in range(after)]
        assert [numbers.index(one) for one in numbers] == expected, (step, numbers)


IN_A_ROW: Mapping[str, tuple[int, Sequence[tuple[tuple[int, ...], tuple[int, ...]]], dict[str, Any]]] = {
    "3-to-4": (3, [((1,), (1,)), ((0,), (0,)), ((3,), ())], {"optimizer": "loop"}),
    "a-newcomer-leaves": (2, [((0,), (0,)), ((0,), (0,)), ((1,), ()), ((), (2,))], {"optimizer": "fused"}),
    "in-16-bits-and-compiled": (3, [((2,), (2,)), ((1,), (1,)), ((2,), ())], {"extras": True}),
    "replicas": (
        2,
        [((1,), (1,)), ((0,), (0,)), ((1, 2), ()), ((), (0, 3))],
        {"optimizer": "foreach", "how": "hsdp"},
    ),
    "tensor-parallel": (2, [((1,), (1,)), ((0,), (0,)), ((2, 3), ())], {"optimizer": "loop", "how": "tp"}),
}
"""Old ranks, who joins and who leaves in each move."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "3-to-4" else pytest.mark.chaos) for name in IN_A_ROW]
)
def test_ranks_are_drained_in_a_row_and_the_run_grows(nursery: Nursery, name: str) -> None:
    """Each in the first step behind the one before: its parties are still letting go of that one."""
    world, moves, arguments = IN_A_ROW[name]
    saves = {"PERDURE_EVERY_STEPS": "1"}
    job = Job(nursery, f"row-{name}", world, script=SCRIPT, environ=saves, **arguments).moved(*moves).begin()
    results = job.end()
    assert opened(job) == [(1, None), *((run, run - 1) for run in range(2, len(moves) + 2))], job.output("old0")
    begun = [(entry.get("step", 0), entry["world"]) for entry in job.log if entry["kind"] == "Opened"]
    parts = [next(same) for _, same in groupby(begun, key=itemgetter(1))]
    expected, begins, alone = set[tuple[str, float]](), None, dict[str, Any]()
    for (at, size), (end, _) in zip(parts, [*parts[1:], (None, 0)], strict=True):
        part = Job(nursery, f"row-{name}-{at}", size, script=SCRIPT, begins=begins, saves_at=end, **arguments)
        alone = part.begin().end()
        expected |= {one for one in losses(alone) if end is None or int(one[0]) < end}
        begins = {"uri": f"file://{part.root}", "step": end}
    assert by_rank(results) == by_rank(alone)
    assert losses(results) == expected
    assert all(found["same objects"] for found in results.values() if "rank" in found)
    assert {tuple(found["listens"]) for found in results.values() if "left" in found} == {()}


GROWS, SHRINKS = ((2,), ()), ((), (1,))


@pytest.mark.chaos  # a busy machine may refuse a move for a mesh that is not the script's: the cause is not found
@pytest.mark.parametrize(("mib", "moves", "beside"), [(192, 4, 96), (384, 10, 96)])
def test_moves_in_a_row_hold_old_and_new_shards_at_most_and_take_no_memory_while_ranks_stand_still(
    nursery: Nursery, mib: int, moves: int, beside: int
) -> None:
    """From 2 ranks to 3 and back again; nothing of the older runs is left then, either. 256 MiB are promised; a rank
    that held the whole state for a moment would be seen here."""
    job = Job(nursery, f"heavy-{mib}", 2, script="weighing.heavy", mib=mib, epochs=1 + moves // 2)
    results = job.moved(*([GROWS, SHRINKS] * (moves // 2))).begin().end()
    assert opened(job) == [(1, None), *((run, run - 1) for run in range(2, moves + 2))], job.output("old1")
    (stayed,) = (found for found in results.values() if len(found["moves"]) == moves)
    for move in stayed["moves"]:
        old, new = move["part"]
        assert sorted((old, new)) == [mib // 3, mib // 2]
        assert move["extra"] <= new + beside
        assert move["anew"] <= new / 4
    newcomers = [found["held"] for name, found in results.items() if name.startswith("new")]
    assert len(newcomers) == moves // 2
    after_two, last = (stayed["held"][f"{run}"] for run in (3, moves + 1))
    assert last["task"] == after_two["task"]
    assert last["fd"] < after_two["fd"] + 8  # the pulses may be connected already, or not yet
    assert last["memory"] < after_two["memory"] + mib / 12


def test_a_sharded_tensor_that_the_script_keeps_stops_a_move_to_another_size_and_no_training(nursery: Nursery) -> None:
    """Its shards would stay those of the old ranks."""
    job = Job(nursery, "keeps", 2, script=SCRIPT, keeps=True, epochs=2).offered(3, (2,), ()).begin()
    assert job.ended() == {"new2": 1, "old0": 0, "old1": 0}
    assert "the script keeps a sharded tensor of shape" in job.output("new2")
    assert opened(job) == [(1, None)]
    kept = {name: nursery.result(f"keeps-{name}") for name in ("old0", "old1")}
    assert by_rank(kept) == by_rank(undisturbed(nursery, 2, script=SCRIPT, epochs=2))


@pytest.mark.parametrize("what", UNFINISHED)
def test_what_is_unfinished_stops_a_move_and_no_training(nursery: Nursery, what: str) -> None:
    """A gathering in which newcomers would not take part, and gradients that they would not have."""
    arguments: dict[str, Any] = {what: True}
    job = Job(nursery, what, 2, script=SCRIPT, epochs=2, **arguments).offered(3, (2,), (), at=WAIT_AT).begin()
    assert job.ended() == {"new2": 1, "old0": 0, "old1": 0}
    assert UNFINISHED[what] in job.output("new2")
    assert opened(job) == [(1, None)]
    alone = undisturbed(nursery, 2, script=SCRIPT, epochs=2, **arguments)
    assert by_rank({name: nursery.result(f"{what}-{name}") for name in ("old0", "old1")}) == by_rank(alone)


BEFORE_THE_STOP = ("connect_ranks", "publish_connected")


@pytest.mark.chaos
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("act", [*BEFORE_THE_STOP, "_take", "receive", "vote"])
def test_a_newcomer_that_dies_in_any_act_changes_nothing(nursery: Nursery, act: str, size: int) -> None:
    """Among the old ranks, those of a resize have new shards by then, and go on with the old ones."""
    waits: dict[str, Any] = {"waits_for_end": act in BEFORE_THE_STOP}
    job = Job(nursery, f"dies-in-{act}-{size}", 2, script=SCRIPT, epochs=2, **waits)
    job.offered(size, (size - 1,), (1,) if size == 2 else (), die=act).begin()
    assert job.ended() == {f"new{size - 1}": -signal.SIGKILL, "old0": 0, "old1": 0}, job.output("old0")
    assert opened(job) == [(1, None)]
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    assert {(line["rank"], line["next"], line["word"]) for line in ended} == {(0, 2, "abort"), (1, 2, "abort")}
    alone = undisturbed(nursery, 2, script=SCRIPT, epochs=2)
    assert by_rank({name: nursery.result(f"{job.name}-{name}") for name in ("old0", "old1")}) == by_rank(alone)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.chaos)])
def test_a_newcomer_that_dies_with_the_shards_changes_nothing(nursery: Nursery, size: int) -> None:
    job = Job(nursery, f"dies-{size}", 2, script=SCRIPT, epochs=2)
    job.offered(size, (size - 1,), (1,) if size == 2 else (), die="restored").begin()
    assert job.ended() == {f"new{size - 1}": -signal.SIGKILL, "old0": 0, "old1": 0}, job.output("old0")
    assert opened(job) == [(1, None)]
    alone = undisturbed(nursery, 2, script=SCRIPT, epochs=2)
    assert by_rank({name: nursery.result(f"{job.name}-{name}") for name in ("old0", "old1")}) == by_rank(alone)


def test_a_script_that_makes_a_collective_before_its_first_batch_changes_members_in_place(nursery: Nursery) -> None:
    """A newcomer has no other ranks then, and would get another value."""
    job = Job(nursery, "early", 2, script=SCRIPT, early=True, leaves_at=WAIT_AT)
    results = job.offered(2, (0, 1), (0, 1), wait=False).begin().end()
    assert opened(job) == [(1, None), (2, None)]
    assert by_rank(results) == by_rank(undisturbed(nursery, 2, script=SCRIPT))
