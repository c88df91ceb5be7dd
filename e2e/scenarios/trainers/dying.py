"""As paced.py, and one rank of run 1 is killed in the middle of a step: `DIES=2,12,backward python dying.py train.py`.

The rank, the steps it has done, and where: in its forward pass, in the backward pass while others wait to reduce, in
its optimizer, which has all that the others had to give, or behind it, before the step is counted. With `HANGS=sleeps`
it is not killed: its script sleeps there; with `HANGS=stops` the process is stopped, and none of its threads goes on.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from e2e.scenarios.trainers.paced import Paced, train

RANK, STEPS, WHERE = os.environ["DIES"].split(",")
HANGS = os.environ.get("HANGS", "")


class Dying(Paced):
    """A Session one of whose ranks dies."""

    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        wrapped = super().wrap(model, **options)
        model.register_forward_pre_hook(lambda *_: self.reaches("forward"))
        next(model.parameters()).register_hook(lambda _: self.reaches("backward"))
        register_optimizer_step_pre_hook(lambda *_: self.reaches("optimizer"))
        return wrapped

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.reaches("step")
        super().step(*args, **kwargs)

    def reaches(self, where: str) -> None:
        """Dies, if this is the place."""
        if (self.run, str(self.rank), str(self.here), where) == (1, RANK, STEPS, WHERE):
            if HANGS == "sleeps":
                time.sleep(3600)
            os.kill(os.getpid(), signal.SIGSTOP if HANGS else signal.SIGKILL)


if __name__ == "__main__":
    train(Dying)
