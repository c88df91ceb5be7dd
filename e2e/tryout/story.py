"""What `make try` does, step by step, saying each."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.harness import promises
from e2e.harness.local_run import Ended, LocalRun, Start, executed
from e2e.harness.promises import Promises, measure, result_line
from e2e.harness.root import Root
from e2e.prepare import PrepareError, Progress

PACED = Path(__file__).resolve().parents[1] / "scenarios" / "trainers" / "paced.py"
WORLD = 2
SAMPLES = 1536
BATCH = 64
EVERY_STEPS = 10
UNFINISHED = 75
"""EX_TEMPFAIL: saved, and not done."""
"""How often the tryout commits: what a killed training may lose."""


@dataclass(frozen=True)
class Interruption:
    """When, and how."""

    step: int
    kill: bool
    """SIGKILL for one rank, unannounced, rather than SIGTERM for all, as a pod gets it."""


@dataclass(frozen=True)
class Result:
    """The promises, measured."""

    promises: Promises
    killed: bool

    @property
    def holds(self) -> bool:
        """Whether they are kept: a killed training may lose the steps since its last commit, and nothing else."""
        if not self.killed:
            return self.promises.hold
        kept = self.promises.weights_equal and self.promises.samples.lost == self.promises.samples.repeated == 0
        return kept and self.promises.steps_lost < EVERY_STEPS + WORLD

    def line(self) -> str:
        """For scripts."""
        return result_line(self.promises.values() | {"pause_s": f"{self.promises.gap.seconds:.1f}"})


def drawn(seed: int, epochs: int, *, kill: bool) -> Interruption:
    """A step somewhere in the middle half of the training."""
    steps = epochs * SAMPLES // BATCH
    return Interruption(random.Random(seed).randrange(steps // 4, steps * 3 // 4), kill)  # noqa: S311


@dataclass(frozen=True)
class Tryout:
    """One telling."""

    python: Path
    script: Path
    folder: Path
    epochs: int
    progress: Progress
    start: Start = executed

    def tell(self, interruption: Interruption) -> Result:
        """Everything; prints the report."""
        interrupted, undisturbed = self.folder / "interrupted", self.folder / "undisturbed"
        self._interrupt(interrupted, interruption)
        self.progress.say("the same command again, in the same folder: it goes on")
        went_on = self._finish(interrupted)
        self.progress.say("the same training undisturbed, in another folder, to compare with")
        reference = self._finish(undisturbed)
        roots = {"interrupted": Root(interrupted / "root"), "undisturbed": Root(undisturbed / "root")}
        weights = {name: root.weight_hash() for name, root in roots.items()}
        root, equal = roots["interrupted"], len(set(weights.values())) == 1
        found = measure(root.entries(), root.trace().steps, samples=SAMPLES, epochs=self.epochs, weights_equal=equal)
        accuracy = {"interrupted": _accuracy(went_on), "undisturbed": _accuracy(reference)}
        print("\n".join(["", *promises.told(found, accuracy, weights), ""]), flush=True)
        return Result(found, interruption.kill)

    def _run(self, folder: Path, interruption: Interruption | None = None) -> LocalRun:
        """One that will be interrupted rests between the steps from there on, so that it is not over before."""
        folder.mkdir(exist_ok=True)
        environ = {"PERDURE_EVERY_STEPS": str(EVERY_STEPS)}
        if interruption:
            environ |= {"PACE_SECONDS": "0", "PACE_HOLDS": str(interruption.step - 1), "PACE_HOLD_SECONDS": "0.5"}
        script = [PACED, self.script] if interruption else [self.script]
        argv = [str(word) for word in (self.python, *script, "--epochs", self.epochs)]
        return LocalRun(argv, folder, world=WORLD, environ=environ, watched=True, start=self.start)

    def _interrupt(self, folder: Path, interruption: Interruption) -> None:
        how = "kill -9 for one of them" if interruption.kill else "SIGTERM"
        command = f"{self.script.name} --epochs {self.epochs}"
        self.progress.say(f"{WORLD} processes of {command}, interrupted at step {interruption.step} by {how}")
        with self._run(folder, interruption) as run:
            step = run.reaches(interruption.step)
            run.signal(signal.SIGKILL, [WORLD - 1]) if interruption.kill else run.signal(signal.SIGTERM)
            self.progress.say(f"step {step} is done, they are interrupted")
            ended = run.ends()
        self._say(ended)
        if not interruption.kill:
            check(ended, done=False)

    def _finish(self, folder: Path) -> Ended:
        with self._run(folder) as run:
            ended = run.ends()
        self._say(ended)
        check(ended, done=True)
        return ended[0]

    def _say(self, ended: Sequence[Ended]) -> None:
        """Perdure's own messages to the user."""
        for line in (line for rank in ended for line in rank.said.splitlines() if line.startswith("perdure")):
            self.progress.say(f"  {line}")


def check(ended: Sequence[Ended], *, done: bool) -> None:
    """PrepareError if a rank that was not killed has failed, or reports something false about the training."""
    for number, rank in enumerate(ended):
        # rank 0 is asked what it does, as an agent would ask it: it exits as for one
        if rank.status not in ((0,) if done else (0, UNFINISHED)):
            raise PrepareError(f"rank {number} has ended with status {rank.status}:\n{rank.tail}")


def _accuracy(ended: Ended) -> str:
    printed = re.search(r"accuracy (\S+)", ended.said)
    return printed[1] if printed else "unknown"
