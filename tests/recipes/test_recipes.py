"""Trainings as people write them, interrupted in a random step and begun again: they end as if nothing had happened.

What counts is what a recipe itself has at its end, its weights and whatever else it holds, as digests that it prints.
What Perdure cannot bring back it says, and the words are pinned here.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

LEFT = 75  # saved and left: docs/training.md

EXACT = {
    "language": ("pretraining", "adapters", "preferences", "rewards", "carried_state"),
    "generative": ("dcgan", "critics", "diffusion", "annealing", "codebook"),
    "selfsupervised": ("queue", "dino"),
    "reinforcement": ("dqn", "a2c"),
    "optimizers": ("averaged", "lookahead", "hessians", "schedule_free", "scaled", "muon", "registered_dice"),
    "schedules": ("one_cycle", "plateau", "restarts", "chained", "thawing"),
    "data": ("mixup", "hard_samples", "shards", "buckets", "progressive", "multi_scale", "keys"),
    "structure": ("pruned_from_the_start", "quantized", "timm", "torchvision", "kept_best", "distilled"),
}
LONG = "structure.compiled"
AGAIN = "each resumed run would begin it anew"
TOLD = {
    "language.merged_adapters": f"steps change an unregistered Linear (weight): {AGAIN}; register it",
    "generative.forgotten_annealing": f"steps change annealer, an unregistered Annealer (current): {AGAIN}; keep",
    "selfsupervised.forgotten_centre": f"steps change an unregistered DINOLoss (center): {AGAIN}; register it",
    "selfsupervised.late_predictor": f"steps change an unregistered Linear (weight, bias): {AGAIN}; register it",
    "reinforcement.forgotten_target": "steps change an unregistered Sequential (0.weight, 0.bias, 2.weight, ...)",
    "optimizers.attributes": "steps change counter of 'optimizer', which its state_dict does not have",
    "optimizers.noisy_gradients": f"steps change dice, an unregistered Generator: {AGAIN}; keep its state",
    "schedules.quiet_batch_norm": "momentum of 'model', which its state_dict does not have",
    "schedules.rising_dropout": "p of 'model', which its state_dict does not have",
    "schedules.rising_smoothing": "steps change an unregistered CrossEntropyLoss (label_smoothing)",
    "structure.detection": "an unregistered LinearLR sets the learning rate of optimizer 'optimizer'",
    "data.forgotten_mixup": f"steps change rng, an unregistered Generator: {AGAIN}; keep its state",
}
"""What a whole run says of what it would lose."""
CHANGED_DATA = ("data.curriculum", "data.worker_curriculum")
"""Samples are others in a resumed run, which is told there."""
REFUSED = {
    "data.bad_samples": "session.state['counts'] is a collections.defaultdict, which a checkpoint cannot hold",
    "structure.pruned": "optimizer 'optimizer' has other parameters or parameter groups than when training began",
}


@dataclass(frozen=True)
class Played:
    status: int
    output: str
    steps: int

    @property
    def held(self) -> dict[str, str]:
        return dict(re.findall(r"^held (\S+) (\S+)$", self.output, re.MULTILINE))


Play = Callable[..., Played]


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-m", "tests.recipes.play"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PERDURE_CHECK_SECONDS": "0"}
    repository = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=repository, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as player:
        assert player.stdin
        assert player.stdout
        yield player.stdin, player.stdout
        player.stdin.close()
        assert player.wait() == 0


@pytest.fixture
def play(stage: tuple[IO[str], IO[str]], tmp_path: Path) -> Play:
    asked, answered = stage

    def played(recipe: str, name: str, interrupted: int | None = None) -> Played:
        """One process of the recipe, over the root of this name."""
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        environ = {"PERDURE_ROOT": (tmp_path / f"root-{name}").as_uri()}
        question = {"recipe": recipe, "folder": str(folder), "environ": [environ], "interrupted": interrupted}
        print(json.dumps(question), file=asked, flush=True)
        (status,) = json.loads(answered.readline())
        return Played(status, (folder / "output-0").read_text(), len((folder / "steps").read_text()))

    return played


def interrupted_and_resumed(play: Play, recipe: str, seed: int) -> tuple[Played, Played, Played]:
    whole = play(recipe, "whole")
    assert whole.status == 0, whole.output
    left = play(recipe, "parts", random.Random(f"{seed} {recipe}").randrange(2, whole.steps))
    assert left.status == LEFT, left.output
    ended = play(recipe, "parts")
    assert ended.status == 0, ended.output
    return whole, left, ended


@pytest.mark.parametrize(
    "recipe",
    [
        *(f"{file}.{name}" for file, names in EXACT.items() for name in names),
        pytest.param(LONG, marks=pytest.mark.chaos),
    ],
)
def test_a_recipe_that_is_interrupted_ends_as_if_nothing_had_happened(recipe: str, play: Play, seed: int) -> None:
    whole, _, ended = interrupted_and_resumed(play, recipe, seed)
    assert whole.held
    assert ended.held == whole.held, ended.output
    assert AGAIN not in whole.output, "nothing is forgotten"


@pytest.mark.parametrize("recipe", TOLD)
def test_what_a_recipe_forgets_is_told_before_anybody_interrupts_it(recipe: str, play: Play) -> None:
    whole = play(recipe, "whole")
    assert whole.status == 0, whole.output
    assert whole.output.count(TOLD[recipe]) == 1, whole.output


@pytest.mark.parametrize("recipe", CHANGED_DATA)
def test_samples_that_a_script_changes_with_the_steps_are_told_by_the_run_that_reads_others(
    recipe: str, play: Play
) -> None:
    assert play(recipe, "parts", interrupted=13).status == LEFT
    ended = play(recipe, "parts")
    assert ended.output.count("loader 'train': sample 0 is another one than that of the checkpoint") == 1


@pytest.mark.parametrize("recipe", REFUSED)
def test_what_no_checkpoint_could_hold_is_refused_in_words(recipe: str, play: Play) -> None:
    whole = play(recipe, "whole")
    assert (whole.status, whole.held) == (1, {})
    assert f"perdure.errors.UserError: {REFUSED[recipe]}" in whole.output
