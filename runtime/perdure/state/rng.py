"""The random generators of one rank: read at a commit, put back right before the first batch is fetched.

They belong to a rank, not to the job: a run of another size cannot go on with them and draws its own from
(seed, step, rank), the same ones whenever it starts from the same commit. But what all ranks draw alike is the job's: a
script may let it decide what a step does, and ranks that drew apart would wait for each other for ever. So a generator
that stands at the same place on all ranks, two at least, goes on there on all ranks of another size. Called by the
session.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch

from perdure.checkpoint.codec import checksum_of


@dataclass(frozen=True)
class Reading:
    """How those generators are read whose states take long to tell: by default, as they tell them."""

    python: Callable[[], Any] = random.getstate
    numpy: Callable[[], Any] = np.random.get_state
    """Of the one that scripts use."""


IN_FULL: Final = Reading()
EVERYWHERE: Final = frozenset({"python", "numpy", "torch"})
"""The generators that every process has."""


def capture(reading: Reading = IN_FULL) -> dict[str, Any]:
    """The generators' states, of the codec's closed set."""
    state: dict[str, Any] = {
        "python": reading.python(),
        "numpy": reading.numpy(),
        "torch": torch.get_rng_state().numpy(),
    }
    if torch.cuda.is_initialized():  # whether there is one takes a tenth of a millisecond to find out
        state["cuda"] = torch.cuda.get_rng_state().numpy()
    return state


def apply(state: dict[str, Any]) -> None:
    """Puts captured states back, of those generators that are in it."""
    if "python" in state:
        random.setstate(state["python"])
    if "numpy" in state:
        np.random.set_state(state["numpy"])
    if "torch" in state:
        torch.set_rng_state(torch.from_numpy(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]))


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn in here, training goes on as if nothing had been."""
    now = capture()
    try:
        yield
    finally:
        apply(now)


def derive(seed: int, step: int, rank: int) -> None:
    """Seeds all generators for a rank that has no state of its own to go on with."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


class Follower(Protocol):
    """What else moves as the script's code runs, and is told of the same places as the generators are."""

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def take(self) -> None: ...

    def go_on(self) -> None: ...

    def aside(self) -> Callable[[], None]: ...


class Generators:
    """Which state of the generators a save holds, and when a resumed run takes it.

    Where code of the script would run again in a resumed run, that of an epoch before its first batch say, a save
    holds what they were before that code: held by `hold`, until the next batch is asked for.
    """

    def __init__(self, *followers: Follower) -> None:
        self._resumed: Callable[[], None] | None = None
        self._held: dict[str, Any] | None = None
        self._followers = followers

    @property
    def held(self) -> bool:
        """Whether a resumed run would run again what the script does now, with the numbers that it drew."""
        return self._held is not None or self._resumed is not None

    def resume(self, apply: Callable[[], None]) -> None:
        """`apply` puts them where the commit left them."""
        self._resumed = apply

    def take(self) -> None:
        """What comes next in a resumed run comes right after its commit."""
        if self._resumed:
            self._resumed()
        for follower in self._followers:
            follower.take()

    def go_on(self) -> None:
        """Training goes on: what was resumed is behind it."""
        self._resumed = None
        for follower in self._followers:
            follower.go_on()

    def hold(self) -> None:
        """From here on the script's code would run again in a resumed run."""
        self._held = capture()
        for follower in self._followers:
            follower.hold()

    def release(self) -> None:
        """From here on it would not."""
        self._held = None
        for follower in self._followers:
            follower.release()

    def aside(self) -> Callable[[], None]:
        """What brings back whether, and what, is held just now."""
        held, followers = self._held, [follower.aside() for follower in self._followers]

        def bring_back() -> None:
            self._held = held
            for follow in followers:
                follow()

        return bring_back

    def state(self, reading: Reading = IN_FULL) -> dict[str, Any]:
        """What a save made now holds."""
        if self._resumed is None:
            return capture(reading) if self._held is None else self._held
        now = capture()
        try:
            self._resumed()
            return capture()
        finally:
            apply(now)


def going_on(saved: Any, *, seed: int, step: int, rank: int) -> Callable[[], None]:
    """How this rank's generators go on from a commit: as they were, those that are saved, and others drawn anew."""
    known = saved["rng"] if saved is not None else {}

    def go_on() -> None:
        if not known.keys() >= EVERYWHERE:
            derive(seed, step, rank)
        apply(known)

    return go_on


def sums(state: Mapping[str, Any]) -> dict[str, str]:
    """Of each generator a checksum of where it stands."""
    return {name: checksum_of(one) for name, one in state.items()}


def alike(told: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The generators that stand at the same place on all ranks, by the checksums that each has told."""
    return tuple(sorted(name for name in told[0] if len({found.get(name) for found in told}) == 1))


def of_other_world(saved: Sequence[Any]) -> dict[str, Any] | None:
    """What the ranks of another world go on with, from the encoded states of all that have saved."""
    if len(saved) < 2 or not all(saved):
        return None
    names = alike([sums(found["rng"]) for found in saved])
    return all_alike(saved[0], names) if names else None


def all_alike(own: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The part of a rank's own state that is not its own: all have it alike."""
    return {"rng": {name: own["rng"][name] for name in names}, "asked": []}


def of_lost_rank(left: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    """What a rank goes on with whose own state is lost, from the encoded states of those that are left.

    Where a generator, one of `names`, drew the same numbers on all ranks when they began, and does on those that are
    left, it did so on this one.
    """
    rng = left[0]["rng"]
    same = {name: rng[name] for name in names if all(found["rng"].get(name) == rng.get(name) for found in left)}
    return {"rng": same, "asked": left[0]["asked"]}
