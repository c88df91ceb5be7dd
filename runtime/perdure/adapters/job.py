"""`perdure.Job`: a training described by its phases, on top of a Session.

The phases are init and checkpoint 0; for each epoch the epoch, the stop conditions and its commit; then upload, collect
and exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from perdure.errors import UserError
from perdure.session.driven import Limit, NewCommit, ReportFunction, StopCondition, read_resume_from, say
from perdure.session.functions import progress, report_every
from perdure.session.session import Session


@dataclass(frozen=True, kw_only=True)
class Job:
    """The functions of a training's phases; `run` calls them. Every rank calls all of them, except `collect`."""

    epoch: Callable[[int], object]
    """Trains one epoch, numbered from 1: batches of a session's loader, and `session.step()` after each step."""
    init: Callable[[], object] | None = None
    """Called before checkpoint 0 of a new training; not on a resume."""
    upload: Callable[[int], object] | None = None
    """Called once, after the last epoch, with its number."""
    collect: Callable[[Iterator[tuple[str, Tensor]]], object] | None = None
    """Called once, on rank 0, after `upload`, with name and tensor of everything registered except optimizers."""
    exit: Callable[[], object] | None = None
    """Called once, after `collect`; then the job is complete."""
    stop: Sequence[StopCondition | Limit] = ()
    """Conditions checked after each epoch, before its commit. The job ends when one is true."""
    epochs: int | None = None
    """The largest number of epochs, counted over all runs."""
    reports: Sequence[tuple[float, ReportFunction]] = ()
    """Pairs of an interval in seconds and a function called in that interval and at the end: `perdure.report_every`."""

    def run(self, session: Session, *, resume_from_epoch: int | None = None) -> int:
        """Train the remaining epochs, and return the number of the last one. `collect` and `exit` run at the end of the
        session's `with` block.

        Checkpoint 0 is made before the first batch, and another one after each epoch, in addition to the periodic ones.
        `resume_from_epoch` starts once after that epoch instead of at the newest commit; the job's `checkpoint.from` or
        `from_env(resume_from=...)` takes precedence. Raises UserError before anything is opened if nothing could ever
        end the job, if the epoch has no commit, and for a second `run` with the same session.
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
        """Register the phases that are session hooks. The returned list is filled when the `init` hooks run."""
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
    """Print the commit, and how long its slowest rank took."""
    seconds = [sum(parts.get(part, 0.0) for part in ("stage", "upload")) for parts in commit.seconds]
    longest = f"{seconds[commit.slowest]:.2f} s on rank {commit.slowest}, {commit.members[commit.slowest].name}"
    ranks = f"{commit.world} rank" if commit.world == 1 else f"{commit.world} ranks"
    say(f"epoch {commit.epoch}, step {commit.step}: commit {commit.seq} of {ranks}, longest {longest}")
