"""Where a run may stop: what the ranks vote about, and what is done where they have agreed.

Called by `Session` at every step, poll and save, and by perdure.session.job at every epoch's end.
"""

from __future__ import annotations

import time

from perdure.channel import Stepped
from perdure.group.agreement import CheckpointCall, Votes
from perdure.session.leaving import save_and_leave
from perdure.session.run import Run


class Boundary:
    """Saves when that is due, and leaves where all leave."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.goal: int | None = None
        """How many epochs are wanted, once that is known."""
        self.exhausted = False
        """Whether some rank has said `step(exhausted=True)`."""
        self._stepped = False
        self._save_at_epochs_end = False
        self._request_traced = False

    def step(self, *, exhausted: bool) -> None:
        """One optimizer step is done."""
        run, progress = self._run, self._run.progress
        run.checkpointer  # noqa: B018 - raises if nothing is restored
        if not self._stepped:
            run.requests.before_first_step(None)
            self._stepped = True
        ids = progress.finish_step()
        run.trace.step(progress.epochs_done, progress.step, ids)
        run.tell(Stepped(progress.step))
        run.pulse.stepped()
        due = self._check(CheckpointCall.STEP, exhausted=exhausted) or run.schedule.after_step(progress.step)
        if due and not progress.saved:
            self._save_periodically("cadence")

    def poll(self) -> None:
        """Between two steps."""
        self._run.checkpointer  # noqa: B018 - raises if nothing is restored
        self._check(CheckpointCall.POLL)

    def save(self) -> bool:
        """The script wants a checkpoint; False if the store failed."""
        self._run.checkpointer  # noqa: B018 - raises if nothing is restored
        if self._run.progress.at_epochs_end:
            self._save_at_epochs_end = True
            return True
        if self.at_once(CheckpointCall.SAVE, exit_=self._run.requests.seen):
            save_and_leave(self._run)
        return self._save_periodically("script")

    def between_epochs(self) -> None:
        """An epoch is done, and another one follows."""
        progress = self._run.progress
        asked, self._save_at_epochs_end = self._save_at_epochs_end, False
        if asked:
            self.save()
        if self._run.schedule.after_epoch(progress.epochs_done) and not progress.saved:
            self._save_periodically("epoch")

    def at_once(self, kind: CheckpointCall, *, exit_: bool = False) -> bool:
        """Whether all leave, as they say right here."""
        agreed = self._run.agreement.at_once(self._run.progress.step, kind, Votes(exit=exit_))
        self.exhausted = self.exhausted or agreed.exhausted
        return agreed.exit

    def _check(self, kind: CheckpointCall, *, exhausted: bool = False) -> bool:
        """Whether a checkpoint is due for all; does not return if the ranks have agreed to leave."""
        run, progress = self._run, self._run.progress
        self._trace_request()
        by_the_clock = kind is CheckpointCall.STEP and run.schedule.by_the_clock()
        agreed = run.agreement.check(progress.step, kind, Votes(run.requests.seen, by_the_clock, exhausted))
        self.exhausted = self.exhausted or agreed.exhausted
        if agreed.exit and not progress.at_goal(self.goal):
            save_and_leave(run)
        if agreed.exit and not progress.saved:
            self._save_periodically("goal")  # what is left of the last epoch may take longer than there is time
        return agreed.save

    def _trace_request(self) -> None:
        """Once, with the time at which the request was seen rather than that of this check."""
        request = self._run.requests.current
        if request and not self._request_traced:
            self._request_traced = True
            at, step = time.time() - (time.monotonic() - request.at), self._run.progress.step
            self._run.trace.event("request-seen", t=at, step=step, cause=request.cause)

    def _save_periodically(self, reason: str) -> bool:
        run, progress = self._run, self._run.progress
        with run.pulse.paused():
            done = run.checkpointer.periodic(progress.position(), reason)
        if done:
            progress.saved = True
            run.schedule.saved()
            run.tell_commit()
        return done
