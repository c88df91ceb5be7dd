"""Lightning's Trainer on a Session, on one and two real ranks: all scenarios are played once, by the same processes.

What an undisturbed training has come to is the evidence: weights by their hash, rates, each epoch's metrics, the
callbacks' decisions and every sample that was trained, against those of one that was asked to leave by SIGTERM and
started again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.session.ranks import Scene, play

SCENARIOS = "tests.unit.runtime.adapters.lightning_scenarios"
AT_ONCE = {"PERDURE_CHECK_SECONDS": "0"}
HALVES = {"accumulate_grad_batches": 2, "val_check_interval": 0.4}
DISTURBED: dict[str, tuple[int, str, dict[str, Any], list[dict[str, Any]]]] = {
    "in an epoch": (1, "trained", {}, [{"stop": 2}, {"stop": 8}]),
    "at an epoch's end": (1, "trained", {}, [{"stop": 5}]),
    "at a validation within an epoch": (1, "trained", {"val_check_interval": 0.4}, [{"stop": 2}]),
    "with gradients of several batches": (1, "trained", HALVES, [{"stop": 2}, {"stop": 4}]),
    "with ranges of such batches": (1, "scheduled", {}, [{"stop": 6}]),
    "with callbacks that decide": (1, "early", {}, [{"stop": 8}, {"stop": 14}]),
    "with two optimizers": (1, "trained", {"module": "Twin"}, [{"stop": 4}]),
    "with mixed precision": (1, "trained", {"precision": "bf16-mixed"}, [{"stop": 7}]),
    "with part of each epoch": (1, "trained", {"limit_train_batches": 3}, [{"stop": 4}]),
    "up to a step": (1, "trained", {"max_steps": 8}, [{"stop": 6}]),
    "two ranks": (2, "trained", {}, [{"stop": 3, "stopped_rank": 1}]),
    "two ranks, gradients of several batches": (2, "trained", HALVES, [{"stop": 2, "stopped_rank": 1}]),
    "two ranks, two optimizers": (2, "trained", {"module": "Twin"}, [{"stop": 4}]),
}
REFUSED = {
    "a DataLoader": "strategy.loader(dataset, batch_size), with the batch size of all ranks together",
    "a stream": "has no length and no sample by number",
    "two loaders": "there are several training loaders",
    "a loop that fetches": "write training_step(batch, batch_idx), without dataloader_iter",
    "a file": "fit(ckpt_path=...): a training resumes from the Session's newest commit",
    "fast_dev_run": "leave the strategy out for it",
    "overfit_batches": "give a data set of a few samples instead",
    "reload": "reload_dataloaders_every_n_epochs is not possible",
    "averaging": "StochasticWeightAveraging is not possible",
    "a second fit": "fit() is called twice",
}
Results = dict[str, list[Any]]


def scene(name: str, function: str, world: int, root: Path, **arguments: Any) -> Scene:
    return Scene(name, function, world, {"root": str(root), **arguments}, AT_ONCE, SCENARIOS)


def scenes(root: Path) -> list[Scene]:
    found = []
    for name, (world, function, options, stops) in DISTURBED.items():
        found.append(scene(f"{name}, straight", function, world, root / f"{name}, straight", **options))
        for number, stop in enumerate([*stops, {}]):
            found.append(scene(f"{name}, {number}", function, world, root / name, **options, **stop))
    found.append(scene("done again", "early", 1, root / "with callbacks that decide"))
    plain = {"module": "Plain", "size": 43}
    found.append(scene("sizes, straight", "trained", 1, root / "sizes, straight", **plain))
    found.append(scene("sizes, two", "trained", 2, root / "sizes", **plain, stop=7))
    found.append(scene("sizes, one", "trained", 1, root / "sizes", **plain))
    for world, accumulate in [(1, 1), (2, 2)]:
        name = f"example {world}"
        found.append(
            scene(f"{name}, straight", "drained", world, root / f"{name}, straight", at=None, accumulate=accumulate)
        )
        for number, at in enumerate([2, None]):
            found.append(scene(f"{name}, {number}", "drained", world, root / name, at=at, accumulate=accumulate))
    for number, at in enumerate([None, 13, None]):
        where = root / ("documented" if number else "documented, straight")
        found.append(scene(f"documented {number}", "documented", 1, where, at=at))
    found += [scene(f"refused {what}", "refused", 1, root / what, what=what) for what in REFUSED]
    found.append(scene("refused shards", "refused", 2, root / "shards", what="shards"))
    found.append(scene("refused empty shares", "refused", 2, root / "shares", what="empty shares"))
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("lightning")
    return play(folder, scenes(folder))


@pytest.mark.parametrize("name", DISTURBED)
def test_a_training_that_is_asked_to_leave_comes_to_what_it_comes_to_undisturbed(results: Results, name: str) -> None:
    world, _, _, stops = DISTURBED[name]
    for rank in range(world):
        straight = results[f"{name}, straight"][rank]
        parts = [results[f"{name}, {number}"][rank] for number in range(len(stops) + 1)]
        assert [part["how"] for part in parts] == ["left"] * len(stops) + ["completed"]
        seen, epochs = ([entry for part in parts for entry in part[what]] for what in ("seen", "epochs"))
        assert parts[-1] | {"seen": seen, "epochs": epochs} == straight


def test_what_was_trained_to_its_end_is_not_trained_again(results: Results) -> None:
    again = results["done again"][0]
    ended = results["with callbacks that decide, 2"][0]
    assert (again["how"], again["seen"]) == ("completed", [])
    assert {name: again[name] for name in ("weights", "steps", "best", "waited")} == {
        name: ended[name] for name in ("weights", "steps", "best", "waited")
    }


def test_another_number_of_ranks_goes_on_with_the_same_batches_to_the_same_weights_but_for_rounding(
    results: Results,
) -> None:
    straight, first, last = results["sizes, straight"][0], results["sizes, two"], results["sizes, one"][0]
    shared = [
        [*one[:2], sorted(one[2] + other[2])] for one, other in zip(*(part["seen"] for part in first), strict=True)
    ]
    assert shared + last["seen"] == straight["seen"]
    assert last["values"] == pytest.approx(straight["values"], abs=1e-3)
    assert last["epochs"][-1]["train_epoch"] == pytest.approx(straight["epochs"][-1]["train_epoch"], rel=1e-4)


@pytest.mark.parametrize("world", [1, 2])
def test_the_example_prints_the_same_weights_and_loss_after_a_drain(results: Results, world: int) -> None:
    for rank in range(world):
        straight, first, second = (results[f"example {world}, {part}"][rank] for part in ("straight", 0, 1))
        assert [line.split()[0] for line in straight] == ["loss", "weights"]
        assert (first, second) == ([], straight)


def test_the_documents_script_comes_to_the_same_weights_after_a_drain(results: Results) -> None:
    straight, first, second = (results[f"documented {number}"][0] for number in range(3))
    assert (straight["steps"], first["steps"], second["steps"]) == (20, 13, 20)
    assert second["weights"] == straight["weights"]
    assert straight["method"] == [10, 10]


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_be_exact_is_refused_with_what_to_do_instead(results: Results, what: str) -> None:
    [told] = results[f"refused {what}"]
    assert told.startswith("UserError: ")
    assert REFUSED[what] in told


def test_a_module_that_is_sharded_is_refused_in_lightnings_terms(results: Results) -> None:
    assert all("leave it out of configure_model" in told for told in results["refused shards"])


def test_a_batch_that_leaves_a_rank_without_samples_is_refused(results: Results) -> None:
    assert all("pass drop_last=True" in told for told in results["refused empty shares"])
