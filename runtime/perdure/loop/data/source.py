"""Hands out an epoch's batches, one at a time, and keeps its position.

Everything that may happen to a run happens while a source is asked for its next batch: the source calls the session
before it hands anything out, and the session may not return. So nothing is handed out before it is requested.

Subclasses define the batches. The session owns the sources, saves their cursors and reports when a step is done.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from perdure.errors import UserError
from perdure.loop.data.holders import counted_from, draws_from, is_repeated, limit_and_drawn_before

T = TypeVar("T")


class BatchHooks(Protocol):
    """What a source calls on its session."""

    @property
    def epoch(self) -> int | None:
        """The epoch being trained; None outside `epochs()`."""
        ...

    def begin_pass(self, source: Source[Any]) -> None:
        """`source` is about to be iterated."""
        ...

    def batch_requested(self, source: Source[Any]) -> None:
        """The script requests the next batch. There is one, but it is not drawn yet."""
        ...

    def draw_begins(self, source: Source[Any]) -> None:
        """The batch is drawn next. No rank waits for another one until it is handed out."""
        ...

    def batch_handed_out(self, source: Source[Any]) -> None:
        """A batch goes to the script."""
        ...

    def end_pass(self, source: Source[Any]) -> None:
        """`source` has nothing more to hand out in this epoch, or the script has `left` its loop."""
        ...

    def warn(self, words: str) -> None:
        """Warns people about what training does not depend on; rank 0 prints it."""
        ...


class Source(ABC, Generic[T]):
    """One pass an epoch over `end` units, `unit` of them at a time. Units that a step has used are consumed."""

    evaluates: ClassVar[bool] = False
    """Whether no step ever uses its batches: see perdure.loop.data.evaluating."""

    def __init__(self, name: str, session: BatchHooks, *, end: int, unit: int) -> None:
        self.name = name
        self.end = end
        self.unit = unit
        self.consumed = 0
        """Units of this epoch that finished steps have used."""
        self.handed_out = 0
        """Units of this epoch that were handed out."""
        self.trains = False
        """Whether a step has ever used its batches. Otherwise it is an evaluation, and leaves no trace."""
        self.walking = False
        """Whether a loop over it is running."""
        self.left = False
        """Whether the script has left its last loop before the end, and may begin another."""
        self.batch_index = 0
        """Batches of this epoch that were handed out before this process resumed it."""
        self.limit: int | None = None
        """After how many batches of an epoch the script's loop ends, if a construct around this source limits it."""
        self.taken: int | None = None
        """How many batches the script has taken of the last epoch that no other process had begun."""
        self._rest: int | None = None
        """How many it has taken of the epoch that this process resumed."""
        self._ran_out = False
        """Whether it has taken that epoch to its end."""
        self._ended = False
        self._redraw = False
        """Whether the rest has to be drawn again, from `consumed` on."""
        self._session = session
        self._pass: weakref.ref[Iterator[T]] | None = None
        self._looked: set[str] = set()
        """Checks that are made only once."""
        self._ends_after: int | None = None
        """After how many batches a construct of the script's ends its loop, as found with what zip() draws before."""

    @abstractmethod
    def _draw(self, epoch: int) -> Iterator[tuple[int, T]]:
        """Draws the rest of the epoch from `consumed` on, lazily: where each batch ends, and the batch."""

    @abstractmethod
    def cursor(self, epoch: int) -> dict[str, Any]:
        """What a commit records."""

    @abstractmethod
    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position that a cursor stands for. UserError if this source cannot continue from it."""

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(range(0, self.end, self.unit))

    def __str__(self) -> str:
        return f"loader {self.name!r}"

    @property
    def remaining(self) -> int:
        """Batches of this epoch that are not handed out yet."""
        return len(range(self.handed_out, self.end, self.unit))

    @property
    def pending(self) -> int:
        """Batches that were handed out and belong to no finished step."""
        return len(range(self.consumed, self.handed_out, self.unit))

    @property
    def over(self) -> bool:
        """Whether finished steps have used the whole epoch."""
        return self.consumed >= self.end

    def __iter__(self) -> Iterator[T]:
        epoch = self._session.epoch
        if epoch is None:
            raise UserError(f"{self} is iterated outside `for epoch in session.epochs(n)`: iterate it in there")
        if self._ended and self.trains:
            raise UserError(
                f"{self} is at the end of its epoch: it is trained once an epoch; evaluate with a loader of another "
                f"name, or with a DataLoader of your own; to repeat a shorter dataset while a longer one lasts, use "
                f"torch.utils.data.ConcatDataset([dataset] * times)"
            )
        walk = self._walk(epoch)
        self._pass = weakref.ref(walk)
        return walk

    def advance(self) -> list[int]:
        """A step is done: what was handed out is consumed. Returns the sample ids it used."""
        self.trains = self.trains or self.handed_out > self.consumed
        self.consumed = self.handed_out
        return []

    def rewind(self, consumed: int = 0) -> None:
        """Continue at a position in the next epoch."""
        self.consumed = self.handed_out = consumed
        self.batch_index = len(range(0, consumed, self.unit))
        self.trains = self.trains or consumed > 0
        self.left = self._ended = False

    def forget(self) -> None:
        """Discards batches that no step consumed."""
        self.handed_out, self._ended = self.consumed, False

    def end_epoch(self) -> None:
        """An epoch is over. Warns if the script's own count has started at zero again in a resumed epoch: it has taken
        as many batches of its rest as of a whole epoch. Where it has taken all that was left, any reason could have
        ended a whole epoch early, so two of them have to agree."""
        taken, before = len(range(0, self.handed_out, self.unit)), self.taken
        if not self.trains or not taken:
            return
        if self.batch_index:
            self._rest, usual, self._ran_out = taken - self.batch_index, before, taken == len(self)
        else:
            self.taken = usual = taken
        if usual is None or self._rest is None or usual >= len(self) or "limit" in self._looked:
            return
        two_agree = usual == before and not self.batch_index
        if (self._rest <= usual and two_agree) if self._ran_out else self._rest == usual:
            self._looked.add("limit")
            self._session.warn(f"{self}: the script takes {self._counted(self._rest, usual)}")

    def look_at_limit(self, *, joins: bool) -> None:
        """Judges once the construct that ends the script's loop after so many batches, as `refuse_late_place` has found
        it, and warns if that count starts at zero in a resumed epoch. UserError if this process `joins` ranks that have
        counted the epoch's first batches."""
        found = self._ends_after
        if self._look("islice") is None or found is None:
            return
        before = self.batch_index
        if before and found < len(self) and (self.limit is None or found != self.limit - before):
            self._looked.add("limit")
            words = f"{self} is resumed at batch {before}, and the script takes {self._counted(found, found)}"
            if joins:
                raise UserError(words)
            self._session.warn(words)
        elif before:
            return
        self.limit = found

    def _counted(self, batches: int, usual: int) -> str:
        return (
            f"{batches} batches of it from there, where an undisturbed run takes {usual} of the whole epoch, by "
            f"islice(), zip(), range() or its own count: {self.remedy(usual)}"
        )

    def remedy(self, batches: int) -> str:
        """What a script does that takes only so many batches of an epoch."""
        return f"take {batches} - loader.batch_index instead"

    def refuse_late_place(self, streams: Callable[[], Mapping[str, Any]]) -> None:
        """UserError if zip() draws from a registered stream before this source: if the run stops here, that stream is
        one item ahead, and the item is lost.

        `streams` are the registered things with a position, by name. The error names the first.
        """
        walk = self._look("zip")
        if walk is None:
            return
        self._ends_after, before = limit_and_drawn_before(walk)
        for name, thing in streams().items() if before else ():
            if any(draws_from(one, thing) for one in before):
                raise UserError(
                    f"{name!r} comes before {self} in zip(), so zip() takes its item first: if the run stops there, a "
                    f"resumed run loses that item: put {self} first"
                )

    def _walk(self, epoch: int) -> Iterator[T]:
        if self.walking:
            raise UserError(f"{self} is being iterated already: leave that loop first, or give a second one a name")
        if self.left and self.pending:
            self._warn_of_peek()
        self.walking, self.left, self.handed_out = True, False, self.consumed
        try:
            self._session.begin_pass(self)
            yield from self._hand_out(epoch)
        except GeneratorExit:
            self.walking, self.left = False, True
            self._session.end_pass(self)
            raise
        finally:
            self.walking = False
        self._ended = True
        self._warn_of_repetition()
        self._session.end_pass(self)

    def _hand_out(self, epoch: int) -> Iterator[T]:
        batches, self._redraw = self._draw(epoch), False
        while self.handed_out < self.end:
            self._session.batch_requested(self)
            self._settle(epoch)
            if self._redraw and not self.pending:
                batches, self._redraw = self._draw(epoch), False
            self._session.draw_begins(self)
            self.handed_out, batch = next(batches)
            self._session.batch_handed_out(self)
            self._warn_of_count()
            yield batch

    def _settle(self, epoch: int) -> None:
        """The next batch is about to be drawn: for a source that decides with the other ranks what it is."""

    def save_is_due(self, epoch: int) -> None:
        """A checkpoint is made next, before the next batch is drawn: for a source that decides what that is."""

    def check_step(self) -> None:
        """The script says that a step is done. UserError if what was handed out makes no step."""

    def _warn_of_repetition(self) -> None:
        """Warns if itertools.cycle repeats it; called at its end, where a cycle begins again."""
        walk = self._look("cycle") if self.trains else None
        if walk is not None and is_repeated(walk):
            self._session.warn(
                f"{self} is repeated by itertools.cycle: the batches that cycle keeps are in no checkpoint, so a run "
                f"that resumes in the middle of an epoch does not get them; give it as many as the epoch has steps"
            )

    def _warn_of_peek(self) -> None:
        """The script has taken a batch, has not stepped on it, and begins another loop."""
        if self.batch_index and self.consumed == self.batch_index * self.unit and "peek" not in self._looked:
            self._looked.add("peek")
            self._session.warn(
                f"{self} is resumed at batch {self.batch_index}, and the script takes a batch before its loop: it is "
                f"another one than in the run that began the epoch; if more than messages depends on it, take it from "
                f"the dataset"
            )

    def _warn_of_count(self) -> None:
        """Warns if the script's enumerate() counts a resumed epoch from 0: only the script knows what depends on the
        number."""
        walk = self._look("enumerate") if self.batch_index else None
        if walk is not None and counted_from(walk) == 0:
            self._session.warn(
                f"{self} is resumed at batch {self.batch_index}, and the script's enumerate() counts from 0: if more "
                f"than messages depends on the number, write enumerate(loader, loader.batch_index)"
            )

    def _look(self, what: str) -> Iterator[T] | None:
        """The current pass, the first time that `what` is asked for."""
        if what in self._looked or self._pass is None:
            return None
        self._looked.add(what)
        return self._pass()
