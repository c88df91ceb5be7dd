"""examples/digits/train.py as it is, but not too fast, and saying each step: `python paced.py train.py ...`.

Only the first PACED_RUNS runs are slowed down, by PACE_SECONDS a step: they must still train when a scenario disturbs
them.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

import perdure
from perdure.session.session import Session

PACE_SECONDS = float(os.environ.get("PACE_SECONDS", "0.1"))
RUN = os.environ["PERDURE_RUN"]
FIRST_RUN = RUN == "1"
SLOW = int(RUN) <= int(os.environ.get("PACED_RUNS", "1"))


class Paced(Session):
    """A Session that says its steps."""

    here = 0
    """Steps done in this run."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        super().step(*args, **kwargs)
        self.here += 1
        print(f"PACE run {RUN}: {self.here} steps", flush=True)
        if SLOW:
            time.sleep(PACE_SECONDS)


def train(session: type[Session]) -> None:
    """Runs the script named on the command line with that Session in Session's place."""
    perdure.Session = session  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    train(Paced)
