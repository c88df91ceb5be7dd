"""Where training stands: steps, epoch loops, and each source's position in the epoch.

A commit records this as its position, and a resumed run begins from it. Does no I/O and talks to no other rank. Owned
by the session: perdure.session.boundary reports requests for batches to it, and perdure.session.job the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from perdure.errors import UserError
from perdure.log.position import Position
from perdure.loop.adapting.decision_list import DecisionHistory
from perdure.loop.adapting.statistical_progress import StatisticalProgress
from perdure.loop.data.evaluating import KIND as EVALUATION
from perdure.loop.data.evaluating import Evaluation, ScriptPosition
from perdure.loop.data.loader import Loader
from perdure.loop.data.reading import KIND as READER
from perdure.loop.data.source import Source
from perdure.loop.position.accumulating import Sums
from perdure.loop.position.counting import NAME as STEPS
from perdure.loop.position.datasets import Datasets
from perdure.loop.position.stopping import Goal
from perdure.state.rng import Generators

LOOPS: Final = "epochs"
"""The name for the epoch loop in a position, beside the loaders' cursors."""
LOOP_KIND: Final = "loop"
RESERVED: Final = frozenset({LOOPS, STEPS})
"""Names that no loader can have."""

OWN_LOADER: Final = (
    "nothing of this epoch was handed out by the session, so no position in it could be saved: iterate "
    "session.loader(dataset, batch_size), or `for i in session.steps(n)` around samples of your own"
)


class ProgressTracker:
    """One rank's progress. It is equal on all ranks, except for the random state."""

    def __init__(self) -> None:
        self.step = 0
        """Optimizer steps done."""
        self.epochs_done = 0
        """Finished epochs, of all loops."""
        self.polls = 0
        """Polls of the script in this process."""
        self.epoch: int | None = None
        """The epoch being trained, counted over all loops; None outside `epochs()`."""
        self.epoch_resumed = False
        """Whether an earlier run began the present epoch."""
        self.saved = False
        """Whether a commit holds exactly this position."""
        self.sums = Sums()
        self.decisions = DecisionHistory()
        self.won = StatisticalProgress()
        self.generators = Generators(self.sums)
        self.datasets = Datasets()
        self.loop = 0
        """Number of the current or last epoch loop, in the order in which the script makes them."""
        self.loop_epochs = 0
        """Finished epochs of that loop."""
        self._loop_goal: Mapping[str, Any] = {}
        self.loop_ended: tuple[str, ...] = ()
        """Why that loop ended before its last epoch, if it did."""
        self._loops_begun = 0
        """Epoch loops that this process's script has begun."""
        self._evaluated_at: ScriptPosition | None = None
        """Where the last pass over an evaluation began."""
        self._sources: dict[str, Source[Any]] = {}
        self._resumed: dict[str, Any] = {}
        self._current: Source[Any] | None = None
        self._aside: dict[str, Callable[[], None]] = {}
        """How to restore the state from when a loop over a source began that may turn out to be an evaluation."""
        self._around: dict[str, Source[Any]] = {}
        """The source of the batch that the script is working on, by the source that it iterates within it."""
        self._beside = False
        """True while a hook runs that a resumed run does not call here."""
        self._pace = StepPace()
        self._unlike_told = False

    @property
    def kept(self) -> tuple[Sums, Datasets, DecisionHistory, StatisticalProgress]:
        """What a checkpoint holds of it beside the position."""
        return self.sums, self.datasets, self.decisions, self.won

    def source(self, name: str) -> Source[Any] | None:
        """The loader of this name, if there is one."""
        return self._sources.get(name)

    @property
    def sources(self) -> list[Source[Any]]:
        """The sources that the script has made."""
        return list(self._sources.values())

    def add(self, source: Source[Any]) -> None:
        """Adds a source, and gives it the position in the checkpoint."""
        self._sources[source.name] = source
        self._place(source)

    # Positions.

    def resume(self, position: Position) -> None:
        """Continues from a commit."""
        self.step, self.epochs_done, self.saved = position.step, position.epoch, True
        self._resumed = dict(position.cursors)
        loop = self._resumed.pop(LOOPS, {})
        self.loop, self.loop_epochs = int(loop.get("loop", 0)), int(loop.get("done", position.epoch))
        self._loop_goal, self.loop_ended = loop.get("goal", {}), tuple(loop.get("ended", ()))
        for source in self._sources.values():
            self._place(source)

    def share(self, rank: int, world: int) -> None:
        """From the next batch on the sources hand out the share of this rank in this world."""
        for source in self._sources.values():
            if isinstance(source, Loader):
                source.share(rank, world)

    @property
    def batch_mesh(self) -> Any:
        """The mesh whose ranks get different samples, of the first loader with one; None if no loader has any."""
        loaders = (source for source in self._sources.values() if isinstance(source, Loader))
        return next((loader.mesh for loader in loaders if loader.mesh is not None), None)

    def position(self) -> Position:
        """The position that a commit made now would record."""
        made = {name: source.cursor(self.epochs_done) for name, source in self._sources.items()}
        return Position(self.step, self.epochs_done, self._resumed | made | {LOOPS: self._loop_cursor()})

    def _loop_cursor(self) -> dict[str, Any]:
        cursor: dict[str, Any] = {"kind": LOOP_KIND, "loop": self.loop, "done": self.loop_epochs}
        if self._loop_goal:
            cursor["goal"] = dict(self._loop_goal)
        if self.loop_ended:
            cursor["ended"] = list(self.loop_ended)
        return cursor | ({"epoch_rest": "pending"} if self.in_rest else {})

    def _place(self, source: Source[Any]) -> None:
        cursor = self._resumed.get(source.name)
        if cursor is not None and isinstance(source, Evaluation):
            source.put(cursor)
        elif cursor is not None:
            source.rewind(source.resume(cursor, self.epochs_done))
        self.datasets.place(source)

    # Loops and epochs.

    def epochs_before(self, number: int) -> int:
        """Epochs that were finished before the script's loop `number`; 0 if training is past that loop."""
        if number < self.loop:
            return 0
        return self.epochs_done - (self.loop_epochs if number == self.loop else 0)

    def begin_loop(self, number: int, goal: Goal) -> bool:
        """The script's loop `number` begins; False if an earlier run has finished it."""
        self._loops_begun = number + 1
        self.generators.release()  # they are held after an evaluation
        self.sums.begin_loop(number)
        if number < self.loop:
            return False
        if number > self.loop:
            self.loop, self.loop_epochs, self.loop_ended = number, 0, ()
        elif self.loop_ended and goal.within(self._loop_goal):
            return False
        self._loop_goal, self.loop_ended = goal.limits(), ()
        return True

    def pass_loop(self, number: int) -> None:
        """The script's loop `number` has nothing to train. If the commit was made at its end, the code after it comes
        next."""
        if number == self.loop:
            self.generators.take()
            if not any(evaluation.awaits(ScriptPosition(self._loops_begun, 0)) for evaluation in self._evaluations):
                self.generators.go_on()
            self.generators.hold()

    def end_loop(self, reasons: Sequence[str]) -> None:
        """The current loop is over before its last epoch, for these reasons."""
        self.loop_ended, self.saved = tuple(reasons), False

    def part_done(self, seconds: float) -> float | None:
        """The part of the current loop that is done after `seconds` of training, from 0 to 1; None without a limit."""
        done = {
            "epochs": self.loop_epochs + self._epoch_done,
            "max_steps": self.step,
            "max_seconds": seconds,
            "max_progress": self.won.known,
        }
        parts = [done[name] / limit for name, limit in self._loop_goal.items() if name in done]
        return min(1.0, max(parts)) if parts else None

    @property
    def _epoch_done(self) -> float:
        """The part of the present epoch that steps have used."""
        ends = [(source, min(source.end, (source.limit or source.end) * source.unit)) for source in self._training]
        return max((source.consumed / end for source, end in ends if end), default=0.0)

    @property
    def between_epochs(self) -> bool:
        """Whether training is between two epochs: none is running, and none was left in the middle."""
        cursors = [*self._resumed.values(), *(source.cursor(self.epochs_done) for source in self._sources.values())]
        return self.epoch is None and not any(self._in_epoch(cursor) for cursor in cursors)

    def begin_epoch(self) -> int:
        """Begins the next epoch; returns its number within the loop."""
        self.epoch_resumed, self.epoch = not self.between_epochs, self.epochs_done
        for evaluation in self._evaluations:
            evaluation.drop(self.loop)
        self._pace = StepPace()
        if not self.epoch_resumed:
            self.generators.take()
            self.generators.go_on()
            self.generators.hold()
        self.sums.begin_epoch(self.loop)
        return self.loop_epochs

    def finish_epoch(self) -> list[tuple[Source[Any], int]]:
        """The epoch's body is done. Returns sources with batches that no step has used, and how many.

        UserError if the epoch has no step, or if the loop fetches batches ahead.
        """
        self.generators.go_on()
        self.generators.release()
        for source in self._sources.values():
            if source.pending and not source.trains:
                source.forget()
        self._pace.check_epoch(resumed=self.epoch_resumed)
        left = [(source, source.pending) for source in self._training if source.pending and not source.left]
        self.epochs_done, self.loop_epochs = self.epochs_done + 1, self.loop_epochs + 1
        self.epoch, self.epoch_resumed, self.saved = None, False, False
        self._resumed = {name: cursor for name, cursor in self._resumed.items() if cursor.get("kind") == READER}
        for source in self._sources.values():
            source.end_epoch()
            source.rewind()
        self.sums.finish_epoch()
        self.generators.hold()  # a resumed run would execute the code after a loop's last epoch again from here
        return left

    @property
    def accumulates_ahead(self) -> bool:
        """Whether the steps of the epoch that is done look like those of a loop that fetches ahead and accumulates."""
        return self._pace.accumulates_ahead

    @property
    def batch_index(self) -> int:
        """Batches handed out before the present epoch was resumed, by the source in whose middle that was."""
        indexes = [(source.over, source.batch_index) for source in self._trainable if source.batch_index]
        cursor = self._resumed.get(STEPS, {})
        if STEPS not in self._sources and self._in_epoch(cursor):  # it is only made where its loop begins
            indexes.append((False, int(cursor["consumed"])))
        return min(indexes, default=(False, 0))[1]

    @contextmanager
    def beside(self, what: str, *, may_read: bool) -> Iterator[None]:
        """A hook runs that a resumed run does not call here, so nothing in it can be repeated.

        `what`: its name. `may_read`: whether it may read accumulators.
        """
        before, self._beside = self._beside, True
        try:
            with self.sums.beside(what, may_read=may_read):
                yield
        finally:
            self._beside = before

    # Batches and steps.

    @property
    def _trainable(self) -> Iterator[Source[Any]]:
        return (source for source in self._sources.values() if not source.evaluates)

    @property
    def _evaluations(self) -> Iterator[Evaluation]:
        return (source for source in self._sources.values() if isinstance(source, Evaluation))

    @property
    def _training(self) -> Iterator[Source[Any]]:
        return (source for source in self._sources.values() if source.trains)

    @property
    def clean(self) -> bool:
        """Whether steps have used everything that was handed out for training."""
        return not any(source.pending for source in self._training)

    @property
    def step_in_work(self) -> int:
        """The step whose batches the script has, or else the last finished one."""
        works = any(source.pending for source in list(self._training) or self._trainable)
        return self.step + 1 if works else self.step

    @property
    def in_rest(self) -> bool:
        """Whether the epoch's body has nothing left to do but to end."""
        training = list(self._training)
        return (
            self.epoch is not None and bool(training) and all(source.over and not source.walking for source in training)
        )

    @property
    def may_save(self) -> bool:
        """Whether a run that stopped here would lose no batch, and train or evaluate none twice."""
        if self._beside or any(one.counts and one.walking and one.pending for one in self._evaluations):
            return False
        return self.clean and not any(source.left and not source.over for source in self._training)

    @property
    def may_leave(self) -> bool:
        """Whether a run that stops here, between two batches, continues as if it had not stopped. After a loop's goal
        it does not leave."""
        behind_loop = self.epoch is None and self._loops_begun > 0 and self._evaluated_at != self._here
        return self.may_save and self.generators.held and not behind_loop

    @property
    def other_calls(self) -> int:
        """What grows or changes, beside the steps, while the script uses its session. From any thread."""
        return self.polls + self.epochs_done + sum(source.handed_out for source in self.sources)

    @property
    def doing(self) -> str:
        """What the script does between two calls of the session, to follow "rank 0". From any thread."""
        source = self._current
        if source is not None and source.walking and not source.trains and (source.evaluates or any(self._training)):
            return f"evaluates with {source} after step {self.step}"
        return f"has the batch of step {self.step + 1}" if not self.clean else f"has done step {self.step}"

    def begin_pass(self, source: Source[Any]) -> None:
        """A loop over `source` begins."""
        if self._current and self._current is not source and self._current.walking:
            self._around[source.name] = self._current
        if isinstance(source, Evaluation):
            self._begin_evaluation(source)
        elif source.consumed:
            self.generators.take()
        elif not source.trains:
            self._aside[source.name] = self.generators.aside()
        if not source.trains:
            self.sums.begin_evaluation()

    def batch_requested(self, source: Source[Any]) -> bool:
        """The script requests a batch of `source`. Returns whether the run may stop here."""
        if isinstance(source, Evaluation):
            return self._evaluation_batch_requested(source)
        for other in self._trainable:
            if other is not source and other.pending and not (other.walking or other.trains):
                other.forget()
        counting = list(self._training) or list(self._trainable)
        if source not in counting or any(other.pending for other in counting):
            return False
        self.sums.settle()
        if source.consumed:  # otherwise the code before its loop runs again, also if another loop is over
            self.generators.release()
        return True

    def batch_handed_out(self, source: Source[Any]) -> None:
        """`source` hands out a batch."""
        self._current = source
        if isinstance(source, Evaluation):
            self._handed_evaluation(source)
            return
        if source.trains or not any(self._training):
            self.generators.go_on()
            self.generators.release()
        self._pace.batch_handed_out(source)

    def end_pass(self, source: Source[Any]) -> None:
        """A loop over `source` is over."""
        bring_back, around = self._aside.pop(source.name, None), self._around.pop(source.name, None)
        if around and not source.trains:  # the script's next loss is that of the outer batch
            self._current = around
        if isinstance(source, Evaluation):
            source.finish()
        if (source.trains and self.clean) or (isinstance(source, Evaluation) and self._stands_at(source)):
            self.generators.hold()
        elif bring_back and not source.trains:  # it was an evaluation, which a resumed run would repeat
            bring_back()

    # Evaluations with a position.

    @property
    def _here(self) -> ScriptPosition:
        if self.epoch is None:
            return ScriptPosition(self._loops_begun, 0)
        return ScriptPosition(self.loop, self.epoch + 1)

    def _begin_evaluation(self, source: Evaluation) -> None:
        here, first = self._here, self._here != self._evaluated_at
        resumed = source.resumed and source.place == here
        within = self._beside or any(other.walking for other in self._sources.values() if other is not source)
        source.enter(here, self.epochs_done, counts=not within)
        if within:
            return
        self._evaluated_at = here
        if source.consumed or (resumed and first and self.epoch is None):
            self.generators.take()
        fresh = not self.generators.held or (first and self.epoch is None)  # at a loop's end they are held, too
        if fresh and self._stands_at(source):
            self.generators.hold()

    def _stands_at(self, source: Evaluation) -> bool:
        """Whether its pass stands alone, and nothing that was resumed comes later in the script."""
        if not source.counts or any(other.awaits(self._here) for other in self._evaluations if other is not source):
            return False
        if self.epoch is None:
            return not self.step or self._loops_begun > self.loop
        return not any(other.consumed and not (other.over or other.left) for other in self._training)

    def _evaluation_batch_requested(self, source: Evaluation) -> bool:
        source.settle()
        if not self._stands_at(source) or not self.may_save:
            return False
        if source.consumed:
            self.generators.release()
        return True

    def _handed_evaluation(self, source: Evaluation) -> None:
        if self._stands_at(source):
            self.saved = False
            self.generators.go_on()
            self.sums.hand_out()

    def finish_step(self) -> list[int]:
        """A step is done with all batches handed out since the last one; returns their sample ids."""
        self._check_step()
        self._pace.step(self._sources)
        self.step += 1
        self.saved = False
        self.generators.go_on()
        self.generators.release()  # not released with the batch if this is the loader's first step
        self.sums.finish_step()
        self._aside.clear()
        ids: list[int] = []
        for source in self._sources.values():
            ids += source.advance()
        return ids

    def unlike_shares(self) -> tuple[str, ...]:
        """The loaders of this step's batches if this rank's shares of these batches differ, once in a process; ()
        otherwise."""
        if self._unlike_told:
            return ()
        current = {
            source.name: source.current.weight
            for source in self._sources.values()
            if isinstance(source, Loader) and source.trains and source.pending and source.current
        }
        self._unlike_told = len(set(current.values())) > 1
        return tuple(current) if self._unlike_told else ()

    def weighted(self, loss: Tensor) -> Tensor:
        """The loss, weighted by this rank's share of the last batch: zero for a rank without a sample."""
        share = self._current.current if isinstance(self._current, Loader) else None
        weight = share.weight if share else 1.0
        if weight == 1.0:
            return loss
        return loss * weight if weight else torch.nan_to_num(loss) * 0.0

    def _check_step(self) -> None:
        if self.epoch is None:
            raise UserError("step() is called outside of an epoch: call it in `for epoch in session.epochs(n)`")
        if (limit := self._loop_goal.get("max_progress")) is not None and not self.won.counts:
            raise UserError(
                f"epochs: max_progress is {limit!r}, and no loader of this session counts "
                f"progress: give one adapt=perdure.Adapt(...), with up_to=batch_size for a batch that stays"
            )
        for name, cursor in self._resumed.items():
            if name not in self._sources and cursor.get("kind") != EVALUATION and self._in_epoch(cursor):
                raise UserError(
                    f"the checkpoint was made in the middle of epoch {self.epochs_done} of loader {name!r}, which the "
                    f"script has not made: keep its name, or use another root"
                )
        if not any(source.handed_out for source in self._trainable):
            raise UserError(f"step(): {OWN_LOADER}")
        for source in self._sources.values():
            source.check_step()

    def _in_epoch(self, cursor: Mapping[str, Any]) -> bool:
        return bool(cursor.get("consumed") or cursor.get("passes")) and cursor.get("epoch") == self.epochs_done


class StepPace:
    """Tells whether an epoch's steps follow its batches, or the loop fetches batches ahead.

    A batch that waits in the script when the run stops would count as trained. That cannot be seen at the time. But a
    loop that fetches ahead makes its last steps when nothing is left to hand out. If gradients accumulate over several
    batches, its first step gets more of them than the others, and the last ones, behind the loop, lack as many.
    """

    _MOST_STRETCHES: Final = 8

    def __init__(self) -> None:
        self._stretches: list[tuple[tuple[int, bool], int]] = []
        """The steps in a row that were alike: batches of each, whether all loops were over, and how many steps."""
        self._batches = 0
        self._steps = 0
        self._fresh = 0
        self._late = 0
        self._early = 0

    def batch_handed_out(self, source: Source[Any]) -> None:
        """A batch goes to the script."""
        self._fresh += 1
        self._batches += source.trains or not self._steps

    def step(self, sources: Mapping[str, Source[Any]]) -> None:
        """A step is done."""
        self._steps += 1
        passes_over = not any(source.walking for source in sources.values())
        self._note(self._fresh, passes_over)
        if not self._fresh:
            self._late, self._early = self._late + passes_over, self._early + (not passes_over)
        self._fresh = 0

    def check_epoch(self, *, resumed: bool) -> None:
        """UserError if the steps have not followed the batches."""
        if not self._steps and not resumed:
            raise UserError(
                "an epoch has ended without a step(): call session.step() after each optimizer.step(); what only "
                "evaluates needs no epochs()"
            )
        if self._late and not self._early and self._steps == self._batches > 1:
            raise UserError(
                "the loop fetches batches before it trains on them: what waits in the script when the run stops would "
                "count as trained; use the loader's num_workers and prefetch_factor instead"
            )

    def _note(self, batches: int, passes_over: bool) -> None:
        alike = batches, passes_over
        if self._stretches and self._stretches[-1][0] == alike:
            self._stretches[-1] = alike, self._stretches[-1][1] + 1
        elif len(self._stretches) < self._MOST_STRETCHES:
            self._stretches.append((alike, 1))

    @property
    def accumulates_ahead(self) -> bool:
        """Whether the loop may fetch ahead and accumulate. One that takes its first step a batch late looks alike."""
        if not 3 <= len(self._stretches) < self._MOST_STRETCHES:
            return False
        ((first, _), once), ((each, over), _), *last = self._stretches
        ahead = first - each
        if once != 1 or over or ahead <= 0 or each < 2 or not all(over for (_, over), _ in last):
            return False
        left_over = sum(batches * steps for (batches, _), steps in self._stretches) % each
        lacking = sum((each - batches) * steps for (batches, _), steps in last)
        return lacking == ahead + (each - left_over if left_over else 0)
