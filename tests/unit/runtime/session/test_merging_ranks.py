"""State that is each rank's own on one to three real ranks, whose number changes from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure import load
from tests.unit.runtime.session.ranks import Scene, play

SIZES = {"three": (3, [0, 4]), "three-again": (3, [1, 8]), "one": (1, [0, 12]), "two": (2, [])}
"""How many ranks each run has, and which of them is asked to leave in which step: one epoch has nine."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("merging")
    environ = {"PERDURE_CHECK_SECONDS": "0"}

    def scene(name: str, root: str, world: int, **arguments: Any) -> Scene:
        often = {"PERDURE_EVERY_STEPS": "3"} if root == "killed" else {}
        return Scene(name, "remembers", world, {"root": str(folder / root), **arguments}, environ | often)

    found = play(
        folder,
        [
            *(scene(name, "sizes", world, leave=leave) for name, (world, leave) in SIZES.items()),
            scene("before", "older", 2, leave=[0, 4], merge=""),
            scene("since", "older", 2, leave=[0, 8]),
            scene("fails", "older", 3, merge="failing"),
            scene("refuses", "older", 3, merge="unfit"),
            scene("without", "older", 2, merge=""),
            scene("killed", "killed", 3, killed=[2, 6]),
            scene("after", "killed", 2),
        ],
    )
    kept = load(folder / "older", ["seen"])["seen"]
    return {**found, "kept": [kept[rank]["ids"].tolist() for rank in sorted(kept)]}


def dealt(seen: Sequence[Any], world: int) -> list[list[int]]:
    """The rule of the script's function, repeated here."""
    all_of_it = [sample for one in seen for sample in one["seen"]]
    return [all_of_it[rank::world] for rank in range(world)]


def began(played: dict[str, list[Any]], name: str) -> list[list[int]]:
    return [one["began"] for one in played[name]]


def test_each_rank_of_a_run_of_the_same_size_gets_its_own_back(played: dict[str, list[Any]]) -> None:
    assert began(played, "three-again") == [one["seen"] for one in played["three"]]
    assert len({tuple(ids) for ids in began(played, "three-again")}) == 3


def test_in_another_size_each_rank_loads_what_the_function_gives_of_all(played: dict[str, list[Any]]) -> None:
    assert began(played, "one") == dealt(played["three-again"], 1)
    assert began(played, "two") == dealt(played["one"], 2)
    assert sorted(sample for one in played["two"] for sample in one["seen"]) == sorted([*range(50)] * 2)


def test_a_checkpoint_with_one_state_gives_it_to_all(played: dict[str, list[Any]]) -> None:
    assert began(played, "since") == [played["before"][0]["seen"]] * 2


def test_a_function_that_fails_on_one_rank_is_named_on_all(played: dict[str, list[Any]]) -> None:
    for found in played["fails"]:
        assert found["raised"] == "UserError"
        assert "merge of 'seen' by failing, 2 ranks to 3: ValueError('2 are too many')" in found["message"]


def test_what_an_object_refuses_is_named_by_its_rank_and_the_others_do_not_wait(played: dict[str, list[Any]]) -> None:
    *others, last = played["refuses"]
    assert [found["raised"] for found in others] == ["PeerLost"] * 2
    assert last["raised"] == "UserError"
    assert "'seen': load_state_dict refuses the state of this rank: KeyError('ids')" in last["message"]


def test_where_a_rank_is_killed_in_a_save_nothing_is_merged_twice_and_nothing_lost(
    played: dict[str, list[Any]],
) -> None:
    *others, killed = played["killed"]
    assert [found["raised"] for found in others] == ["PeerLost"] * 2
    assert "missing" in killed
    assert len({*began(played, "after")[0], *began(played, "after")[1]}) == 3 * 6
    assert sorted(sample for one in played["after"] for sample in one["seen"]) == sorted([*range(50)] * 2)


def test_a_script_that_does_not_say_how_to_merge_is_refused_in_words(played: dict[str, list[Any]]) -> None:
    for found in played["without"]:
        assert found["raised"] == "UserError"
        assert "register it with merge={'seen': fn}" in found["message"]


def test_without_a_session_the_states_of_all_ranks_are_read(played: dict[str, list[Any]]) -> None:
    assert played["kept"] == [one["seen"] for one in played["since"]]
