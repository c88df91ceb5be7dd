"""The Hugging Face Trainer with a Session, as scripts use it: in real processes, drained by SIGTERM, and started again.

What an undisturbed training comes to is the judge of a disturbed one: its weights, bit for bit, the samples that the
model has seen, and everything that the Trainer has logged. What it comes to at all is judged by transformers' own
Trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from e2e.harness.local_run import free_port
from tests.unit.runtime.live.nursery import Nursery
from tests.unit.runtime.records import entries

PAGE = Path(__file__).parents[4] / "docs" / "frameworks.md"
PACKAGE = "tests.unit.runtime.adapters"
MODULES = (
    "perdure.session.session",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    f"{PACKAGE}.hf_trainings",
)
SECONDS = 900
"""The imports take ten seconds of a core, and a machine may be busy."""
KNOWN = ("weights", "history", "steps", "best", "evaluations", "loss")


class Place:
    """Where trainings are played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nursery = Nursery(folder, PACKAGE, MODULES, seconds=SECONDS)
        self._plays = 0

    def play(
        self, root: str, ranks: int = 1, function: str = "train", exit_at: int = 0, **arguments: Any
    ) -> list[dict[str, Any]]:
        """What each rank tells in the end."""
        self._plays += 1
        environ = {"PERDURE_CHECK_SECONDS": "0", "FOLDER": str(self.folder), "GLOO_SOCKET_IFNAME": "lo"}
        if exit_at:
            environ["PERDURE_EXIT_AT_STEP"] = str(exit_at)
        if ranks > 1:
            port = str(free_port())
            environ |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started = {
            f"{self._plays}-{rank}": environ | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {})
            for rank in range(ranks)
        }
        given = arguments if function == "train_without" else {"root": str(self.folder / root), **arguments}
        pids = [self._nursery.start(name, f"hf_trainings.{function}", given, own) for name, own in started.items()]
        for pid in pids:
            self._nursery.wait(pid)
        found = [self._nursery.result(name) for name in started]
        assert not any("missing" in one for one in found), "\n".join(one.get("missing", "") for one in found)
        return found

    def refused(self, root: str, **arguments: Any) -> str:
        """What a training that fails says of it, to a person."""
        with pytest.raises(AssertionError):
            self.play(root, **arguments)
        return "".join(line for line in self.output().splitlines() if line.startswith("perdure.errors.UserError: "))

    def output(self) -> str:
        """What rank 0 has printed in the last play."""
        return self._nursery.output(f"{self._plays}-0")

    def close(self) -> None:
        self._nursery.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("hf"))
    yield place
    place.close()


def log(place: Place, root: str) -> list[dict[str, Any]]:
    """The log's entries, oldest first."""
    return entries(place.folder / root)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """All but the samples."""
    assert {name: found[name] for name in KNOWN} == {name: expected[name] for name in KNOWN}


FULL: dict[str, Any] = {
    "dropout": 0.5,
    "num_train_epochs": 2,
    "eval_strategy": "epoch",
    "metric_for_best_model": "score",
}
"""Six batches of 8, the last of 4."""


@pytest.fixture(scope="module")
def undisturbed(place: Place) -> dict[int, dict[str, Any]]:
    """By the number of batches of an update."""
    return {
        accumulate: place.play(f"undisturbed-{accumulate}", gradient_accumulation_steps=accumulate, **FULL)[0]
        for accumulate in (1, 2)
    }


@pytest.mark.parametrize(("accumulate", "steps"), [(1, (2, 5, 6)), (2, (1, 2, 4))])
def test_whatever_the_update_in_which_it_is_drained_nothing_is_another(
    place: Place, undisturbed: dict[int, dict[str, Any]], accumulate: int, steps: tuple[int, ...]
) -> None:
    for step in steps:
        root = f"drained-{accumulate}-{step}"
        options: dict[str, Any] = {"gradient_accumulation_steps": accumulate, **FULL}
        (first,) = place.play(root, terminate=step, **options)
        (second,) = place.play(root, **options)
        assert first["left"]
        assert first["step"] in (step, step + 1)
        assert first["seen"] + second["seen"] == undisturbed[accumulate]["seen"]
        same(second, undisturbed[accumulate])


def test_a_training_is_that_of_the_trainer_alone(place: Place) -> None:
    options: dict[str, Any] = {
        "train_sampling_strategy": "sequential",
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
    }
    (ours,) = place.play("ours", **options)
    (theirs,) = place.play("theirs", function="train_without", **options)
    assert ours["seen"] == theirs["seen"]
    assert (ours["weights"], ours["loss"], ours["history"][:-1]) == (
        theirs["weights"],
        theirs["loss"],
        theirs["history"],
    )


def losses(told: dict[str, Any]) -> list[float]:
    """Those that the Trainer has logged."""
    return [entry["loss"] for entry in told["history"] if "loss" in entry]


EXACT: dict[str, Any] = {"num_train_epochs": 2, "lr_scheduler_type": "constant", "samples": 40}
"""Whole numbers throughout, on any number of ranks that divides a batch."""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_ranks_are_drained_and_one_goes_on_to_the_same_weights(place: Place, accumulate: int) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulate, **EXACT}
    (alone,) = place.play(f"alone-{accumulate}", **options)
    both = place.play(f"both-{accumulate}", ranks=2, terminate=2, **options)
    (after,) = place.play(f"both-{accumulate}", **options)
    assert [one["left"] for one in both] == [True, True]
    assert [sorted(a + b) for a, b in zip(both[0]["seen"], both[1]["seen"], strict=True)] + [
        sorted(batch) for batch in after["seen"]
    ] == [sorted(batch) for batch in alone["seen"]]
    assert after["weights"] == alone["weights"]
    assert losses(after) == losses(alone)
    assert [entry["world"] for entry in log(place, f"both-{accumulate}") if entry["kind"] == "Opened"] == [2, 1]


def test_two_ranks_that_are_drained_come_to_the_bits_of_two_that_are_not(place: Place) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, **FULL}
    straight = place.play("straight", ranks=2, **options)
    place.play("broken", ranks=2, terminate=2, **options)
    found = place.play("broken", ranks=2, **options)
    assert straight[0]["weights"] == straight[1]["weights"]
    for rank in (0, 1):
        same(found[rank], straight[rank])


@pytest.mark.parametrize("model", ["plain", "mean", "summed"])
def test_what_is_learnt_of_a_batch_does_not_depend_on_how_ranks_share_it(place: Place, model: str) -> None:
    options: dict[str, Any] = {"model": model, "num_train_epochs": 1, "samples": 41, "gradient_accumulation_steps": 3}
    options |= {"logging_steps": 1, "eval_on_start": True, "eval_strategy": "epoch"}
    (alone,) = place.play(f"share-{model}", **options)
    ranks = place.play(f"shares-{model}", ranks=2, **options)
    assert alone["values"] == pytest.approx(ranks[0]["values"], rel=1e-12)
    assert ranks[0]["values"] == ranks[1]["values"]
    assert losses(alone) == pytest.approx(losses(ranks[0]))
    evaluated = [[entry["eval_loss"] for entry in one["history"] if "eval_loss" in entry] for one in (alone, ranks[0])]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)
    assert evaluated[0][-1]
    assert len(ranks[1]["seen"][-1]) == 1  # a stand-in: the last batch has a single sample


def test_ranks_that_would_train_each_for_itself_are_refused(place: Place) -> None:
    assert "use_cpu=True" in place.refused("apart", ranks=2, use_cpu=False)


def test_a_batch_that_would_follow_the_number_of_ranks_is_refused(place: Place) -> None:
    options: dict[str, Any] = {"batch_size": None, "num_train_epochs": 1}
    place.play("follows", ranks=2, terminate=1, **options)
    assert "give Trainer(batch_size=16)" in place.refused("follows", **options)


BEST: dict[str, Any] = {
    "num_train_epochs": 4,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "load_best_model_at_end": True,
    "metric_for_best_model": "score",
    "greater_is_better": False,
    "patience": 1,
}


def test_a_drained_training_stops_early_at_the_same_epoch_and_gives_the_same_best_model(place: Place) -> None:
    (straight,) = place.play("best", **BEST)
    (first,) = place.play("best-drained", terminate=8, **BEST)
    (second,) = place.play("best-drained", **BEST)
    assert straight["best"]
    assert straight["steps"] < 4 * 6
    assert first["left"]
    same(second, straight)
    goal = log(place, "best-drained")[-1]
    assert (goal["kind"], goal["goal"]["stop"]) == ("Completed", ["should_training_stop"])
    best = perdure.load(place.folder / "best-drained", ["model"], pin="best")
    assert best.commit.step == straight["best"]
    assert best["model"]["layer.weight"].flatten().tolist() == straight["values"]


def test_a_finished_training_trains_nothing_and_tells_the_same(place: Place) -> None:
    (first,) = place.play("twice", **BEST)
    (second,) = place.play("twice", **BEST)
    assert second["seen"] == []
    assert second["weights"] == first["weights"]
    assert second["loss"] == first["loss"]


def test_the_evaluation_before_the_first_step_is_not_done_again(place: Place) -> None:
    options: dict[str, Any] = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 4, **EXACT}
    (straight,) = place.play("start", **options)
    place.play("started", terminate=5, **options)
    (second,) = place.play("started", **options)
    same(second, straight)


def test_a_schedule_that_follows_the_evaluations_goes_on(place: Place) -> None:
    options: dict[str, Any] = {
        **FULL,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0},
    }
    options |= {"eval_strategy": "steps", "eval_steps": 2}
    (straight,) = place.play("plateau", **options)
    place.play("plateaus", terminate=7, **options)
    (second,) = place.play("plateaus", **options)
    same(second, straight)
    assert len({entry["learning_rate"] for entry in second["history"] if "learning_rate" in entry}) > 1


def test_max_steps_end_a_training_in_the_middle_of_an_epoch(place: Place) -> None:
    (straight,) = place.play("max", max_steps=9, dropout=0.5)
    (first,) = place.play("maxes", max_steps=9, dropout=0.5, terminate=7)
    (second,) = place.play("maxes", max_steps=9, dropout=0.5)
    assert (straight["steps"], first["step"]) == (9, 8)
    same(second, straight)
    assert "raise it beyond that epoch" in place.refused("maxes", max_steps=11, dropout=0.5)


def test_a_process_that_is_killed_in_an_epochs_last_evaluation_does_that_again(place: Place) -> None:
    (straight,) = place.play("calm", **FULL)
    assert place.refused("killed", terminate=5, kill=True, **FULL) == ""
    assert [entry.get("reason") for entry in log(place, "killed")] == [None, "in case"]
    (second,) = place.play("killed", **FULL)
    assert second["seen"] == straight["seen"][6:]
    same(second, straight)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("train_sampling_strategy", {"train_sampling_strategy": "group_by_length"}),
        ("no sample by number", {"data": "stream", "max_steps": 3}),
        ("auto_find_batch_size", {"auto_find_batch_size": True}),
        ("ignore_data_skip", {"ignore_data_skip": True}),
        ("enable_jit_checkpoint", {"enable_jit_checkpoint": True}),
        ("dataloader_in_order", {"dataloader_in_order": False}),
        ("split_batches", {"accelerator_config": {"split_batches": True}}),
        ("resume_from_checkpoint", {"resume": True}),
        ("to be sharded over the ranks", {"fsdp": True, "ranks": 2}),
        ("_get_train_sampler", {"own": "sampler"}),
        ("supports transformers 5.23", {"own": "release"}),
        ("called twice", {"own": "again"}),
    ],
)
def test_what_has_no_exact_resume_is_refused_with_a_remedy(place: Place, words: str, options: dict[str, Any]) -> None:
    assert words in place.refused(f"refused-{words}", **options)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_example_is_drained_and_exports_the_same_model(place: Place, accumulate: int) -> None:
    words = ["--epochs", "1", "--batch", "128", "--accumulate", str(accumulate)]

    def run(name: str, **more: Any) -> dict[str, Any]:
        folder = str(place.folder / f"example-{name}-{accumulate}")
        return place.play(f"roots-{name}-{accumulate}", function="example", folder=folder, words=words, **more)[0]

    straight = run("straight")
    assert run("drained", exit_at=4) == {"left": True}
    assert run("drained") == straight
    assert not straight["left"]


def test_the_page_shows_a_script_that_runs(place: Place) -> None:
    section = PAGE.read_text().split("## Hugging Face Trainer")[1].split("\n## ")[0]
    _, after = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    (told,) = place.play("page", function="page", block=after)
    assert "training_args.bin" in told["saved"]
