"""The random generators of one rank: read at a commit, restored right before the first batch is fetched.

They belong to a rank, not to the job: a run of another size cannot continue with them, and seeds its own from (seed,
step, rank), the same ones whenever it starts from the same commit. But draws that are equal on all ranks belong to the
job. A script may use them to decide what a step does, and ranks with different draws would then wait for each other
forever. So a generator in the same state on all ranks, two at least, continues on all ranks of a run of another size.

Ranks that split the work on one share of a batch, as in tensor parallelism, may need equal draws among themselves, for
a dropout of what each of them has whole. So another size or mesh seeds by (seed, step, share) instead, which without
such ranks is the same. A generator that was in different states on ranks of one share is seeded by rank there, too.
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

from perdure.checkpoint.codec import checksum_of, decode


@dataclass(frozen=True)
class Reading:
    """How to read generators whose states take long to read; by default in full."""

    python: Callable[[], Any] = random.getstate
    numpy: Callable[[], Any] = np.random.get_state
    """Reads the generator that scripts use."""


IN_FULL: Final = Reading()
EVERYWHERE: Final = frozenset({"python", "numpy", "torch"})
"""The generators that every process has."""
SHARE: Final = "share"
"""The key in a rank's own state for the number of its share of a batch, and how many there are. Commits of older
versions do not have it."""
APART: Final = "apart"
"""The key in what ranks of another world continue with for the generators that ranks of one share have apart."""


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


@dataclass(frozen=True)
class DrawingPlace:
    """Where a rank is among those that draw."""

    rank: int
    share: int
    """The number of its share of a batch, on which others may work with it."""


def derive(seed: int, step: int, place: DrawingPlace, apart: Collection[str] = ()) -> None:
    """Seeds all generators for a rank without a saved state: by its share, and those that are `apart` by its rank."""

    def number(name: str) -> int:
        where = place.rank if name in apart else place.share
        return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{where}".encode()).digest()[:8], "big")

    random.seed(number("python"))
    np.random.seed(number("numpy") % 2**32)
    torch.manual_seed(number("torch"))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number("cuda"))


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


def go_on_from(saved: Any, *, seed: int, step: int, place: DrawingPlace) -> None:
    """This rank's generators continue from a commit: the saved ones as they were, the others seeded."""
    known = saved or {"rng": {}}
    if not known["rng"].keys() >= EVERYWHERE:
        derive(seed, step, place, known.get(APART, ()))
    apply(known["rng"])


def in_mesh(own: Any, ranks: Sequence[Any], share: Sequence[int]) -> Any:
    """What a rank continues with, from its own state in the checkpoint and the encoded ones of all its ranks, in as
    many ranks, where it has this share of a batch: its number, and how many there are.

    Its own state, if it had this share, or if no rank says which one it had. If there were as many shares, but this
    rank had another one or its state is lost: what the ranks of this share drew alike. Where all have one share,
    what they drew alike is in a lost state, too.
    """
    if own.get(SHARE) == share:
        return own
    said = [found for found in ranks if found and SHARE in found]
    if any(found[SHARE][1] != share[1] for found in said):
        return decode(of_other_world(ranks))
    unlike = _unlike(said) | set(own.get(APART, ()))
    drawn: Mapping[str, Any] = next((found["rng"] for found in said if found[SHARE] == share), {})
    if share[1] == 1:
        unlike |= drawn.keys() - own["rng"].keys()
    taken = decode({name: one for name, one in drawn.items() if name not in unlike})
    return {**own, "rng": {**own["rng"], **taken}, **_apart(unlike)}


def sums(state: Mapping[str, Any]) -> dict[str, str]:
    """A checksum of each generator's state."""
    return {name: checksum_of(one) for name, one in state.items()}


def alike(by_rank: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The generators in the same state on all ranks, by each rank's checksums."""
    return tuple(sorted(name for name in by_rank[0] if len({found.get(name) for found in by_rank}) == 1))


def unlike_in_shares(by_rank: Sequence[tuple[Mapping[str, str], int]]) -> tuple[str, ...]:
    """The generators in different states on ranks of one share, by each rank's checksums and the number of its
    share."""
    firsts: dict[int, Mapping[str, str]] = {}
    pairs = [(found, firsts.setdefault(share, found)) for found, share in by_rank]
    return tuple(sorted({name for found, first in pairs for name in found if found[name] != first.get(name)}))


def of_other_world(saved: Sequence[Any]) -> dict[str, Any] | None:
    """What the ranks of another world or mesh continue with, from the encoded states of all ranks in the
    checkpoint."""
    if len(saved) < 2 or not all(saved):
        return None
    known = {name for found in saved for name in found.get(APART, ())}
    return elsewhere(saved[0], alike([sums(found["rng"]) for found in saved]), known | _unlike(saved))


def _unlike(saved: Sequence[Mapping[str, Any]]) -> set[str]:
    """The generators in different states on ranks of one share, by those that say which one they had."""
    return set(unlike_in_shares([(sums(found["rng"]), found[SHARE][0]) for found in saved if SHARE in found]))


def elsewhere(own: Mapping[str, Any], equal: Collection[str], unlike: Collection[str]) -> dict[str, Any] | None:
    """What the ranks of another world continue with: of a rank's own state the generators that are equal on all ranks,
    and the names of those that are unlike on ranks of one share. None if there is neither."""
    if not equal and not unlike:
        return None
    return {"rng": {name: own["rng"][name] for name in equal}, "asked": [], **_apart(unlike)}


def _apart(names: Collection[str]) -> dict[str, list[str]]:
    return {APART: sorted(names)} if names else {}


def of_lost_rank(left: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    """What a rank continues with whose own state is lost, from the encoded states of the remaining ranks.

    If a generator among `names` drew the same numbers on all ranks at the beginning, and still does on the remaining
    ranks, it did so on the lost one too. `in_mesh` takes the others from a rank of its share.
    """
    rng = left[0]["rng"]
    same = {name: rng[name] for name in names if all(found["rng"].get(name) == rng.get(name) for found in left)}
    return {"rng": same, "asked": left[0]["asked"], **_apart(_unlike(left))}
