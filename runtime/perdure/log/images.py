"""Which image a run may begin from instead of the newest commit. Pure.

When a member is lost, the others stop after the last step that all finished, which may be in no commit. Each leaves an
image with its agent, for the pod's next trainer. A higher step does not make an image newer: another run may have begun
from an older commit since, and passed that step in another way. So an image counts only if it is on the path to the
state of the run that opened last.

A lower step does not make an image older either: a run that could not use the newest commit has begun behind it. So a
commit counts against the images of its own run and of earlier ones. Every later run that could use it is past it.

The image of a rank of a sharded model holds a part of the state. It counts only together with images of all other parts
at the same step. A rank that lost another one just before its optimizer stepped has left two images
(perdure.loop.last_step), so the newest step of which all parts are there counts.

Called by perdure.log.writer while it opens a run. The choice is recorded in its Opened entry for the run after it.
That is also why a run with a recorded image commits it before it trains, or ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.log.entry import ImageRef


@dataclass(frozen=True)
class Stamp:
    """The training and the step of an image."""

    uid: str
    run: int
    step: int
    rank: int
    """The rank in that run."""
    world: int
    """The number of ranks of that run."""

    @property
    def place(self) -> tuple[int, int]:
        """Its run and step."""
        return self.run, self.step


@dataclass(frozen=True)
class CommitStamp:
    """The training, the run and the step of a commit."""

    uid: str
    run: int
    step: int


@dataclass(frozen=True)
class ImageOffer:
    """The image that a rank of the next run has."""

    holder: int
    """The rank of the next run that has it."""
    stamp: Stamp
    crc: str
    """Checksum of what is equal on all ranks that hold the same part at one step."""
    part: int = 0
    """Which part of the state it holds. Ranks that hold the same shards have the same part."""
    parts: int = 1
    """How many parts there are; 1 if each rank holds the whole state."""
    layout: str = ""
    """Checksum of which shards of which tensors there are, equal on all ranks at one step."""
    bound: bool = False
    """Whether it counts only together with images of all ranks."""

    @property
    def place(self) -> tuple[int, int]:
        """Its run and step."""
        return self.stamp.place


@dataclass(frozen=True)
class Begun:
    """An opened run, and what it began from."""

    run: int
    took_over: int | None = None
    """The run that it took over live."""
    at: int = 0
    """The step of that take-over."""
    image: ImageRef | None = None
    """The image that it began from."""


@dataclass(frozen=True)
class ImageChoice:
    """What the next run begins from."""

    image: ImageRef | None = None
    """None: the newest commit."""
    why: str = ""
    """Why an offered image is not used, for people."""


def choose(
    offers: Sequence[ImageOffer], *, uid: str, line: Sequence[Begun], committed: CommitStamp | None
) -> ImageChoice:
    """The image for the next run. `line` are the earlier runs, the newest first.

    `committed` is the newest commit whose entry can be read.
    """
    good = [offer for offer in offers if admissible(offer.stamp, uid=uid, line=line, committed=committed)]
    if not good:
        return ImageChoice(why=_why_none(offers, uid=uid, line=line, committed=committed))
    places = sorted({offer.place for offer in good}, reverse=True)
    best = next((place for place in places if not _missing(good, place)), None)
    if best is None:
        return ImageChoice(why=_why_not_whole(good, places[0]))
    there = [offer for offer in good if offer.place == best]
    sums, kinds = {(offer.part, offer.crc) for offer in there}, {(offer.parts, offer.layout) for offer in there}
    if len(sums) > there[0].parts or len(kinds) > 1:
        return ImageChoice(why=f"the ranks of run {best[0]} have come apart: their images of step {best[1]} differ")
    return ImageChoice(ImageRef(*best))


def whole_steps(offers: Sequence[ImageOffer]) -> set[int]:
    """The steps of which all parts are offered."""
    return {place[1] for place in {offer.place for offer in offers} if not _missing(offers, place)}


def _missing(offers: Sequence[ImageOffer], place: tuple[int, int]) -> int:
    """How many parts of the state of this run and step no offer holds; how many ranks' own states, if one is bound."""
    there = [offer for offer in offers if offer.place == place]
    if any(offer.bound for offer in there):
        return there[0].stamp.world - len({offer.stamp.rank for offer in there})
    return max(offer.parts for offer in there) - len({offer.part for offer in there})


def _why_not_whole(offers: Sequence[ImageOffer], place: tuple[int, int]) -> str:
    (run, step), missing = place, _missing(offers, place)
    parts = next(offer.parts for offer in offers if offer.place == place)
    return f"of {parts} parts of the image of run {run}, step {step} no member has {missing}"


def holders_of(image: ImageRef, offers: Sequence[ImageOffer]) -> list[int]:
    """The ranks that commit the image, by part: the lowest of the lost run each, because unequal state is taken from
    rank 0. Of two that have the same image, the one that it was made by, if it has its number still."""
    found = sorted((offer for offer in offers if offer.place == (image.run, image.step)), key=_rank, reverse=True)
    holders = {offer.part: offer.holder for offer in found}
    return [holders[part] for part in range(found[0].parts)]


def _rank(offer: ImageOffer) -> tuple[int, bool]:
    return offer.stamp.rank, offer.holder != offer.stamp.rank


def admissible(stamp: Stamp, *, uid: str, line: Sequence[Begun], committed: CommitStamp | None) -> bool:
    """Whether the image is in no commit and on the path of the newest run of `line`."""
    if stamp.uid != uid or _is_in(committed, stamp, line):
        return False
    origin = _origin(stamp, line)
    return any(run == origin and (at is None or stamp.step <= at) for run, at in _way(line))


def _is_in(committed: CommitStamp | None, stamp: Stamp, line: Sequence[Begun]) -> bool:
    """Whether the commit, or what it was made from, holds the image's step."""
    if committed is None or committed.uid != stamp.uid:
        return False  # runs of an earlier training are all earlier
    return committed.run >= _origin(stamp, line) and committed.step >= stamp.step


def _origin(stamp: Stamp, line: Sequence[Begun]) -> int:
    """The run that trained the step; a run that took over at that step holds the same state."""
    took_over = {begun.run: begun.took_over for begun in line if begun.took_over and begun.at == stamp.step}
    run = stamp.run
    while found := took_over.get(run):
        run = found
    return run


def _way(line: Sequence[Begun]) -> Iterator[tuple[int, int | None]]:
    """The runs on the path of the newest one, each with its last step on that path; None for any step.

    A run that was taken over has trained, so the image that it began from is in a commit.
    """
    known = {begun.run: begun for begun in line}
    run, at = (line[0].run if line else 0), None
    while run:
        yield run, at
        begun = known.get(run)
        if begun and begun.took_over:
            run, at = begun.took_over, begun.at
        elif begun and begun.image:
            run, at = begun.image.run, begun.image.step
        else:
            return


def _why_none(offers: Sequence[ImageOffer], *, uid: str, line: Sequence[Begun], committed: CommitStamp | None) -> str:
    """Why the best offer is not admissible; "" without offers."""
    if not offers:
        return ""
    stamp = max((offer.stamp for offer in offers), key=lambda stamp: (stamp.uid == uid, stamp.run, stamp.step))
    what = f"the image of run {stamp.run}, step {stamp.step}"
    if stamp.uid != uid:
        return f"{what} is of another job"
    if _is_in(committed, stamp, line):
        return f"{what} is in a commit"
    if not line:
        return f"{what} is of a run that the log does not know"
    return f"{what} is not on the way to where run {line[0].run} stood"
