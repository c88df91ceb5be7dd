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
    "structure": ("pruned_from_the_start", "quantized", "timm", "torchvision", "detection", "kept_best", "distilled"),
}
LONG = "structure.compiled"


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
