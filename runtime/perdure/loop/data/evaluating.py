"""A loader for evaluation: any number of passes, each with a position; no step uses its batches.

A pass counts if the script makes it by itself, in an epoch or outside of the epoch loops. A resumed run then skips the
passes that are done, in the order in which the script makes them, and continues the one that was interrupted. A pass
within another loop's batch is part of the work on that batch, and always runs from its beginning to its end.

Made by `Session.loader(train=False)`; perdure.loop.position.progress tells it where the script is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from perdure.errors import UserError
from perdure.loop.data.loader import Loader

KIND: Final = "evaluation"
"""`kind` of its cursor; `order` is the kind of the samples' order."""


class ScriptPosition(NamedTuple):
    """Where a script is. Later places compare as greater."""

    loop: int
    """Epoch loops that the script has begun before this place."""
    epoch: int
    """0 right before that loop; within it, 1 more than the finished epochs of all loops."""


BEGINNING: Final = ScriptPosition(0, 0)


class Evaluation(Loader):
    """This rank's batches of each pass."""

    evaluates: ClassVar[bool] = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As a Loader."""
        super().__init__(*arguments, **options)
        self.place = BEGINNING
        """The place of the last pass that counted."""
        self.passes = 0
        """Passes that are done at that place."""
        self.resumed = False
        """Whether an earlier run left it at that place, and the script has not been there since."""
        self.counts = False
        """Whether the current or last pass counts."""
        self._position = 0
        """The position in the pass after those."""
        self._begun: tuple[ScriptPosition, int] = BEGINNING, 0
        """Passes that this process has begun at a place."""
        self._order = 0
        self._skipped = False
        """Whether an earlier run has made the current pass."""

    def __iter__(self) -> Iterator[Any]:
        return self._walk(0)

    def put(self, cursor: Mapping[str, Any]) -> None:
        """Continues from a commit. UserError if that is not possible."""
        if cursor.get("kind") != KIND:
            if cursor.get("consumed"):
                raise UserError(
                    f"{self}: the checkpoint was made in the middle of an epoch that trains on it: make it without "
                    f"train=False until the epoch is over, or use another root"
                )
            return
        place, position = ScriptPosition(*cursor["place"]), {**cursor, "kind": cursor["order"]}
        self._position = self.plan.resume(position, position["epoch"])
        self.place, self.passes, self.resumed = place, int(cursor["passes"]), True

    def cursor(self, epoch: int) -> dict[str, Any]:  # noqa: ARG002 - it has its own place
        """What a commit records."""
        found = self.plan.cursor(self.place.epoch - 1, self._position)
        return found | {"kind": KIND, "order": found["kind"], "place": list(self.place), "passes": self.passes}

    def awaits(self, place: ScriptPosition) -> bool:
        """Whether an earlier run left it at this place or a later one, which the script has not reached yet."""
        return self.resumed and self.place >= place

    def drop(self, loop: int) -> None:
        """An epoch of this loop begins: evaluations after the loop were made too early."""
        if self.place.loop > loop:
            self.place, self.passes, self._position, self.resumed = ScriptPosition(loop, 0), 0, 0, False

    def enter(self, place: ScriptPosition, order: int, *, counts: bool) -> None:
        """A pass begins there, in the order of the epoch `order`."""
        self.counts, self._order = counts and place >= self.place, order
        if not counts:
            return self._start(0)
        if self._begun[0] != place:
            self._begun = place, 0
        number = self._begun[1]
        self._begun = place, number + 1
        if place > self.place:
            self.place, self.passes, self._position, self.resumed = place, 0, 0, False
        if place < self.place:
            return self._start(self.end)
        if number < self.passes:
            self.resumed = number + 1 < self.passes or self._position > 0
            return self._start(self.end)
        self.resumed = False
        return self._start(self._position)

    def settle(self) -> None:
        """The script requests the next batch: it is done with those before."""
        self.consumed = self.handed_out
        if self.counts:
            self._position = self.consumed

    def finish(self) -> None:
        """The pass is over, or the script has left it."""
        if self.counts and not self._skipped:
            self.passes, self._position = self.passes + 1, 0

    def advance(self) -> list[int]:
        """No step uses its batches."""
        return []

    def rewind(self, consumed: int = 0) -> None:
        """An epoch is over. Passes keep their own positions."""
        self.current, self._ids = None, []
        self.left = self._ended = False
        self.consumed = self.handed_out = consumed

    def _start(self, consumed: int) -> None:
        self._skipped = consumed >= self.end
        self.consumed = self.handed_out = consumed

    def _draw(self, epoch: int) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        return super()._draw(self._order)
