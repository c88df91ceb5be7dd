"""examples/digits/train.py as it is, but not too fast, and saying each step: `python paced.py train.py ...`.

Only the first PACED_RUNS runs are slowed down, by PACE_SECONDS a step, and after their PACE_HOLDS-th step so much, by
PACE_HOLD_SECONDS, that they are still there when what a scenario does to them takes effect, however busy the machine
is. PACE_HOLDS=13,0 means: the first run after its 13th step, the later ones from their first. A scenario that has seen
enough creates the file UNPACED in every member, and none is slowed down any more.

It also says the state of the generators that the script itself never draws from, Python's and NumPy's, at its first
step and wherever a step finds another state than the one before: whatever else runs here must not draw from them.

With SILENCE_SECONDS a party of a hand-over may be silent for so long before that ends the attempt. Three seconds, the
product's, can pass on a machine that is short of cores; the operator then tries again, but a test that plays the
operator has one attempt.

With PACE_RECORDED=1 a step is on record before it is said: of a trainer that is killed at once the last second's steps
would be in no trace.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import runpy
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import perdure
from perdure.live.protocol import hearing, timing
from perdure.session.session import Session

PACE_SECONDS = float(os.environ.get("PACE_SECONDS", "0.1"))
PACE_HOLDS = [int(steps) for steps in os.environ.get("PACE_HOLDS", "30").split(",")]
PACE_HOLD_SECONDS = float(os.environ.get("PACE_HOLD_SECONDS", "3"))
PACED_RUNS = int(os.environ.get("PACED_RUNS", "1"))
SILENCE_SECONDS = float(os.environ.get("SILENCE_SECONDS", timing.SILENCE_SECONDS))
PACE_RECORDED = os.environ.get("PACE_RECORDED") == "1"
UNPACED = Path("/dev/shm/unpaced")
SKLEARN = importlib.util.find_spec("sklearn") or ModuleSpec("sklearn", None)


class Paced(Session):
    """A Session that says its steps."""

    stepped: tuple[int, int] = (0, 0)
    """The run of the last step, and the steps done in it here."""
    generators: str = ""
    """What was last said of them."""

    @property
    def run(self) -> int:
        """The run's number."""
        return perdure.progress(self).run

    @property
    def here(self) -> int:
        """Steps done in this run by this process."""
        run, steps = self.stepped
        return steps if run == self.run else 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.say_generators()
        super().step(*args, **kwargs)
        self.stepped = self.run, self.here + 1
        if PACE_RECORDED:
            self._core.run.trace.flush()
        print(f"PACE run {self.run}: {self.here} steps", flush=True)
        if self.run <= PACED_RUNS and not UNPACED.exists():
            holds = PACE_HOLDS[min(self.run, len(PACE_HOLDS)) - 1]
            self.rest(PACE_HOLD_SECONDS if self.here > holds else PACE_SECONDS)

    def say_generators(self) -> None:
        """Says their state if it is not as it was."""
        kind, key, *rest = np.random.get_state()
        state = hashlib.sha256(repr((random.getstate(), kind, np.asarray(key).tolist(), rest)).encode()).hexdigest()
        found = f"GENERATORS of rank {self.rank} of {self.world}: {state[:16]}"
        if found != self.generators:
            print(found, flush=True)
        self.generators = found

    def rest(self, seconds: float) -> None:
        """Between two steps."""
        time.sleep(seconds)


def load_digits() -> SimpleNamespace:
    """As scikit-learn's."""
    folder = "".join(SKLEARN.submodule_search_locations or ())
    table = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    return SimpleNamespace(images=table[:, :-1].reshape(-1, 8, 8), target=table[:, -1].astype(int))


def stand_in_for_sklearn() -> None:
    """The script reads its digits without the rest of scikit-learn, whose import takes 0.7 CPU seconds, in each of the
    hundred processes that the scenarios start."""
    for spec in (SKLEARN, ModuleSpec("sklearn.datasets", None)):
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    module.load_digits = load_digits  # type: ignore[attr-defined]


def train(session: type[Session]) -> None:
    """Runs the script named on the command line with that Session in Session's place."""
    stand_in_for_sklearn()
    vars(hearing)["SILENCE_SECONDS"] = SILENCE_SECONDS
    perdure.Session = session  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    train(Paced)
