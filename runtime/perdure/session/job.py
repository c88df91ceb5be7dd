"""Runs a job's epoch loops one after the other, and records when there is nothing left to train.

A loop that has reached its goal is committed at once. That the job is complete is recorded later, where the script's
work ends, because another loop or an export may follow. Called by `Session`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

from perdure.checkpoint.checkpointer import GOAL_SECONDS
from perdure.console import say
from perdure.errors import HandoverFailed, PeerLost, UserError
from perdure.loop.ending import wait_for_all
from perdure.loop.hooks import HookName
from perdure.loop.leaving import Exit, leaving_status, save_finally
from perdure.loop.position.stopping import BREAK, Goal, Limit, StopCondition, agreed
from perdure.loop.run import OWN_VALUES, Run
from perdure.loop.telemetry.events import GoalReached
from perdure.session.boundary import Boundary
from perdure.session.loop_exit import Departure, departure, loop
from perdure.state.collecting import collected
from perdure.wire import ExitKind
from perdure.wire.channel import CommitDone

_TRAINED: Final[set[tuple[str, int | None]]] = set()
"""What sessions of this process have trained to a goal: roots, with the number of the run that the process began in."""
_ONE_SESSION: Final = (
    "train several models, those of a cross validation say, in one session: register each under its own name, and give "
    "it its own loop and loader"
)


class Status(Enum):
    """What is known about the script's exit status where its work is done."""

    GOOD = 1
    EXPECTED = 2
    """The exit status will be 0. The agent sees it later, by itself."""
    UNKNOWN = 3


class EpochLoops:
    """The epoch loops of one script."""

    def __init__(self, run: Run, boundary: Boundary, restore: Callable[[], None]) -> None:
        self._run = run
        self._progress = run.progress
        self._boundary = boundary
        self._restore = restore
        self._began_in = run.settings.run
        """The number of the run that this process began in, if it was given one."""
        self.begun = 0
        """How many loops the script has begun."""
        self._trained = False
        """True if this run has begun an epoch."""
        self._raised = False
        """True if the body of a loop has raised."""
        self._unsettled = False
        """True while it is unknown how the last loop was left. If the script goes on, it was a `break`."""
        self._reached: dict[str, Any] | None = None
        """What the last loop has reached, and why it stopped early; None while a loop runs."""
        self._quiet = contextlib.ExitStack()
        """Entered between the loops, where the silence of other ranks means nothing."""
        self._passed: list[int] | None = None
        """How often each parameter had been written to when the first loop was skipped."""
        self._reported_left_over: set[str] = set()
        self._told_ahead = False
        self._evaluated: set[str] = set()
        """Names of loaders that were evaluated on outside of the loops."""
        self._reopened = False
        """True if the run continues after its goal, for an evaluation."""
        self._trouble: BaseException | None = None
        """An error from where nothing can be raised. The session's next call raises it."""
        self.goal: Goal | None = None
        """The current loop's goal."""
        boundary.begin_evaluation = self.begin_evaluation

    def epochs(self, goal: Goal, stop: Sequence[StopCondition | Limit], *, in_all: bool = False) -> Iterator[int]:
        """The epochs that are left of this loop. UserError if nothing could ever end it.

        `in_all`: the goal's epochs, and the numbers, count over all loops.
        """
        self._come_to(goal, stop)
        if self.begun == 0:
            self._run.registry.modes.begin()  # the script may have restored before, and frozen parameters since
        first = self._progress.epochs_before(self.begun) if in_all else 0
        if goal.within_epochs(first):
            return
        goal = goal.beyond(first)
        number, self.begun, self.goal = self.begun, self.begun + 1, goal
        resumed = number == self._progress.loop
        if not self._progress.begin_loop(number, goal) or self._is_over_already(goal):
            self._progress.pass_loop(number)
            self._passed = self._passed or self._run.registry.versions()
        else:
            if resumed:
                self._check_untouched()
            if not self._trained:
                self._say_first_epoch(number, first, in_all=in_all)
            self._begin()
            while not self._is_over(goal):
                epoch, consumer = self._progress.begin_epoch(), loop()
                self._boundary.begin_epoch()
                try:
                    yield first + epoch
                except GeneratorExit:
                    self._leave(departure(consumer))
                    raise
                self._end_epoch(goal)
        self._reach(goal)

    def _say_first_epoch(self, number: int, first: int, *, in_all: bool) -> None:
        """The first epoch of a resumed run, as the script counts, and what it skips."""
        progress = self._progress
        if self._run.rank != 0 or not progress.step:
            return
        epoch, loops = first + progress.loop_epochs, 0 if in_all else number
        skipped = [_counted("epoch", 0, epoch), _counted("loop", 1, loops)]
        which = f"{epoch} of loop {number + 1}" if loops else f"{epoch}"
        middle = "" if progress.between_epochs else ", in its middle"
        skips = f"; skips {' and '.join(filter(None, skipped))}" if any(skipped) else ""
        say(f"begins with epoch {which}{middle}{skips}")

    def _come_to(self, goal: Goal, stop: Sequence[StopCondition | Limit]) -> None:
        """The script begins a loop: opens the run and restores everything, unless that is done."""
        if self._boundary.has_left:
            raise Exit(leaving_status(self._run))
        if self._raised:
            raise UserError("an error has left the epoch loop before this one: let it end the script, and start again")
        if self._unsettled:
            self._settle()
        if self._progress.epoch is not None:
            raise UserError(
                "session.epochs() is called inside of an epoch: loops may follow each other, but a loop within "
                "another has no position that could be saved"
            )
        self._run.stopping.begin(goal, stop)
        if self._run.opening is None and self._began_in is not None and self._is_second:
            raise UserError(
                f"an earlier session of this process has trained to its goal at {self._run.store.uri}, and this one "
                f"has the same root and run: {_ONE_SESSION}"
            )
        self._restore()
        self._raise_trouble()
        if self._run.reporter.ended:
            raise Exit(leaving_status(self._run))

    def begin_evaluation(self, name: str) -> None:
        """An evaluation of this name begins. Outside of the loops this opens the run and restores."""
        if self._unsettled:
            self._settle()
        if self._progress.epoch is not None:
            return
        if self._boundary.has_left:
            raise Exit(leaving_status(self._run))
        self._restore()
        self._raise_trouble()
        if self._run.reporter.ended:
            raise Exit(leaving_status(self._run))
        self._evaluated.add(name)
        if self._reached is not None and not self._reopened:
            self._reopen("evaluation")
            self._reopened = True

    def _check_untouched(self) -> None:
        """UserError if the script has changed restored parameters between two loops: the checkpoint has that change
        already."""
        # Objects that were registered since come last in the list.
        if self._passed is not None and self._passed != self._run.registry.versions()[: len(self._passed)]:
            raise UserError(
                "the script has changed parameters between two epochs() loops, and this run resumes in the second: its "
                "checkpoint has that change, and what was trained since: change them only "
                "`if not session.state.get('changed')`, and then set session.state['changed'] = True"
            )

    def _is_over_already(self, goal: Goal) -> bool:
        """Whether nothing is left of the loop. An epoch that an earlier run has begun is trained to its end."""
        progress, run = self._progress, self._run
        if not progress.between_epochs:
            return False
        own = run.stopping.limits_reached(progress.step, progress.won.samples)
        reached = agreed(run.peers.gather("comes to an epoch loop", own))
        if reached:
            self._stop(reached)
        return self._is_over(goal)

    def _is_over(self, goal: Goal) -> bool:
        done, ended = self._progress.loop_epochs, self._progress.loop_ended
        return bool(ended) or (goal.epochs is not None and done >= goal.epochs)

    def finish(self, status: Status) -> None:
        """The script is done. Records completion if the last loop reached its goal. Collective."""
        if self._run.joining:
            raise HandoverFailed(
                "the script has ended before its first batch, while the living run it was to join still trains: "
                "start newcomers with the same script"
            )
        self._settle()
        if self._run.reporter.ended:
            return
        self._end_evaluations()
        if self._reached is not None:
            self._boundary.save_if_due(goal=True)  # after its last loop the script has requested one more, with a pin
        if self._reached is not None and (self._trained or not self._completed_before):
            self._collect()
        self._run.reports.end()
        if self._reached is not None:
            self._complete(status)
        elif self.begun == 0:
            self._say_nothing_trained()
        elif self._run.rank == 0:
            self._say_left()

    def _end_evaluations(self) -> None:
        """Ends the run if the script has evaluated after its last loop, or has done nothing else."""
        if self.begun == 0 and self._evaluated:
            self._end_turn()
            self._reached = {"evaluated": sorted(self._evaluated)}
        elif self._reopened and self._reached is not None:
            # The training is saved, and an evaluation can be repeated. Only a pin is still to be made.
            self._progress.saved = self._run.checkpointer.pin is None
            self._end_turn()

    @property
    def _completed_before(self) -> bool:
        """Whether an earlier run has recorded that the job is complete."""
        return self._run.opening is not None and self._run.opening.goal is not None

    def _collect(self) -> None:
        """Runs the hooks for the end of the training. Only rank 0 needs the trained state."""
        run = self._run
        if run.rank == 0 and run.hooks.has(HookName.COLLECT):
            run.hooks.run(HookName.COLLECT, collected(run.state(), leave_out=OWN_VALUES))
        run.hooks.run(HookName.EXIT)

    def _settle(self) -> None:
        """The script has left a loop early, as by `break`, and continues after it. Collective."""
        self._unsettled = False
        if self._progress.epoch is not None and not self._raised and self._trouble is None:
            self._break()
        self._raise_trouble()

    def _say_left(self) -> None:
        """Warns about a script that ends within its epoch loop as if it were done."""
        commit = self._run.checkpointer.commit
        say(
            f"the script has ended in its epoch loop at step {self._progress.step}, by sys.exit() or an error it has "
            f"caught: nothing was saved there, the next run begins "
            f"{f'after step {commit.step}' if commit else 'afresh'}; to be done, leave the loop by "
            f"session.stop(reason) or break, and leave SIGTERM to the session"
        )

    def _say_nothing_trained(self) -> None:
        if self._run.rank == 0:
            say("the script has no epochs(): nothing is trained, and nothing is completed")
            if self._run.opening:
                self._run.checkpointer.close("nothing-trained")

    def _complete(self, status: Status) -> None:
        run, left = self._run, self._time_for_goal()
        wait_for_all(run)
        run.heartbeat.stop()
        run.tell(GoalReached(self._progress.step))
        reports = run.peers.gather(
            "has done its work", {"unknown": status is Status.UNKNOWN, "result": run.result.value}
        )
        run.share_result(reports[0]["result"])
        if any(found["unknown"] for found in reports):
            self._say_not_recorded()
        else:
            run.checkpointer.complete(self._reached, self._progress.position(), left)
        if status is Status.GOOD:
            run.tell(run.ending(ExitKind.COMPLETED))
        run.checkpointer.write_trace(left)
        run.checkpointer.retire()

    def _say_not_recorded(self) -> None:
        if self._run.rank == 0:
            say(
                "the script ends by SystemExit, with a status that only its parent process learns: the job "
                "is not recorded as complete, so another run repeats what follows the training; use `with` the session"
            )

    def _begin(self) -> None:
        """A loop begins that has something to train."""
        self._run.stopping.clock.start()
        if self._reached is not None and not self._reopened:
            self._reopen("loop")
        self._reached, self._reopened, self._trained = None, False, True

    def _reopen(self, reason: str) -> None:
        """Continues after a goal, whose commit has ended the run in the log."""
        if self._boundary.leaving:
            self._run.tell(self._run.ending(ExitKind.CHECKPOINTED))
            raise Exit(leaving_status(self._run))
        self._quiet.close()
        self._run.requests.listen()
        self._progress.saved = False
        self._boundary.save(reason)

    def _end_epoch(self, goal: Goal) -> None:
        """An epoch's body is done."""
        self._boundary.go_on()
        run, progress = self._run, self._progress
        run.hooks.run(HookName.EPOCH, progress.loop_epochs)
        own = run.stopping.reasons(progress.step, progress.won.samples)
        try:
            if run.images.lost:
                raise run.images.lost
            reasons = agreed(run.peers.gather("ends an epoch", own))
        except PeerLost:
            if not own and not run.stopping.depends_on_others:
                self._stand_behind_epoch()
            raise
        for source, left in progress.finish_epoch():
            self._tell_left_over(str(source), left)
        if progress.accumulates_ahead and not self._told_ahead:
            self._told_ahead = True
            self._boundary.warn(
                "the epoch's first step took more batches than the others, and its last ones as many less: a loop that "
                "fetches batches before it trains on them does that, and loses those that wait in the script when the "
                "run stops: use the loader's num_workers and prefetch_factor instead. If the loop fetches nothing "
                "ahead, all is well"
            )
        if reasons:
            self._stop(reasons)
        run.images.reach_safe_point(behind_epoch=True)  # what follows may take long, a save for example
        self._boundary.end_epoch()
        if self._is_over(goal):
            return
        if self._boundary.leaving:
            self._boundary.leave()
        self._boundary.save_if_due()

    def _stand_behind_epoch(self) -> None:
        """A peer is lost, but this rank has finished the epoch's body: the image is of that state."""
        with contextlib.suppress(UserError):
            self._progress.finish_epoch()
            self._run.images.reach_safe_point()

    def _leave(self, how: Departure) -> None:
        """The script has left its loop before the last epoch. If everything was saved by then, there is nothing to
        do."""
        if self._boundary.has_left:
            return
        match how:
            case Departure.BREAK:
                self._break()
            case Departure.RAISED:
                self._raised = True
            case Departure.UNKNOWN:
                self._unsettled = True

    def _stop(self, reasons: Sequence[str]) -> None:
        self._progress.end_loop(reasons)
        self._run.stopping.end()

    def _break(self) -> None:
        """The script has left its loop: the epoch counts, and the loop is over. Keeps errors, because nothing can be
        raised here."""
        run, progress, goal = self._run, self._progress, self.goal
        try:
            self._boundary.end_epoch()
            if goal is None or self._left_for_request():
                save_finally(run)
                progress.epoch = None
                self._say_not_counted()
                return
            run.hooks.run(HookName.EPOCH, progress.loop_epochs)
            reasons = agreed(run.peers.gather("has left its epoch loop", run.stopping.requested or [BREAK]))
            progress.finish_epoch()
            self._stop(reasons)
            run.images.reach_safe_point(behind_epoch=True)
            self._reach(goal)
        except BaseException as error:  # noqa: BLE001 - raised at the session's next call
            self._trouble = error

    def _say_not_counted(self) -> None:
        """Says that the epoch does not count: the script may have left its loop for the request, or because it was
        done."""
        if self._run.rank == 0:
            say(
                f"the script has left its epoch loop at step {self._progress.step} while it was asked to leave: the "
                f"epoch is not counted, and the next run goes on there; if the training was done, say so by "
                f"session.stop(reason)"
            )

    def _left_for_request(self) -> bool:
        """Whether the script has left its loop because of the request, which may also have come just then.
        Collective."""
        return self._boundary.leaving and any(
            self._run.peers.gather("has left its epoch loop, asked to leave", self._boundary.exit_seen)
        )

    @property
    def _is_second(self) -> bool:
        """Whether another session of this process has trained to a goal at this root."""
        return (self._run.store.uri, self._began_in) in _TRAINED

    def _reach(self, goal: Goal) -> None:
        """The loop has reached its goal. That takes precedence over a request to leave."""
        self.goal = None
        self._run.stopping.clock.stop()
        saved, ended = self._progress.saved, self._progress.loop_ended
        self._end_turn()
        if (
            saved and self._run.checkpointer.commit and self.begun > self._progress.loop
        ):  # otherwise a later loop was running when the commit was made
            self._say_complete()
        self._reached = {**goal.limits(), **({"stop": list(ended)} if ended else {})}

    def _end_turn(self) -> None:
        """Makes the run's last commit, unless it is made: nothing is left to train or to evaluate."""
        run, progress = self._run, self._progress
        self._reopened = False
        run.figures.ledger.does("save")
        self._quiet.enter_context(run.heartbeat.paused())
        run.requests.before_first_step(None)
        self._boundary.live_handover.goal_reached()
        run.spread_buffers()  # otherwise an evaluation or an export after the loop would have each rank's own buffers
        if not progress.saved and self._saves_goal():
            run.tell_commit(goal=True)
        elif run.checkpointer.commit:
            run.tell(CommitDone(run.checkpointer.commit, goal=True))
        if self._trained:
            _TRAINED.add((run.store.uri, self._began_in))
        self._release_requests()

    def _saves_goal(self) -> bool:
        """Makes the last commit; False if a save in progress was of this very position, and has been reported."""
        run, position = self._run, self._progress.position()
        saved_now = run.background.leave(
            position,
            self._time_for_goal(),
            lambda left: run.checkpointer.final(position, "goal", left),
            hurries=run.requests.seen,
        )
        self._progress.saved = True
        return saved_now

    def _time_for_goal(self) -> Callable[[], float]:
        run, begun = self._run, time.monotonic()

        def left() -> float:
            asked = run.requests.left()
            return GOAL_SECONDS - (time.monotonic() - begun) if asked is None else asked

        return left

    def _say_complete(self) -> None:
        if self._trained or self._run.rank != 0:
            return
        root, step = self._run.store.uri, self._progress.step
        if self._completed_before and self._is_second:
            say(
                f"already complete at {root}, step {step}: an earlier session of this process has trained it, this one "
                f"trains nothing, and what is registered has the weights of that one: {_ONE_SESSION}, or a root"
            )
        elif self._completed_before:
            say(f"already complete at {root}, step {step}: nothing is left to train")
        else:
            say(f"trained to its goal at {root}, step {step}: the code after the training runs again")

    def _tell_left_over(self, source: str, batches: int) -> None:
        if self._run.rank == 0 and source not in self._reported_left_over:
            self._reported_left_over.add(source)
            say(
                f"{source}: {batches} batches at the end of an epoch came after the last step(): they count as used, "
                f"and their gradients are in no checkpoint; step after the last batch, too: `if (i + 1) % k == 0 or "
                f"i + 1 == len(loader)`"
            )

    def _raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble

    def _release_requests(self) -> None:
        """Gives the signals back. With an agent SIGTERM stays harmless: the agent limits how long the script may go
        on."""
        if self._run.settings.report_fd is None:
            self._run.requests.release()
        else:
            self._run.requests.release_interruption()


def _counted(word: str, first: int, count: int) -> str:
    """That many of them from `first` on; "" for none."""
    last = first + count - 1
    return f"{word}s {first} to {last}" if count > 1 else f"{word} {first}" if count else ""
