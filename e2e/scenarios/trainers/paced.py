"""examples/digits/train.py as it is, but not too fast, and saying each step: `python paced.py train.py ...`.

Only the first run is slowed down, by PACE_SECONDS a step: it must still train when a scenario disturbs it.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

import perdure
from perdure.session import Session

PACE_SECONDS = float(os.environ.get("PACE_SECONDS", "0.1"))
RUN = os.environ["PERDURE_RUN"]
FIRST_RUN = RUN == "1"


class Paced(Session):
    """A Session that says its steps."""

    here = 0
    """Steps done in this run."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        super().step(*args, **kwargs)
        self.here += 1
        print(f"PACE run {RUN}: {self.here} steps", flush=True)
        if FIRST_RUN:
            time.sleep(PACE_SECONDS)


def train(session: type[Session]) -> None:
    """Runs the script named on the command line with that Session in Session's place."""
    perdure.Session = session  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    train(Paced)
