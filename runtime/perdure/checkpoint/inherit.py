"""Begins a run from a lost run's image: the image becomes this run's first commit, which the run then resumes.

Each rank offers what its pod kept; opening the run chooses among them (perdure.log.images). One rank writes the
tensors; of a sharded model one rank for each part of them, and for several if its pod has mirrored another one's. Every
rank with an image writes its own state. After that it is an ordinary commit.

If a pod that has ended has committed its image (perdure.checkpoint.rescue), no other image of that place is needed. But
that pod knew the own states of its ranks alone, and other ranks' images have theirs. Called by the session's `restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.codec import decode
from perdure.checkpoint.image_file import Image, joined, read_images
from perdure.checkpoint.state import Loaded
from perdure.checkpoint.upload import Staged, without_tensors
from perdure.console import say
from perdure.errors import Corrupt
from perdure.group.peers import Peers
from perdure.log.entry import ImageRef
from perdure.log.images import ImageOffer, holders_of
from perdure.log.position import Position
from perdure.wire.codec import from_json

OfLost = Callable[[Sequence[Any], Collection[str]], Any]
"""Makes up a lost rank's own state, encoded, from those of the others and the names of the generators that all
shared."""


class Inheritance:
    """The images that the ranks of a new run have of an earlier run."""

    def __init__(self, peers: Peers, held: Sequence[Path]) -> None:
        """Collective. `held` are the files of the images that this rank's agent has kept."""
        self._peers = peers
        self._images = [image for image in _read(held) if _fits(image, peers.world)]
        offered = peers.gather("offers an image", [asdict(image.offer(peers.rank)) for image in self._images])
        self.offers: Sequence[ImageOffer] = [from_json(ImageOffer, offer) for offer in chain.from_iterable(offered)]

    def commit(self, image: ImageRef, checkpointer: Checkpointer, of_lost: OfLost, seconds: float) -> int:
        """Commit the image as the run's first commit; returns the lost run's number of ranks.

        Collective. Raises StorageError after `seconds` without success; then the run has to end, because its Opened
        entry says that it begins there. `of_lost` makes up the states of lost ranks.
        """
        staged, position = self._staged(image, of_lost)
        checkpointer.commit_first(staged, position, f"image of run {image.run}", seconds)
        if self._peers.rank == 0:
            say(f"goes on from the image that run {image.run} has left, step {position.step}")
        self._images = []  # their memory is needed
        return next(offer.stamp.world for offer in self.offers if offer.stamp.run == image.run)

    def own_state(self, loaded: Loaded) -> Any:
        """This rank's own state where this commit was made, as an image of that rank has it; None if there is none.
        Collective."""
        peers, place = self._peers, (loaded.run, loaded.commit.step)
        if loaded.world != peers.world or all(offer.place != place for offer in self.offers):
            return None
        here = [image for image in self._images if image.label.stamp.place == place]
        own = [(image.label.stamp.rank, image.state) for image in here if image.label.position == loaded.position]
        found = dict(chain.from_iterable(peers.gather("tells of ranks' own states", own)))
        return decode(found[peers.rank]) if peers.rank in found else None

    def _staged(self, image: ImageRef, of_lost: OfLost) -> tuple[Staged, Position]:
        """This rank's part of the commit, and its position. Collective."""
        peers = self._peers
        here = [own for own in self._images if own.label.stamp.place == (image.run, image.step)]
        holders = holders_of(image, self.offers)
        mine = {own.label.part: own for own in here if holders[own.label.part] == peers.rank}
        said = [_described(own, tensors=own is mine.get(0)) for own in here]
        found = list(chain.from_iterable(peers.gather("tells of an image", said)))
        first = next(one for one in found if "objects" in one)
        same_world = first["stamp"]["world"] == peers.world
        state = _own_state(found, peers.rank if same_world else None, first["ranks"], of_lost)
        objects = first["objects"] if peers.rank == 0 else None
        position = Position(**first["position"])
        if not mine:
            return without_tensors(peers.rank, peers.world, state, objects), position
        size, items, pieces = joined([mine[part] for part in sorted(mine)])
        return Staged(peers.rank, peers.world, size, items, state, objects, pieces), position


def _described(image: Image, *, tensors: bool) -> dict[str, Any]:
    """One image for all ranks; `tensors`: what is equal on all ranks is taken from it."""
    label = image.label
    body: dict[str, Any] = {"stamp": vars(label.stamp), "state": image.state, "alike": label.alike}
    if not tensors:
        return body
    return {**body, "objects": image.objects, "position": vars(label.position), "ranks": label.ranks}


def _own_state(images: Sequence[dict[str, Any]], rank: int | None, known: Sequence[Any], of_lost: OfLost) -> Any:
    """This rank's own state: from its image, from what another image knows of it, or made up."""
    left = {found["stamp"]["rank"]: found for found in images}
    if rank in left:
        return left[rank]["state"]
    if rank is not None and known:
        return known[rank]
    names = {name for found in left.values() for name in found["alike"]}
    return of_lost([found["state"] for found in left.values()], names)


def _fits(image: Image, world: int) -> bool:
    """Whether what the image says of its rank alone counts in a world of this size."""
    stamp = image.label.stamp
    if not image.label.bound or stamp.world == world:
        return True
    say(
        f"the image of run {stamp.run}, step {stamp.step} is left out: accumulators hold values of each of "
        f"{stamp.world} ranks, and this run has {world}"
    )
    return False


def _read(held: Sequence[Path]) -> Iterator[Image]:
    for path in held:
        try:
            yield from read_images(path)
        except (Corrupt, OSError) as error:
            say(f"an image is left out: {error}")
