"""A training said as its phases: `perdure.Job`. A few lines over a Session, whose life cycle it is.

init, checkpoint 0, then for each epoch: the epoch, the stop conditions, its commit; then upload, collect, exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from perdure.console import say
from perdure.errors import UserError
from perdure.session.driven import Condition, Limit, NewCommit, Report, read_resume_from
from perdure.session.functions import progress, report_every
from perdure.session.session import Session


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a training does in each of its phases; `run` does it. Every rank calls all of it, but for `collect`."""

    epoch: Callable[[int], object]
    """Trains one epoch, numbered from 1: batches of a session's loader, and `session.step()` after each step."""
    init: Callable[[], object] | None = None
    """Before checkpoint 0, where nothing is trained yet; not on a resume."""
    upload: Callable[[int], object] | None = None
    """Once, after the last epoch, with its number."""
    collect: Callable[[Iterator[tuple[str, Tensor]]], object] | None = None
    """On rank 0, once, after `upload`: name and tensor of everything registered but optimizers, one at a time."""
    exit: Callable[[], object] | None = None
    """Once, after `collect`; then the job is complete."""
    stop: Sequence[Condition | Limit] = ()
    """After an epoch, before its commit, all are asked; the job ends with the epoch after which one is true."""
    epochs: int | None = None
    """How many epochs there are at most, of all runs together."""
    reports: Sequence[tuple[float, Report]] = ()
    """Seconds, and a function that is called so often, and once more at the end: `perdure.report_every`."""

    def run(self, session: Session, *, resume_from_epoch: int | None = None) -> int:
        """Trains what is left, and returns the number of the last epoch. `collect` and `exit` come where the session
        ends, at the end of its `with`.

        Checkpoint 0 is made before the first batch, and one after each epoch, beside those of the cadence.
        `resume_from_epoch` begins after so many epochs instead of at the newest commit, once; what the job's
        `checkpoint.from` or `from_env(resume_from=...)` says counts before it. UserError, before anything is opened,
        where nothing could ever end the job; for an epoch without a commit; and for a second `run` of one session.
        """
        if resume_from_epoch is not None:
            _begin_after(session, resume_from_epoch)
        fresh = self._attach(session)
        for number in session.epochs(self.epochs, stop=self.stop):
            if fresh:
                fresh.clear()
                session.save()
            self.epoch(number + 1)
            session.save()
        if self.upload:
            self.upload(progress(session).finished_epochs)
        return progress(session).finished_epochs

    def _attach(self, session: Session) -> list[str]:
        """Gives the session the phases that are its hooks. What comes back has something in it after `init`."""
        fresh: list[str] = []
        if self.init:
            session.on("init", self.init)
        session.on("init", lambda: fresh.append("init"))
        session.on("committed", lambda commit: _say_commit(commit) if session.rank == 0 else None)
        if self.collect:
            session.on("collect", self.collect)
        if self.exit:
            session.on("exit", self.exit)
        for seconds, report in self.reports:
            report_every(session, seconds, report)
        return fresh


def _begin_after(session: Session, epoch: int) -> None:
    run = session._core.run
    if run.opening:
        raise UserError(f"run(resume_from_epoch={epoch}): training is restored already: run the job before epochs()")
    if run.settings.resume_from is None:
        run.settings = replace(run.settings, resume_from=read_resume_from({"epoch": epoch}))


def _say_commit(commit: NewCommit) -> None:
    """How long each rank took, and who took longest."""
    seconds = [sum(parts.get(part, 0.0) for part in ("stage", "upload")) for parts in commit.seconds]
    longest = f"{seconds[commit.slowest]:.2f} s on rank {commit.slowest}, {commit.members[commit.slowest].name}"
    ranks = f"{commit.world} rank" if commit.world == 1 else f"{commit.world} ranks"
    say(f"epoch {commit.epoch}, step {commit.step}: commit {commit.seq} of {ranks}, longest {longest}")
