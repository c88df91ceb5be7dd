"""Whether a batch that adapts reaches what a fixed one reaches sooner, and ends no worse.

The models of examples/digits and examples/tinygpt on one rank, from batches of 16 samples on, with five seeds each. One
training runs at a time, and every other seed begins with the other way. What is to be reached is where the fixed batch
of the same seed stands at its end: its loss, and its accuracy, on the test set. Both ways are asked when they first are
there, at the end of an epoch. Evaluations do not count as time.

Each training is stored below build/bench as soon as it has ended, and is not made again as long as the code that made
it says the same. So a bench that was stopped goes on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import perdure
from e2e.bench.pollux.runs import code_of
from e2e.bench.report import FOLDER, Figure
from e2e.harness.evidence import NoEvidence
from e2e.harness.lab import DIGITS, TINYGPT
from e2e.prepare import Progress

SCRIPT: Final = Path(__file__).with_name("adaptive_trainer.py")
SEEDS: Final = range(5)
WAYS: Final = ("fixed", "adapts")


@dataclass(frozen=True)
class Task:
    """What is trained."""

    name: str
    folder: Path
    """That of the example."""
    epochs: int
    """Of the fixed batch. The other way ends when its progress is that of so many."""
    rate: float
    """Adam's. That of digits is the one of 5e-4 and 1e-3 with which the fixed batch ended better, on a seed that is
    none of SEEDS."""


TASKS: Final = (Task("digits", DIGITS, 20, 1e-3), Task("tinygpt", TINYGPT, 6, 1e-3))


@dataclass(frozen=True)
class Epoch:
    """How a training stood at the end of an epoch."""

    seconds: float
    """Of training, since its begin."""
    cpu: float
    """Of all threads, in the same time."""
    loss: float
    accuracy: float
    batch: int
    noise: float | None
    """The gradient noise scale in samples that the batch was chosen with; None: not measured."""


@dataclass(frozen=True)
class Training:
    """One that has ended."""

    task: str
    seed: int
    way: str
    load: tuple[float, float]
    """Of the machine, before it began and when it had ended."""
    code: str
    """That made it."""
    epochs: tuple[Epoch, ...]


@dataclass(frozen=True)
class Pair:
    """Both trainings of a seed."""

    fixed: tuple[Epoch, ...]
    adapts: tuple[Epoch, ...]

    def times(self, enough: Callable[[Epoch, Epoch], bool], clock: str) -> float | None:
        """When the batch that adapts is there, in times of when the fixed one is; None if it never is."""
        wanted = self.fixed[-1]
        fixed, adapts = (
            next((getattr(epoch, clock) for epoch in way if enough(epoch, wanted)), None)
            for way in (self.fixed, self.adapts)
        )
        return None if adapts is None or fixed is None else adapts / fixed


def measure(
    progress: Progress, *, keys: Sequence[str] = (), seeds: Sequence[int] = SEEDS
) -> tuple[list[Figure], dict[str, Any]]:
    """Ten trainings of each model, or those of them that are not stored. `keys`: of these models alone."""
    tasks = [task for task in TASKS if not keys or task.name in keys]
    for seed in seeds:
        for task in tasks:
            for way in WAYS if seed % 2 == 0 else reversed(WAYS):
                if stored(task, seed, way) is None:
                    progress.say(f"{task.name}, seed {seed}, {way}")
                    store(_trained(task, seed, way))
    figures, facts = list[Figure](), dict[str, Any]()
    for task in tasks:
        trainings = {way: [one for seed in seeds if (one := stored(task, seed, way))] for way in WAYS}
        pairs = [
            Pair(fixed.epochs, adapts.epochs) for fixed, adapts in zip(*(trainings[way] for way in WAYS), strict=True)
        ]
        figures.extend(_figures(task.name, pairs))
        facts[task.name] = {way: [asdict(one) for one in trainings[way]] for way in WAYS}
    return figures, {"cores": os.cpu_count(), "trainings": facts}


def _trained(task: Task, seed: int, way: str) -> Training:
    words = [sys.executable, str(SCRIPT), task.name, str(seed), str(task.epochs), str(task.rate), way]
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as root:
        environ = {**os.environ, "PYTHONPATH": str(task.folder), "PERDURE_ROOT": Path(root).as_uri()}
        ended = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise NoEvidence(f"{task.name}, seed {seed}, {way}: the training has failed")
    epochs = tuple(Epoch(**json.loads(line)) for line in ended.stdout.splitlines() if line.startswith("{"))
    return Training(task.name, seed, way, (before, os.getloadavg()[0]), code_of_training(task), epochs)


@cache
def code_of_training(task: Task) -> str:
    """Names the code, and what it was told."""
    runtime = Path(perdure.__file__).parent
    folders = [runtime / "goodput", runtime / "loop" / "adapting", runtime / "loop" / "measuring"]
    modules = [module for folder in folders for module in sorted(folder.glob("*.py"))]
    return f"{code_of((SCRIPT, task.folder / 'train.py', *modules))} {task.epochs} {task.rate}"


def _path(task: str, seed: int, way: str) -> Path:
    return FOLDER / f"adaptive-{task}-{seed}-{way}.json"


def store(training: Training) -> None:
    """Whole or not at all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = _path(training.task, training.seed, training.way)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(training), indent=2) + "\n")
    new.replace(path)


def stored(task: Task, seed: int, way: str) -> Training | None:
    """The training as it was stored, if the code that made it is still the same."""
    path = _path(task.name, seed, way)
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    epochs = tuple(Epoch(**epoch) for epoch in found.pop("epochs"))
    training = Training(**found | {"load": tuple(found["load"]), "epochs": epochs})
    return training if training.code == code_of_training(task) else None


def _figures(name: str, pairs: Sequence[Pair]) -> Iterator[Figure]:
    def reached(what: str, enough: Callable[[Epoch, Epoch], bool]) -> Iterator[Figure]:
        for clock, title in (("seconds", "seconds"), ("cpu", "CPU")):
            times = tuple(found for pair in pairs if (found := pair.times(enough, clock)) is not None)
            if times:  # its number of samples says how many seeds get there
                yield Figure(f"{name}, {title} to the {what} that the fixed batch ends with", "", times, 1.0, "as soon")

    def ends(of: Callable[[Epoch], float]) -> tuple[float, ...]:
        return tuple(of(pair.adapts[-1]) / of(pair.fixed[-1]) for pair in pairs)

    yield from reached("accuracy", lambda epoch, wanted: epoch.accuracy >= wanted.accuracy)
    yield from reached("loss", lambda epoch, wanted: epoch.loss <= wanted.loss)
    yield Figure("  seconds in all", "", ends(lambda epoch: epoch.seconds), 1.0, "as long")
    yield Figure("  loss at the end", "", ends(lambda epoch: epoch.loss), 1.0, "no worse")
    yield Figure("  accuracy at the end", "", ends(lambda epoch: epoch.accuracy), 1.0, "no worse")
    yield Figure("  mean batch", "samples", tuple(statistics.mean(e.batch for e in pair.adapts) for pair in pairs))
