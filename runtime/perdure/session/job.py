"""The work of a whole job: epoch loops one after the other, and what is recorded when there is nothing left to train.

A loop that has reached its goal is committed at once; that the job is complete is recorded where the script's work
ends, which is later: another loop may follow, or an export. Called by `Session`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from perdure.checkpoint.checkpointer import GOAL_SECONDS
from perdure.checkpoint.opening import say
from perdure.contract import ExitKind
from perdure.errors import UserError
from perdure.session.boundary import Boundary
from perdure.session.departure import left_by_break
from perdure.session.leaving import Exit, save_and_leave, save_finally
from perdure.session.run import Run
from perdure.telemetry.events import GoalReached

BREAK: Final = "break"
"""The reason of a loop that the script has left by `break`."""


class Job:
    """The epoch loops of one script."""

    def __init__(self, run: Run, boundary: Boundary, restore: Callable[[], None]) -> None:
        self._run = run
        self._progress = run.progress
        self._boundary = boundary
        self._restore = restore
        self._loops = 0
        self._trained = False
        """Whether an epoch was begun in this run."""
        self._raised = False
        """Whether something was raised in the body of a loop."""
        self._goal: dict[str, Any] | None = None
        """Of the last loop, once it is reached."""
        self._quiet = contextlib.ExitStack()
        """Silence of the others means nothing between the loops."""
        self._told_left_over: set[str] = set()
        self._trouble: BaseException | None = None
        """What went wrong where nothing can be raised."""
        self.count: int | None = None
        """How many epochs the loop that is on has."""

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of this loop."""
        if self._raised:
            raise UserError("an error has left the epoch loop before this one: let it end the script, and start again")
        if self._progress.epoch is not None:
            raise UserError(
                "session.epochs() is called inside of an epoch: one loop after the other is fine, one within the "
                "other has no position that could be saved"
            )
        self._restore()
        self._raise_trouble()
        if self._run.reporter.ended:
            raise Exit
        number, self._loops, self.count = self._loops, self._loops + 1, count
        goal = {"epochs": count}
        if not self._progress.begin_loop(number, goal) or self._progress.loop_epochs >= count:
            self._progress.pass_loop(number)
        else:
            self._begin()
            while self._progress.loop_epochs < count:
                epoch = self._progress.begin_epoch()
                try:
                    yield epoch
                except GeneratorExit:
                    self._raised = not left_by_break()
                    if not self._raised:
                        self._break(goal)
                    raise
                self._end_epoch(goal)
        self._reach(goal)

    def finish(self) -> None:
        """The script's work is done: this is recorded, if its last loop has reached its goal. Collective."""
        self._settle()
        if self._run.reporter.ended:
            return
        if self._goal is not None:
            self._complete()
        elif self._loops == 0:
            self._say_nothing_trained()

    def _settle(self) -> None:
        """The script goes on outside of a loop that it has not run to its end: as after a `break`. Collective."""
        if self._progress.epoch is not None and not self._raised and self._trouble is None:
            self._break({"epochs": self.count})
        self._raise_trouble()

    def _say_nothing_trained(self) -> None:
        if self._run.rank == 0:
            say("the script has no epochs(): nothing is trained, and nothing is completed")
            if self._run.opening:
                self._run.checkpointer.close("nothing-trained")

    def _complete(self) -> None:
        run, left = self._run, self._time_for_goal()
        run.pulse.stop()
        run.tell(GoalReached(self._progress.step))
        run.checkpointer.complete(self._goal, self._progress.position(), left)
        run.tell(run.ending(ExitKind.COMPLETED))
        run.checkpointer.write_trace(left)
        run.checkpointer.retire()

    def _begin(self) -> None:
        """Another loop has something to train."""
        if self._goal is not None:
            self._goal = None
            if self._boundary.leaving:
                self._run.tell(self._run.ending(ExitKind.CHECKPOINTED))
                raise Exit
            self._quiet.close()
            self._run.requests.listen()
            self._progress.saved = False
            self._boundary.save("loop")  # what was committed last ended the run's turn in the log
        self._trained = True

    def _end_epoch(self, goal: dict[str, Any]) -> None:
        """An epoch's body is done."""
        for source, left in self._progress.finish_epoch():
            self._tell_left_over(str(source), left)
        self._boundary.end_epoch()
        if self._progress.loop_epochs >= goal["epochs"]:
            return
        if self._boundary.leaving:
            save_and_leave(self._run)
        self._boundary.save_if_due()

    def _break(self, goal: dict[str, Any]) -> None:
        """The script has left its loop: the epoch counts, and the loop is over. Nothing can be raised here."""
        try:
            self._boundary.end_epoch()
            if self._boundary.leaving:
                save_finally(self._run)
                self._progress.epoch = None
                return
            self._progress.finish_epoch()
            self._progress.end_loop([BREAK])
            self._reach({**goal, "reason": [BREAK]})
        except BaseException as error:  # noqa: BLE001 - raised at the session's next call
            self._trouble = error

    def _reach(self, goal: dict[str, Any]) -> None:
        """The loop has reached its goal, and that beats a request to leave."""
        run, progress = self._run, self._progress
        self.count = None
        self._quiet.enter_context(run.pulse.paused())
        run.requests.before_first_step(None)
        if not progress.saved:
            run.checkpointer.final(progress.position(), "goal", self._time_for_goal())
            progress.saved = True
            run.tell_commit()
        elif not self._trained and run.rank == 0:
            self._say_complete()
        self._goal = goal
        self._release_requests()

    def _time_for_goal(self) -> Callable[[], float]:
        run, begun = self._run, time.monotonic()

        def left() -> float:
            asked = run.requests.left()
            return GOAL_SECONDS - (time.monotonic() - begun) if asked is None else asked

        return left

    def _say_complete(self) -> None:
        root, step = self._run.settings.root, self._progress.step
        if self._run.opening and self._run.opening.goal is not None:
            say(f"already complete at {root}, step {step}: nothing is left to train")
        else:
            say(f"trained to its goal at {root}, step {step}: what comes after the training is done again")

    def _tell_left_over(self, source: str, batches: int) -> None:
        if self._run.rank == 0 and source not in self._told_left_over:
            self._told_left_over.add(source)
            say(
                f"{source}: {batches} batches at the end of an epoch came after the last step(): they count as used, "
                f"and their gradients are in no checkpoint; step after the last batch, too: `if (i + 1) % k == 0 or "
                f"i + 1 == len(loader)`"
            )

    def _raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble

    def _release_requests(self) -> None:
        """With an agent SIGTERM stays harmless: the agent's limit bounds what the script still does, an export say."""
        if self._run.settings.report_fd is None:
            self._run.requests.release()
        else:
            self._run.requests.release_interruption()
