"""How a run begins from an image that a lost run has left: it becomes this run's first commit, and is resumed as such.

Each rank says what its pod has kept; which of it counts is decided while the run is opened (perdure.log.images).
One rank writes the tensors, every rank that was one of the lost run its own state. Then nothing of it is special any
more: whoever resumes, in this run or a later one, reads a commit. Called by the session's `restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.image_file import Image
from perdure.checkpoint.upload import Staged, without_tensors
from perdure.console import say
from perdure.errors import Corrupt
from perdure.group.peers import Peers
from perdure.log.entry import ImageRef
from perdure.log.images import Offer, Stamp, holder_of
from perdure.log.position import Position

OfLost = Callable[[Sequence[Any], Collection[str]], Any]
"""A lost rank's own state, encoded: from those of the others, and the random generators that all had alike."""


class Inheritance:
    """What the ranks of a run that begins have of the one before it."""

    def __init__(self, peers: Peers, held: Path | None) -> None:
        """Collective; `held` is where this rank's agent keeps an image, if it does."""
        self._peers = peers
        self._image = _read(held) if held else None
        label = self._image.label if self._image else None
        told = peers.gather({"stamp": vars(label.stamp), "crc": label.crc} if label else None)
        self.offers: Sequence[Offer] = [
            Offer(rank, Stamp(**found["stamp"]), found["crc"]) for rank, found in enumerate(told) if found
        ]

    def commit(self, image: ImageRef, checkpointer: Checkpointer, of_lost: OfLost, seconds: float) -> int:
        """Makes the image the run's first commit; how many ranks the lost run had.

        Collective; StorageError if that does not succeed for so long.
        Then the run has to end: its Opened says that it begins there. `of_lost` makes up for what a lost rank alone
        had.
        """
        staged, position = self._staged(image, of_lost)
        checkpointer.commit_first(staged, position, f"image of run {image.run}", seconds)
        if self._peers.rank == 0:
            say(f"goes on from the image that run {image.run} has left, step {position.step}")
        self._image = None  # its memory is needed
        return next(offer.stamp.world for offer in self.offers if offer.stamp.run == image.run)

    def _staged(self, image: ImageRef, of_lost: OfLost) -> tuple[Staged, Position]:
        """This rank's part of the commit, and its position. Collective."""
        peers, own = self._peers, self._image
        mine = own if own and (own.label.stamp.run, own.label.stamp.step) == (image.run, image.step) else None
        holder = holder_of(image, self.offers)
        told = peers.gather(_described(mine, tensors=peers.rank == holder))
        same_world = told[holder]["stamp"]["world"] == peers.world
        state = _own_state(told, peers.rank if same_world else None, told[holder]["ranks"], of_lost)
        objects = told[holder]["objects"] if peers.rank == 0 else None
        position = Position(**told[holder]["position"])
        if mine and peers.rank == holder:
            return Staged(peers.rank, peers.world, mine.size, mine.items, state, objects, mine.blocks), position
        return without_tensors(peers.rank, peers.world, state, objects), position


def _described(image: Image | None, *, tensors: bool) -> dict[str, Any] | None:
    """What all ranks have to know of one rank's image; `tensors`: it is the one whose tensors count."""
    if image is None:
        return None
    label = image.label
    told: dict[str, Any] = {"stamp": vars(label.stamp), "state": image.state, "alike": label.alike}
    if not tensors:
        return told
    return {**told, "objects": image.objects, "position": vars(label.position), "ranks": label.ranks}


def _own_state(told: Sequence[dict[str, Any] | None], rank: int | None, known: Sequence[Any], of_lost: OfLost) -> Any:
    """The state that is this rank's alone, or what there is of one that is lost, or that there never was."""
    left = {found["stamp"]["rank"]: found for found in told if found}
    if rank in left:
        return left[rank]["state"]
    if rank is not None and known:
        return known[rank]
    names = {name for found in left.values() for name in found["alike"]}
    return of_lost([found["state"] for found in left.values()], names)


def _read(held: Path) -> Image | None:
    try:
        return Image(held)
    except (Corrupt, OSError) as error:
        say(f"the newest commit counts: {error}")
        return None
