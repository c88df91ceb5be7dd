"""As paced.py, and one rank of run 1 is killed, or stands still, at one place of a step of a sharded model:
`HARM=SIGKILL,2,12,backward python harmed_shards.py sharded_digits.py`.

The signal (or RAISE: an error; or POD: its agent is killed, and all ranks of its pod die), the rank, the steps that it
has done, and the place: before its forward pass, in its backward pass, when it has its final gradient (gradient), in
the meeting when the others know that it comes (meeting), when it knows that they come (met), behind its optimizer's
step (stepped), or behind the session's (counted).
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from e2e.scenarios.trainers.paced import Paced, train
from perdure.group import agreement

SIGNAL, RANK, STEPS, WHERE = os.environ["HARM"].split(",")


class Harmed(Paced):
    """A Session one of whose ranks is harmed."""

    hooked = False

    def register(self, **things: Any) -> None:
        model: nn.Module = things["model"]
        register_optimizer_step_pre_hook(partial(self.reaches, "gradient"))
        super().register(**things)
        model.register_forward_pre_hook(partial(self.reaches, "forward"))
        model.register_full_backward_pre_hook(partial(self.reaches, "backward"))

    def step(self, *args: Any, **kwargs: Any) -> None:
        if not self.hooked:  # behind the hooks of the session
            self.hooked = True
            register_optimizer_step_pre_hook(partial(self.reaches, "met"))
            register_optimizer_step_post_hook(partial(self.reaches, "stepped"))
            Meeting.harmed = self
        super().step(*args, **kwargs)
        self.reaches("counted")

    def reaches(self, where: str, *_: Any) -> None:
        """Harms this rank, if this is the place."""
        done = int(STEPS) + (where == "counted")
        if (self.run, str(self.rank), self.here, where) == (1, RANK, done, WHERE):
            print(f"HARM at {where}: process {os.getpid()}", flush=True)
            if SIGNAL == "RAISE":
                raise RuntimeError("an error of the script's")
            if SIGNAL == "POD":
                os.kill(os.getppid(), signal.SIGKILL)
                signal.pause()
            os.kill(os.getpid(), signal.Signals[SIGNAL])


class Meeting(agreement.Meeting):
    """A meeting to which the others have been told that this rank comes."""

    harmed: Harmed | None = None

    def is_over(self, seconds: float) -> bool:
        if Meeting.harmed:
            Meeting.harmed.reaches("meeting")
        return super().is_over(seconds)


if __name__ == "__main__":
    agreement.Meeting = Meeting  # type: ignore[misc]
    train(Harmed)
