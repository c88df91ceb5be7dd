"""`perdure.accumulator(session)`: sums over all ranks and runs of a training; no sample is lost or counted twice.

Each rank holds what it has added since the sum was last read. That is part of the rank's own state, like its random
generators, and moves with them. If a resumed run would execute some of the script's code again, a save holds the value
from before that code. Results that were read are kept too, in order, because code that is executed again reads them
again. It then gets the same results without asking other ranks.

`Sums` is pure; owned by perdure.loop.position.progress, which knows the script's position. `Accumulator` is what a
script uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from perdure.errors import UserError
from perdure.loop.position.totals import (
    Held,
    Named,
    Total,
    added,
    read,
    read_all,
    read_number,
    together,
    write,
    write_all,
)

STATE: Final = "sums"
"""The name in a checkpoint for a rank's added values and for the read ones."""
_EPOCH: Final = "epoch"
"""The place of reads in an epoch's body. Outside, the place is the number of loops begun before."""


class Sums:
    """The sums of all accumulators of one rank."""

    def __init__(self) -> None:
        self._now: Held = {}
        self._held: Held | None = None
        """The values before code that a resumed run would execute again."""
        self._stepped: Held | None = None
        """The values at the end of a step whose rest, an evaluation for example, is running."""
        self._resumed: Held | None = None
        """The values in the commit, until training continues from it."""
        self._again = True
        """Whether a resumed run would execute again what the script does now."""
        self._unsure: list[tuple[str, str]] | None = None
        """The values read, by accumulator and place, in a loop that may still turn out to be an evaluation."""
        self._beside = ""
        """The running hook, if nothing can be read in it."""
        self._in_epoch = False
        self._loops = 0
        """Loops that the script has begun."""
        self._read: dict[str, dict[str, list[dict[str, float]]]] = {}
        """The values read, by accumulator and place, where they may be read again."""
        self._reads: dict[tuple[str, str], int] = {}
        """How often this process has read it."""
        self._made: set[str] = set()
        self._even: set[str] = set()
        """Accumulators to which either all ranks had added, or none, when they were last read."""

    # Called by Progress.

    def hold(self) -> None:
        """From now on a resumed run would execute the script's code again."""
        self._held, self._stepped, self._again = self._now, None, True

    def release(self) -> None:
        """From now on a resumed run would not execute the script's code again."""
        self._held, self._again = None, False

    def take(self) -> None:
        """In a resumed run: the code that follows runs right after the commit."""
        if self._resumed is not None:
            self._now = self._resumed

    def go_on(self) -> None:
        """Training continues: the resume is over."""
        self._resumed = None

    def aside(self) -> Callable[[], None]:
        """A loop begins that trains or evaluates. Returns what restores the present state, if it turns out to
        evaluate."""
        held, again, unsure = self._held, self._again, self._unsure
        self._unsure = [] if unsure is None else unsure

        def bring_back() -> None:
            self._held, self._again, self._unsure = held, again, unsure

        return bring_back

    @contextmanager
    def beside(self, what: str, *, may_read: bool) -> Iterator[None]:
        """Runs code that a resumed run does not run here."""
        before = self._beside, self._again
        self._beside, self._again = "" if may_read else what, False
        try:
            yield
        finally:
            self._beside, self._again = before

    def finish_step(self) -> None:
        """A step is done. If the run leaves before the next batch, a resumed run does not repeat the rest of the
        step."""
        self._stepped = self._now
        for name, place in self._unsure or ():  # it was a training batch, which is not repeated
            self._read[name][place].pop()
        self._unsure = None

    def begin_evaluation(self) -> None:
        """What the script has added since the step is no part of the evaluation that follows."""
        if self._stepped is not None:
            self._stepped = self._now

    def settle(self) -> None:
        """The step and what belongs to it is done as a whole."""
        self._stepped = None

    def hand_out(self) -> None:
        """An evaluation with a position gets a batch: the script's code for it runs once."""
        self._again = False

    def begin_loop(self, number: int) -> None:
        """The script's loop `number` begins; the code after the loop before is done."""
        self._loops, self._held, self._again = number + 1, None, True

    def begin_epoch(self, loop: int) -> None:
        """An epoch of this loop begins. Values read after the loop are dropped: they would be read again, of more
        training."""
        self._in_epoch = True
        self._forget(lambda place: place.isdecimal() and int(place) > loop)
        self._reads = {key: count for key, count in self._reads.items() if key[1] != _EPOCH}

    def finish_epoch(self) -> None:
        """An epoch is done."""
        self._in_epoch, self._unsure = False, None
        self._forget(lambda place: place == _EPOCH)

    def _forget(self, over: Callable[[str], bool]) -> None:
        for places in self._read.values():
            for place in [place for place in places if over(place)]:
                del places[place]

    # Called by the script.

    def make(self, name: str) -> None:
        """There is an accumulator of this name."""
        self._made.add(name)

    def add(self, name: str, named: Named) -> None:
        """Adds to one of them."""
        self._now = {**self._now, name: added(self._now.get(name, {}), named)}

    def held_values(self, name: str) -> dict[str, Any]:
        """What this rank holds of it, as plain JSON."""
        return write(self._now.get(name, {}))

    def read_before(self, name: str) -> dict[str, float] | None:
        """What this code read when it ran before; None if it did not. UserError where it cannot be read again."""
        if self._beside:
            raise UserError(
                f"accumulator({name!r}).sum() within {self._beside}: a resumed run calls that at other places, and "
                f"what is read there would be lost, or be read twice: read it in an epoch, or in the hook 'epoch'"
            )
        if not self._again:
            return None
        count = self._reads.get((name, self._place), 0)
        known = self._read.get(name, {}).get(self._place, [])
        if count >= len(known):
            return None
        self._reads[name, self._place] = count + 1
        self._drop(name)
        return dict(known[count])

    def read_now(self, name: str, held: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The sum of what all ranks hold. They start again at 0."""
        named = together({name: read(found)} for found in held)[name]
        value = {key: named[key].value for key in sorted(named)}
        self._drop(name)
        if all(held) or not any(held):
            self._even.add(name)
        else:
            self._even.discard(name)
        if self._again:
            self._read.setdefault(name, {}).setdefault(self._place, []).append(value)
            self._reads[name, self._place] = self._reads.get((name, self._place), 0) + 1
            if self._unsure is not None:
                self._unsure.append((name, self._place))
        return dict(value)

    @property
    def _place(self) -> str:
        return _EPOCH if self._in_epoch else str(self._loops)

    def _drop(self, name: str) -> None:
        self._now = _without(self._now, name)
        if self._stepped is not None:
            self._stepped = _without(self._stepped, name)

    # What a checkpoint holds.

    @property
    def _kept(self) -> Held:
        for found in (self._resumed, self._held, self._stepped):
            if found is not None:
                return found
        return self._now

    @property
    def open(self) -> tuple[str, ...]:
        """Accumulators of which some rank may hold values that are only there, if the run stopped now."""
        kept = self._kept
        return tuple(sorted(name for name in self._made | kept.keys() if kept.get(name) or name not in self._even))

    def own(self) -> dict[str, Any]:
        """This rank's own saved values: empty if it holds nothing."""
        written = write_all(self._kept)
        return {STATE: written} if written else {}

    def resume(self, own: Mapping[str, Any]) -> None:
        """Continues from what a commit holds for this rank, as written by `own`."""
        self._resumed = read_all(own.get(STATE, {}))

    def state_dict(self) -> dict[str, Any]:
        """Values that were read and may be read again: equal on all ranks."""
        kept = {
            name: {at: list(known) for at, known in places.items()} for name, places in self._read.items() if places
        }
        return {STATE: kept} if kept else {}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores it."""
        found = saved.get(STATE, {})
        self._read = {name: {at: list(known) for at, known in places.items()} for name, places in found.items()}

    # Hand-overs.

    def tell(self) -> list[Any]:
        """What this rank would leave to another one: the present values, and those that a save would hold."""
        left = [write_all(self._now), write_all(self._kept)]
        return left if any(left) else []

    def take_place(self, left: Sequence[Any]) -> None:
        """This process replaces a rank that leaves these values, which include what this process added before."""
        now, kept = _read_left(left)
        self._now, self._stepped = now, None
        self._held = None if self._held is None else kept
        self._resumed = None if self._resumed is None else kept
        self._even.clear()

    def take_over(self, left: Sequence[Any]) -> None:
        """Another rank leaves, and this one continues with its values."""
        now, kept = _read_left(left)
        self._now = together([self._now, now])
        self._held = None if self._held is None else together([self._held, kept])
        self._resumed = None if self._resumed is None else together([self._resumed, kept])
        self._even.clear()


def _read_left(left: Sequence[Any]) -> tuple[Held, Held]:
    now, kept = left or ({}, {})
    return read_all(now), read_all(kept)


def _without(held: Held, name: str) -> Held:
    return {other: named for other, named in held.items() if other != name}


def of_all(saved: Sequence[Any]) -> dict[str, Any]:
    """What all ranks of a commit hold together, from each one's own state; written as `Sums.own` does."""
    written = write_all(together(read_all(own.get(STATE, {})) for own in saved if own))
    return {STATE: written} if written else {}


Gather = Callable[[Any, str], list[Any]]
"""Returns each rank's JSON value, by rank. The second argument names the caller. Collective."""


class Accumulator:
    """Sums by name, over all ranks and runs, since they were last read."""

    def __init__(self, name: str, sums: Sums, gather: Gather) -> None:
        """Scripts call `perdure.accumulator`."""
        self.name = name
        self._sums = sums
        self._gather = gather
        sums.make(name)

    def add(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Adds to this rank's part: `add(loss=2.5, n=16)`, or `add({"loss": 2.5})`. It is not collective.

        A value is an int, a float, or a tensor or array of one element, of which no graph is kept. UserError for
        anything else, and then nothing is added.
        """
        if values is not None and not isinstance(values, Mapping):
            raise UserError(f"{self}.add: a {type(values).__name__} has no names: give a mapping, or add(loss=...)")
        named: dict[str, Total] = {}
        for key, value in (*(values or {}).items(), *more.items()):
            if type(key) is not str:
                raise UserError(f"{self}.add: {key!r} is no name: give a string")
            named[key] = named.get(key, Total()) + read_number(value, f"{self}.add: {key!r}")
        self._sums.add(self.name, named)

    def sum(self) -> dict[str, float]:
        """What all ranks have added in all runs since it was last read, by name. Then it starts again at 0.

        Whole numbers stay whole, others are rounded once: the sums are the same in any order, on any number of ranks.
        Collective: all ranks call it equally often, at the same step, and get the same. Where a resumed run executes
        the script's code again, it returns what it returned before. UserError before anything is restored.
        """
        known = self._sums.read_before(self.name)
        if known is not None:
            return known
        held = self._gather(self._sums.held_values(self.name), f"{self}.sum")
        return self._sums.read_now(self.name, held)

    def __getitem__(self, key: str) -> Term:
        """For `scores["loss"] += 2.5`. Values can only be read by `sum()`, because no single rank has them."""
        return Term(f"{self}[{key!r}]")

    def __setitem__(self, key: str, term: Term) -> None:
        if not isinstance(term, Term) or term.what != f"{self}[{key!r}]":
            raise UserError(f"{self}[{key!r}] can only be added to: write {self}[{key!r}] += value, or add()")
        self._sums.add(self.name, {key: term.total})

    def __str__(self) -> str:
        return f"accumulator({self.name!r})"


class Term:
    """The right side of `accumulator[key] += value`."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.total = Total()

    def __iadd__(self, value: Any) -> Term:
        self.total += read_number(value, self.what)
        return self

    def __isub__(self, value: Any) -> Term:
        self.total += -read_number(value, self.what)
        return self
