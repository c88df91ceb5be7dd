"""What one to four real ranks measure of a training whose gradient noise is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.loop.measuring.regression import BATCH, INPUTS, SAMPLES, known_scale
from tests.unit.runtime.session.ranks import Scene, play

STEPS = 2 * SAMPLES // BATCH
CLOSE = 0.05
KNOWN: dict[str, tuple[int, dict[str, Any]]] = {
    "alone, pairs of steps": (1, {}),
    "alone, four parts": (1, {"parts": 4}),
    "two ranks": (2, {}),
    "two ranks, two parts": (2, {"parts": 2}),
    "alone, three parts that differ by a sample": (1, {"parts": 3, "adapts": True}),
    "three ranks in rank order, unlike shares": (3, {"deterministic": True}),
    "four ranks": (4, {}),
    "alone, scaled, some steps infinite": (1, {"scaler": 1024.0, "overflows": [9, 30, 31]}),
    "two ranks, scaled, some steps infinite": (2, {"scaler": 1024.0, "overflows": [9, 30, 31]}),
    "two ranks, FSDP2": (2, {"shards": True}),
    "three ranks, FSDP2, unlike shares": (3, {"shards": True}),
    "two ranks, groups, a layer that no optimizer owns": (2, {"groups": True, "beside": True}),
}
"""How many ranks, and how they train."""
ALIKE: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "two ranks": (2, {}),
    "three ranks in rank order": (3, {"deterministic": True}),
    "two ranks, FSDP2": (2, {"shards": True}),
}
LEFT_AT = 40
FAILS_AT = STEPS // 2 + 20
"""In the second epoch: the commit behind the first one is the newest."""


def scenes(folder: Path) -> list[Scene]:
    def scene(name: str, world: int, arguments: dict[str, Any], root: str = "") -> Scene:
        told = {"root": str(folder / (root or name)), **arguments}
        environ = {"PERDURE_CHECK_SECONDS": "0"}
        return Scene(name, "train", world, told, environ, "tests.unit.runtime.loop.measuring.regression")

    found = [scene(f"known {number}", *of) for number, of in enumerate(KNOWN.values())]
    found += [
        scene(f"alike {number} {on}", world, {**arguments, "measures": on, "rate": 1e-2, "epochs": 1})
        for number, (world, arguments) in enumerate(ALIKE.values())
        for on in (True, False)
    ]
    found.append(scene("left", 2, {"leaves_at": LEFT_AT}, "left"))
    found.append(scene("unmeasured", 2, {"leaves_at": LEFT_AT, "measures": False}, "unmeasured"))
    found += [scene("resumed", 3, {"deterministic": True}, "left"), scene("measured", 2, {}, "unmeasured")]
    found += [scene("sampled", 2, {"every": 4}), scene("pairs sampled", 1, {"every": 4})]
    found += [scene("failed", 2, {"fails_at": FAILS_AT}, "failed"), scene("repeated", 2, {}, "failed")]
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("measuring")
    return play(folder, scenes(folder))


@pytest.mark.parametrize("number", range(len(KNOWN)), ids=list(KNOWN))
def test_the_noise_scale_is_that_of_the_closed_form(played: dict[str, list[Any]], number: int) -> None:
    ranks = played[f"known {number}"]
    assert ranks[0]["noise"] == pytest.approx(known_scale(), rel=CLOSE), ranks[0]
    assert [rank["noise"] for rank in ranks] == [ranks[0]["noise"]] * len(ranks)


def test_four_parts_of_one_rank_are_as_four_ranks(played: dict[str, list[Any]]) -> None:
    names = list(KNOWN)
    alone, four = (played[f"known {names.index(name)}"][0] for name in ("alone, four parts", "four ranks"))
    assert alone["noise"] == pytest.approx(four["noise"], rel=1e-5)


def test_each_group_has_its_own(played: dict[str, list[Any]]) -> None:
    """The bias has as much noise as a weight, and hardly a signal."""
    (weights, _), (bias, _) = played[f"known {len(KNOWN) - 1}"][0]["groups"]
    assert weights / bias == pytest.approx(INPUTS, rel=0.3)


@pytest.mark.parametrize("number", range(len(ALIKE)), ids=list(ALIKE))
def test_measuring_changes_no_bit_and_without_it_nothing_is_there(played: dict[str, list[Any]], number: int) -> None:
    on, off = played[f"alike {number} True"][0], played[f"alike {number} False"][0]
    assert on["weights"] == off["weights"]
    assert on["words"] == off["words"] + 4  # node, steps, noise and signal of one group
    assert (on["hooked"], off["hooked"]) == (number == 0, False)
    assert set(on["saved"]) - set(off["saved"]) == {"measured"}


def test_the_kinds_of_steps_are_known(played: dict[str, list[Any]]) -> None:
    names = list(KNOWN)
    kinds = {name: played[f"known {names.index(name)}"][0]["kinds"] for name in names[:5]}
    assert kinds == {
        "alone, pairs of steps": [[1, 1, BATCH, 0]],
        "alone, four parts": [[1, 1, BATCH // 4, 3]],
        "two ranks": [[1, 2, BATCH // 2, 0]],
        "two ranks, two parts": [[1, 2, BATCH // 4, 1]],
        "alone, three parts that differ by a sample": [[1, 1, BATCH // 3 + 1, 2]],
    }


def test_a_resume_on_other_ranks_goes_on_with_what_was_measured(played: dict[str, list[Any]]) -> None:
    left, resumed = played["left"][0], played["resumed"]
    assert left["noise"] is not None
    assert [rank["first"] for rank in resumed] == [left["noise"]] * 3  # what the first step adds is heard with the next
    assert resumed[0]["steps"] == pytest.approx(STEPS, abs=3)  # of each run the last ones were not heard
    assert resumed[0]["noise"] == pytest.approx(known_scale(), rel=CLOSE)
    assert [1, 2, BATCH // 2, 0] in resumed[0]["kinds"]
    assert (left["profiled"], resumed[0]["profiled"]) == (2, 3)


def test_of_several_steps_one_is_looked_at_and_of_one_rank_two_in_a_row(played: dict[str, list[Any]]) -> None:
    for name in ("sampled", "pairs sampled"):
        found = played[name][0]
        assert found["steps"] == pytest.approx(STEPS / 4, abs=3), name
        assert found["noise"] == pytest.approx(known_scale(), rel=3 * CLOSE), name


def test_a_run_that_repeats_steps_counts_them_once(played: dict[str, list[Any]]) -> None:
    assert played["failed"][0]["raised"] == "ValueError"
    assert played["repeated"][0]["steps"] == pytest.approx(STEPS, abs=3)


def test_a_checkpoint_that_was_not_measured_is_a_place_to_begin(played: dict[str, list[Any]]) -> None:
    assert "measured" not in played["unmeasured"][0]["saved"]
    assert played["measured"][0]["first"] is None
    assert played["measured"][0]["steps"] == pytest.approx(STEPS - LEFT_AT, abs=3)
