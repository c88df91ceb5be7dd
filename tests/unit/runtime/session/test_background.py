"""Saves in the background among real ranks: training goes on, and the commits equal those of a blocking save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import main
from perdure.wire.settings import DEFAULT_BACKGROUND_BYTES
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.ranks import Scene, play

MODULE = "tests.unit.runtime.session.background"
Results = dict[str, list[Any]]


def scenes(root: Path) -> list[Scene]:
    def train(name: str, world: int, *, least: int = 0, every: int = 3, environ: Any = (), **arguments: Any) -> Scene:
        variables = {
            "PERDURE_EVERY_STEPS": str(every),
            "PERDURE_CHECK_SECONDS": "0",
            "PERDURE_KEEP": "99",
            "PERDURE_BACKGROUND_BYTES": str(least),
            **dict(environ),
        }
        where, function = arguments.pop("where", name), arguments.pop("function", "train")
        return Scene(name, function, world, {"root": str(root / where), **arguments}, variables, MODULE)

    epochs = {"PERDURE_EVERY_STEPS": "", "PERDURE_EVERY_EPOCHS": "1"}
    asked = {"PERDURE_EXIT_AT_STEP": "7"}
    return [
        *(
            train(f"{way}-{world}", world, least=least)
            for world in (1, 2, 3)
            for way, least in (("behind", 0), ("blocking", DEFAULT_BACKGROUND_BYTES))
        ),
        train("frozen", 2, freeze=(1,), thaw_at=12, wait_at=12),
        train("killed", 2, freeze=(0, 1), kill_at=(5,), wait_at=8),
        train("blocked", 2, blocked=(2, 9), wait_at=6, pause_at=10),
        train("epochs", 2, environ=epochs),
        train("loops", 2, every=5, epochs=2, loops=2, freeze=(0,), thaw_at=18, wait_at=26),
        train("script", 2, every=4, freeze=(0,), thaw_at=6, save_at=7, pin_at=10),
        train("left", 2, environ=asked, freeze=(1,), thaw_at=7),
        train("left-on", 2, where="left"),
        train("left-alone", 1, environ=asked),
        train("left-alone-on", 1, where="left-alone"),
        train("pinned-again", 2, environ=epochs, pin_epoch=2),
        train("pinned-behind-a-failure", 2, every=4, freeze=(0, 1), kill_all_at=6, pin_at=6),
        train("not-pinned", 2, every=4, freeze=(0,), impatient_at=6, pin_at=6, thaw_at=12, wait_at=12),
        train("short", 2, short_until=10),
        train("no-process", 2, function="without_process"),
        train("dies-at-once", 2, environ={"PYTHONHOME": "/nowhere"}, wait_at=4, pause_at=10),
        train("changed", 2, function="changing"),
        train("differs", 2, function="differing"),  # the last one: a Session that has failed ends with its process
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module")
def results(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return play(tmp_path_factory.mktemp("played"), scenes(root))


def commits(root: Path) -> list[dict[str, Any]]:
    """Oldest first."""
    return [entry for entry in entries(root) if entry["kind"] == "Committed"]


def steps(root: Path) -> list[int]:
    return [commit["step"] for commit in commits(root)]


def is_whole(root: Path) -> bool:
    return main(["verify", str(root)]) == 0


@pytest.mark.parametrize("world", [1, 2, 3])
def test_training_is_the_same_and_each_commit_is_whole(results: Results, root: Path, world: int) -> None:
    behind, blocking = results[f"behind-{world}"], results[f"blocking-{world}"]
    for one, other in zip(behind, blocking, strict=True):
        assert (one["weights"], one["drawn"], one["steps"]) == (other["weights"], other["drawn"], other["steps"])
        assert any(one["under_way"].values())
        assert not any(other["under_way"].values())
    where = root / f"behind-{world}"
    assert is_whole(where)
    *cadence, goal = steps(where)
    assert cadence
    assert all(step % 3 == 0 for step in cadence)
    assert goal == behind[0]["steps"]
    same = [step for step in cadence if step in steps(root / f"blocking-{world}")]
    assert same == cadence
    for step in cadence:
        pair = [f"{root / f'{way}-{world}'}@{seq_of(root / f'{way}-{world}', step)}" for way in ("behind", "blocking")]
        assert main(["diff", "--tensors-only", *pair]) == 0


def seq_of(root: Path, step: int) -> int:
    return next(int(commit["seq"]) for commit in commits(root) if commit["step"] == step)


@pytest.mark.parametrize("name", ["behind-2", "behind-3", "frozen", "killed", "blocked", "epochs", "script"])
def test_hooks_hear_of_each_commit_once_and_on_all_ranks_at_the_same_step(
    results: Results, root: Path, name: str
) -> None:
    first, *others = [found["told"] for found in results[name]]
    assert all(other == first for other in others)
    assert [tuple(one[:2]) for one in first] == [(commit["seq"], commit["step"]) for commit in commits(root / name)]
    assert all(step <= at for _, step, at in first)


def test_while_one_rank_cannot_upload_all_train_on_and_then_the_step_that_was_copied_is_committed(
    results: Results, root: Path
) -> None:
    for found in results["frozen"]:
        assert {found["under_way"][str(step)] for step in range(4, 13)} == {3}
    assert steps(root / "frozen")[0] == 3
    first = results["frozen"][0]["told"][0]
    assert first[1] == 3
    assert first[2] >= 12
    assert is_whole(root / "frozen")


def test_a_process_that_dies_is_followed_by_another_that_finishes_the_same_save(results: Results, root: Path) -> None:
    assert steps(root / "killed")[0] == 3
    assert is_whole(root / "killed")
    assert {found["weights"] for found in results["killed"]} == {results["behind-2"][0]["weights"]}


def test_a_save_that_fails_is_made_again_when_the_store_answers(results: Results, root: Path) -> None:
    found = results["blocked"][0]
    assert found["weights"] == results["behind-2"][0]["weights"]
    again, *_, goal = steps(root / "blocked")
    assert 10 <= again < goal
    assert is_whole(root / "blocked")


def test_a_copy_that_has_changed_on_one_rank_is_dropped_on_all_and_made_again_while_they_wait(
    results: Results, root: Path
) -> None:
    assert not any(found["waits_for_copies"] for found in results["behind-2"])
    assert all(found["waits_for_copies"] for found in results["changed"])
    again, *_, goal = steps(root / "changed")
    assert 3 < again < goal
    assert is_whole(root / "changed")
    assert [found["weights"] for found in results["changed"]] == [found["weights"] for found in results["behind-2"]]
    assert results["changed"][0]["told"] == results["changed"][1]["told"]


def test_an_epochs_end_is_saved_although_another_save_is_under_way(results: Results, root: Path) -> None:
    assert [commit["epoch"] for commit in commits(root / "epochs")] == [1, 2, 3, 4]
    assert [commit["step"] for commit in commits(root / "epochs")] == [12, 24, 36, 48]


def test_a_loop_after_the_first_ones_goal_saves_in_the_background_too(results: Results, root: Path) -> None:
    made = [(commit["step"], commit["reason"]) for commit in commits(root / "loops")]
    first = made.index((24, "goal"))
    assert (25, "cadence") in made[first:]
    assert made[-1] == (48, "goal")
    assert results["loops"][0]["under_way"]["26"] == 25


def test_what_the_script_asks_for_is_committed_before_it_goes_on(results: Results, root: Path) -> None:
    told = {step: at for _, step, at in results["script"][0]["told"]}
    assert told[7] == 7
    assert told[10] == 10
    assert steps(root / "script")[:2] == [4, 7]
    assert [commit["step"] for commit in commits(root / "script") if commit.get("pin")] == [10]


def test_ranks_that_have_diverged_raise_where_they_copy(results: Results) -> None:
    for found in results["differs"]:
        assert "differs between rank 0 and rank 1" in found["message"]


def test_a_script_that_goes_on_after_its_training_has_failed_keeps_neither_a_copy_nor_a_process(
    results: Results,
) -> None:
    assert [(found["uploaders"], found["arenas"]) for found in results["differs"]] == [([], []), ([], [])]


def pins(root: Path) -> list[tuple[str, int]]:
    return [(commit["pin"], commit["step"]) for commit in commits(root) if commit.get("pin")]


def test_what_is_to_be_pinned_is_pinned_although_this_very_step_is_being_saved(results: Results, root: Path) -> None:
    assert not [found for found in results["pinned-again"] if "told" not in found]
    assert steps(root / "pinned-again") == [12, 24, 24, 36, 48]
    assert pins(root / "pinned-again") == [("epoch", 24)]


def test_a_pin_is_not_lost_with_the_save_before_it(results: Results, root: Path) -> None:
    assert steps(root / "pinned-behind-a-failure")[0] == 6
    assert pins(root / "pinned-behind-a-failure") == [("best", 6)]
    assert {found["weights"] for found in results["pinned-behind-a-failure"]} == {results["behind-2"][0]["weights"]}


def test_no_later_step_is_pinned_instead_of_one_that_was_missed(results: Results, root: Path) -> None:
    assert {found["under_way"]["7"] for found in results["not-pinned"]} == {4}
    assert pins(root / "not-pinned") == []


def test_memory_that_was_missing_is_looked_for_again(results: Results, root: Path) -> None:
    assert steps(root / "short")[:3] == [3, 6, 9]
    for found in results["short"]:
        assert next(step for step, save in found["under_way"].items() if save) == "13"


@pytest.mark.parametrize(("name", "latest"), [("no-process", 3), ("dies-at-once", 14)])
def test_training_waits_for_its_saves_where_no_process_can_upload(
    results: Results, root: Path, name: str, latest: int
) -> None:
    assert {found["weights"] for found in results[name]} == {results["behind-2"][0]["weights"]}
    first, *others = steps(root / name)
    assert first <= latest
    assert others == [step for step in range(3, 49, 3) if step > first]


@pytest.mark.parametrize(("name", "undisturbed"), [("left", "blocking-2"), ("left-alone", "blocking-1")])
def test_who_leaves_with_a_save_under_way_makes_a_final_one_and_the_next_run_goes_on(
    results: Results, root: Path, name: str, undisturbed: str
) -> None:
    assert not [found for found in results[name] if "raised" in found]
    assert {found["steps"] for found in results[name]} == {results[name][0]["steps"]}
    left = results[name][0]["steps"]
    final = [commit for commit in commits(root / name) if commit["final"]]
    assert final[0]["step"] == left
    assert {found["begun"] for found in results[f"{name}-on"]} == {left}
    assert results[f"{name}-on"][0]["weights"] == results[undisturbed][0]["weights"]
    assert is_whole(root / name)
