"""The work of a whole job: its epochs up to the goal, and what is recorded when the goal is reached.

Called by `Session.epochs`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from perdure.checkpoint.checkpointer import GOAL_SECONDS
from perdure.contract import ExitKind
from perdure.group.agreement import CheckpointCall
from perdure.session.boundary import Boundary
from perdure.session.run import Run


class Job:
    """The epochs of one job."""

    def __init__(self, run: Run, boundary: Boundary) -> None:
        self._run = run
        self._boundary = boundary

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`; at their end the job is completed in the log."""
        progress = self._run.progress
        self._boundary.goal = count
        while progress.epochs_done < count and not self._completed_before(count):
            yield progress.begin_epoch()
            progress.finish_epoch()
            if progress.epochs_done < count:
                self._boundary.between_epochs()
        self._complete(count)

    def _completed_before(self, count: int) -> bool:
        """Whether the log says that this goal, or a higher one, has been reached."""
        goal = self._run.opening.goal if self._run.opening else None
        return isinstance(goal, dict) and count <= int(goal.get("epochs", 0))

    def _complete(self, count: int) -> None:
        """The goal is reached, and that beats a request to leave."""
        run, progress = self._run, self._run.progress
        self._boundary.at_once(CheckpointCall.END)
        run.pulse.stop()
        run.requests.before_first_step(None)
        begun = time.monotonic()

        def left() -> float:
            asked = run.requests.left()
            return GOAL_SECONDS - (time.monotonic() - begun) if asked is None else asked

        run.trace.event("completed", step=progress.step)
        if not progress.saved:
            run.checkpointer.final(progress.position(), "goal", left)
            progress.saved = True
            run.tell_commit()
        goal = run.opening.goal if self._completed_before(count) and run.opening else {"epochs": count}
        run.checkpointer.complete(goal, progress.position(), left)
        run.tell(run.ending(ExitKind.COMPLETED))
        self._release_requests()
        run.checkpointer.write_trace(left)
        run.checkpointer.retire()

    def _release_requests(self) -> None:
        """With an agent SIGTERM stays harmless: the agent's limit bounds what the script still does, an export say."""
        if self._run.settings.report_fd is None:
            self._run.requests.release()
        else:
            self._run.requests.release_interruption()
