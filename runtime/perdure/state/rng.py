"""The random generators of one rank: read at a commit, restored right before the first batch is fetched.

They belong to a rank, not to the job: a run of another size cannot continue with them, and seeds its own from (seed,
step, rank), the same ones whenever it starts from the same commit. But draws that are equal on all ranks belong to the
job. A script may use them to decide what a step does, and ranks with different draws would then wait for each other
forever. So a generator in the same state on all ranks, two at least, continues on all ranks of a run of another size.
Called by the session.
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
    """How to read generators whose states take long to read; by default in full."""

    python: Callable[[], Any] = random.getstate
    numpy: Callable[[], Any] = np.random.get_state
    """Reads the generator that scripts use."""


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
    if torch.cuda.is_initialized():  # asking whether there is a device takes a tenth of a millisecond
        state["cuda"] = torch.cuda.get_rng_state().numpy()
    return state


def apply(state: dict[str, Any]) -> None:
    """Restores captured states, of the generators that are in it."""
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
    """Draws in the block do not affect training."""
    now = capture()
    try:
        yield
    finally:
        apply(now)


def derive(seed: int, step: int, rank: int) -> None:
    """Seeds all generators for a rank without a saved state."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


class Follower(Protocol):
    """Something else that changes as the script's code runs, and follows the same calls as the generators."""

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def take(self) -> None: ...

    def go_on(self) -> None: ...

    def aside(self) -> Callable[[], None]: ...


class Generators:
    """Decides which state of the generators a save holds, and when a resumed run takes it.

    If a resumed run would execute some of the script's code again, such as that of an epoch before its first batch, a
    save holds the state from before that code. `hold` keeps that state until the next batch is requested.
    """

    def __init__(self, *followers: Follower) -> None:
        self._resumed: Callable[[], None] | None = None
        self._held: dict[str, Any] | None = None
        self._followers = list(followers)

    def follow(self, follower: Follower) -> None:
        """Adds one."""
        self._followers.append(follower)

    @property
    def held(self) -> bool:
        """Whether a resumed run would execute again what the script does now, with the same random numbers."""
        return self._held is not None or self._resumed is not None

    def resume(self, apply: Callable[[], None]) -> None:
        """`apply` restores the commit's states."""
        self._resumed = apply

    def take(self) -> None:
        """In a resumed run: the code that follows runs right after the commit."""
        if self._resumed:
            self._resumed()
        for follower in self._followers:
            follower.take()

    def go_on(self) -> None:
        """Training continues: the resume is over."""
        self._resumed = None
        for follower in self._followers:
            follower.go_on()

    def hold(self) -> None:
        """From now on a resumed run would execute the script's code again."""
        self._held = capture()
        for follower in self._followers:
            follower.hold()

    def release(self) -> None:
        """From now on a resumed run would not execute the script's code again."""
        self._held = None
        for follower in self._followers:
            follower.release()

    def aside(self) -> Callable[[], None]:
        """Returns what restores the present held state."""
        held, followers = self._held, [follower.aside() for follower in self._followers]

        def bring_back() -> None:
            self._held = held
            for follow in followers:
                follow()

        return bring_back

    def state(self, reading: Reading = IN_FULL) -> dict[str, Any]:
        """What a save made now would hold."""
        if self._resumed is None:
            return capture(reading) if self._held is None else self._held
        now = capture()
        try:
            self._resumed()
            return capture()
        finally:
            apply(now)


def going_on(saved: Any, *, seed: int, step: int, rank: int) -> Callable[[], None]:
    """How this rank's generators continue from a commit: the saved ones as they were, the others seeded."""
    known = saved["rng"] if saved is not None else {}

    def go_on() -> None:
        if not known.keys() >= EVERYWHERE:
            derive(seed, step, rank)
        apply(known)

    return go_on


def sums(state: Mapping[str, Any]) -> dict[str, str]:
    """A checksum of each generator's state."""
    return {name: checksum_of(one) for name, one in state.items()}


def alike(by_rank: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The generators in the same state on all ranks, by each rank's checksums."""
    return tuple(sorted(name for name in by_rank[0] if len({found.get(name) for found in by_rank}) == 1))


def of_other_world(saved: Sequence[Any]) -> dict[str, Any] | None:
    """What the ranks of another world continue with, from the encoded states of all ranks in the checkpoint."""
    if len(saved) < 2 or not all(saved):
        return None
    names = alike([sums(found["rng"]) for found in saved])
    return all_alike(saved[0], names) if names else None


def all_alike(own: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The part of a rank's own state that is equal on all ranks."""
    return {"rng": {name: own["rng"][name] for name in names}, "asked": []}


def of_lost_rank(left: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    """What a rank continues with whose own state is lost, from the encoded states of the remaining ranks.

    If a generator among `names` drew the same numbers on all ranks at the beginning, and still does on the remaining
    ranks, it did so on the lost one too.
    """
    rng = left[0]["rng"]
    same = {name: rng[name] for name in names if all(found["rng"].get(name) == rng.get(name) for found in left)}
    return {"rng": same, "asked": left[0]["asked"]}
