"""The loader whose global batch changes: it hands out each batch in the parts that a decision says.

Its position is the same number as that of each other loader, so runs with and without `adapt` continue each other. All
ranks get rank 0's decisions, right before the first batch of a pass, where a checkpoint is due, and after a change of
ranks.

Made by `Session.loader(adapt=...)`; it knows the session only as `BatchHooks` and `PartHooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

from perdure.errors import UserError
from perdure.loop.adapting.adapt import Adapt
from perdure.loop.adapting.choosing import Here, RunMeasures, first, from_list, from_measures, warmed_up
from perdure.loop.adapting.decision import BatchDecision, read_decision
from perdure.loop.adapting.decision_list import DecisionHistory, read_decisions
from perdure.loop.adapting.parts import PartShare, PartShares, count
from perdure.loop.data.loader import Loader

DECISION = "decision"
BATCHES = "batches"
"""What its cursor has beside that of another loader."""


class PartHooks(Protocol):
    """What it calls on its session, beside BatchHooks."""

    @property
    def history(self) -> DecisionHistory:
        """The decisions of this training."""
        ...

    def measured(self) -> RunMeasures | None:
        """What the run has measured of itself; None if it does not. Collective."""
        ...

    def of_rank_0(self, decide: Callable[[], Any]) -> Any:
        """What `decide` returns on rank 0, as JSON, on all ranks. Collective."""
        ...

    def part_begins(self, part: PartShare) -> None:
        """The script gets this part next."""
        ...

    def step_done(self, worth: float) -> None:
        """A step is done, which has won so many samples of the script's own batch if no optimizer has skipped it."""
        ...

    def pass_ends(self) -> None:
        """The script gets no further part for now."""
        ...


class AdaptiveLoader(Loader):
    """This rank's share of every part of a batch, continuing where the last finished step was."""

    def __init__(self, *arguments: Any, adapt: Adapt, parts: PartHooks, **options: Any) -> None:
        """As a Loader."""
        super().__init__(*arguments, **options)
        adapt.check(str(self), self.plan.batch)
        self.adapt = adapt
        self._listed = None if adapt.decisions is None else read_decisions(adapt.decisions)
        self._parts = parts
        self._held: BatchDecision | None = None
        """The decision that counts at `consumed`, or for what was handed out since."""
        self._ahead: tuple[BatchDecision, ...] = ()
        """That one, and those that follow in this epoch."""
        self._to_decide = False
        self._used = self._fresh = self._resumed = 0
        """Parts of this epoch that finished steps have used, that were handed out since, and that are on record."""
        self._looked |= {"limit", "islice"}  # an epoch has no fixed number of batches

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions of this training so far, as JSON values: what `Adapt(decisions=...)` takes, to repeat it."""
        return [one.write() for one in self._parts.history.made]

    @property
    def rate(self) -> float:
        """What learning rates are multiplied by now."""
        if self._held is None:
            return 1.0
        if not self.adapt.warm_up:
            return self._held.rate
        samples = (self._session.epoch or 0) * self.end + self.handed_out
        return self._held.rate * warmed_up(self.adapt.warm_up, samples, self.plan.batch, self._held.batch)

    @property
    def global_batch(self) -> int:
        """Samples in a step of all ranks together now."""
        return self._held.batch if self._held else self.plan.batch

    @property
    def part(self) -> PartShare | None:
        """The part that the script is working on."""
        return cast("PartShare", self.current) if self.pending else None

    def __len__(self) -> int:
        """Parts of this epoch: those that were handed out, and those that are left if nothing else is decided."""
        return self._used + self._fresh + self.remaining

    @property
    def remaining(self) -> int:
        """Parts of this epoch that are not handed out yet."""
        here = Here(self._session.epoch or 0, self.handed_out, self._world)
        decisions = self._ahead or (first(self.plan.batch, self.adapt, here),)
        return count(decisions, here.epoch, self.handed_out, self.end)

    def beside(self) -> dict[str, Any]:
        """Arguments that are in neither the plan nor the options."""
        return super().beside() | {"adapt": self.adapt}

    def cursor(self, epoch: int) -> dict[str, Any]:
        """What a commit records."""
        found = super().cursor(epoch)
        return found | ({DECISION: self._held.write(), BATCHES: self._used} if self._held else {})

    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position that a cursor stands for. UserError if this loader cannot continue from it."""
        consumed = super().resume(cursor, epoch)
        if DECISION in cursor:
            self._held = read_decision(cursor[DECISION], f"{self}: the decision in the checkpoint")
        self._resumed = int(cursor.get(BATCHES, 0))
        return consumed

    def rewind(self, consumed: int = 0) -> None:
        """Continue at a position in the next epoch."""
        super().rewind(consumed)
        self.batch_index = self._used = self._resumed if consumed else 0
        self._fresh = 0
        self._ahead = (self._held,) if self._held else ()

    def share(self, rank: int, world: int) -> None:
        """From the next batch on it hands out the share of this rank in this world, whose ranks decide again."""
        super().share(rank, world)
        self._to_decide = True

    def check_step(self) -> None:
        """The script says that a step is done. UserError if the batch has further parts."""
        part = self.part
        if part and not part.last:
            raise UserError(
                f"{self}: this batch has {part.batch.parts} parts, and step() is called before the last one: write "
                f"`with session.micro() as last:` around forward and backward, and step the optimizer and the session "
                f"only `if last:`"
            )

    def look_at_limit(self, *, joins: bool) -> None:  # noqa: ARG002 - no count of batches starts again
        """Says once that a construct that ends the script's loop after so many items counts parts."""
        if self._ends_after is None or "parts" in self._looked or not self.adapt.accumulates:
            return
        self._looked.add("parts")
        self._session.warn(
            f"{self}: islice(), zip() or range() ends the script's loop after {self._ends_after} parts. A batch may "
            f"have several, and one that the loop breaks off makes no step. Count steps in `if last:`, and break "
            f"there; or use Adapt(accumulates=False)"
        )

    def advance(self) -> list[int]:
        """A step is done: what was handed out is consumed. Returns the sample ids it used."""
        self._used, self._fresh = self._used + self._fresh, 0
        samples = self.handed_out - self.consumed
        self._parts.step_done(self._held.worth(samples, self.plan.batch) if self._held else 0.0)
        return super().advance()

    def forget(self) -> None:
        """Discards batches that no step consumed."""
        super().forget()
        self._fresh = 0

    def _hand_out(self, epoch: int) -> Iterator[Any]:
        self._to_decide, self._fresh = True, 0
        try:
            yield from super()._hand_out(epoch)
        finally:
            self._parts.pass_ends()

    def save_is_due(self, epoch: int) -> None:
        """A checkpoint is made next. It holds what is decided here, so a run that continues from it decides nothing."""
        self._decide(Here(epoch, self.consumed, self._world, saves=True))

    def _settle(self, epoch: int) -> None:
        if self._to_decide and not self.pending:
            self._decide(Here(epoch, self.consumed, self._world))

    def _decide(self, here: Here) -> None:
        """What counts from here on. Collective."""
        self._to_decide = False
        measured = self._parts.measured() if self._listed is None else None
        told = self._parts.of_rank_0(lambda: [one.write() for one in self._decided(measured, here)])
        ahead = tuple(read_decision(one, f"{self}: the decision of rank 0") for one in told)
        self._redraw = self._redraw or ahead != self._ahead
        self._ahead = ahead
        self._reach(ahead[0])

    def _decided(self, measured: RunMeasures | None, here: Here) -> tuple[BatchDecision, ...]:
        if self._listed is not None:
            return from_list(self._listed, self._held, self.plan.batch, self.adapt, here)
        return (from_measures(measured, self._held, self.plan.batch, self.adapt, here),)

    def _reach(self, decision: BatchDecision) -> None:
        """From here on this decision counts."""
        if decision != self._held:
            self._held = decision
            self._parts.history.add(decision)

    def _shares(self, epoch: int) -> PartShares:
        order = self.plan.order(epoch)
        return PartShares(order, self._ahead, epoch, self.consumed, self.end, self._rank, self._world)

    def _draw(self, epoch: int) -> Iterator[tuple[int, Any]]:
        for stop, batch in super()._draw(epoch):
            part = cast("PartShare", self.current)
            self._reach(part.batch.decision)
            self._fresh += 1
            self._parts.part_begins(part)
            yield stop, batch
