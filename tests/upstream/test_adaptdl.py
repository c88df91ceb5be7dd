"""The checks that AdaptDL has of itself, by the numbers of docs/ancestors.md, on one to five ranks.

All scenes are played once, by the same processes; a restart is the next session on the same root.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import perdure
from tests.unit.runtime.session.ranks import Scene, play
from tests.upstream.scenes import SIZES

RANKS = (1, 3, 5)
"""AdaptDL asks its sampler for these."""
Results = dict[str, list[Any]]


def scene(
    root: Path,
    name: str,
    world: int,
    environ: dict[str, str] | None = None,
    module: str = "tests.upstream.scenes",
    **arguments: Any,
) -> Scene:
    """`name` is FUNCTION-PART."""
    told = {"PERDURE_CHECK_SECONDS": "0"} | (environ or {})
    return Scene(name, name.partition("-")[0], world, {"root": str(root), **arguments}, told, module)


def leaving_at(step: int) -> dict[str, str]:
    """One rank leaves right after this step, several one step later."""
    return {"PERDURE_EXIT_AT_STEP": str(step)}


def scenes(folder: Path) -> list[Scene]:
    return [
        scene(folder / "twice", "named_twice", 1),
        scene(folder / "states", "states-one", 1, leaving_at(2)),
        scene(folder / "states", "states-two", 2),
        scene(folder / "epochs", "epochs-one", 1, leave=5),
        scene(folder / "epochs", "epochs-five", 5),
        scene(folder / "batches", "batches-one", 1, leaving_at(2), size=10),
        scene(folder / "batches", "batches-four", 4, leaving_at(6), size=12),
        scene(folder / "batches", "batches-two", 2, size=10),
        scene(folder / "broken", "broken", 1),
        *(scene(folder / f"samples-{world}", f"samples-{world}", world) for world in RANKS),
        *(scene(folder / f"collectives-{world}", f"collectives-{world}", world) for world in (1, 5)),
        scene(folder / "accumulated", "accumulated-one", 1, leaving_at(2)),
        scene(folder / "accumulated", "accumulated-four", 4, leaving_at(3)),
        scene(folder / "accumulated", "accumulated-two", 2),
        scene(folder / "mnist-whole", "main-whole", 1, module="tests.upstream.mnist"),
        *(
            scene(folder / "mnist-parts", f"main-{step}", 1, leaving_at(step), module="tests.upstream.mnist")
            for step in (4, 12)
        ),
        scene(folder / "mnist-parts", "main-rest", 1, module="tests.upstream.mnist"),
        scene(folder / "profile", "profile-one", 1, {"PERDURE_EVERY_STEPS": "3"}, fails=4),
        scene(folder / "profile", "profile-two", 2),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adaptdl")


@pytest.fixture(scope="module")
def played(folder: Path) -> Results:
    return play(folder, scenes(folder))


def test_ac_ad_1_a_name_of_a_state_is_used_once(played: Results) -> None:
    (said,) = played["named_twice"]
    assert "state" in said
    assert "its own name" in said


def test_ac_ad_2_two_ranks_go_on_with_what_one_has_saved_and_rank_0_saves(played: Results, folder: Path) -> None:
    """Two steps add two on one rank; of the four that are left rank 1 makes twice as much, which is not saved."""
    assert [found["begun"] for found in played["states-one"]] == [[10, 20]]
    assert [found["begun"] for found in played["states-two"]] == [[12, 20]] * 2
    saved = perdure.load(folder / "states")
    assert (saved["first"], saved["second"]) == ({"value": 16}, {"value": 20})


def test_ac_ad_3_an_epoch_that_was_left_in_its_middle_is_the_first_of_five_ranks(played: Results) -> None:
    assert played["epochs-one"] == [[[epoch, epoch, epoch] for epoch in range(6)]]
    assert played["epochs-five"] == [[*([epoch, epoch, epoch] for epoch in range(5, 10)), [-1, None, 10]]] * 5


def test_ac_ad_4_a_loader_goes_on_with_four_ranks_then_two_and_other_batch_sizes(played: Results) -> None:
    (one,), four, two = (played[f"batches-{name}"] for name in ("one", "four", "two"))
    assert [len(batch) for batch in one] == [10, 10]
    assert [[len(batch) for batch in rank] for rank in four] == [[3] * 5] * 4
    assert [[len(batch) for batch in rank] for rank in two] == [[5, 5]] * 2
    used = Counter(number for rank in [one, *four, *two] for batch in rank for number in batch)
    assert used == Counter(range(100))


def test_ac_ad_5_a_loop_that_was_left_by_break_may_be_followed_by_a_whole_one(played: Results) -> None:
    """Ten batches without a step. Those that were trained on are not trained on again in that epoch."""
    assert played["broken"] == [{"looked": 10, "epoch 0": 9, "epoch 1": 10}]


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("size", SIZES)
def test_ac_ad_6_ranks_share_each_sample_of_an_epoch_in_an_order_of_that_epoch(
    played: Results, world: int, size: int
) -> None:
    """None is padded, so that counts differ by one at most; where they begin in the middle is AC-AD-4."""
    ranks = played[f"samples-{world}"]
    of_epochs = [[rank[epoch][str(size)] for rank in ranks] for epoch in range(2)]
    for parts in of_epochs:
        counts = [len(part) for part in parts]
        assert max(counts) - min(counts) <= 1
        assert sorted(number for part in parts for number in part) == list(range(size))
    assert of_epochs[0] != of_epochs[1]
    alone = played["samples-1"][0]
    for epoch, parts in enumerate(of_epochs):
        in_turn = [part[i] for i in range(size) for part in parts if i < len(part)]
        assert in_turn == alone[epoch][str(size)], "the order is that of one rank"


@pytest.mark.parametrize("world", [1, 5])
def test_ac_ad_7_small_values_are_summed_united_and_sent_to_all(played: Results, world: int) -> None:
    for found in played[f"collectives-{world}"]:
        assert found["sum"] == sum(range(world))
        assert found["union"] == list(range(world + 1))
        assert found["told"] == [[[which, rank] for rank in range(world)] for which in (2, 1, 0)]
        assert found["first"] == "of rank 0"


def test_ac_ad_8_an_accumulator_goes_on_with_four_ranks_then_two_and_what_was_read_is_read_again(
    played: Results,
) -> None:
    """Two steps of one rank add 1 each, two of four ranks 10, two of two ranks 3."""
    before = {"a": 15, "b": -5}
    assert played["accumulated-one"] == [[before]]
    assert played["accumulated-four"] == [[before]] * 4
    assert played["accumulated-two"] == [[before, {"a": 2 * (1 + 10 + 3)}]] * 2


def test_adaptdls_example_for_mnist_ends_as_if_it_had_not_been_interrupted(played: Results) -> None:
    """Once among the batches of an epoch, once in the last step of another one."""
    assert [played[f"main-{step}"] for step in (4, 12)] == [[{}]] * 2
    assert played["main-rest"] == played["main-whole"]
    right = played["main-whole"][0]["right"]
    assert right["2"] > right["0"], "it learns"


def test_ac_ad_9_what_a_script_notes_by_the_number_of_ranks_is_of_committed_steps(played: Results) -> None:
    """As the profile of the session's own, which is there with `adapt` alone, has it."""
    assert played["profile-one"] == [{}]
    assert played["profile-two"] == [{"1": [0, 1, 2], "2": [3, 4, 5, 6, 7]}] * 2
